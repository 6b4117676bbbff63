"""Keys and values that are kept between decoder steps, and rows of a batch that leave it.

Letters: B batch, H heads, S sequence length, D width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Cache", "Compaction", "KVCache", "KeyValue", "where"]

FIRST_LENGTH = 64
"""Tokens that a cache has room for at first."""


class KeyValue(NamedTuple):
    """Keys and values of a fixed sequence, projected once; float [B, H, S, D] each."""

    key: Tensor
    value: Tensor

    def compact(self, compaction: Compaction) -> KeyValue:
        """The rows that stay, moved in place."""
        return KeyValue(compaction.apply(self.key), compaction.apply(self.value))


class Compaction(NamedTuple):
    """Move the rows that stay to the front: each row behind the new end fills the gap of a row that leaves.

    Only the rows that move are copied: over a whole decoding no more than one batch.
    """

    gaps: Tensor  # int64 [M], rows in front of the new end that leave
    movers: Tensor  # int64 [M], rows behind it that stay
    size: int  # number of rows that stay

    @staticmethod
    def sizes(stays: Tensor) -> Tensor:
        """Numbers of rows that stay and that move, int64 [2], from `stays`, bool [B], True = the row stays."""
        size = stays.sum()
        behind = torch.arange(len(stays), device=stays.device) >= size
        return torch.stack([size, (stays & behind).sum()])

    @classmethod
    def of(cls, stays: Tensor, sizes: Sequence[int] | None = None) -> Compaction:
        """From `stays`, bool [B], and its `sizes` where they are on the host: a GPU is waited for only without."""
        size, n_moved = cls.sizes(stays).cpu().tolist() if sizes is None else sizes
        gaps = where(~stays[:size], n_moved)
        movers = where(stays[size:], n_moved) + size
        return cls(gaps, movers, size)

    def apply(self, rows: Tensor) -> Tensor:
        """Move the rows of `rows` [B, ...] in place; returns a view of those that stay, [size, ...]."""
        if self.gaps.numel():
            rows[self.gaps] = rows[self.movers]
        return rows[: self.size]


def where(selected: Tensor, size: int) -> Tensor:
    """Indices int64 [size] of the `size` entries of bool [N] that are true.

    As `nonzero`, which asks a GPU for their number and waits for it; ``nonzero_static`` needs torch 2.7 there.
    """
    return torch.repeat_interleave(selected.long(), output_size=size)


class Cache(Protocol):
    """What attention calls; an exported graph, whose past are input tensors, has its own."""

    def update(self, k_val: Tensor, v_val: Tensor) -> KeyValue:
        """Append the keys and values of new tokens, float [B, H, S, D]; return those of all tokens so far."""


class KVCache:
    """Keys and values of the tokens decoded so far, in storage that doubles when full, up to `max_length` tokens."""

    def __init__(
        self,
        *,
        batch: int,
        heads: int,
        max_length: int,
        head_width: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        shape = (batch, heads, min(max_length, FIRST_LENGTH), head_width)
        self._key = torch.empty(shape, dtype=dtype, device=device)
        self._value = torch.empty(shape, dtype=dtype, device=device)
        self._length = 0
        self._max_length = max_length

    @classmethod
    def like(cls, x: Tensor, *, heads: int, max_length: int) -> KVCache:
        """An empty cache for the keys and values of tokens like float [B, ..., W]."""
        return cls(
            batch=len(x),
            heads=heads,
            max_length=max_length,
            head_width=x.shape[-1] // heads,
            dtype=x.dtype,
            device=x.device,
        )

    def __len__(self) -> int:
        return self._length

    @property
    def max_length(self) -> int:
        """How many tokens fit."""
        return self._max_length

    def update(self, k_val: Tensor, v_val: Tensor) -> KeyValue:
        """Append those of new tokens, float [B, H, S, D]; return those of all so far, views valid until the next call.

        ValueError if shapes do not fit, or if more than `max_length` tokens are stored.
        """
        expected = (self._key.shape[0], self._key.shape[1], k_val.shape[2], self._key.shape[3])
        if tuple(k_val.shape) != expected or k_val.shape != v_val.shape:
            raise ValueError(
                f"k_val {list(k_val.shape)} and v_val {list(v_val.shape)} do not fit a cache of "
                f"[B, H, S, D] = {list(self._key.shape)}"
            )
        end = self._length + k_val.shape[2]
        if end > self.max_length:
            raise ValueError(f"the cache holds {self.max_length} tokens, {end} were asked for")
        if end > self._key.shape[2]:
            size = min(max(end, 2 * self._key.shape[2]), self.max_length)
            self._key, self._value = (self._longer(stored, size) for stored in (self._key, self._value))
        self._key[:, :, self._length : end] = k_val
        self._value[:, :, self._length : end] = v_val
        self._length = end
        return KeyValue(self._key[:, :, :end], self._value[:, :, :end])

    def _longer(self, stored: Tensor, size: int) -> Tensor:
        """A copy of storage [B, H, S, D] with room for `size` tokens."""
        longer = stored.new_empty(*stored.shape[:2], size, stored.shape[3])
        longer[:, :, : self._length] = stored[:, :, : self._length]
        return longer

    def compact(self, compaction: Compaction) -> None:
        """Drop the rows of events that have ended, in place."""
        compaction.apply(self._key[:, :, : self._length])
        compaction.apply(self._value[:, :, : self._length])
        self._key = self._key[: compaction.size]
        self._value = self._value[: compaction.size]
