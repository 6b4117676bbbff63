"""The folder of a training: its checkpoints and logs are written and read here."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO

from pflow.errors import ConfigError
from pflow.io.atomic import replacing

OF_LIGHTNING = b"# pytorch_lightning=="
"""First line of a run's ``config.yaml``."""


def check_run_folder(folder: Path, *, continued: str | None = None) -> None:
    """A ConfigError if a training cannot write to a folder: not new, empty, or of the checkpoint to continue."""
    there = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    if not there.is_dir():
        raise ConfigError(f"cannot write to folder {folder}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to folder {folder}: no permission to write in {there}")
    configuration = folder / "config.yaml"
    if configuration.exists() and not (configuration.is_file() and configuration.read_bytes().startswith(OF_LIGHTNING)):
        raise ConfigError(
            f"{configuration} is not of a training and would be replaced: choose another folder (--output)"
        )
    held = [name for name in ("best.ckpt", "last.ckpt") if (folder / name).exists()]
    if held and (continued is None or Path(continued).resolve().parent != folder.resolve()):
        raise ConfigError(
            f"{folder} already holds a run ({', '.join(held)}): choose another folder with --output, or resume it: "
            f"pflow fit --checkpoint {folder if 'last.ckpt' in held else folder / held[-1]}"
        )


class AtomicCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Writes a checkpoint so that the one before stays until the new one is whole, also across file systems."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint; OutputError if it could not be written."""
        content = io.BytesIO()  # on a full disk torch hides the error of the file behind one of its own
        torch.save(checkpoint, content)
        with replacing(path, force=True) as partial:
            partial.write_bytes(content.getbuffer())


def make_loggers(folder: Path) -> list[Any]:
    """CSV logs, and TensorBoard's if it is installed, in the next free ``logs/version_N`` of a run's folder."""
    loggers: list[Any] = [CSVLogger(save_dir=folder, name="logs")]
    if find_spec("tensorboard") is not None:
        loggers.append(TensorBoardLogger(save_dir=folder, name="logs", version=loggers[0].version))
    return loggers


def read_history(folder: str | Path) -> Mapping[str, dict[int, float]]:
    """What a run logged, by name and epoch (from 1), of all CSV logs in its folder; of two the later counts."""
    history: dict[str, dict[int, float]] = {}
    logs = sorted(Path(folder).glob("logs/version_*/metrics.csv"), key=lambda path: int(path.parent.name.split("_")[1]))
    for log in logs:
        lines = log.read_text("utf-8").splitlines(keepends=True)
        # A process that was killed may leave half a line at the end.
        for row in csv.DictReader(line for line in lines if line.endswith("\n")):
            if not row.get("epoch"):
                continue
            epoch = int(row["epoch"]) + 1
            for name, value in row.items():
                if "/" in name and not name.startswith("lr") and value:
                    history.setdefault(name, {})[epoch] = float(value)
    return history
