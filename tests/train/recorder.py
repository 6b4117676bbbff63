"""A callback for the tests of training on several devices, loaded by name in the processes of a fit."""

import json
import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from pflow.train import callbacks


class Recorder(pl.Callback):
    """Writes down which events each rank trained on, a line a step, in files of a folder: ``rank0.jsonl`` ..."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        callbacks.read_history = lambda folder: {}  # as `no_figures`, in these processes

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, index: int) -> None:
        step = {"epoch": trainer.current_epoch, "weight": batch.weight, "entries": batch.entry.tolist()}
        step["process"] = os.getpid()
        with (Path(self.folder) / f"rank{trainer.global_rank}.jsonl").open("a") as stream:
            stream.write(json.dumps(step) + "\n")
