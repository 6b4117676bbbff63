"""`pflow fit` on one and on two devices: events a second, and how much faster two are.

Both are timed from their first validation-free epoch on: the first epoch warms up, later ones count. Options after a --
go to `pflow fit`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from benchmarks.fits import run_fit
from measurements.files import write_json


class Clock(pl.Callback):
    """Writes down the wall time of the training epochs after the first, and their events on all devices.

    Parameters
    ----------
    path
        JSON file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.n_events = 0
        self.seconds = 0.0
        self.start = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, index: int) -> None:
        if trainer.current_epoch:
            self.n_events += len(batch.position)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch:
            self.seconds += time.perf_counter() - self.start
        if trainer.is_global_zero:
            content = {"events": self.n_events, "seconds": self.seconds}
            Path(self.path).write_text(json.dumps(content), encoding="utf-8")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", help="events with truth")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2], help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=3, help="of which the first is not timed (default: %(default)s)")
    parser.add_argument("--events", type=int, default=256, help="of an epoch (default: %(default)s)")
    parser.add_argument("--chunk-size", type=int, default=32, help="events read at once (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=5000, help="of a batch of one device (default: %(default)s)")
    parser.add_argument("--checkpoint", default="ild-g4-general", help="to start from (default: %(default)s)")
    parser.add_argument("--accelerator", default="cpu", help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="JSON file")


def run(args: argparse.Namespace) -> None:
    rates = {n: measure(args, n) for n in args.devices}
    first = args.devices[0]
    rows = [{"devices": n, "events_per_s": rate, "times": rate / rates[first]} for n, rate in rates.items()]
    for row in rows:
        print(
            f"{row['devices']} devices: {row['events_per_s']:.1f} events/s, {row['times']:.2f} times those of {first}"
        )
    if args.output:
        threads = {"threads_a_device": 1, "accelerator": args.accelerator, "torch": torch.__version__}
        write_json(args.output, {"model": args.checkpoint, "events": args.events, **threads, "rows": rows})


def measure(args: argparse.Namespace, n_devices: int) -> float:
    """Events a second of a fit, on all its devices together."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Path(folder) / "clock.json"
        run_fit(
            *(f"--start-from={args.checkpoint}", f"--output={folder}/run"),
            *(f"--data.train={json.dumps(args.files)}", f"--data.val={json.dumps(args.files[:1])}"),
            *(f"--data.max-train-events={args.events}", f"--data.chunk-size={args.chunk_size}"),
            *(f"--data.buffer={args.events}", f"--data.max-tokens={args.max_tokens}", "--data.batch-size=64"),
            *(f"--trainer.devices={n_devices}", f"--trainer.accelerator={args.accelerator}"),
            *(f"--trainer.max-epochs={args.epochs}", "--trainer.max-steps=1000000"),  # the schedule asks for a number
            *("--trainer.callbacks+=benchmarks.scaling.Clock", f"--trainer.callbacks.path={clock}"),
        )
        found = json.loads(clock.read_text("utf-8"))
        return float(found["events"] / found["seconds"])
