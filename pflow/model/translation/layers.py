"""The paper's encoders and decoders: hits alone, with tracks, or all types as one sequence; and two ways to decode.

Letters: B batch, S source length, T target tokens, W width, n projections. No source token has a position, so their
order changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch, TokenSet
from pflow.model.common.attention import CrossAttention, SelfAttention
from pflow.model.common.cache import Cache, KeyValue
from pflow.model.common.layers import Encoder, FullyConnected, Residual, TransformerLayer, final_norm, stack
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.embed import SourceEmbedder


class Memory(NamedTuple):
    """The encoded source of a batch."""

    states: Tensor  # float [B, S, W]
    mask: Tensor | None  # bool [B, S], real tokens; None: no padding


def make_encoder(config: TranslationNetworkConfig) -> Encoder:
    """A stack of standard layers, which attend to the tracks, too, where the source is ``cross``."""
    layers = (standard_layer(config, memory=config.source == "cross") for _ in range(config.encoder_layers))
    return Encoder(layers, width=config.width, style=config.style)


def standard_layer(config: TranslationNetworkConfig, *, memory: bool = True) -> TransformerLayer:
    """A layer of tokens, with attention to a `memory` of the encoder's width if it has one."""
    return TransformerLayer(
        SelfAttention(width=config.width, heads=config.heads),
        CrossAttention(width=config.width, heads=config.heads) if memory else None,
        width=config.width,
        feedforward=config.feedforward,
        style=config.style,
    )


class Source(nn.Module):
    """Hits, with bos and eos, in one sequence with the types `others` by their names in `Batch`.

    With `tracks` hits attend to each other and to the tracks.
    """

    def __init__(
        self,
        *,
        hits: SourceEmbedder,
        tracks: SourceEmbedder | None,
        others: Mapping[str, SourceEmbedder],
        encoder: Encoder,
    ) -> None:
        super().__init__()
        self.hits, self.tracks = hits, tracks
        self.others = nn.ModuleDict(dict(others))
        self.encoder = encoder

    @property
    def embedders(self) -> dict[str, SourceEmbedder]:
        """The embedder of each type that is read."""
        tracks = {} if self.tracks is None else {"tracks": self.tracks}
        return {"hits": self.hits, **tracks, **cast("dict[str, SourceEmbedder]", dict(self.others.items()))}

    def forward(self, batch: Batch) -> Memory:
        """Encode the tokens of `batch`; ValueError if it lacks a type that is read."""
        parts = {name: embed(_required(getattr(batch, name), name)) for name, embed in self.embedders.items()}
        memory, memory_mask = parts.pop("tracks") if self.tracks is not None else (None, None)
        x = torch.cat([tokens for tokens, _ in parts.values()], dim=1)
        mask = None
        if any(mask is not None for _, mask in parts.values()):
            whole = [torch.ones_like(x[..., 0], dtype=torch.bool) if m is None else m for x, m in parts.values()]
            mask = torch.cat(whole, dim=1)
        return Memory(self.encoder(x, mask=mask, memory=memory, memory_mask=memory_mask), mask)


def _required(tokens: TokenSet | None, name: str) -> TokenSet:
    if tokens is None:
        raise ValueError(f"{name}: the network reads them and the batch has none")
    return tokens


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
