"""The batches of several processes (ranks) that train one model: as many on each, though their events differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import distributed

from pflow.data.dataset import LabelledBatch

__all__ = ["RankLoader", "StopRequest"]


@dataclasses.dataclass
class StopRequest:
    """Whether the ranks are to end before all batches are used.

    Parameters
    ----------
    told
        Whether this rank was told to.
    agreed
        Whether all ranks know that one was told to; they learn it at the same batch.
    """

    told: bool = False
    agreed: bool = False


class RankLoader:
    """Batches of one rank, in step with those of all others.

    The ranks tell each other what their next batches hold. A rank that has none left while others have repeats one
    batch with weight 0 until all end together. Weights are proportional to n_target_particles + n_events of each rank,
    so that the averaged gradient equals that of one joint batch.

    Parameters
    ----------
    loader
        The rank's own batches.
    filler
        Makes the batch of a rank that has none; of at least one event.
    batch_size
        Most events in a batch.
    group
        The ranks, as a process group on the CPU: what is exchanged never waits for a GPU.
    ending
        What this rank was told, and what is agreed with each batch.
    """

    def __init__(
        self,
        loader: Iterable[LabelledBatch],
        *,
        filler: Callable[[], LabelledBatch],
        batch_size: int,
        group: Any,
        ending: StopRequest,
    ) -> None:
        self.loader = loader
        self.filler = filler
        self.batch_size = batch_size
        self.group = group
        self.ending = ending

    def __len__(self) -> int:
        """Number of steps in a pass, of the rank with the most batches.

        Raises
        ------
        TypeError
            It is not known beforehand.
        """
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[LabelledBatch]:
        batches = iter(self.loader)
        filler: LabelledBatch | None = None
        n_ranks = distributed.get_world_size(self.group)
        while True:
            batch = next(batches, None)
            # Whether to end; events, target particles and ends, positions.
            own = torch.zeros(3 + self.batch_size, dtype=torch.int64)
            own[0] = self.ending.told
            if batch is not None:
                own[1] = len(batch.position)
                own[2] = batch.n_target
                own[3 : 3 + len(batch.position)] = batch.position
            ranks = [torch.empty_like(own) for _ in range(n_ranks)]
            distributed.all_gather(ranks, own, group=self.group)
            self.ending.agreed = any(bool(rank[0]) for rank in ranks)
            if not any(int(rank[1]) for rank in ranks):
                return
            if batch is None:
                batch = filler = self.filler() if filler is None else filler
            yield batch._replace(
                weight=n_ranks * int(own[2]) / sum(int(rank[2]) for rank in ranks),
                position=torch.cat([rank[3 : 3 + int(rank[1])] for rank in ranks]),
            )
