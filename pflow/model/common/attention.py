"""Multi-head attention, on torch's fused scaled-dot-product attention unless queries are few.

Letters: B batch, N query tokens, S key tokens, W width, H heads, D = W / H. Masks: True = real token; None: no padding,
which keeps the kernels that know no mask. Packed events (`pflow.model.common.layers`) stand side by side in one row,
[1, sum of lengths, W], with their lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from pflow.model.common.decode import Compaction

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


def check_heads(width: int, heads: int) -> None:
    """Raise ValueError unless the heads divide the width."""
    if heads < 1 or width % heads:
        raise ValueError(f"heads: {heads} heads do not divide a width of {width}")


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, S, W] to [B, H, S, D], and [B, W] to [B, H, 1, D]."""
    if x.ndim == 2:
        return x.view(len(x), heads, 1, x.shape[-1] // heads)
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def _join(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)  # [B, H, N, D] -> [B, N, W]


def _broadcast(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, None, None, :]  # [B, S] -> [B, 1, 1, S]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    lengths: Sequence[int] | None = None,
    scale: float | None = None,
) -> Tensor:
    """Self-attention of padded events, or of packed ones by their `lengths`: [B, H, N, D] each to float [B, N, H * D].

    The `mask` is bool [B, N]; the default of `scale`, the factor of the logits, is D^(-1/2).
    """
    if lengths is None:
        attended = scaled_dot_product_attention(query, key, value, attn_mask=_broadcast(mask), scale=scale)
    else:
        queries, keys, values = (torch.split(part, list(lengths), dim=2) for part in (query, key, value))
        attended = _event_by_event(queries, keys, values, [None] * len(lengths), scale=scale)
    return _join(attended)


def attention_weights(query: Tensor, key: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """What `scaled_dot_product_attention` weights its values with, float [B, H, N, S]; each row sums to 1.

    Of scaled queries [B, H, N, D] and keys [B, H, S, D] with `mask` bool [B, S]; `causal`: a query sees the keys up to
    its place.
    """
    logits = query @ key.transpose(-1, -2)
    if causal:
        logits = logits.masked_fill(logits.new_ones(logits.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None, None, :], -torch.inf)
    return logits.softmax(-1)


def _event_by_event(
    queries: Iterable[Tensor],
    keys: Iterable[Tensor],
    values: Iterable[Tensor],
    masks: Iterable[Tensor | None],
    *,
    scale: float | None = None,
) -> Tensor:
    """Attend within each packed event, [1, H, N, D] each; returns the results side by side."""
    events = zip(queries, keys, values, masks, strict=True)
    return torch.cat([scaled_dot_product_attention(*event, scale=scale) for event in events], dim=2)


class SelfAttention(nn.Module):
    """Tokens of one sequence attend to each other; ValueError if `heads` does not divide `width`."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def weights(self, x: Tensor, *, mask: Tensor | None = None, causal: bool = False, **_: object) -> Tensor:
        """Attention weights float [B, H, N, N] of a call of `forward` with the same arguments, without cache."""
        query, key, _values = (split_heads(part, self.heads) for part in self.query_key_value(x).chunk(3, dim=-1))
        return attention_weights(query * self.scale, key, mask=mask, causal=causal)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        lengths: Sequence[int] | None = None,
        causal: bool = False,
        cache: Cache | None = None,
    ) -> Tensor:
        """Attend; float [B, N, W] in and out.

        With `cache`, x [B, W] is one new token of each event, whose key and value are appended. Where `causal`, a token
        attends to itself and to earlier ones; padding behind it is never attended to, so that there is no `mask` (bool
        [B, N]). Packed events have `lengths`, but neither cache nor mask.
        """
        query, key, value = split_heads(self.query_key_value(x), 3 * self.heads).chunk(3, dim=1)
        if cache is not None:
            key, value = cache.update(key * self.scale, value)  # the last token attends to all
            attended = (query @ key.transpose(2, 3)).softmax(-1) @ value  # [B, H, 1, D]
            return self.out(attended.view(x.shape))  # type: ignore[no-any-return]
        if causal:
            return self.out(_join(scaled_dot_product_attention(query, key, value, is_causal=True)))  # type: ignore[no-any-return]
        return self.out(attend(query, key, value, mask=mask, lengths=lengths))  # type: ignore[no-any-return]


class CrossAttention(nn.Module):
    """Tokens of one sequence attend to a memory of the same width, whose keys and values are projected once."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def project(self, memory: Tensor) -> KeyValue:
        """Keys, scaled for the logits, and values [B, H, S, D] of the memory, float [B, S, W]."""
        key, value = (split_heads(part, self.heads) for part in self.key_value(memory).chunk(2, dim=-1))
        return KeyValue(key * self.scale, value)

    def weights(self, x: Tensor, memory: KeyValue | Tensor, *, mask: Tensor | None = None, **_: object) -> Tensor:
        """Attention weights float [B, H, N, S] of a call of `forward` with the same arguments."""
        key = (self.project(memory) if isinstance(memory, Tensor) else memory).key
        return attention_weights(split_heads(self.query(x), self.heads), key, mask=mask)

    def forward(
        self,
        x: Tensor,
        memory: KeyValue | Tensor,
        *,
        mask: Tensor | None = None,
        lengths: Sequence[int] | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend from x, float [B, N, W] or packed with `lengths`, to a memory [B, S, W] or `project` of it.

        A `bias`, float [B, H, N, S], is added to the logits and replaces the mask; x may then be [B, W].
        """
        if isinstance(memory, Tensor):
            memory = self.project(memory)
        query = split_heads(self.query(x), self.heads)
        real = _broadcast(mask)
        if bias is not None:
            weight = (query @ memory.key.transpose(2, 3) + bias).softmax(-1)
            attended = weight @ memory.value  # [B, H, N, D]
            return self.out(attended.view(x.shape) if x.ndim == 2 else _join(attended))  # type: ignore[no-any-return]
        if lengths is None:
            attended = scaled_dot_product_attention(query, memory.key, memory.value, attn_mask=real, scale=1.0)
        else:
            queries, keys, values = torch.split(query, list(lengths), dim=2), memory.key[:, None], memory.value[:, None]
            masks = [None] * len(lengths) if real is None else real[:, None]
            attended = _event_by_event(queries, keys, values, masks, scale=1.0)
        return self.out(_join(attended))  # type: ignore[no-any-return]
