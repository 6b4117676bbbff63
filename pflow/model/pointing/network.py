"""The pointing network: encoder, decoder, assignment, particle head and refiner.

A decoder step points at the token where the next particle starts (its seed) or ends the sequence. Given the seed, hits
and tracks are assigned to the particle, hit by hit even where tokens are sums of hits. From these the head computes
proxies (energy sum, log-weighted barycentre, track momentum) and corrects them. The next step knows which
fractions are assigned.

So hits are assigned to earlier particles before later ones, to which they may fit better, are decoded. A refiner, if
there is one, sees all decoded particles at once and gives each a logit per item, and a probability to exist. A softmax
over particles and 'unassigned', per item, gives fractions twice: among all decoded particles (candidates, each as if it
exists), and among the listed ones, which exist more probably than not. The head predicts the particles from both, and
`share_energy` shares energy that the list lacks or counts twice among its particles.

Letters: B batch, S source tokens, M items (hits, then tracks), T particles, P pairs of a particle and an item, W width.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch, TokenSet
from pflow.model.api import ModelInputs
from pflow.model.common.transformer import (
    ConstantLinear,
    Encoder,
    FullyConnected,
    LayerStyle,
    TransformerLayer,
    gelu,
    initialise,
)
from pflow.model.common.vectors import normalise
from pflow.model.pointing.assignment import AssignmentLogits, PairList, ParticleAssignment, ramp
from pflow.model.pointing.attention import Coverage, DirectionalSelfAttention, Directions
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.decoder import CoverageDecoder, ParticleDecoder
from pflow.model.pointing.geometry import EncodedSource, Tokens, cosines, gather, make_tokens_and_items
from pflow.model.pointing.head import EnergyScale, ParticleHead, Particles
from pflow.model.pointing.showers import ConversionDirectionCorrection, PairwiseMessages, n_proxy_features

MIN_COSINE = math.cos(0.15)  # of the angle to a seed within which all items are in its particle's pairs; others are far
EPS_FRACTION = 0.01  # added to fractions before a logarithm; far items are in a pair if more was the particle's before
# Their weight rises from 0 to 1 over this width of the fraction: with a jump, rounding could add or remove an item.
FAR_WEIGHT_WIDTH = 0.002
MIN_FAR_WEIGHT = 1e-6  # of far items in pairs, as its logarithm is added to the logit
DROPPED_LOGIT = -1e4  # item logit of an unlisted particle
SHARING_ANGLE = 0.15  # rad, angle over which a particle's part in its neighbours' energy differences falls by e


class DecodedParticles(NamedTuple):
    """Particles of the first stage; `columns` of `pflow.model.common.decode.DecodedSequence`."""

    embedded: Tensor  # float [B, T, W], as input of the decoder
    query: Tensor  # float [B, T, W]
    seed: Tensor  # int64 [B, T]
    log_energy: Tensor  # float [B, T]
    direction: Tensor  # float [B, T, 3]
    hit_fraction: Tensor  # float [B, T, M]
    mask: Tensor  # bool [B, T], True = decoded

    @classmethod
    def of(cls, columns: dict[str, Tensor], mask: Tensor) -> DecodedParticles:
        """From the columns of a decoded sequence and its mask."""
        return cls(**{name: columns[name] for name in cls._fields if name != "mask"}, mask=mask)


class Assigned(NamedTuple):
    """Fractions of items of some of the decoded particles."""

    listed: Tensor  # bool [B, T], True = of these particles
    log_fraction: Tensor  # float [P], logarithm of the fraction of the pair's item that is the particle's
    log_unassigned: Tensor  # float [B, M], logarithm of the fraction of each item that no particle has


class Refinement(NamedTuple):
    """Output of the refiner for all decoded particles."""

    query: Tensor  # float [B, T, W], particle states for the head
    pairs: PairList
    logits: Tensor  # float [P], the pair's item belongs to the particle
    unassigned_logit: Tensor  # float [B, M], the item belongs to no particle
    existence_logit: Tensor  # float [B, T]

    def assign(self, listed: Tensor) -> Assigned:
        """Share each item among the particles `listed`, bool [B, T], and 'unassigned'; the others get nothing."""
        pairs, free = self.pairs, self.unassigned_logit.flatten()
        logits = self.logits.masked_fill(pairs.of_particles(~listed.flatten()), DROPPED_LOGIT)
        # Subtract the largest logit of each item: exponentials of large logits would overflow.
        largest = free.detach().scatter_reduce(0, pairs.item, logits.detach(), "amax")
        exponentials = (logits - largest.index_select(0, pairs.item)).exp()
        total = (free - largest).exp().index_add(0, pairs.item, exponentials).log() + largest  # of each item
        log_fraction = logits - total.index_select(0, pairs.item)
        return Assigned(listed, log_fraction, self.unassigned_logit - total.view_as(self.unassigned_logit))


class RefinedParticles(NamedTuple):
    """Decoded particles after the refinement, [B, T, ...]."""

    refinement: Refinement
    candidates: Particles  # each with the energy that it has if it exists
    of_candidates: Assigned
    particles: Particles  # with energies given the list; entries outside the list are undefined
    assigned: Assigned
    existence: Tensor  # float [B, T], probability to exist; 1 in the list with a track


class Refiner(nn.Module):
    """Reassign hits and tracks; initially the fractions are the first stage's."""

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        width, hidden_width, n_subdetectors = config.width, config.hidden_width, inputs.n_subdetectors
        features = 2 * width + n_proxy_features(n_subdetectors)
        self.messages = PairwiseMessages(width=width)
        self.embed_query = nn.Linear(width, width)
        self.stack = CoverageDecoder(config, layers=config.refine_layers)
        self.query_update = FullyConnected((2 * width, width, width), initial=0.0)
        self.pair_logits = AssignmentLogits(
            width=width, hidden_width=hidden_width, n_subdetectors=n_subdetectors, n_known=2, initial=0.0
        )
        self.unassigned = ConstantLinear(hidden_width, 1)
        self.existence = FullyConnected((width, width, 1), initial=3.0)
        self.describe = FullyConnected((features, width, width), initial=0.0)
        self.direction_correction = ConversionDirectionCorrection(features=features, hidden_width=hidden_width)
        self.front_trust = ConstantLinear(width, 1, initial=-4.0) if config.front else None

    def forward(
        self,
        particles: DecodedParticles,
        source: EncodedSource,
        *,
        dtype: torch.dtype = torch.float64,
    ) -> Refinement:
        """Logits of the items of the first stage's particles; `dtype` is the precision of the showers' slopes."""
        tables, states = source.tables(), source.states
        seed, mask = particles.seed, particles.mask
        fraction = particles.hit_fraction / particles.hit_fraction.sum(1, keepdim=True).clamp(min=1.0)
        assigned = fraction.sum(1)  # [B, M]
        x, of_first = particles.embedded, (particles.log_energy, particles.direction, mask, particles.hit_fraction)
        x = x + self.messages(x, *of_first, tables.items.sums, dtype)
        coverage = Coverage.of(source.assigned(assigned[:, None])[:, None], source.tokens.mask)
        x = self.stack(x + self.embed_query(particles.query), self.stack.project(states), coverage, mask=mask)
        query = particles.query + self.query_update(torch.cat([x, gather(states, seed)], dim=-1))
        existence_logit = self.existence(x).squeeze(-1)

        near = cosines(gather(source.tokens.unit, seed), source.items.direction) > MIN_COSINE
        within = near | (fraction > EPS_FRACTION)
        pairs = PairList.where(within & mask[..., None] & source.items.mask[:, None])
        first_fraction = pairs.values(fraction)
        weight = ramp(first_fraction, EPS_FRACTION, FAR_WEIGHT_WIDTH)
        weight = torch.where(pairs.values(near), 1.0, weight.clamp(min=MIN_FAR_WEIGHT))
        others = pairs.of_items(assigned.flatten()) - first_fraction
        items, known = self.pair_logits.items(states, source.items), torch.stack([first_fraction, others])
        seed = source.in_tables(seed).flatten()
        logits = self.pair_logits(query.flatten(0, 1), seed, tables, items.flatten(0, 1), known, pairs)
        log_existence = pairs.of_particles(functional.logsigmoid(existence_logit).flatten())
        logits = logits + (weight * (first_fraction + EPS_FRACTION)).log() + log_existence
        unassigned_logit = self.unassigned(gelu(items)).squeeze(-1) + (1.0 - assigned + EPS_FRACTION).log()
        return Refinement(query, pairs, logits, unassigned_logit, existence_logit)


