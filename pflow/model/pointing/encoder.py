"""From source tokens to encoder states. Letters: B batch, S source tokens, W width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch
from pflow.model.api import ModelInputs
from pflow.model.common.layers import Encoder, FullyConnected, LayerStyle, TransformerLayer
from pflow.model.pointing.attention import DirectionalSelfAttention
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.geometry import Tokens
from pflow.model.pointing.nearby import Directions


class SourceEncoder(nn.Module):
    """Embed hit and track tokens, and encode them with attention that knows their directions."""

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        width = config.width
        style = LayerStyle(hidden_dropout=config.dropout, norm="pre", activation="gelu")
        self.embed_hit = FullyConnected((inputs.hit_features, width, width), activation="gelu")
        self.embed_track = None
        if inputs.track_features:
            self.embed_track = FullyConnected((inputs.track_features, width, width), activation="gelu")
        self.stack = Encoder(
            (
                TransformerLayer(
                    DirectionalSelfAttention(width=width, heads=config.heads),
                    width=width,
                    feedforward=config.feedforward,
                    style=style,
                )
                for _ in range(config.encoder_layers)
            ),
            width=width,
            style=style,
        )

    def check(self, batch: Batch) -> None:
        """Raise ValueError if the batch lacks tracks that the network reads, or has tracks that it does not read."""
        if (batch.tracks is None) != (self.embed_track is None):
            reads, has = ("reads", "none") if batch.tracks is None else ("does not read", "some")
            raise ValueError(f"tracks: the network {reads} them and the batch has {has}")

    def forward(self, batch: Batch, tokens: Tokens) -> Tensor:
        """Encoder states float [B, S, W] of a batch and its tokens."""
        features = batch.hits.features, None if batch.tracks is None else batch.tracks.features
        x = self._embed(*features)
        if self.training or x.device.type != "cpu":
            return self.stack(x, mask=tokens.mask, unit=tokens.unit)  # type: ignore[no-any-return]
        # One by one: matrix products round by their shapes, and an event's states must not depend on its batch.
        states = torch.zeros_like(x)
        for row, mask in enumerate(tokens.mask):
            real = mask.nonzero().squeeze(1)
            if len(real):
                states[row, real] = self._encode(x[row, real], tokens.unit[row, real])
        return states

    def of_event(self, hits: Tensor, tracks: Tensor | None, unit: Tensor) -> Tensor:
        """Encoder states float [S, W] of one event, from features of hits and tracks and the directions of tokens."""
        return self._encode(self._embed(hits, tracks), unit)

    def _embed(self, hits: Tensor, tracks: Tensor | None) -> Tensor:
        with torch.autocast(hits.device.type, enabled=False):  # bfloat16 would round a hit's position
            x = self.embed_hit(hits)
            if self.embed_track is None or tracks is None:
                return x  # type: ignore[no-any-return]
            return torch.cat([x, self.embed_track(tracks)], dim=-2)

    def _encode(self, x: Tensor, unit: Tensor) -> Tensor:
        directions, order = Directions.of(unit)
        x = self.stack(x.index_select(0, order), directions=directions)
        return x.index_select(0, torch.sort(order)[1])
