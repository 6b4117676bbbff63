"""Callbacks: a line an epoch, and predicted particles to a ROOT file."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
from pytorch_lightning.callbacks import RichProgressBar

from pflow.data.datamodule import ParticleFlowData
from pflow.data.files import expand
from pflow.errors import ConfigError
from pflow.io.particles_root import RecoWriter
from pflow.train.module import ParticleFlow

__all__ = ["EpochLine", "ParticleWriter", "ProgressBar"]

COLUMNS = {
    "train/loss": "train loss {:.4f}",
    "val/loss": "val loss {:.4f}",
    "val/energy_error": "energy error {:.2%}",
    "val/angle_deg": "angle {:.3f} deg",
}


class EpochLine(pl.Callback):  # type: ignore[misc]
    """Prints the size of the network, then a line after each epoch, which stays when the progress bar moves on."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print how many events and parameters there are, and where they are trained."""
        assert isinstance(pl_module, ParticleFlow)
        size = sum(parameter.numel() for parameter in pl_module.parameters())
        data = pl_module.data
        pl_module.print(
            f"{size:,} parameters, {data.n_events('train'):,} training and {data.n_events('val'):,} validation events, "
            f"on {pl_module.device}",
            flush=True,
        )

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the epoch's figures: losses, mean relative energy error and mean angle of the next particle."""
        metrics = trainer.callback_metrics
        figures = [text.format(float(metrics[key])) for key, text in COLUMNS.items() if key in metrics]
        pl_module.print(f"epoch {trainer.current_epoch + 1}: {', '.join(figures)}", flush=True)


class ParticleWriter(pl.Callback):  # type: ignore[misc]
    """Writes what `pflow predict` finds: one entry for each event, in order. The file appears only when whole.

    Parameters
    ----------
    path
        ROOT file to write.
    format
        ``ttree`` or ``rntuple``.
    """

    def __init__(self, path: str | Path, *, format: Literal["ttree", "rntuple"] = "ttree") -> None:
        self.path = path
        self.format: Literal["ttree", "rntuple"] = format
        self._writer: RecoWriter | None = None

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the file and note where its content comes from.

        Raises
        ------
        ConfigError
            There is no checkpoint to predict with.
        """
        assert isinstance(pl_module, ParticleFlow)
        data = pl_module.data
        if data.checkpoint is None:
            raise ConfigError("'predict' needs a trained model: give its checkpoint with --ckpt_path")
        inputs = expand(data.paths["predict"], "predict")
        provenance = {
            "pflow_version": version("pflow"),
            "inputs": [_describe(path, data) for path in inputs],
            "checkpoint": {"path": data.checkpoint.path, "sha256": data.checkpoint.digest},
            "options": {
                "format": self.format,
                "detector": data.checkpoint.tokeniser.detector.name,
                "on_error": data.options.on_error,
                "max_particles": pl_module.max_particles,
            },
            "configuration": data.checkpoint.header,
        }
        self._writer = RecoWriter(self.path, provenance=provenance, format=self.format, inputs=inputs)
        self._writer.__enter__()

    def on_predict_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any, **__: Any
    ) -> None:
        """Write a batch."""
        assert self._writer is not None
        self._writer.extend(pl_module.decode(outputs))

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the file, which then appears."""
        if self._writer is not None:
            self._writer.__exit__(None, None, None)
            self._writer = None

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave nothing behind."""
        if self._writer is not None:
            self._writer.__exit__(type(exception), exception, exception.__traceback__)
            self._writer = None


def _describe(path: str, data: ParticleFlowData) -> dict[str, Any]:
    """What the provenance says of an input file."""
    with data.options.open(path) as file:
        return {"path": file.path, "uuid": file.uuid, "schema": file.schema, "entries": file.num_entries}


class ProgressBar(RichProgressBar):  # type: ignore[misc]
    """Lightning's progress bar without the number of the log."""

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """Figures beside the bar: the loss of the step."""
        metrics: dict[str, Any] = super().get_metrics(trainer, pl_module)
        return {key: value for key, value in metrics.items() if key != "v_num"}
