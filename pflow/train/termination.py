"""The end of a fit that is told to, with SIGTERM, as batch systems do: all ranks end together, none loses a step."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
from pytorch_lightning.utilities.exceptions import SIGTERMException

if TYPE_CHECKING:
    from pflow.train.module import ParticleFlow

__all__ = ["Termination"]


class Termination(pl.Callback):  # type: ignore[misc]
    """Ends a fit between two steps, with a checkpoint from which it goes on; in a validation without one.

    On several ranks, each of which the signal may reach at another moment or not at all, they tell each other with
    their next batches (`pflow.data.ranks`). Lightning's own handler waits in the signal for ranks that are elsewhere.

    Parameters
    ----------
    path
        The checkpoint to write.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_train_start(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """On several ranks, take the place of Lightning's handler, which restores that of before at the end."""

        def note(number: int, frame: Any) -> None:
            pl_module.data.told_to_end = True

        if trainer.world_size > 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, note)

    def on_exception(self, trainer: pl.Trainer, pl_module: ParticleFlow, exception: BaseException) -> None:
        """Write the checkpoint."""
        # While the model is validated its weights may be the averaged ones.
        if isinstance(exception, SIGTERMException) and trainer.training and trainer.global_step:
            trainer.save_checkpoint(self.path)
