"""Processes that read and encode events beside the training."""

from __future__ import annotations

import ctypes
import functools
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""

KEPT = 2**30
"""Largest number of freed bytes that are kept."""

LARGEST = 2**25
"""Largest array, bytes, for which kept memory is used; glibc accepts no larger value."""


def begin_worker(_: int = 0) -> None:
    """Prepare a worker process: signals, which batch systems send to all processes, are for the training to handle."""
    keep_freed_memory()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def keep_freed_memory() -> None:
    """Keep freed memory for the next chunk: clearing new pages takes up to a quarter of the tokenising time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, LARGEST)


def in_order(work: Callable[[Item], Result], items: Sequence[Item], *, num_workers: int = 0) -> Iterator[Result]:
    """Results of items, in their order, by `num_workers` processes (0: this one), with their errors and warnings."""
    if num_workers == 0 or len(items) < 2:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(min(num_workers, len(items)), initializer=keep_freed_memory) as pool:
        for result, warned in pool.map(functools.partial(_with_warnings, work), items):
            for message, category in warned:
                warnings.warn(message, category, stacklevel=2)
            yield result


def _with_warnings(work: Callable[[Item], Result], item: Item) -> tuple[Result, list[tuple[str, type[Warning]]]]:
    """A result, and the warnings on the way to it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work(item)
    return result, [(str(warning.message), warning.category) for warning in caught]
