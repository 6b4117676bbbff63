"""The pointing network: translation whose every written particle points at the hits and tracks that it is made of.

A step of the decoder has four parts. It points at the token where the next particle begins (its seed) or ends the
sentence; given the seed it says which hits and tracks belong to the particle (its incidence), hit by hit even where
tokens are sums of hits; from these it forms proxies, as a physicist would (energy sum, log-weighted barycentre, track
momentum); and it corrects them. What is spoken for goes back into the next step. When the sentence is written, a second
reading (`pflow.model.pointing.refiner`) may divide hits and tracks among its particles once more, from which these are
made anew.

Letters: B batch, S source tokens, N hits, K tracks, M = N + K items, T target particles, P pairs, W width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch, TokenSet
from pflow.model.api import ModelInputs
from pflow.model.common.cache import Cache
from pflow.model.common.initialise import initialise
from pflow.model.common.layers import FullyConnected
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.decoder import CoverageDecoder
from pflow.model.pointing.encoder import LocalEncoder
from pflow.model.pointing.geometry import Scene, gather, make_scene
from pflow.model.pointing.particles import Particles, Written
from pflow.model.pointing.pointer import Incidence, Pairs, Pointer, find_pairs
from pflow.model.pointing.proxies import Proxies, make_proxies, n_proxy_features, tangent_basis
from pflow.model.pointing.refiner import Relation, Revised, Revision
from pflow.model.pointing.shower_direction import Unbend, shower_slopes
from pflow.model.translation.heads import unit_vector

__all__ = ["PointingTransformer", "Source"]

LN10 = math.log(10.0)

CORRECTION = 0.1
"""Correction of ln E where the network says 1."""

ENERGY_WIDTHS = (-6.0, 1.5)
"""Least and largest logarithm of the standard deviation of ln E."""

DIRECTION_WIDTHS = (-9.5, 0.0)
"""Least and largest logarithm of the standard deviation of an angle, rad."""


class Source(NamedTuple):
    """The encoded source.

    Parameters
    ----------
    scene
        Tokens and items in space.
    states : float [B, S, W]
    items : float [B, M, hidden], for the incidence
    """

    scene: Scene
    states: Tensor
    items: Tensor

    def kept(self) -> Source:
        """The same, with scene and states in storage of their own: writing uses up that of all it reads."""
        return self._replace(scene=self.scene.copy(), states=self.states.clone())


class PointingTransformer(nn.Module):
    """Encoder, coverage-aware decoder, pointer, incidence and corrections.

    Parameters
    ----------
    inputs
        Sizes and scales that follow from the tokeniser.
    config
        Sizes and parts of the network.

    Raises
    ------
    ValueError
        Inputs that the network cannot read.
    """

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        if inputs.n_charge != 3:
            raise ValueError(f"n_charge: the charges are -1, 0 and +1, not {inputs.n_charge} values")
        if inputs.tracker_hit_features:
            raise ValueError("tracker_hit_features: the pointing network does not read them")
        self.config = config
        n_charge, n_pdg, n_subdetectors = inputs.n_charge, inputs.n_pdg, inputs.n_subdetectors
        hit_features, track_features = inputs.hit_features, inputs.track_features
        width, heads, feedforward, hidden = config.width, config.heads, config.feedforward, config.hidden_width
        dropout, bend, revise_bend = (
            config.dropout,
            config.delta_theta_phi_features,
            config.refine_delta_theta_phi_features,
        )
        masses, charged = inputs.masses, inputs.charged
        self.n_pdg = n_pdg
        self.n_subdetectors = n_subdetectors
        self.cone = math.cos(config.cone_angle)
        self.use_proxies = config.use_proxies
        self.use_coverage = config.coverage
        self.energy_mean = inputs.energy_mean
        self.energy_std = inputs.energy_std
        self.min_log_energy = math.log(max(inputs.min_energy, 1e-9))
        self.register_buffer("masses", torch.tensor(list(masses), dtype=torch.float32), persistent=False)
        self.register_buffer("charged", torch.tensor(list(charged), dtype=torch.bool), persistent=False)
        self.embed_hit = FullyConnected((hit_features, width, width), activation="gelu")
        self.embed_track = FullyConnected((track_features, width, width), activation="gelu") if track_features else None
        self.encoder = LocalEncoder(
            width=width,
            heads=heads,
            feedforward=feedforward,
            layers=config.encoder_layers,
            dropout=dropout,
            local=config.local_attention,
        )
        self.begin = nn.Parameter(torch.empty(width))
        self.embed_particle = FullyConnected((n_pdg + n_charge + 7, width, width), activation="gelu")
        self.embed_seed = nn.Linear(width, width, bias=False)
        self.embed_pooled = nn.Linear(width, width, bias=False)
        self.decoder = CoverageDecoder(
            width=width, heads=heads, feedforward=feedforward, layers=config.decoder_layers, dropout=dropout
        )
        self.pointer = Pointer(width=width, hidden=hidden)
        self.query = FullyConnected((2 * width, width, width), activation="gelu")
        self.incidence = Incidence(width=width, hidden=hidden, n_subdetectors=n_subdetectors, bend=bend)
        features = 2 * width + n_proxy_features(n_subdetectors)
        self.describe = FullyConnected((features, width, width), activation="gelu")
        self.identity = nn.Linear(width, n_pdg + n_charge)
        self.correct = nn.Linear(width, 8)
        self.revision: Revision | None = None
        if config.refine_layers:
            self.revision = Revision(
                width=width,
                heads=heads,
                feedforward=feedforward,
                layers=config.refine_layers,
                hidden=hidden,
                n_subdetectors=n_subdetectors,
                bend=revise_bend,
                dropout=dropout,
            )
        self.relation = Relation(width=width, bend=revise_bend) if config.pairwise_messages else None
        self.unbend = Unbend(features=features, hidden=hidden) if revise_bend else None
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew, from `generator` or from torch's global one; corrections begin at none."""
        initialise(self, generator)
        with torch.no_grad():
            self.encoder.initialise()
            self.decoder.initialise()
            if self.use_proxies:
                self.correct.weight.zero_()
            self.correct.bias.copy_(torch.tensor([0.0, -3.0, 0.0, 0.0, -2.0, -4.0, -3.0, -3.0]))
            self.pointer.initialise()
            if self.revision is not None:
                self.revision.initialise()
            if self.relation is not None:
                self.relation.initialise()
            if self.unbend is not None:
                self.unbend.initialise()

    def encode(self, batch: Batch) -> Source:
        """Encode the source of a batch.

        Raises
        ------
        ValueError
            The batch has no readout, lacks the tracks that the network reads, or has some that it does not.
        """
        if (batch.tracks is None) != (self.embed_track is None):
            reads, has = ("reads", "none") if batch.tracks is None else ("does not read", "some")
            raise ValueError(f"tracks: the network {reads} them and the batch has {has}")
        if batch.hits.mask.shape[1] == 0:
            batch = _with_padding(batch)
        scene = make_scene(batch, n_subdetectors=self.n_subdetectors)
        with torch.autocast(batch.hits.features.device.type, enabled=False):  # bfloat16 would round a hit's position
            x = self.embed_hit(batch.hits.features)
            if self.embed_track is not None and batch.tracks is not None:
                x = torch.cat([x, self.embed_track(batch.tracks.features)], dim=1)
        states = self.encoder(x, scene.token_unit, scene.token_mask)
        return Source(
            scene=scene,
            states=states,
            items=self.incidence.items(states, scene),
        )

    def read_back(self, written: Written, source: Source) -> Tensor:
        """Particles float [B, T, W] as the decoder reads them."""
        numbers = torch.stack(
            [
                written.log_energy / 2.0,
                ((written.deposit + 0.05).log() - written.log_energy).clamp(-4.0, 4.0),
                (written.deposit + 1e-3).log() / 2.0,
                gather(source.scene.token_is_track, written.seed).float(),
            ],
            dim=-1,
        )
        features = torch.cat(
            [
                functional.one_hot(written.pdg, self.n_pdg),
                functional.one_hot(written.charge, 3),
                numbers,
                written.direction,
            ],
            dim=-1,
        )
        x = self.embed_particle(features)
        return x + self.embed_seed(gather(source.states, written.seed)) + self.embed_pooled(written.pooled)  # type: ignore[no-any-return]

    def sentence(self, particles: Tensor) -> Tensor:
        """The beginning and then the particles read back, [B, T, W] to [B, T + 1, W]."""
        return torch.cat([self.begin.expand(len(particles), 1, -1), particles], dim=1)

    def state(
        self, x: Tensor, source: Source, covered: Tensor, caches: Sequence[Cache] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Decoder states float [B, T, W] and the pointer's log probabilities float [B, T, S + 1].

        Parameters
        ----------
        x : float [B, T, W], from `sentence`, or with caches the newest token
        source
            Of the batch.
        covered : float [B, T, M], share of each item that is spoken for before each position
        caches
            Of the tokens before.
        """
        on_tokens = source.scene.on_tokens(covered)
        h = self.decoder(x, source.states, covered=on_tokens, mask=source.scene.token_mask, caches=caches)
        return h, self.pointer(h, source.states, source.scene, on_tokens)

    def point(
        self, h: Tensor, seed: Tensor, source: Source, covered: Tensor, mask: Tensor
    ) -> tuple[Tensor, Pairs, Tensor]:
        """Which items belong to the particles that begin at some seeds.

        Parameters
        ----------
        h : float [B, T, W], decoder states
        seed : int64 [B, T]
        source
            Of the batch.
        covered : float [B, T, M]
        mask : bool [B, T], True = real particle

        Returns
        -------
        query : float [B, T, W]
        pairs : Pairs
        logits : float [P]
            Of the share of what is left of the pair's item.
        """
        query = self.query(torch.cat([h, gather(source.states, seed)], dim=-1))
        pairs = find_pairs(source.scene, seed, covered, mask, cone=self.cone)
        taken = pairs.at(covered)
        return query, pairs, self.incidence(query, source.items, source.scene, seed, taken[:, None], pairs)

    def reread(self, columns: Mapping[str, Tensor], source: Source, *, keep: float = 0.0) -> Revised:
        """Read what was written a second time.

        Parameters
        ----------
        columns
            Of `pflow.model.pointing.decode.Sentences`.
        source
            Of the batch.
        keep
            See `Revision.forward`.
        """
        assert self.revision is not None
        read, written = columns["read"], columns["written"]
        if self.relation is not None:
            numbers = (columns[name] for name in ("log_energy", "direction", "written", "taken"))
            read = read + self.relation(read, *numbers, source.scene)
        return self.revision(  # type: ignore[no-any-return]
            read, columns["query"], columns["seed"], columns["taken"], written, source.scene, source.states, keep=keep
        )

    def remake(self, revised: Revised, seed: Tensor, source: Source, pdg: Tensor | None = None) -> Particles:
        """Make the particles anew as the second reading has them; shares are detached. Parameters as of `particles`."""
        assert self.revision is not None
        share = revised.log_share.detach().exp()
        return self.particles(revised.query, seed, share, revised.pairs, source, pdg=pdg, revision=self.revision)

    def log_energy_of(self, normalised: Tensor) -> Tensor:
        """ln(E / GeV) of normalised log10 E."""
        return LN10 * (self.energy_mean + self.energy_std * normalised)

    def share(self, logits: Tensor, pairs: Pairs, covered: Tensor) -> Tensor:
        """Share float [P] of each item, of what is left of it."""
        left = 1.0 - pairs.at(covered)
        return logits.sigmoid() * left

    def particles(
        self,
        query: Tensor,
        seed: Tensor,
        share: Tensor,
        pairs: Pairs,
        source: Source,
        pdg: Tensor | None = None,
        revision: Revision | None = None,
    ) -> Particles:
        """Make the particles.

        Parameters
        ----------
        query : float [B, T, W], from `point`
        seed : int64 [B, T]
        share : float [P]
        pairs, source
            Of the batch.
        pdg : int64 [B, T] or None
            Identities where they are known (training); else the most probable.
        revision
            Of a second reading: adds to what describes a particle, from the same numbers, and unbends its direction.
        """
        scene = source.scene
        made = make_proxies(share, pairs, scene, seed, n_subdetectors=self.n_subdetectors)
        weight = share * pairs.at_items(scene.item_weight).square()
        on_tokens = pairs.on_tokens(weight, scene, (seed.shape[0], seed.shape[1]))
        pooled = on_tokens @ source.states / on_tokens.sum(-1, keepdim=True).clamp(min=1e-9)
        features = torch.cat([query, pooled, made.features], dim=-1)
        described = self.describe(features)
        if revision is not None:
            described = described + revision.describe(features)
        described = functional.gelu(described)
        identity = self.identity(described)
        numbers = self.correct(described)
        chosen = identity[..., : self.n_pdg].argmax(-1) if pdg is None else pdg

        momentum = gather(scene.token_momentum, seed)
        p = torch.linalg.vector_norm(momentum, dim=-1)
        by_track = gather(scene.token_is_track, seed) & self.get_buffer("charged")[chosen] & (p > 0)
        if self.use_proxies:
            log_energy, direction = self._corrected(made, numbers)
            if revision is not None and self.unbend is not None:
                slope = shower_slopes(share, pairs, scene, (seed.shape[0], seed.shape[1]))
                direction = self.unbend(features, direction, slope)
        else:
            log_energy = self.log_energy_of(numbers[..., 0])
            direction = unit_vector(numbers[..., 2] + torch.pi / 2, numbers[..., 3])
            by_track = torch.zeros_like(by_track)
        track_energy = torch.sqrt(p.square() + self.get_buffer("masses")[chosen].square()).clamp(min=1e-6)
        return Particles(
            pdg=identity[..., : self.n_pdg],
            charge=identity[..., self.n_pdg :],
            log_energy=torch.where(by_track, track_energy.log(), log_energy),
            direction=torch.where(by_track[..., None], functional.normalize(momentum, dim=-1), direction),
            energy_log_sigma=numbers[..., 4].clamp(*ENERGY_WIDTHS),
            direction_log_sigma=numbers[..., 5].clamp(*DIRECTION_WIDTHS),
            pooled=pooled,
            proxies=made,
            by_track=by_track,
        )

    def _corrected(self, made: Proxies, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """ln E and direction: the proxies', corrected."""
        tracks = torch.linalg.vector_norm(made.track_momentum, dim=-1)
        trust = numbers[..., 1].sigmoid()  # in tracks, for a neutral particle that turned into charged ones
        base = (1.0 - trust) * made.energy + trust * tracks + 1e-2
        # One part the log-weighted barycentre's, the others as the network trusts them.
        parts = torch.stack([made.direction, made.linear_direction, made.track_direction], dim=-1)  # [B, T, 3, 3]
        trusted = functional.pad(numbers[..., 6:8], (1, 0)).softmax(-1)
        towards = functional.normalize((parts * trusted[..., None, :]).sum(-1), dim=-1)
        theta, phi = tangent_basis(towards)
        # In units of the width, or a narrow one would make the gradient as large as it is narrow.
        turn = numbers[..., 5:6].clamp(*DIRECTION_WIDTHS).exp().detach() * numbers[..., 2:4]
        direction = towards + turn[..., :1] * theta + turn[..., 1:] * phi
        return base.log() + CORRECTION * numbers[..., 0], functional.normalize(direction, dim=-1)

    def forward(self, batch: Batch) -> Source:
        """Encode; see `pflow.model.pointing.teacher_forcing` for training and `pflow.model.pointing.generate` for generation."""
        return self.encode(batch)


def _with_padding(batch: Batch) -> Batch:
    """One padded hit token more: a seed, even of nothing, is the index of a token."""
    features = functional.pad(batch.hits.features, (0, 0, 0, 1))
    return dataclasses.replace(batch, hits=TokenSet(features, functional.pad(batch.hits.mask, (0, 1))))
