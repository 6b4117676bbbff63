"""Keys and values kept between decoder steps. Letters: B batch, H heads, S sequence length, D width of a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FIRST_LENGTH = 64
"""Tokens that a cache has room for at first."""


class KeyValue(NamedTuple):
    """Keys and values of a fixed sequence, projected once; float [B, H, S, D] each."""

    key: Tensor
    value: Tensor

    def contiguous(self) -> KeyValue:
        """For many products with few queries: keys lie in memory as [B, H, D, S], values as [B, H, S, D]."""
        return KeyValue(self.key.transpose(2, 3).contiguous().transpose(2, 3), self.value.contiguous())

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
        """From `stays`, bool [B], and its `sizes`, if they are on the host; computing them synchronises with a GPU."""
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
    """Indices int64 [size] of the `size` true entries of bool [N], without the wait of `nonzero` on a GPU."""
    return torch.repeat_interleave(selected.long(), output_size=size)


class KVCache:
    """Keys and values of the tokens decoded so far, in storage that doubles when it is full."""

    def __init__(self) -> None:
        self._key = self._value = torch.empty(0)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def update(self, k_val: Tensor, v_val: Tensor) -> KeyValue:
        """Append new tokens' keys and values, float [B, H, S, D]; return all, as views valid until the next call."""
        end = self._length + k_val.shape[2]
        if self._length == 0:
            shape = (*k_val.shape[:2], max(FIRST_LENGTH, end), k_val.shape[3])
            self._key, self._value = k_val.new_empty(shape), v_val.new_empty(shape)
        elif end > self._key.shape[2]:
            size = max(end, 2 * self._key.shape[2])
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


class Past:
    """Keys and values of the tokens decoded so far, in an exported graph: tensors that it reads and hands on."""

    def __init__(self, known: KeyValue) -> None:
        self.known = known

    def update(self, k_val: Tensor, v_val: Tensor) -> KeyValue:
        """As of `KVCache`."""
        key, value = self.known
        self.known = KeyValue(torch.cat([key, k_val], dim=2), torch.cat([value, v_val], dim=2))
        return self.known


Cache = KVCache | Past
"""Either one, for attention."""
