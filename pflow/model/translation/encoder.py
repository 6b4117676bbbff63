"""From a batch to the memory that the decoder attends to: hits alone, with tracks, or all types as one sequence.

Letters: B batch, S source length, W width. No source token has a position, so their order changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch, TokenSet
from pflow.model.common.attention import CrossAttention, SelfAttention
from pflow.model.common.layers import Encoder, TransformerLayer
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
