"""An exponential moving average of the weights, which validation and checkpoints use instead of the raw ones."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from pflow.errors import ConfigError

__all__ = ["KEY", "AveragedWeights", "decay_at"]

KEY = "averaging"
"""Key in a checkpoint of what training needs beside the averaged weights: the raw ones, and the number of updates."""


def decay_at(update: int, decay: float) -> float:
    """The share of the average that an update keeps: ``min(decay, (1 + n) / (10 + n))``.

    The first weights, which are random, are so forgotten soon, as in TensorFlow's ``ExponentialMovingAverage``.

    Parameters
    ----------
    update
        Number of updates before this one.
    decay
        The largest share.

    Examples
    --------
    >>> decay_at(0, 0.999), decay_at(20_000, 0.999)
    (0.1, 0.999)
    """
    return min(decay, (1 + update) / (10 + update))


class AveragedWeights(pl.Callback):  # type: ignore[misc]
    """Keeps an average of all parameters, updated after each step of the optimiser.

    In validation, and after the fit, the module has the averaged weights; in training the raw ones. A checkpoint's
    ``state_dict`` holds the averaged ones, the raw ones stand under `KEY`, and a fit that continues from it goes on
    with both. Continuing from a checkpoint without an average starts one from its weights. Buffers are not averaged.

    Lightning's own ``WeightAveraging`` came after 2.4, the oldest version that we support.

    Parameters
    ----------
    decay
        Share of the average that an update keeps, once warmed up (`decay_at`): the average reaches back about
        ``1 / (1 - decay)`` steps.

    Raises
    ------
    ConfigError
        A decay that is not between 0 and 1.
    """

    def __init__(self, decay: float) -> None:
        if not 0 < decay < 1:
            raise ConfigError(f"ema.decay must lie between 0 and 1 (exclusive), found {decay}")
        self.decay = decay
        self.updates = 0
        self._average: dict[str, Tensor] = {}  # float32: in half precision small updates would be rounded away
        self._raw: dict[str, Tensor] = {}  # only while the module has the averaged weights
        self._step = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Know of no average yet."""
        self._average, self._raw, self.updates = {}, {}, 0

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin with the module's weights, or with what a checkpoint holds.

        Raises
        ------
        ConfigError
            Checkpoints are to hold weights only, so that the raw ones would be lost, or pass for the averaged ones.
        """
        if any(getattr(callback, "save_weights_only", False) for callback in trainer.checkpoint_callbacks):
            raise ConfigError("ema.decay needs whole checkpoints: set checkpoint.save_weights_only to false")
        start = self._average or _parameters(pl_module)
        self._average = {
            name: start[name].detach().to(value.device, torch.float32, copy=True)
            for name, value in _parameters(pl_module).items()
        }

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count steps from where a checkpoint left off, which the trainer knows only now."""
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        """Update the average, if the optimiser made a step; with accumulated gradients not every batch does."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        weight = 1 - decay_at(self.updates, self.decay)
        with torch.no_grad():
            for name, value in _parameters(pl_module).items():
                self._average[name].lerp_(value.float(), weight)
        self.updates += 1

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the averaged weights in place; outside a fit the module has the weights that count."""
        if not self._average:
            return
        self._raw = {name: value.detach().clone() for name, value in _parameters(pl_module).items()}
        _put(pl_module, self._average)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the raw weights back."""
        if self._raw:
            _put(pl_module, self._raw)
            self._raw = {}

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the module with the averaged weights."""
        _put(pl_module, self._average)
        self._average = {}

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put the averaged weights under ``state_dict``, the raw ones under `KEY`."""
        if not self._average:
            return
        weights: dict[str, Tensor] = checkpoint["state_dict"]
        raw = self._raw or weights
        checkpoint[KEY] = {"updates": self.updates, "raw": {name: raw[name] for name in self._average}}
        checkpoint["state_dict"] = {**weights, **self._average}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on with the average, and give the module its raw weights, in whose place it has loaded the averaged."""
        state = checkpoint.get(KEY)
        if state is None:
            return
        self.updates = state["updates"]
        self._average = {name: checkpoint["state_dict"][name] for name in state["raw"]}
        _put(pl_module, state["raw"])


def _parameters(module: pl.LightningModule) -> dict[str, Tensor]:
    """Parameters by their names in the ``state_dict``; one that has two names under both."""
    return dict(module.named_parameters(remove_duplicate=False))


def _put(module: pl.LightningModule, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in _parameters(module).items():
            value.copy_(weights[name])
