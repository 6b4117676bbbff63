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

__all__ = ["Termination", "release_ranks"]


def release_ranks(trainer: pl.Trainer) -> None:
    """Let the processes end that Lightning started for other ranks; once one has not ended with 0 it kills this one."""
    getattr(trainer.strategy.launcher, "procs", []).clear()


class Termination(pl.Callback):  # type: ignore[misc]
    """Ends a fit between two steps, of training or of a validation, with a checkpoint from which it goes on.

    The validation begins anew then. On several ranks, each of which the signal may reach at another moment or not at
    all, they tell each other with their next batches (`pflow.data.ranks`). Lightning's own handler waits in the signal
    for ranks that are elsewhere.

    Parameters
    ----------
    path
        The checkpoint to write.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_train_start(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Take the place of Lightning's handler; Lightning restores that of before at the end."""

        def note(number: int, frame: Any) -> None:
            pl_module.data.ending.told = True

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, note)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take back the mark of `on_exception`, which a checkpoint of this validation would hold too."""
        trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.reset()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Write the checkpoint."""
        if not isinstance(exception, SIGTERMException):
            return
        release_ranks(trainer)
        epoch_loop = trainer.fit_loop.epoch_loop
        if trainer.validating:
            # Lightning goes back to a validation of which a step was begun and not done.
            progress = epoch_loop.val_loop.batch_progress
            progress.reset()
            progress.total.ready = progress.total.started = 1
        else:
            epoch_loop.batch_progress.is_last_batch = False  # what Lightning says of the batch that comes no more
        if trainer.global_step:
            trainer.save_checkpoint(self.path, weights_only=False)
