"""From the start of `pflow fit` on many files to the end of its first step: opening the files, fitting the tokeniser.

Each file is a copy of the one given, as large as it is.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from benchmarks.fits import run_fit
from measurements.files import write_json
from pflow.io.open import open_events


class FirstStep(pl.Callback):
    """Writes down when the first step ended.

    Parameters
    ----------
    path
        Of a file for the time, s since 1970.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        Path(self.path).write_text(str(time.time()), encoding="utf-8")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="events with truth")
    parser.add_argument("--copies", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="JSON file")


def run(args: argparse.Namespace) -> None:
    with open_events(args.file) as file:
        n = file.num_entries
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{number:04}.root" for number in range(args.copies)]
        for path in paths:
            shutil.copyfile(args.file, path)
        rows = [{"workers": workers, "seconds": measure(paths, folder, workers)} for workers in args.workers]
    for row in rows:
        print(
            f"{args.copies} files of {n} events, {row['workers']} workers: {row['seconds']:.1f} s to the end of the "
            "first step"
        )
    if args.output:
        content = {"file": Path(args.file).name, "events": n, "files": args.copies, "torch": torch.__version__}
        write_json(args.output, {**content, "rows": rows})


def measure(paths: list[str], folder: str, workers: int) -> float:
    """Seconds to the end of the first step."""
    end = Path(folder) / f"end{workers}"
    start = time.time()
    run_fit(
        *("--model.reconstructor=pflow.model.pointing.PointingReconstructor", f"--output={folder}/run{workers}"),
        *(f"--data.train={json.dumps(paths)}", f"--data.val={paths[0]}", f"--data.num-workers={workers}"),
        *("--data.batch-size=16", "--trainer.max-steps=1", "--trainer.accelerator=cpu"),
        *("--trainer.callbacks+=benchmarks.startup.FirstStep", f"--trainer.callbacks.path={end}"),
    )
    return float(end.read_text("utf-8")) - start
