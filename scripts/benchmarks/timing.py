"""Shared by the benchmarks: clocks, memory, batches, and large events."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from pflow.checkpoint.load import TrainedModel
from pflow.data.batch import Batch
from pflow.data.collate import Padder
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.overlay import overlay

Result = TypeVar("Result")


def timed(runs: int, work: Callable[[], Result]) -> tuple[Result, float, float]:
    """Result of a call, and its shortest CPU and wall times of several runs, ms."""
    cpu = wall = float("inf")
    for _ in range(runs):
        start = time.process_time(), time.perf_counter()
        result = work()
        cpu = min(cpu, 1e3 * (time.process_time() - start[0]))
        wall = min(wall, 1e3 * (time.perf_counter() - start[1]))
    return result, cpu, wall


def cpu_ms(runs: int, work: Callable[[], object]) -> float:
    """Shortest CPU time of several runs, after one that is not timed; ms."""
    work()
    return timed(runs, work)[1]


def peak_mb() -> float:
    """Most memory that this process has used, MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def make_batches(model: TrainedModel, events: Events, batch_size: int, *, truth: bool = False) -> list[Batch]:
    """Batches of events of similar length, the longest first; with targets if `truth`."""
    tokens = model.tokeniser.encode(events, truth=truth)
    order, padder = np.argsort(-tokens.n_source, kind="stable"), Padder([tokens])
    return [padder.batch(order[start : start + batch_size]) for start in range(0, len(tokens), batch_size)]


def joined(events: Events, n_hits: int) -> Events:
    """One event of at least `n_hits` hits, of no more events than it needs."""
    enough = int(np.searchsorted(np.cumsum(jagged.count(events.hits)), 1.1 * n_hits)) + 1  # some lie in the same cells
    return overlay(events[:enough], [range(min(enough, len(events)))])
