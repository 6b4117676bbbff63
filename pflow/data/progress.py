"""Which events of an epoch a training has seen, so that it can go on within it, also with other ranks and workers."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["EpochProgress"]

Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(eq=False)
class EpochProgress:
    """The events that a training has seen of an epoch, by their positions in a pass over the training chunks.

    A training that goes on in a single process, without ranks and workers, and ran so before, skips the batches that it
    has seen; those that follow are the batches of an uninterrupted training. With ranks or workers the events that were
    seen are left out, and the others are shuffled anew.

    Parameters
    ----------
    epoch
        Its number.
    seen : bool [event of the pass]
        Whether it was in a batch of training.
    omitted : bool [event of the pass]
        Those of `seen` that the running pass does not hold: an earlier part of the training had them.
    skipped
        Batches at the beginning of the running pass that an earlier part of the training had.
    n_batches
        Batches of the running pass that were seen, with those skipped.
    """

    epoch: int
    seen: Mask
    omitted: Mask
    skipped: int = 0
    n_batches: int = 0

    @classmethod
    def begin(cls, epoch: int, n_events: int) -> Self:
        """An epoch of which nothing was seen."""
        return cls(epoch, np.zeros(n_events, dtype=np.bool_), np.zeros(n_events, dtype=np.bool_))

    def add(self, positions: npt.NDArray[np.int64]) -> None:
        """Count the events of a step as seen, int64 [event of the step]."""
        self.seen[positions] = True
        self.n_batches += 1

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as numbers and tensors."""
        return {
            "epoch": self.epoch,
            "n_events": len(self.seen),
            "n_batches": self.n_batches,
            **{name: torch.from_numpy(np.packbits(getattr(self, name))) for name in ("seen", "omitted")},
        }

    @classmethod
    def restore(cls, state: dict[str, Any], *, same_batches: bool) -> Self:
        """The progress at which a training goes on.

        Parameters
        ----------
        state
            From `state`.
        same_batches
            Whether the pass has the batches of the one that was interrupted, in the same order.
        """
        n_events = int(state["n_events"])
        seen, omitted = (
            np.unpackbits(state[name].numpy(), count=n_events).astype(np.bool_) for name in ("seen", "omitted")
        )
        if same_batches:
            return cls(int(state["epoch"]), seen, omitted, int(state["n_batches"]), int(state["n_batches"]))
        return cls(int(state["epoch"]), seen, seen.copy())
