"""The batches of a training: where a resumed epoch begins, and how several processes (ranks) stay in step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader

from pflow.data.dataset import EventDataset, LabelledBatch
from pflow.data.parallel import begin_worker


@dataclasses.dataclass
class StopRequest:
    """Whether to stop: the `signal` that this rank got (0: none); `agreed`, once all ranks know, at the same batch."""

    signal: int = 0
    agreed: int = 0


class StepLoader:
    """Batches of one rank, in step with the other ranks.

    The ranks tell each other what their next batches hold. A rank that has none left while others have repeats one
    batch with weight 0 until all end together. Weights are proportional to n_target_particles + n_events of each rank,
    so that the averaged gradient equals the gradient of one joint batch. `group` is the ranks as a process group on
    the CPU (exchanging needs no GPU synchronisation), None for one rank.
    """

    def __init__(self, dataset: EventDataset, stop: StopRequest, group: Any = None) -> None:
        self.dataset = dataset
        self.stop = stop
        self.group = group
        self.skip = 0
        """Batches at the beginning of the next pass to leave out, which a resumed training has seen."""
        self._loader: DataLoader[LabelledBatch] = DataLoader(
            dataset,
            batch_size=None,
            num_workers=dataset.num_workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=begin_worker,
        )

    def __len__(self) -> int:
        """Number of steps in a pass, of the rank with the most batches; TypeError where it is not known beforehand."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[LabelledBatch]:
        batches = islice(self._loader, self.skip, None)
        if self.group is not None:
            yield from self._in_step(batches)
            return
        for batch in batches:
            self.stop.agreed = self.stop.signal
            yield batch

    def _in_step(self, batches: Iterator[LabelledBatch]) -> Iterator[LabelledBatch]:
        filler: LabelledBatch | None = None
        n_ranks = distributed.get_world_size(self.group)
        while True:
            batch = next(batches, None)
            status = torch.tensor(
                [self.stop.signal, *((0, 0) if batch is None else (len(batch.batch), batch.n_target))]
            )  # signal, events, target particles and ends
            ranks = [torch.empty_like(status) for _ in range(n_ranks)]
            distributed.all_gather(ranks, status, group=self.group)
            signals, n_events, n_target = torch.stack(ranks, dim=1).tolist()
            self.stop.agreed = max(signals)
            if not any(n_events):
                return
            if batch is None:
                batch = filler = filler or self.dataset.filler()
            yield batch._replace(weight=n_ranks * int(status[2]) / sum(n_target))
