"""The decoder of the pointing network: attention to the memory that knows what is already spoken for.

Letters: B batch, T tokens of the target sentence, S source tokens, W width, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.common.attention import MemoryAttention, SelfAttention
from pflow.model.common.cache import Cache, KVCache
from pflow.model.common.layers import FullyConnected, stack

__all__ = ["CoverageDecoder"]

MIN_LEFT = 0.02
"""Added to what is left of a token before the logarithm: a token that is wholly spoken for is not quite forgotten."""

UNSEEN = -1e4
"""Bias on padding: finite, so that an event without tokens has an answer."""


class _Layer(nn.Module):
    def __init__(self, *, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width=width, heads=heads)
        self.memory_norm = nn.LayerNorm(width)
        self.memory_attention = MemoryAttention(width=width, heads=heads)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = FullyConnected((width, feedforward, width), activation="gelu", dropout=dropout)
        self.left_strength = nn.Parameter(torch.ones(heads))

    def forward(
        self, x: Tensor, memory: Tensor, left: Tensor, unseen: Tensor, together: Tensor | None, cache: Cache | None
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask=together, causal=together is None, cache=cache)
        bias = self.left_strength[:, None, None] * left[:, None] + unseen[:, None, None]  # [B, H, T, S]
        x = x + self.memory_attention(self.memory_norm(x), memory, bias)
        return x + self.feedforward(self.feedforward_norm(x))  # type: ignore[no-any-return]


class CoverageDecoder(nn.Module):
    """Pre-norm decoder layers whose attention to a source token is biased by what is left of it.

    A head's logits gain s_h ln(1 - c + 0.02), c being the share of the token that earlier particles have taken and s_h
    learned, 1 at birth.

    Parameters
    ----------
    width, heads, feedforward, layers
        Of the stack; the memory has the same width.
    dropout
        In the hidden layer of the feed-forward networks.
    """

    def __init__(self, *, width: int, heads: int, feedforward: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = stack(
            _Layer(width=width, heads=heads, feedforward=feedforward, dropout=dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    @torch.no_grad()
    def initialise(self) -> None:
        """Let the strengths of the bias begin at 1."""
        for layer in self.layers:
            layer.left_strength.fill_(1.0)

    def caches(self, like: Tensor, max_length: int) -> list[KVCache]:
        """Empty caches of sentences up to a length, one a layer, for float [B, ..., W] such as `like`."""
        return [
            KVCache(
                batch=len(like),
                heads=layer.attention.heads,
                max_length=max_length,
                head_width=like.shape[-1] // layer.attention.heads,
                dtype=like.dtype,
                device=like.device,
            )
            for layer in self.layers
        ]

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        covered: Tensor,
        mask: Tensor,
        together: Tensor | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """Decode.

        Parameters
        ----------
        x : float [B, T, W], the whole sentence, or with `caches` its newest token
        memory : float [B, S, W]
        covered : float [B, T, S], share of each source token that is spoken for before the next particle
        mask : bool [B, S], True = real token
        together : bool [B, T] or None
            True = written: all of the sentence sees all of it; None: each token sees those before it.
        caches
            One a layer.
        """
        left = (1.0 - covered + MIN_LEFT).clamp(min=MIN_LEFT).log()
        if together is not None:  # attention to nothing at all is not defined
            together = functional.pad(together[:, 1:], (1, 0), value=True)
        unseen = torch.where(mask, 0.0, UNSEEN).to(left.dtype)
        past: Sequence[Cache | None] = caches if caches is not None else [None] * len(self.layers)
        for layer, cache in zip(self.layers, past, strict=True):
            x = layer(x, memory, left, unseen, together, cache)
        return self.norm(x)  # type: ignore[no-any-return]
