"""The paper's two decoders: stacks of standard decoder layers with one contract for memory and caches.

Letters: B batch, T target tokens, W target width, n projections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pflow.model.common.cache import Cache, KeyValue
from pflow.model.common.layers import FullyConnected, Residual, final_norm, stack
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.encoder import decoder_layer

__all__ = ["Decoder", "MultiProjectionDecoder", "VanillaDecoder"]


class VanillaDecoder(nn.Module):
    """Version 1: standard decoder layers, one after the other.

    Parameters
    ----------
    config
        Sizes and parts of the network.
    """

    def __init__(self, config: TranslationNetworkConfig) -> None:
        super().__init__()
        width = config.decoder_width
        self.layers = stack(decoder_layer(config, width=width) for _ in range(config.decoder_layers))
        self.norm = final_norm(width=width, style=config.style)

    def project(self, memory: Tensor) -> list[KeyValue]:
        """Keys and values of `memory`, float [B, S, memory width], one pair a standard decoder layer."""
        return [_project(layer, memory) for layer in self.layers]

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
            The whole sequence, or with `caches` its newest token.
        memory
            From `project`.
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
    """Project to n narrow sequences, apply a decoder layer to each, join, and mix."""

    def __init__(self, config: TranslationNetworkConfig) -> None:
        super().__init__()
        width, style = config.decoder_width, config.style
        self.projections = nn.Linear(width, width, bias=style.bias)  # the n maps W -> W / n, fused
        self.branches = stack(decoder_layer(config, width=config.width) for _ in range(config.n_projections or 0))
        self.feedforward = FullyConnected(
            (width, 2 * width, width), activation=style.activation, bias=style.bias, dropout=style.hidden_dropout
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
        def apply_branches(y: Tensor) -> Tensor:
            parts = self.projections(y).chunk(len(self.branches), dim=-1)  # [B, T, W] -> n of [B, T, W / n]
            decoded = [
                branch(part, known, memory_mask=memory_mask, causal=True, cache=cache)
                for branch, part, known, cache in zip(self.branches, parts, memory, caches, strict=True)
            ]
            return torch.cat(decoded, dim=-1)

        x = self.branches_residual(x, apply_branches)
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]


class MultiProjectionDecoder(nn.Module):
    """Version 2: the target is n times as wide as the memory; each layer decodes its n projections separately.

    Parameters
    ----------
    config
        Sizes and parts of the network.
    """

    def __init__(self, config: TranslationNetworkConfig) -> None:
        super().__init__()
        self.n = config.n_projections or 0
        self.layers = stack(_MultiProjectionLayer(config) for _ in range(config.decoder_layers))
        self.norm = final_norm(width=config.decoder_width, style=config.style)

    def project(self, memory: Tensor) -> list[KeyValue]:
        """Keys and values of `memory`, float [B, S, memory width], one pair a standard decoder layer."""
        return [_project(branch, memory) for layer in self.layers for branch in layer.branches]

    def forward(
        self,
        x: Tensor,
        memory: Sequence[KeyValue],
        *,
        memory_mask: Tensor | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """Decode; as `VanillaDecoder.forward`, with W = n * memory width."""
        past = caches if caches is not None else [None] * len(memory)
        for i, layer in enumerate(self.layers):
            own = slice(i * self.n, (i + 1) * self.n)
            x = layer(x, memory[own], memory_mask=memory_mask, caches=past[own])
        return self.norm(x)  # type: ignore[no-any-return]


Decoder = VanillaDecoder | MultiProjectionDecoder


def _project(layer: Any, memory: Tensor) -> KeyValue:
    return layer.memory_attention.project(memory)  # type: ignore[no-any-return]
