"""Batches of similar length, so that little is padded; which events share a batch stays random."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError

__all__ = ["bucket", "cut"]

Index = npt.NDArray[np.int64]

BATCH_COST = 0.1
"""Cost of one more batch, as a fraction of the token budget: batches are split where that saves more padding."""


def cut(lengths: npt.ArrayLike, batch_size: int, max_tokens: int | None = None) -> list[Index]:
    """Cut consecutive events into batches of up to `batch_size` events and `max_tokens` padded tokens, or one event."""
    _check(batch_size, max_tokens)
    batches: list[Index] = []
    start = longest = 0
    sizes = np.asarray(lengths).tolist()
    for stop, length in enumerate(sizes):
        longest = max(longest, length)
        n = stop - start + 1
        if n > batch_size or (max_tokens is not None and n > 1 and n * longest > max_tokens):
            batches.append(np.arange(start, stop))
            start, longest = stop, length
    if start < len(sizes):
        batches.append(np.arange(start, len(sizes)))
    return batches


def bucket(
    lengths: npt.ArrayLike, batch_size: int, max_tokens: int | None, generator: np.random.Generator
) -> list[Index]:
    """Batches of events of similar length, as of `cut`, in random order; a budget is cut where the least is padded."""
    _check(batch_size, max_tokens)
    sizes = np.asarray(lengths)
    shuffled = generator.permutation(len(sizes))
    ordered = shuffled[np.argsort(sizes[shuffled], kind="stable")]
    if max_tokens is None:
        parts = cut(sizes[ordered], batch_size)
    else:
        parts = _cut_with_least_padding(sizes[ordered], batch_size, max_tokens)
    batches = [ordered[part] for part in parts]
    generator.shuffle(batches)
    return batches


def _check(batch_size: int, max_tokens: int | None) -> None:
    if batch_size < 1:
        raise ConfigError(f"batch size must be at least 1, found {batch_size}")
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"max_tokens must be at least 1, found {max_tokens}")


def _cut_with_least_padding(sizes: npt.NDArray[Any], batch_size: int, max_tokens: int) -> list[Index]:
    """Cut rising lengths so that padded tokens, and `BATCH_COST` for each batch, are fewest, by dynamic programming."""
    n = len(sizes)
    starts = [0] * n  # of the last batch of the first events
    fewest = np.zeros(n + 1)
    falling = np.arange(float(min(batch_size, max_tokens, n)), 0.0, -1.0)  # numbers of events of a batch
    of_batch = BATCH_COST * max_tokens
    for stop, longest in enumerate(sizes.tolist(), start=1):
        most = max(1, min(stop, len(falling), max_tokens // max(longest, 1)))
        costs = falling[-most:] * longest
        costs += fewest[stop - most : stop]
        best = int(costs.argmin())
        starts[stop - 1] = stop - most + best
        fewest[stop] = costs[best] + of_batch
    batches: list[Index] = []
    stop = n
    while stop:
        batches.append(np.arange(starts[stop - 1], stop))
        stop = starts[stop - 1]
    return batches[::-1]