def share_energy(particles: Particles, listed: Tensor, expected: Tensor, existence: Tensor) -> Tensor:
    """Energies of listed particles, as ln E [B, T], whose plain sum is the energy expected of all decoded particles.

    `particles` have the energies that the list's assignment gives, `expected` [B, T] are existence times energy if it
    exists, GeV. The two sums differ: two listed halves of a shower each have the energy of the whole, and the energy of
    unlisted particles is lost. So each decoded particle's difference is shared among the listed trackless particles
    around it, in proportion to their variances of energy and existence, as in a least-squares fit with a constraint on
    the sum: a well-measured photon keeps its energy, a neutral hadron takes the difference.
    """
    energy = particles.log_energy.exp()
    variance = (particles.energy_log_sigma.exp() * energy).square() + existence * (1.0 - existence) * energy.square()
    variance = (variance * (listed & ~particles.by_track)).detach()
    cosine = particles.direction.detach() @ particles.direction.detach().transpose(1, 2)  # [B, T, T]
    angle = (2.0 - 2.0 * cosine).clamp(min=0.0).sqrt()  # a chord: ONNX Runtime has no arc cosine in double precision
    weight = variance[:, None] * (-angle / SHARING_ANGLE).exp()
    weight = weight / weight.sum(2, keepdim=True).clamp(min=1e-12)  # lost if there is no trackless listed particle
    added = ((expected - energy * listed)[:, None] @ weight).squeeze(1)  # GeV
    # The exponential keeps an energy that is reduced above zero.
    log_ratio = torch.where(added < 0, added / energy, (added.clamp(min=0.0) / energy).log1p())
    return torch.where(listed & ~particles.by_track, particles.log_energy + log_ratio, particles.log_energy)


