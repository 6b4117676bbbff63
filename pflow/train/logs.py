"""Logs of a training: a CSV file and TensorBoard's, in a folder of the run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from pflow.io.atomic import disk_errors

__all__ = ["make_loggers", "writing_logs"]


def make_loggers(folder: Path) -> list[Any]:
    """CSV and TensorBoard logs side by side in the next free ``logs/version_N`` of a run's folder."""
    used = [int(path.name.removeprefix("version_")) for path in (folder / "logs").glob("version_[0-9]*")]
    number = max(used, default=-1) + 1
    return [logger(save_dir=folder, name="logs", version=number) for logger in (CSVLogger, TensorBoardLogger)]


@contextmanager
def writing_logs(folder: Path) -> Iterator[None]:
    """Say once, and with the run's folder, that logs cannot be written: the disk is full, or the folder vanished.

    TensorBoard writes in a thread, which keeps its error for the next call and prints a traceback besides.

    Raises
    ------
    OutputError
        They could not be written.
    """
    before = threading.excepthook

    def show(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, OSError):
            before(args)

    threading.excepthook = show
    try:
        with disk_errors(folder):
            yield
    finally:
        threading.excepthook = before
