"""What the benchmarks share: a clock, batches of real events, and large events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from pflow.checkpoint.load import Model
from pflow.data.batch import Batch
from pflow.data.collate import Padder
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.overlay import overlay

KINDS = ("cpu_ms", "wall_ms")
"""Of this process."""

N_HITS = (500, 1000, 2000, 4000, 8000, 16000)
"""Of large events, by default."""

Times = dict[str, float]
Result = TypeVar("Result")


def timed(runs: int, work: Callable[..., Result], *arguments: Any, **options: Any) -> tuple[Result, Times]:
    """Result of a call, and the shortest of several times of it, by `KINDS`."""
    best = dict.fromkeys(KINDS, float("inf"))
    for _ in range(runs):
        start = time.process_time(), time.perf_counter()
        result = work(*arguments, **options)
        now = time.process_time(), time.perf_counter()
        best = {kind: min(best[kind], 1e3 * (b - a)) for kind, a, b in zip(KINDS, start, now, strict=True)}
    return result, best


def fastest(runs: int, work: Callable[..., object], *arguments: Any, **options: Any) -> float:
    """Shortest of several wall times of the same call, ms."""
    return timed(runs, work, *arguments, **options)[1]["wall_ms"]


def make_batches(model: Model, events: Events, batch_size: int, *, truth: bool = False) -> list[Batch]:
    """Batches of events of similar length, the longest first; with targets if `truth`."""
    tokens = model.tokeniser.encode(events, truth=truth)
    order, padder = np.argsort(-tokens.n_source, kind="stable"), Padder([tokens])
    return [padder.batch(order[at : at + batch_size]) for at in range(0, len(tokens), batch_size)]


def joined(events: Events, n_hits: int) -> Events:
    """One event of at least `n_hits` hits, of no more events than it needs."""
    enough = int(np.searchsorted(np.cumsum(jagged.count(events.hits)), 1.1 * n_hits)) + 1  # some lie in the same cells
    return overlay(events[:enough], [range(min(enough, len(events)))])