FIRST_STAGE = ("encoder", "decoder", "assignment", "head")  # modules on whose output a refinement is trained


class SourceEncoder(nn.Module):
    """Embed hit and track tokens, and encode them with attention that knows their directions."""

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        width = config.width
        style = LayerStyle(hidden_dropout=config.dropout, norm="pre", activation="gelu")
        self.embed_hit = FullyConnected((inputs.hit_features, width, width))
        self.embed_track = None
        if inputs.track_features:
            self.embed_track = FullyConnected((inputs.track_features, width, width))
        attentions = (DirectionalSelfAttention(width=width, heads=config.heads) for _ in range(config.encoder_layers))
        layers = (
            TransformerLayer(attention, width=width, feedforward=config.feedforward, style=style)
            for attention in attentions
        )
        self.stack = Encoder(layers, width=width, style=style)

    def forward(self, batch: Batch, tokens: Tokens, *, precise: bool = True) -> Tensor:
        """Encoder states float [B, S, W] of a batch and its tokens; `precise`: see `DirectionalSelfAttention`."""
        x = self._embed(batch.hits.features, None if batch.tracks is None else batch.tracks.features)
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
        if (batch.tracks is None) != (self.encoder.embed_track is None):
            reads, has = ("reads", "none") if batch.tracks is None else ("does not read", "some")
            raise ValueError(f"tracks: the network {reads} them and the batch has {has}")
        if batch.hits.mask.shape[1] == 0:  # one of padding: a seed is the index of a token in any event
            features, mask = functional.pad(batch.hits.features, (0, 0, 0, 1)), functional.pad(batch.hits.mask, (0, 1))
            batch = dataclasses.replace(batch, hits=TokenSet(features, mask))
        tokens, items = make_tokens_and_items(batch, n_subdetectors=self.n_subdetectors)
        states = self.encoder(batch, tokens, precise=precise)
        return EncodedSource(tokens, items, states, self.assignment.pair_logits.items(states, items))

    def refine(
        self,
        decoded: DecodedParticles,
        source: EncodedSource,
        *,
        existence_threshold: float,
        pdg: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> RefinedParticles:
        """Refine decoded particles, and list those whose existence is at least `existence_threshold`.

        `pdg`, int64 [B, T], are identities if they are known (training); `dtype` is the precision of energies, and of
        directions. Energies are detached from the fractions. Particles with less energy than any target are not listed,
        and their items are unassigned.
        """
        assert self.refiner is not None
        refinement = self.refiner(decoded, source, dtype=dtype)
        probability = refinement.existence_logit.sigmoid()
        everything = refinement.assign(decoded.mask)
        candidates = self._describe(refinement, everything, decoded.seed, source, pdg, dtype)
        # Keep NaN in the list, so that the caller sees it.
        some = refinement.assign(decoded.mask & ~(probability < existence_threshold))
        particles = self._describe(refinement, some, decoded.seed, source, pdg, dtype)
        listed = some.listed & ~(particles.log_energy < self.min_log_energy)
        existence = torch.where(listed & particles.by_track, 1.0, probability.to(dtype))
        expected = torch.where(decoded.mask, existence * candidates.log_energy.exp(), 0.0)
        shared = share_energy(particles, listed, expected, existence)
        particles = particles._replace(log_energy=shared)
        assigned = some._replace(listed=listed)
        return RefinedParticles(refinement, candidates, everything, particles, assigned, existence)

    def _describe(
        self,
        refinement: Refinement,
        assigned: Assigned,
        seed: Tensor,
        source: EncodedSource,
        pdg: Tensor | None,
        dtype: torch.dtype,
    ) -> Particles:
        assert self.refiner is not None
        particles: Particles = self.head(
            refinement.query.flatten(0, 1),
            source.in_tables(seed).flatten(),
            assigned.log_fraction.detach().exp().to(dtype),
            refinement.pairs,
            source.tables(),
            pdg=None if pdg is None else pdg.flatten(),
            refined_describe=self.refiner.describe,
            direction_correction=self.refiner.direction_correction,
            front_trust=self.refiner.front_trust,
        )
        return particles.view(*seed.shape)
