"""Batches of similar length, so that little is padded; which events share a batch stays random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError

__all__ = ["bucket", "cut"]

Index = npt.NDArray[np.int64]


def cut(lengths: npt.ArrayLike, batch_size: int, max_tokens: int | None = None) -> list[Index]:
    """Cut consecutive events into batches, in order.

    Parameters
    ----------
    lengths
        Source tokens of each event.
    batch_size
        Most events in a batch.
    max_tokens
        Most source tokens in a batch, padding included; an event that alone has more gets a batch of its own.

    Raises
    ------
    ConfigError
        A batch size or budget below 1.
    """
    if batch_size < 1:
        raise ConfigError(f"batch size must be at least 1, found {batch_size}")
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"max_tokens must be at least 1, found {max_tokens}")
    batches: list[Index] = []
    start = longest = 0
    sizes = [int(length) for length in np.asarray(lengths)]
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
    lengths: Sequence[int] | npt.ArrayLike,
    batch_size: int,
    max_tokens: int | None,
    generator: np.random.Generator,
) -> list[Index]:
    """Batches of events of similar length, in random order.

    Events are shuffled, sorted by length (so that equal lengths stay shuffled), cut, and the batches shuffled.

    Parameters
    ----------
    lengths, batch_size, max_tokens
        As for `cut`.
    generator
        Source of all randomness.
    """
    sizes = np.asarray(lengths)
    shuffled = generator.permutation(len(sizes))
    ordered = shuffled[np.argsort(sizes[shuffled], kind="stable")]
    batches = [ordered[part] for part in cut(sizes[ordered], batch_size, max_tokens)]
    generator.shuffle(batches)
    return batches
