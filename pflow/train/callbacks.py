"""Callbacks: a line an epoch, averaged weights, frozen modules, and what signals do."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor

from pflow.errors import ConfigError
from pflow.train.module import MONITOR, ParticleFlow

COLUMNS = {
    "train/loss": "train loss {:.4f}",
    "val/loss": "val loss {:.4f}",
    MONITOR: "wrong energy {:.2%}",
}


class EpochLine(pl.Callback):  # type: ignore[misc]
    """Prints the size of the model, then a line after each epoch, which stays when the progress bar moves on."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Print the numbers of parameters and events, and the device."""
        size = sum(parameter.numel() for parameter in pl_module.parameters())
        train, val = (f"{pl_module.data.n_events(split):,}" for split in ("train", "val"))
        text = f"{size:,} parameters, {train} training and {val} validation events, on {pl_module.device}"
        pl_module.print(text, flush=True)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Print losses and wrong energy of the epoch."""
        metrics = trainer.callback_metrics
        figures = [text.format(float(metrics[key])) for key, text in COLUMNS.items() if key in metrics]
        pl_module.print(f"epoch {trainer.current_epoch + 1}: {', '.join(figures)}", flush=True)


class AveragedWeights(WeightAveraging):  # type: ignore[misc]
    """Exponential moving average of the parameters, updated at each step; validation and checkpoints use it.

    An update keeps the share ``min(decay, (1 + n) / (10 + n))`` of the average after n updates, so that the first
    weights are soon forgotten, as in TensorFlow's ``ExponentialMovingAverage``; it reaches back about ``1 / (1 -
    decay)`` steps. ConfigError: a decay outside (0, 1), or checkpoints that would hold the average alone, from
    which no training can continue.
    """

    def __init__(self, decay: float) -> None:
        if not 0 < decay < 1:
            raise ConfigError(f"ema.decay must lie between 0 and 1 (exclusive), found {decay}")
        self.decay = decay
        super().__init__(use_buffers=False, multi_avg_fn=self._average)

    def _average(self, averages: list[Tensor], current: list[Tensor], _: Tensor | int) -> None:
        assert self._average_model is not None  # Lightning has no public name for the average
        n = int(self._average_model.n_averaged)  # on the host: no GPU synchronisation
        share = min(self.decay, (1 + n) / (10 + n))
        torch._foreach_lerp_(averages, current, 1 - share)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Begin with the module's weights, on the device of the training."""
        if any(getattr(callback, "save_weights_only", False) for callback in trainer.checkpoint_callbacks):
            raise ConfigError("ema.decay needs whole checkpoints: set model_checkpoint.save_weights_only to false")
        super().setup(trainer, pl_module, stage)
        if self._average_model is not None:
            self._average_model.to(trainer.strategy.root_device)
            self._average_model.n_averaged = torch.zeros((), dtype=torch.long)


class Freeze(pl.Callback):  # type: ignore[misc]
    """Trains the second stage of a trained model: its ``first_stage_modules`` get no gradients and are evaluated."""

    def setup(self, trainer: pl.Trainer, pl_module: ParticleFlow, stage: str) -> None:
        """Freeze, before there is an optimiser; ConfigError: random weights."""
        pl_module.configure_model()
        reconstructor = pl_module.reconstructor
        assert reconstructor is not None
        if pl_module.spec.purpose == "fresh":
            raise ConfigError("Freeze: the weights are random; name a trained model with --start-from")
        names = reconstructor.first_stage_modules
        self._frozen = [reconstructor.get_submodule(name).requires_grad_(False) for name in names]

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Keep frozen modules in evaluation mode, e.g. without dropout."""
        for module in self._frozen:
            module.eval()


class Interrupted(BaseException):
    """A fit was stopped between two batches by a signal, whose number is its argument."""


class StopOnSignal(pl.Callback):  # type: ignore[misc]
    """Stops a fit after a batch when SIGINT or SIGTERM comes, and writes a checkpoint to resume from.

    The signal may reach ranks at different moments, or only some of them; all stop after the same batch
    (`pflow.data.dataset.StepLoader`). A validation is finished first. A second SIGINT stops at once.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_train_start(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Replace Lightning's handlers; at the end Lightning restores the handlers from before the fit."""

        def note(number: int, frame: Any) -> None:
            pl_module.data.stop.signal = number
            if number == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.write(2, b"\nstopping after this step or validation; Ctrl-C again stops at once\n")

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell starts its background jobs
                    signal.signal(number, note)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: ParticleFlow, *_: Any) -> None:
        """Raise `Interrupted` if one of the ranks got a signal; after an epoch its validation comes first."""
        if pl_module.data.stop.agreed and not trainer.is_last_batch:
            raise Interrupted(pl_module.data.stop.agreed)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Write the checkpoint."""
        if isinstance(exception, Interrupted):
            release_ranks(trainer)
            if trainer.global_step:
                trainer.save_checkpoint(self.path, weights_only=False)


def release_ranks(trainer: pl.Trainer) -> None:
    """Let the processes end that Lightning started for other ranks; once one has not ended with 0 it kills this one."""
    getattr(trainer.strategy.launcher, "procs", []).clear()
