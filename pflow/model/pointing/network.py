"""The pointing network: encoder, decoder, assignment, particle head and refiner.

A decoder step points at the token where the next particle starts (its seed) or ends the sequence. Given the seed, hits
and tracks are assigned to the particle, hit by hit even where tokens are sums of hits. From these the head computes
proxies (energy sum, log-weighted barycentre, track momentum) and corrects them. The next step knows which
fractions are assigned. A refiner, if there is one, reassigns hits and tracks to all decoded particles, and the head
predicts them again.

Letters: B batch, S source tokens, M items (hits, then tracks), T particles, W width.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch, TokenSet
from pflow.model.api import ModelInputs
from pflow.model.common.directions import normalise
from pflow.model.common.initialise import initialise
from pflow.model.common.layers import Encoder, FullyConnected, LayerStyle, TransformerLayer
from pflow.model.pointing.assignment import ParticleAssignment
from pflow.model.pointing.attention import DirectionalSelfAttention, Directions
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.decoder import ParticleDecoder
from pflow.model.pointing.geometry import EncodedSource, Tokens, make_tokens_and_items
from pflow.model.pointing.head import EnergyScale, ParticleHead, Particles
from pflow.model.pointing.refiner import RefinedAssignment, Refiner

FIRST_STAGE = ("encoder", "decoder", "assignment", "head")
"""Modules of the first stage; a refinement is trained on its output."""


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

    def forward(self, batch: Batch, tokens: Tokens, *, precise: bool = True) -> Tensor:
        """Encoder states float [B, S, W] of a batch and its tokens; `precise`: see `DirectionalSelfAttention`."""
        features = batch.hits.features, None if batch.tracks is None else batch.tracks.features
        x = self._embed(*features)
        if not precise:
            return self.stack(x, mask=tokens.mask, unit=tokens.unit)  # type: ignore[no-any-return]
        if x.device.type != "cpu":
            return self.stack(x, mask=tokens.mask, directions=normalise(tokens.unit.double()))  # type: ignore[no-any-return]
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


class PointingNetwork(nn.Module):
    """The modules of the network, and how they are combined; ValueError: inputs that the network cannot read."""

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        if inputs.tracker_hit_features:
            raise ValueError("tracker_hit_features: the pointing network does not read them")
        self.n_subdetectors = inputs.n_subdetectors
        self.energy_scale = EnergyScale(inputs.energy_mean, inputs.energy_std)
        self.min_log_energy = math.log(max(inputs.min_energy, 1e-9))
        self.encoder = SourceEncoder(inputs, config)
        self.decoder = ParticleDecoder(inputs, config)
        self.assignment = ParticleAssignment(config, n_subdetectors=inputs.n_subdetectors)
        self.head = ParticleHead(inputs, config)
        self.refiner = Refiner(inputs, config) if config.refine_layers else None
        initialise(self)

    def encode(self, batch: Batch, *, precise: bool = True) -> EncodedSource:
        """Encode a batch; ValueError: no readout, no tracks that the network reads, or tracks that it does not read."""
        self.encoder.check(batch)
        if batch.hits.mask.shape[1] == 0:
            batch = _with_padding(batch)
        tokens, items = make_tokens_and_items(batch, n_subdetectors=self.n_subdetectors)
        states = self.encoder(batch, tokens, precise=precise)
        return EncodedSource(tokens, items, states, self.assignment.pair_logits.items(states, items))

    def predict_refined(
        self,
        refined: RefinedAssignment,
        seed: Tensor,
        source: EncodedSource,
        *,
        pdg: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Particles:
        """Particles [B, T, ...] of a refined assignment (fractions detached), in precision `dtype`; see the head."""
        assert self.refiner is not None
        particles: Particles = self.head(
            refined.query.flatten(0, 1),
            source.in_tables(seed).flatten(),
            refined.log_fraction.detach().exp().to(dtype),
            refined.pairs,
            source.tables(),
            pdg=None if pdg is None else pdg.flatten(),
            refined_describe=self.refiner.describe,
            direction_correction=self.refiner.direction_correction,
            front_trust=self.refiner.front_trust,
        )
        return particles.view(*seed.shape)


def _with_padding(batch: Batch) -> Batch:
    """The batch with a padded hit token: a seed is the index of a token, even in an event without tokens."""
    features = functional.pad(batch.hits.features, (0, 0, 0, 1))
    return dataclasses.replace(batch, hits=TokenSet(features, functional.pad(batch.hits.mask, (0, 1))))
