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
from pflow.model.common.layers import DecoderLayer, Encoder, EncoderLayer
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.embed import SourceEmbedder


class Memory(NamedTuple):
    """The encoded source of a batch."""

    states: Tensor  # float [B, S, W]
    mask: Tensor | None  # bool [B, S], real tokens; None: no padding


def make_encoder(config: TranslationNetworkConfig) -> Encoder:
    """A stack of standard encoder layers; of decoder layers without causal mask where hits attend to tracks."""

    def layer() -> EncoderLayer | DecoderLayer:
        if config.source == "cross":
            return decoder_layer(config)
        attention = SelfAttention(width=config.width, heads=config.heads)
        return EncoderLayer(attention, width=config.width, feedforward=config.feedforward, style=config.style)

    return Encoder((layer() for _ in range(config.encoder_layers)), width=config.width, style=config.style)


def decoder_layer(config: TranslationNetworkConfig) -> DecoderLayer:
    """A standard decoder layer of tokens and a memory of the encoder's width."""
    return DecoderLayer(
        SelfAttention(width=config.width, heads=config.heads),
        CrossAttention(width=config.width, heads=config.heads),
        width=config.width,
        feedforward=config.feedforward,
        style=config.style,
    )


class TokenSetSource(nn.Module):
    """One sequence of hits, with bos and eos, and of the types `others` by their names in `Batch`."""

    def __init__(self, *, hits: SourceEmbedder, others: Mapping[str, SourceEmbedder], encoder: Encoder) -> None:
        super().__init__()
        self.hits = hits
        self.others = nn.ModuleDict(dict(others))
        self.encoder = encoder

    @property
    def embedders(self) -> dict[str, SourceEmbedder]:
        """The embedder of each type that is read."""
        return {"hits": self.hits, **{name: cast("SourceEmbedder", part) for name, part in self.others.items()}}

    def forward(self, batch: Batch) -> Memory:
        """Encode all source tokens of `batch`; ValueError if it lacks a type that is read."""
        parts = [embed(_required(getattr(batch, name), name)) for name, embed in self.embedders.items()]
        x = torch.cat([tokens for tokens, _ in parts], dim=1)
        mask = None
        if any(mask is not None for _, mask in parts):
            whole = [torch.ones_like(tokens[..., 0], dtype=torch.bool) if m is None else m for tokens, m in parts]
            mask = torch.cat(whole, dim=1)
        return Memory(self.encoder(x, mask=mask), mask)


class CrossSource(nn.Module):
    """Hits attend to each other and to the embedded tracks."""

    def __init__(self, *, hits: SourceEmbedder, tracks: SourceEmbedder, encoder: Encoder) -> None:
        super().__init__()
        self.hits = hits
        self.tracks = tracks
        self.encoder = encoder

    @property
    def embedders(self) -> dict[str, SourceEmbedder]:
        """The embedder of each type that is read."""
        return {"hits": self.hits, "tracks": self.tracks}

    def forward(self, batch: Batch) -> Memory:
        """Encode the hits of `batch` with attention to its tracks; ValueError if it has none."""
        hits, mask = self.hits(batch.hits)
        tracks, track_mask = self.tracks(_required(batch.tracks, "tracks"))
        return Memory(self.encoder(hits, mask=mask, memory=tracks, memory_mask=track_mask), mask)


def _required(tokens: TokenSet | None, name: str) -> TokenSet:
    if tokens is None:
        raise ValueError(f"{name}: the network reads them and the batch has none")
    return tokens
