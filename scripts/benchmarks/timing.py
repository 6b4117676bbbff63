"""What the benchmarks share: a clock, the options of all, and batches of real events."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pflow.checkpoint.load import Model
from pflow.data.batch import Batch
from pflow.data.collate import collate
from pflow.event.events import Events

__all__ = ["add_common_options", "fastest", "make_batches"]


def add_common_options(parser: argparse.ArgumentParser, *, events: int = 64) -> None:
    """Options of every benchmark of a file."""
    parser.add_argument("--events", type=int, default=events, help="of each file (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch (default: %(default)s)")


def fastest(runs: int, work: Callable[..., object], *arguments: Any, **options: Any) -> float:
    """Shortest of several times of the same call, ms."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work(*arguments, **options)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def make_batches(model: Model, events: Events, batch_size: int, *, truth: bool = False) -> list[Batch]:
    """Batches of events of similar length, the longest first; with targets if `truth`."""
    tokens = model.tokeniser.encode(events, truth=truth)
    order = np.argsort([-tokens[i].n_source for i in range(len(tokens))], kind="stable")
    return [collate([tokens[int(i)] for i in order[at : at + batch_size]]) for at in range(0, len(tokens), batch_size)]
