"""Shared by the benchmarks: options, clocks, memory and batches."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pflow.checkpoint import TrainedModel
from pflow.data.batch import Batch
from pflow.data.dataset import Padder
from pflow.event.events import Events


def add_common_options(parser: argparse.ArgumentParser, *, events: int) -> None:
    """Declare the options that benchmarks of a reconstruction have."""
    parser.add_argument("--checkpoint", default="general", help="default: %(default)s")
    parser.add_argument("--events", type=int, default=events, help="first events of a file (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="repeats; the fastest counts (default: %(default)s)")


def timed(runs: int, work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result of a call, and its shortest CPU and wall times of several runs, ms."""
    cpu = wall = float("inf")
    for _ in range(runs):
        start = time.process_time(), time.perf_counter()
        result = work()
        cpu = min(cpu, 1e3 * (time.process_time() - start[0]))
        wall = min(wall, 1e3 * (time.perf_counter() - start[1]))
    return result, cpu, wall


def peak_mb() -> float:
    """Most memory that this process has used, MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def make_batches(model: TrainedModel, events: Events, batch_size: int, *, truth: bool = False) -> list[Batch]:
    """Batches of events of similar length, the longest first; with targets if `truth`."""
    tokens = model.tokeniser.encode(events, truth=truth)
    order, padder = np.argsort(-tokens.n_source, kind="stable"), Padder([tokens])
    return [padder.batch(order[start : start + batch_size]) for start in range(0, len(tokens), batch_size)]
