"""The pointing network: its modules, and the three things that it does: encode, one decoder step, refine.

A decoder step points at the token where the next particle starts (its seed) or ends the sequence. Given the seed, hits
and tracks are assigned to the particle, hit by hit even where tokens are sums of hits. From these the head computes
proxies (energy sum, log-weighted barycentre, track momentum) and corrects them. The next step knows which
fractions are assigned.

So hits are assigned to earlier particles before later ones, to which they may fit better, are decoded. A refiner, if
there is one, sees all decoded particles at once and gives each a logit per item, and a probability to exist. A softmax
over particles and 'unassigned', per item, gives fractions twice: among all decoded particles (candidates, each as if it
exists), and among the listed ones, which exist more probably than not. The head predicts the particles from both, and
`share_energy` shares energy that the list lacks or counts twice among its particles.

Letters: B batch, S source tokens, M items (hits, then tracks), T particles, N = B * T, P pairs of a particle and an
item, Q pairs of particles, W width.
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
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.decoder import (
    MASKED_LOGIT,
    Assignment,
    AssignmentLogits,
    CoverageDecoder,
    PairList,
    ParticleAssignment,
    ParticleDecoder,
    ramp,
)
from pflow.model.pointing.encoder import SourceEncoder
from pflow.model.pointing.geometry import (
    ARC_UNIT,
    MIN_RHO,
    THETA_UNIT,
    EncodedSource,
    Tables,
    cosines,
    gather,
    make_tokens_and_items,
)
from pflow.model.pointing.head import (
    SLOPE_UNIT,
    ConversionDirectionCorrection,
    EnergyScale,
    ParticleHead,
    Particles,
    Showers,
    n_proxy_features,
    shower_slopes,
)
from pflow.model.transformer import ConstantLinear, FullyConnected, gelu, initialise

REFINED_CONE = 0.15  # rad, angle to a seed within which all items are in pairs with its particle; others are far
EPS_FRACTION = 0.01  # added to fractions before a logarithm; far items are in a pair if more was the particle's before
# Their weight rises from 0 to 1 over this width of the fraction: with a jump, rounding could add or remove an item.
FAR_WEIGHT_WIDTH = 0.002
MIN_FAR_WEIGHT = 1e-6  # of far items in pairs, as its logarithm is added to the logit
SHARING_ANGLE = 0.15  # rad, angle over which a particle's part in its neighbours' energy differences falls by e
MESSAGE_ANGLE = 0.3  # rad, angle between particles over which messages fall by e
# Fraction of an item from which it counts in the slope of a shower, and over which its weight rises.
MIN_SLOPE_FRACTION, SLOPE_FRACTION_WIDTH = 0.01, 0.002

FIRST_STAGE = ("encoder", "decoder", "assignment", "head")  # modules on whose output a refinement is trained


class DecodedParticles(NamedTuple):
    """Particles of the first stage; `columns` of `pflow.model.decode.DecodedSequence`."""

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


class Refinement(NamedTuple):
    """Output of the refiner for all decoded particles."""

    query: Tensor  # float [B, T, W], particle states for the head
    pairs: PairList
    logits: Tensor  # float [P], the pair's item belongs to the particle
    unassigned_logit: Tensor  # float [B, M], the item belongs to no particle
    existence_logit: Tensor  # float [B, T]

    def assign(self, listed: Tensor) -> tuple[Tensor, Tensor]:
        """Share each item among the particles `listed`, bool [B, T], and 'unassigned'; the others get nothing.

        Logarithms of the fraction of each pair's item, float [P], and of what no particle has of an item, float [B, M].
        """
        pairs, free = self.pairs, self.unassigned_logit.flatten()
        logits = self.logits.masked_fill((~listed.flatten()).index_select(0, pairs.particle), MASKED_LOGIT)
        # Subtract the largest logit of each item: exponentials of large logits would overflow.
        # It cancels in the fractions and needs no gradient.
        largest = free.detach().scatter_reduce(0, pairs.item, logits.detach(), "amax")
        exponentials = (logits - largest.index_select(0, pairs.item)).exp()
        total = (free - largest).exp().index_add(0, pairs.item, exponentials).log() + largest  # of each item
        return logits - total.index_select(0, pairs.item), self.unassigned_logit - total.view_as(self.unassigned_logit)


class RefinedParticles(NamedTuple):
    """Decoded particles after the refinement, [B, T, ...]."""

    refinement: Refinement
    candidates: Particles  # each with the energy that it has if it exists
    log_fraction: Tensor  # float [P], of the items of pairs, shared among all candidates
    log_unassigned: Tensor  # float [B, M]
    particles: Particles  # with energies given the list; entries outside the list are undefined
    listed: Tensor  # bool [B, T]
    listed_log_fraction: Tensor  # float [P], shared among the listed
    existence: Tensor  # float [B, T], probability to exist; 1 in the list with a track


def delta_features(start: Tensor, end: Tensor) -> Tensor:
    """Features [..., 4] of the differences in theta and in phi (as an arc) of unit vectors [..., 3]."""
    # Of differences of the components, which are exact where the vectors are near each other.
    (x, y, z), (end_x, end_y, end_z) = start.unbind(-1), end.unbind(-1)
    dx, dy, dz = end_x - x, end_y - y, end_z - z
    rho, end_rho = torch.hypot(x, y), torch.hypot(end_x, end_y)
    # rho1 - rho2 = (rho1^2 - rho2^2) / (rho1 + rho2), without the rounding of two roots.
    outwards = (dx * (x + end_x) + dy * (y + end_y)) / (rho + end_rho).clamp(min=1e-6)
    theta = torch.atan2(outwards * z - dz * rho, rho * end_rho + z * end_z) / THETA_UNIT
    bent = torch.asinh((x * dy - y * dx) / rho.clamp(min=MIN_RHO) / ARC_UNIT)
    near_theta = torch.exp(-theta.abs())
    return torch.stack([theta.asinh(), near_theta, bent, near_theta * bent.abs()], dim=-1)


class PairwiseMessages(nn.Module):
    """Messages between particles near each other, from the angles between them and their energies; initially none.

    The electrons of a converted photon lie side by side in azimuth, separated by the field by angles that fall as 1/E,
    and their showers point away from each other (`shower_slopes`); two photons have any relative position.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        # 4 differences in angle (`delta_features`), the angle and two energies, 4 of the showers' slopes.
        self.geometry = nn.Linear(4 + 3 + 4, width, bias=False)
        self.out = ConstantLinear(width, width)

    def forward(self, particles: DecodedParticles, item_sums: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum of the messages to each particle, float [B, T, W], of slopes in the precision `dtype`.

        `item_sums`, float [B * M, F], are columns of `ItemSums`.
        """
        x, _, _, log_energy, direction, hit_fraction, mask = particles
        n = x.shape[1]
        order = torch.arange(n, device=x.device)
        both = mask[:, :, None] & mask[:, None] & (order[:, None] != order)
        event, to, by = both.nonzero(as_tuple=True)
        to, by = event * n + to, event * n + by  # receiver and sender of each pair, [Q]
        start, end = (direction.flatten(0, 1).index_select(0, index) for index in (to, by))
        angle = (end - start).square().sum(-1).clamp(min=1e-12).sqrt()  # rad, for small angles
        energies = (log_energy.flatten().to(angle.dtype).index_select(0, index) / 2.0 for index in (to, by))
        pairs = PairList.where(hit_fraction > MIN_SLOPE_FRACTION)
        fraction = pairs.values(hit_fraction)
        fraction = fraction * ramp(fraction, MIN_SLOPE_FRACTION, SLOPE_FRACTION_WIDTH)
        slope = shower_slopes(Showers.of(fraction.to(dtype), pairs, item_sums), pairs)
        # Slopes in azimuth towards each other, and sizes of those in polar angle. Side 1: the sender is at larger phi.
        side = (start[:, 0] * end[:, 1] - start[:, 1] * end[:, 0]).sign().to(slope.dtype)
        (theta, phi), (other_theta, other_phi) = (
            (slope.index_select(0, index) / SLOPE_UNIT).asinh().unbind(-1) for index in (to, by)
        )
        slopes = torch.stack([phi * side, -other_phi * side, theta.abs(), other_theta.abs()], dim=-1)
        separation = torch.stack([(angle + 1e-3).log() / 2.0, *energies], dim=-1)
        features = torch.cat([delta_features(start, end), separation, slopes.to(angle.dtype)], dim=-1)
        # Mapped before they are selected: once a particle, not once a pair of particles.
        receivers, senders = self.receiver(x).flatten(0, 1), self.sender(x).flatten(0, 1)
        message = (
            receivers.index_select(0, to).add_(senders.index_select(0, by)).add_(self.geometry(features.to(x.dtype)))
        )
        weighted = gelu(message).mul_((-angle / MESSAGE_ANGLE).exp().to(x.dtype)[:, None])
        total = weighted.new_zeros(x.shape).flatten(0, 1).index_add(0, to, weighted)
        return self.out(total.view_as(x))  # type: ignore[no-any-return]


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
        self.pair_logits = AssignmentLogits(config, n_subdetectors=n_subdetectors, n_known=2, initial=0.0)
        self.unassigned = ConstantLinear(hidden_width, 1)
        # 95% to begin with: an untrained refinement lists what the first stage has decoded.
        self.existence = FullyConnected((width, width, 1), initial=3.0)
        self.describe = FullyConnected((features, width, width), initial=0.0)
        self.direction_correction = ConversionDirectionCorrection(features=features, hidden_width=hidden_width)
        # Next to no weight to begin with: the barycentre's logit is 0.
        self.front_trust = ConstantLinear(width, 1, initial=-4.0) if config.front else None

    def forward(
        self, particles: DecodedParticles, source: EncodedSource, tables: Tables, dtype: torch.dtype = torch.float64
    ) -> Refinement:
        """Logits of the items of the first stage's particles; `dtype` is the precision of the showers' slopes."""
        states = source.states
        seed, mask = particles.seed, particles.mask
        # Rounding may have assigned more than a whole item, and below the logarithm of the rest is taken.
        fraction = particles.hit_fraction / particles.hit_fraction.sum(1, keepdim=True).clamp(min=1.0)
        assigned = fraction.sum(1)  # [B, M]
        x = particles.embedded + self.messages(particles, tables.items.sums, dtype)
        x = self.stack(
            x + self.embed_query(particles.query),
            self.stack.project(states),
            source.assigned(assigned[:, None])[:, None],
            memory_mask=source.tokens.mask,
            mask=mask,
        )
        query = particles.query + self.query_update(torch.cat([x, gather(states, seed)], dim=-1))
        existence_logit = self.existence(x).squeeze(-1)

        near = cosines(gather(source.tokens.unit, seed), source.items.direction) > math.cos(REFINED_CONE)
        within = near | (fraction > EPS_FRACTION)
        pairs = PairList.where(within & mask[..., None] & source.items.mask[:, None])
        first_fraction = pairs.values(fraction)
        weight = ramp(first_fraction, EPS_FRACTION, FAR_WEIGHT_WIDTH)
        weight = torch.where(pairs.values(near), 1.0, weight.clamp(min=MIN_FAR_WEIGHT))
        others = assigned.flatten().index_select(0, pairs.item) - first_fraction
        items, known = self.pair_logits.items(states, source.items), torch.stack([first_fraction, others])
        seed = source.in_tables(seed).flatten()
        logits = self.pair_logits(query.flatten(0, 1), seed, tables, items.flatten(0, 1), known, pairs)
        log_existence = functional.logsigmoid(existence_logit).flatten().index_select(0, pairs.particle)
        # Logarithms of fractions: while the learned logits are 0, the softmax gives nearly the first stage's fractions.
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
    # Detached: this sharing must not train the sigmas, which have a likelihood of their own.
    variance = (variance * (listed & ~particles.by_track)).detach()
    cosine = particles.direction.detach() @ particles.direction.detach().transpose(1, 2)  # [B, T, T]
    angle = (2.0 - 2.0 * cosine).clamp(min=0.0).sqrt()  # a chord: ONNX Runtime has no arc cosine in double precision
    weight = variance[:, None] * (-angle / SHARING_ANGLE).exp()
    weight = weight / weight.sum(2, keepdim=True).clamp(min=1e-12)  # lost if there is no trackless listed particle
    added = ((expected - energy * listed)[:, None] @ weight).squeeze(1)  # GeV
    # The exponential keeps an energy that is reduced above zero.
    # The clamp is for the branch that is not taken: where() would pass on a NaN gradient of its logarithm.
    log_ratio = torch.where(added < 0, added / energy, (added.clamp(min=0.0) / energy).log1p())
    return torch.where(listed & ~particles.by_track, particles.log_energy + log_ratio, particles.log_energy)


class PointingNetwork(nn.Module):
    """The modules of the network, and how they are combined; ValueError: inputs that the network cannot read."""

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        if inputs.tracker_hit_features:
            raise ValueError("tracker_hit_features: the pointing network does not read them")
        self.n_subdetectors = inputs.n_subdetectors
        self.energy_scale = EnergyScale(inputs.energy_mean, inputs.energy_std)
        # By default the smallest energy is 0, which has no logarithm.
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

    def step(
        self,
        tables: Tables,
        states: Tensor,
        seed: Tensor,
        unassigned: Tensor,
        pairs: PairList,
        pdg: Tensor | None = None,
        *,
        started: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> tuple[Particles, Assignment]:
        """The particles that start at given seeds, and their items; one function for decoding and for training.

        Parameters
        ----------
        states
            Decoder states, [N, W].
        seed
            Tokens, int64 [N], indices into B * S.
        unassigned, pairs
            Unassigned fraction [P] of each pair's item, and the pairs, of `candidates`.
        pdg
            Identities, int64 [N], where they are known.
        started
            Particles that a track starts, bool [N]. They are decoded at the same time: each has its track, and their
            fractions of an item sum to at most 1.
        dtype
            Precision of energies and directions.
        """
        assignment = self.assignment(states, seed, tables, unassigned, pairs)
        fraction = assignment.hit_fraction
        if started is not None:
            shared = started.index_select(0, pairs.particle)
            is_seed = pairs.item == tables.tokens.item.index_select(0, seed).index_select(0, pairs.particle)
            fraction = torch.where(shared & is_seed, 1.0, fraction)
            # Only what is claimed more than once is scaled down; the rest of an item is left to later particles.
            total = torch.zeros_like(tables.items.weight).index_add(0, pairs.item, fraction * shared)
            fraction = torch.where(shared, fraction / total.clamp(min=1.0).index_select(0, pairs.item), fraction)
            assignment = assignment._replace(hit_fraction=fraction)
        # Detached: an assignment is to be right, not to give the right energy.
        return self.head(assignment.query, seed, fraction.detach().to(dtype), pairs, tables, pdg=pdg), assignment

    def refine(
        self,
        decoded: DecodedParticles,
        source: EncodedSource,
        *,
        existence_threshold: float,
        pdg: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
        directions: bool = True,
    ) -> RefinedParticles:
        """Refine decoded particles, and list those whose existence is at least `existence_threshold`.

        `pdg`, int64 [B, T], are identities if they are known (training); `dtype` is the precision of energies, and of
        directions; without `directions` candidates have rough ones. Energies are detached from the fractions.
        Particles with less energy than any target are not listed, and their items are unassigned.
        """
        assert self.refiner is not None
        tables, seed = source.tables(), source.in_tables(decoded.seed).flatten()
        refinement = self.refiner(decoded, source, tables, dtype)

        def describe(log_fraction: Tensor, *, directions: bool = True) -> Particles:
            fraction, known = log_fraction.detach().exp().to(dtype), None if pdg is None else pdg.flatten()
            query, options = refinement.query.flatten(0, 1), {"refiner": self.refiner, "directions": directions}
            particles: Particles = self.head(query, seed, fraction, refinement.pairs, tables, pdg=known, **options)
            return particles.view(*decoded.mask.shape)

        probability = refinement.existence_logit.sigmoid()
        log_fraction, log_unassigned = refinement.assign(decoded.mask)
        candidates = describe(log_fraction, directions=directions)
        listed = decoded.mask & ~(probability < existence_threshold)  # NaN stays, so that the caller sees it
        listed_log_fraction, _ = refinement.assign(listed)
        particles = describe(listed_log_fraction)
        listed = listed & ~(particles.log_energy < self.min_log_energy)
        # 1 with a track, whose momentum stays: a smaller existence would take the difference from its neighbours.
        existence = torch.where(listed & particles.by_track, 1.0, probability.to(dtype))
        expected = torch.where(decoded.mask, existence * candidates.log_energy.exp(), 0.0)
        particles = particles._replace(log_energy=share_energy(particles, listed, expected, existence))
        return RefinedParticles(
            refinement=refinement,
            candidates=candidates,
            log_fraction=log_fraction,
            log_unassigned=log_unassigned,
            particles=particles,
            listed=listed,
            listed_log_fraction=listed_log_fraction,
            existence=existence,
        )
