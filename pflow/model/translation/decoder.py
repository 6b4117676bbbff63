"""The paper's two decoders. Letters: B batch, T target tokens, W target width, n projections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pflow.model.common.cache import Cache, KeyValue
from pflow.model.common.layers import FullyConnected, Residual, final_norm, stack
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.encoder import standard_layer


class MultiProjectionLayer(nn.Module):
    """Project to n narrow sequences, apply a standard decoder layer to each, join, and mix."""

    def __init__(self, config: TranslationNetworkConfig) -> None:
        super().__init__()
        width, style = config.decoder_width, config.style
        self.projections = nn.Linear(width, width)  # the n maps W -> W / n, fused
        self.branches = stack(standard_layer(config) for _ in range(config.n_projections or 0))
        self.feedforward = FullyConnected(
            (width, 2 * width, width), activation=style.activation, dropout=style.hidden_dropout
        )
        self.branches_residual = Residual(width=width, style=style)
        self.feedforward_residual = Residual(width=width, style=style)

    def forward(
        self, x: Tensor, memory: Sequence[KeyValue], *, cache: Sequence[Cache | None], **context: Any
    ) -> Tensor:
        """As `TransformerLayer.forward`, with a memory and a cache for each projection."""

        def apply_branches(y: Tensor) -> Tensor:
            parts = self.projections(y).chunk(len(self.branches), dim=-1)  # [B, T, W] -> n of [B, T, W / n]
            decoded = [
                branch(part, known, cache=past, **context)
                for branch, part, known, past in zip(self.branches, parts, memory, cache, strict=True)
            ]
            return torch.cat(decoded, dim=-1)

        x = self.branches_residual(x, apply_branches)
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A stack of standard decoder layers (version 1), or of multi-projection layers (version 2).

    In version 2 the target is n times as wide as the memory, and each layer decodes its n projections separately.
    """

    def __init__(self, config: TranslationNetworkConfig) -> None:
        super().__init__()
        self.n_projections = config.n_projections
        make_layer = standard_layer if config.n_projections is None else MultiProjectionLayer
        self.layers = stack(make_layer(config) for _ in range(config.decoder_layers))
        self.norm = final_norm(width=config.decoder_width, style=config.style)

    def project(self, memory: Tensor) -> list[KeyValue]:
        """Keys and values of `memory`, float [B, S, memory width], one pair a standard decoder layer."""
        standard: list[Any] = list(self.layers)
        if self.n_projections is not None:
            standard = [branch for layer in standard for branch in layer.branches]
        return [layer.memory_attention.project(memory) for layer in standard]

    def forward(
        self,
        x: Tensor,
        memory: Sequence[KeyValue],
        *,
        memory_mask: Tensor | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """Decode x, float [B, T, W]: the whole sequence, or with `caches` its newest token.

        There is one cache a standard decoder layer. The memory is from `project`, with `memory_mask` bool [B, S].
        """
        past = caches if caches is not None else [None] * len(memory)
        n = self.n_projections
        for i, layer in enumerate(self.layers):
            own = i if n is None else slice(i * n, (i + 1) * n)
            x = layer(x, memory[own], memory_mask=memory_mask, causal=True, cache=past[own])
        return self.norm(x)  # type: ignore[no-any-return]
