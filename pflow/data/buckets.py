"""Batches of similar length, so that little is padded; which events share a batch stays random."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["bucket", "cut"]

Index = npt.NDArray[np.int64]


def cut(lengths: npt.ArrayLike, batch_size: int, max_tokens: int | None = None) -> list[Index]:
    """Cut consecutive events into batches of up to `batch_size` events and `max_tokens` padded tokens, or one event."""
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
    """Batches of events of similar length, as of `cut`, in random order."""
    sizes = np.asarray(lengths)
    shuffled = generator.permutation(len(sizes))
    ordered = shuffled[np.argsort(sizes[shuffled], kind="stable")]
    batches = [ordered[part] for part in cut(sizes[ordered], batch_size, max_tokens)]
    generator.shuffle(batches)
    return batches
