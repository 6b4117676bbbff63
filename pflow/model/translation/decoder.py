"""The paper's two decoders: stacks of standard decoder layers with one way of keeping a memory and a past.

Letters: B batch, T target tokens, W target width, n projections.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pflow.model.common.cache import Cache, KeyValue
from pflow.model.common.layers import DecoderLayer, FullyConnected, LayerStyle, Residual, final_norm, stack

__all__ = ["Decoder", "MultiProjectionDecoder", "VanillaDecoder"]


class VanillaDecoder(nn.Module):
    """Version 1: standard decoder layers, one after the other.

    Parameters
    ----------
    width, heads, feedforward, layers
        Of the decoder.
    memory_width
        Width of the memory's tokens.
    style
        Dropout, norm, bias, activation.
    """

    def __init__(
        self, *, width: int, heads: int, feedforward: int, layers: int, memory_width: int, style: LayerStyle
    ) -> None:
        super().__init__()
        self.layers = stack(
            DecoderLayer(width=width, heads=heads, feedforward=feedforward, memory_width=memory_width, style=style)
            for _ in range(layers)
        )
        self.norm = final_norm(width=width, style=style)

    def project(self, memory: Tensor) -> list[KeyValue]:
        """Keys and values of `memory`, float [B, S, memory_width], one pair a standard decoder layer."""
        return [layer.memory_attention.project(memory) for layer in self.layers]

    def forward(
        self,
        x: Tensor,
        memory: Sequence[KeyValue],
        *,
        memory_mask: Tensor | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """Decode.

        Parameters
        ----------
        x : float [B, T, W]
            The whole sentence so far, or with `caches` its newest token.
        memory : from `project`
        memory_mask : bool [B, S] or None
        caches
            One a standard decoder layer.

        Returns
        -------
        float [B, T, W]
        """
        past = caches if caches is not None else [None] * len(memory)
        for layer, known, cache in zip(self.layers, memory, past, strict=True):
            x = layer(x, known, memory_mask=memory_mask, causal=True, cache=cache)
        return self.norm(x)  # type: ignore[no-any-return]


class _MultiProjectionLayer(nn.Module):
    """Project to n narrow sequences, send each through its own decoder layer, join, and mix."""

    def __init__(self, *, n: int, heads: int, feedforward: int, memory_width: int, style: LayerStyle) -> None:
        super().__init__()
        width = n * memory_width
        self.projections = nn.Linear(width, width, bias=style.bias)  # the n maps W -> W / n, fused
        self.branches = stack(
            DecoderLayer(
                width=memory_width, heads=heads, feedforward=feedforward, memory_width=memory_width, style=style
            )
            for _ in range(n)
        )
        self.feedforward = FullyConnected(
            (width, 2 * width, width), activation=style.activation, bias=style.bias, dropout=style.dropout
        )
        self.branches_residual = Residual(width=width, style=style)
        self.feedforward_residual = Residual(width=width, style=style)

    def forward(
        self,
        x: Tensor,
        memory: Sequence[KeyValue],
        *,
        memory_mask: Tensor | None,
        caches: Sequence[Cache | None],
    ) -> Tensor:
        def translate(y: Tensor) -> Tensor:
            parts = self.projections(y).chunk(len(self.branches), dim=-1)  # [B, T, W] -> n of [B, T, W / n]
            translated = [
                branch(part, known, memory_mask=memory_mask, causal=True, cache=cache)
                for branch, part, known, cache in zip(self.branches, parts, memory, caches, strict=True)
            ]
            return torch.cat(translated, dim=-1)

        x = self.branches_residual(x, translate)
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]


class MultiProjectionDecoder(nn.Module):
    """Version 2: the target is n times as wide as the memory; each layer translates its n projections apart.

    Parameters
    ----------
    n_projections
        n.
    heads, feedforward, layers
        Of the standard decoder layers, and the number of layers.
    memory_width
        Width of the memory's tokens; the target's is n times that.
    style
        Dropout, norm, bias, activation.
    """

    def __init__(
        self, *, n_projections: int, heads: int, feedforward: int, layers: int, memory_width: int, style: LayerStyle
    ) -> None:
        super().__init__()
        self.n = n_projections
        self.layers = stack(
            _MultiProjectionLayer(
                n=n_projections, heads=heads, feedforward=feedforward, memory_width=memory_width, style=style
            )
            for _ in range(layers)
        )
        self.norm = final_norm(width=n_projections * memory_width, style=style)

    def project(self, memory: Tensor) -> list[KeyValue]:
        """Keys and values of `memory`, float [B, S, memory_width], one pair a standard decoder layer."""
        return [branch.memory_attention.project(memory) for layer in self.layers for branch in layer.branches]

    def forward(
        self,
        x: Tensor,
        memory: Sequence[KeyValue],
        *,
        memory_mask: Tensor | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """Decode; as `VanillaDecoder.forward`, with W = n * memory_width."""
        past = caches if caches is not None else [None] * len(memory)
        for i, layer in enumerate(self.layers):
            own = slice(i * self.n, (i + 1) * self.n)
            x = layer(x, memory[own], memory_mask=memory_mask, caches=past[own])
        return self.norm(x)  # type: ignore[no-any-return]


Decoder = VanillaDecoder | MultiProjectionDecoder
