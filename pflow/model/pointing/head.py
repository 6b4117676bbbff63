"""From seed and assigned items to a particle: proxies (HGPflow's word) by hits and tracks, and their corrections.

The first electrons of a shower are near the photon's line; scattering takes those behind them away from it. Below some
GeV, where a shower is a few electrons, the direction to the barycentre of its front is two to three times nearer to the
photon's than that to the barycentre of all hits.

The magnetic field bends the electrons of a converted photon on their way to the calorimeter. Their showers are inclined
in azimuth with respect to the line from the vertex by the angle by which they miss the impact point of the photon; by
more if it converted late.

Letters: B batch, T particles, N = B * T, P pairs of a particle and an item, R subdetectors, V classes, W width.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.api import LOG_WEIGHT, ModelInputs, normalise, tangent_basis
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.decoder import (
    N_CHARGE,
    PairList,
    PreviousParticles,
    lengths,
    ramp,
    rows_at,
    rows_of_each,
    sums_of_each,
)
from pflow.model.pointing.geometry import Columns, FractionSums, ItemSums, Tables, TokenFrames, TokenTracks
from pflow.model.transformer import FullyConnected, gelu

# Energy of a particle's hits from which they are a shower, GeV; over the width below it, the weight of its shape and
# direction rises from 0. Less is a small rest of hits that are assigned to others, whose shape has no meaning.
SHOWER_ENERGY, SHOWER_ENERGY_WIDTH = 3e-5, 2.5e-5
EPS_ENERGY = 1e-3  # added to energies before a logarithm, GeV
# Momentum of tracks, GeV, from which `Proxies.track_direction` is theirs; over the width below it, it turns
# there from `Proxies.direction`.
TRACK_MOMENTUM, TRACK_MOMENTUM_WIDTH = 0.075, 0.05
DIRECTION_UNIT = 0.03  # of the angles between the directions, rad
CORE_RADIUS, CORE_RADIUS_WIDTH = 16.5, 3.0  # mm from the axis; weights fall from 1 to 0 over the width before it
MIN_FRONT_DEPTH = 2.0  # smallest depth over which the weights of a shower's front fall by e, mm
MAX_EXPONENT = 50.0  # largest exponent of a weight: a stray hit far ahead of a shower must not overflow
FRONT_RADIUS, FRONT_RADIUS_WIDTH = 20.0, 10.0  # mm, as `CORE_RADIUS`, for the direction to the front
# Angle to the barycentre, rad, from which hits are not in the fit of slopes, where the few far ones would dominate it,
# and over which their weight falls.
CORE_ANGLE, CORE_ANGLE_WIDTH = 0.016, 2e-3
SLOPE_UNIT = 0.02  # the resolution of slopes for showers of about 15 GeV, rad
EPS_DEPTH = 10.0  # added in quadrature to the spread in depth, mm: a shower in one layer has no slope
LN10 = math.log(10.0)
CORRECTION_UNIT = 0.1  # correction of ln E for an output of 1
ENERGY_LOG_SIGMA = (-9.0, 1.5)  # range of the logarithm of the standard deviation of ln E
DIRECTION_LOG_SIGMA = (-9.5, 0.0)  # range of the logarithm of the standard deviation of an angle, rad
TRACK_FEATURES = ("log_track_energy", "log_ratio", "n_tracks", "charge", "track_off")  # proxies of `TrackIdentity`
TRACK_PRIOR = 3.0  # initial logit of a particle with a track as seed being charged: 95%
HADRON_RESOLUTION = 0.6  # of the deposit of a hadron of 1 GeV, GeV; it rises with the square root of the momentum
FRONT_DEPTH = 12.0  # over which the weights in the front of a shower of 1 GeV fall by e, mm


PROXY_FEATURES = (
    *("log_energy", "log_track_energy", "log_ratio", "log_n_hits", "n_tracks", "charge", "log_width", "core"),
    *("log_spread", "abs_z", "z_squared", "concentration", "theta_off", "phi_off", "track_off"),
)
"""Columns of `Proxies.features` before those by subdetector. Width and spread are the shower's extent across and along
its axis, `core` is the fraction of its energy near the axis, `concentration` the sum of the squares of the hits'
fractions. z is the cosine of the axis' polar angle. The last three are angles from the axis: two components of that to
the linear barycentre, and that to the tracks' direction."""


class Showers(NamedTuple):
    """Hits of the showers of particles, by the fraction that is a particle's."""

    position: Tensor  # float [3, P], of the pair's item, mm
    fraction: Tensor  # float [1, P], of the shower's energy, times its presence
    weight: Tensor  # float [1, P], of the item in the log-weighted barycentre
    sums: FractionSums  # float [N, ...]
    presence: Tensor  # float [N, 1], 0 without hits, 1 where their energy suffices for a shower
    centre: Tensor  # float [N, 3], sum of positions by weight, mm
    norm: Tensor  # float [N, 1], sum of weights
    linear_centre: Tensor  # float [N, 3], barycentre weighted by energy, mm
    by_subdetector: Tensor  # float [N, 2 R], fraction of the energy, and fraction times layer

    @classmethod
    def of(cls, hit_fraction: Tensor, pairs: PairList, item_sums: Tensor) -> Showers:
        """From the fraction float [P] of each pair's item that is the particle's, in its precision."""
        items = ItemSums.of(rows_at(item_sums, pairs.item).to(hit_fraction.dtype), dim=0)
        of_items = items.by_fraction * hit_fraction
        sums = FractionSums.of(pairs.sums(of_items))
        energy, deposit = sums.energy, FractionSums.of(of_items, dim=0).energy
        presence = ramp(energy, SHOWER_ENERGY - SHOWER_ENERGY_WIDTH, SHOWER_ENERGY_WIDTH)
        fraction = deposit * rows_at(presence / energy.clamp(min=1e-9), pairs.particle)
        weight = (LOG_WEIGHT + (fraction + 1e-12).log()).clamp(min=0.0)
        position = items.position
        centre, norm, linear, by_subdetector = sums_of_each(
            pairs, weight * position, weight, fraction * position, fraction * items.by_subdetector
        )
        # The fractions sum to the presence and not to 1: else the barycentre of few hits would lie too far inwards.
        linear = linear / presence.clamp(min=1e-9)
        return cls(position, fraction, weight, sums, presence, centre, norm, linear, by_subdetector)


def n_proxy_features(n_subdetectors: int) -> int:
    """Number of features that `make_proxies` computes."""
    return len(PROXY_FEATURES) + 2 * n_subdetectors


class Proxies(NamedTuple):
    """Proxies of particles; hits and tracks count by the fraction that is the particle's.

    `direction` is to the log-weighted barycentre of the hits; without hits, along the tracks' momentum or towards the
    seed. `linear_direction` is to the barycentre weighted by energy: the field separates the electrons of a converted
    photon by angles proportional to 1 / E, and their energy-weighted mean is the photon's direction. `track_direction`
    is of the tracks' momentum; without tracks, as `direction`.
    """

    energy: Tensor  # float [N, 1], sum of the energies of the hits, GeV
    track_momentum: Tensor  # float [N, 3], sum of the momenta of the tracks, GeV
    direction: Tensor  # float [N, 3], unit vector, as the next two
    linear_direction: Tensor
    track_direction: Tensor
    features: Tensor  # float [N, F], of energies, directions and the shape of the shower, of order 1
    showers: Showers


def make_proxies(hit_fraction: Tensor, pairs: PairList, item_sums: Tensor, seed_unit: Tensor) -> Proxies:
    """Compute the proxies in the precision of `hit_fraction`, [P], the particle's fraction of the pair's item.

    In single precision distances from the axis and angles between directions, small differences of large numbers, have
    errors of 10^-3: reconstruction computes them in double precision. `item_sums` [B * M, F] are columns of `ItemSums`,
    `seed_unit` [N, 3] unit vectors of the seeds.
    """
    showers = Showers.of(hit_fraction, pairs, item_sums)
    position, fraction, presence, sums = showers.position, showers.fraction, showers.presence, showers.sums
    energy, track_energy = sums.energy, sums.track_energy

    # Without tracks the small term makes the first direction the seed's, instead of a null vector.
    towards = normalise(torch.stack([sums.momentum + 1e-6 * seed_unit, showers.centre, showers.linear_centre]))
    along_tracks, centre, _ = towards.unbind()
    direction = normalise(along_tracks.lerp(centre, presence))
    of_tracks_alone = ramp(track_energy, TRACK_MOMENTUM - TRACK_MOMENTUM_WIDTH, TRACK_MOMENTUM_WIDTH)
    by_tracks, linear = normalise(direction.lerp(towards[::2], torch.stack([of_tracks_alone, presence]))).unbind()
    theta, phi = tangent_basis(direction)

    mean_along = (showers.linear_centre * direction).sum(1, keepdim=True)
    axis, mean = rows_of_each(pairs, direction, mean_along)
    along = (position * axis).sum(0, keepdim=True)
    across = lengths(position.addcmul(along, axis, value=-1))  # mm
    core = ramp(across, CORE_RADIUS, -CORE_RADIUS_WIDTH)
    shape = pairs.sums(fraction * torch.cat([across, core, (along - mean).square(), fraction]))
    width, in_core, spread, concentration = shape.chunk(4, dim=1)
    z, off = direction[:, 2:], linear - direction
    theta_off, phi_off = ((off * axis).sum(1, keepdim=True) for axis in (theta, phi))
    track_off = ((by_tracks - direction).square().sum(1, keepdim=True) + 1e-8).sqrt()
    features = [  # in the order of `PROXY_FEATURES`
        (torch.cat([energy, track_energy], dim=1) + EPS_ENERGY).log() / 2.0,
        ((energy + 0.05) / (track_energy + 0.05)).log(),
        torch.log1p(sums.n_hits) / 2.0,
        sums.tracks,
        torch.log1p(width / 10.0),
        in_core,
        torch.log1p(spread.clamp(min=0.0).sqrt() / 50.0),
        z.abs(),
        z.square(),
        concentration,
        torch.cat([theta_off, phi_off.abs(), track_off], dim=1) / DIRECTION_UNIT,
        showers.by_subdetector,
    ]
    return Proxies(energy, sums.momentum, direction, linear, by_tracks, torch.cat(features, dim=1), showers)


def front_direction(showers: Showers, pairs: PairList, *, depth: float) -> Tensor:
    """Unit vectors to the barycentres of the fronts of showers, float [N, 3]; null vectors without hits.

    Weights are the log-weighted barycentre's times exp(-d / lambda) for a depth d along the shower's axis, with
    lambda = `depth` sqrt(E / GeV) in mm, within a core around the axis that these weights give.
    """
    position = showers.position
    axis = normalise(showers.centre)
    mean = (showers.linear_centre * axis).sum(1, keepdim=True)  # along the axis, mm
    falls_over = (depth * showers.sums.energy.sqrt()).clamp(min=MIN_FRONT_DEPTH)
    axis_of, mean_of, falls_over_of = rows_of_each(pairs, axis, mean, falls_over)
    ahead = mean_of - (position * axis_of).sum(0, keepdim=True)
    weight = showers.weight * (ahead / falls_over_of).clamp(max=MAX_EXPONENT).exp()
    axis_of = rows_at(normalise(pairs.sums(weight * position)), pairs.particle)
    off = lengths(position - (position * axis_of).sum(0) * axis_of)
    return normalise(pairs.sums(weight * ramp(off, FRONT_RADIUS, -FRONT_RADIUS_WIDTH) * position))


def shower_slopes(showers: Showers, pairs: PairList) -> Tensor:
    """Slopes of showers in polar angle and in azimuth, float32 [N, 2], rad.

    The slope of a linear fit, weighted by energy, of a hit's angles to the log-weighted barycentre against the
    logarithm of its depth from the vertex: the angle, if small, between the shower's axis and the line from the vertex.
    """
    position, fraction = showers.position, showers.fraction
    # A shower of many small hits has no weights.
    centre = torch.where(showers.norm > 0, showers.centre, showers.linear_centre)
    direction = normalise(centre)
    axes = rows_at(torch.cat([direction, *tangent_basis(direction)], dim=1), pairs.particle).view(3, 3, -1)
    along = (axes * position).sum(1)  # mm
    depth, off = along[:1], along[1:]
    # Hits on the far side of the vertex have no small angle to the axis, and the division would change its sign.
    ahead = depth > 1.0
    off = off * (ahead / depth.clamp(min=1.0))  # [2, P], rad
    core = fraction * ahead * ramp(lengths(off), CORE_ANGLE, -CORE_ANGLE_WIDTH)
    norm, depths = sums_of_each(pairs, core, core * depth)
    norm = norm.clamp(min=1e-9)
    mean = depths / norm
    norm_of, mean_of = rows_of_each(pairs, norm, mean)
    # About the mean, in a second pass over the pairs: a difference of two sums of squares would round the spread away.
    beyond = depth - mean_of
    away = core / norm_of * beyond
    spread, slopes = sums_of_each(pairs, away * beyond, away * off)
    return (slopes * (mean / (spread + EPS_DEPTH**2))).float()  # spread in mm^2


class ConversionDirectionCorrection(nn.Module):
    """Rotate directions in azimuth by a fraction of the slope of the shower, learned from F features of a particle.

    If a photon converts near the vertex and mainly one of its electrons is seen, the electron misses the photon's
    impact point by the angle by which its shower is inclined. The initial fraction is 2%.
    """

    def __init__(self, *, features: int, hidden_width: int) -> None:
        super().__init__()
        self.fraction = FullyConnected((features + 2, hidden_width, 1), initial=-4.0)

    def forward(self, features: Tensor, direction: Tensor, showers: Showers, pairs: PairList) -> Tensor:
        """Corrected unit vectors [N, 3], of features [N, F] and unit vectors [N, 3]."""
        slope = shower_slopes(showers, pairs)
        # Sizes alone: a mirrored shower has the same fraction, and the slope below brings the sign.
        size = (slope / SLOPE_UNIT).abs().asinh()
        fraction = self.fraction(torch.cat([features, size], dim=-1)).sigmoid()
        _, phi = tangent_basis(direction)
        return normalise(direction - fraction * slope[..., 1:] * phi)


class EnergyScale(NamedTuple):
    """Conversion between ln(E / GeV) and normalised log10(E / GeV), by mean and standard deviation of the latter."""

    mean: float
    std: float

    def log_energy(self, normalised: Tensor) -> Tensor:
        """ln(E / GeV)."""
        return LN10 * (self.mean + self.std * normalised)

    def normalised(self, log_energy: Tensor) -> Tensor:
        """Normalised log10(E / GeV)."""
        return (log_energy / LN10 - self.mean) / self.std


class Particles(NamedTuple):
    """Predicted particles; energies and directions are in the precision of the fractions of items, see the head."""

    pdg_logits: Tensor  # float [N, V]
    pdg: Tensor  # int64 [N], the known or the most probable code, whose charge and mass it has
    charge_logits: Tensor  # float [N, 3]
    charge: Tensor  # int64 [N], index that fits the code: neutral, the charge of the track, or the most probable
    log_energy: Tensor  # float [N], ln(E / GeV)
    direction: Tensor  # float [N, 3], unit vector
    energy_log_sigma: Tensor  # float [N], logarithm of the standard deviation of ln E
    direction_log_sigma: Tensor  # float [N], log standard deviation of each tangent-plane angle, rad
    by_track: Tensor  # bool [N], charged and with a track as seed, whose momentum they have
    deposit: Tensor  # float [N], energy of the assigned hits, GeV
    pooled: Tensor  # float [N, W], mean memory of the assigned items, weighted by energy

    def view(self, *shape: int) -> Particles:
        """The same as [B, T, ...]."""
        return Particles(*(values.view(*shape, *values.shape[1:]) for values in self))

    def as_previous(self, seed: Tensor) -> PreviousParticles:
        """As input of the decoder; decoding and scheduled sampling, which call it, are without gradients."""
        return PreviousParticles(
            pdg=self.pdg,
            charge=self.charge,
            log_energy=self.log_energy.to(self.pooled.dtype),
            direction=self.direction.to(self.pooled.dtype),
            seed=seed,
            deposit=self.deposit.to(self.pooled.dtype),
            pooled=self.pooled,
        )

    def columns(self) -> dict[str, Tensor]:
        """Columns of the decoded particles by name."""
        names = ("pdg", "charge", "pdg_logits", "log_energy", "direction", "by_track")
        sigmas = {f"{of}_sigma": getattr(self, f"{of}_log_sigma").exp().float() for of in ("energy", "direction")}
        return {**{name: getattr(self, name) for name in names}, **sigmas}


@dataclasses.dataclass
class Corrections(Columns):
    """Corrections of the proxies."""

    energy: Annotated[Tensor, 1]  # of ln E, / `CORRECTION_UNIT`
    trust: Annotated[Tensor, 1]  # logit of the weight of the tracks in the energy
    angles: Annotated[Tensor, 2]  # in polar angle and azimuth, in units of their sigma
    energy_log_sigma: Annotated[Tensor, 1]
    direction_log_sigma: Annotated[Tensor, 1]
    direction_trust: Annotated[Tensor, 2]  # logits of the linear and of the tracks' direction in the mean


class TrackIdentity(nn.Module):
    """Whether particles whose seed is a track are charged: one logit for all charged codes together.

    It sees what means the same in every detector: momentum, number and charge of the tracks, the deposit against the
    momentum as a ratio and in units of a calorimeter's resolution, and the angle between tracks and shower.
    """

    def __init__(self, charged: Tensor) -> None:
        super().__init__()
        self.register_buffer("charged", charged, persistent=False)
        columns = torch.tensor([PROXY_FEATURES.index(name) for name in TRACK_FEATURES])
        self.register_buffer("columns", columns, persistent=False)
        self.logit = FullyConnected((len(TRACK_FEATURES) + 1, 16, 1), initial=TRACK_PRIOR)

    def forward(self, logits: Tensor, proxies: Proxies, is_track: Tensor) -> Tensor:
        """Logits [N, V] of the codes, as the logarithms of probabilities where a seed is a track, float [N, 1]."""
        momentum = torch.linalg.vector_norm(proxies.track_momentum, dim=1, keepdim=True)
        pull = (proxies.energy - momentum) / (HADRON_RESOLUTION * (momentum + 0.01).sqrt())
        columns = proxies.features.index_select(1, self.get_buffer("columns"))
        x = self.logit(torch.cat([columns, pull.asinh()], dim=1).to(logits.dtype))
        charged = self.get_buffer("charged")
        # Within each of the two groups codes keep their shares; the new logit decides between the groups only.
        of_charged, of_others = (
            logits - logits.masked_fill(others, -torch.inf).logsumexp(1, keepdim=True) for others in (~charged, charged)
        )
        shares = torch.where(charged, functional.logsigmoid(x), functional.logsigmoid(-x))
        known = torch.where(charged, of_charged, of_others) + shares
        return torch.where(is_track > 0.5, known, logits)


class ParticleHead(nn.Module):
    """Predict particles: charged ones whose seed is a track have its momentum, others have corrected proxies."""

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        width = config.width
        self.n_pdg = inputs.n_pdg
        self.register_buffer("masses", torch.tensor(inputs.masses, dtype=torch.float32), persistent=False)
        self.register_buffer("charged", torch.tensor(inputs.charged, dtype=torch.bool), persistent=False)
        self.describe = FullyConnected((2 * width + n_proxy_features(inputs.n_subdetectors), width, width))
        self.identity = nn.Linear(width, inputs.n_pdg + inputs.n_charge)
        self.correct = nn.Linear(width, sum(Corrections.widths()))
        self.track_identity = None
        # The logarithm of the sum over a group without codes would be minus infinity.
        if config.track_prior and len(set(inputs.charged)) == 2:  # both charged codes and others
            self.track_identity = TrackIdentity(self.get_buffer("charged"))

    def set_initial_values(self) -> None:
        """Set the initial corrections to none."""
        for parameter in self.correct.parameters():
            parameter.zero_()
        initial = Corrections.of(self.correct.bias)
        # Little trust: an untrained head takes energy and direction almost from the hits alone.
        for part in (initial.trust, initial.direction_trust):
            part.fill_(-3.0)
        initial.energy_log_sigma.fill_(-2.0)
        initial.direction_log_sigma.fill_(-4.0)

    def forward(
        self,
        query: Tensor,
        seed: Tensor,
        hit_fraction: Tensor,
        pairs: PairList,
        tables: Tables,
        *,
        pdg: Tensor | None = None,
        refiner: Any = None,
        directions: bool = True,
    ) -> Particles:
        """Predict particles.

        `query`, float [N, W], is from the assignment; `seed`, int64 [N], are indices into B * S; `hit_fraction`, float
        [P], is the particle's fraction of the pair's item, and in its precision energies and directions are computed;
        `pdg`, int64 [N], are identities if they are known (training), else the most probable. Of the `refiner`, in a
        refinement, three parts see what the head sees: ``describe``, added to the description, ``front_trust``, the
        logit of the direction to the shower's front in the mean of directions, and ``direction_correction``. Without
        `directions` these are the proxies', which saves half of the time where energies suffice.
        """
        seed_unit = TokenFrames.of(tables.tokens.frames.index_select(0, seed)).unit
        proxies = make_proxies(hit_fraction, pairs, tables.items.sums, seed_unit)
        weight = hit_fraction.to(query.dtype) * tables.items.weight.index_select(0, pairs.item)
        pooled = pairs.mean_state(weight, tables.items.token.index_select(0, pairs.item), tables.states)
        features = torch.cat([query, pooled, proxies.features.to(query.dtype)], dim=1)
        described = self.describe(features)
        if refiner is not None:
            described = described + refiner.describe(features)
        described = gelu(described)
        pdg_logits, charge_logits = self.identity(described).split_with_sizes([self.n_pdg, N_CHARGE], dim=1)
        corrections = Corrections.of(self.correct(described).to(hit_fraction.dtype))
        track = TokenTracks.of(tables.tokens.tracks.index_select(0, seed))
        if self.track_identity is not None:
            pdg_logits = self.track_identity(pdg_logits, proxies, track.is_track)
        if pdg is None:
            pdg = pdg_logits.argmax(-1)

        charged = self.get_buffer("charged").index_select(0, pdg)[:, None]
        by_track = charged & (track.momentum > 0)
        # A charge that fits the code: later particles and the output must not see a charged photon.
        most_probable = 2 * (charge_logits[:, 2:] > charge_logits[:, :1]).long() - 1
        charge = 1 + charged * torch.where(by_track & (track.charge != 0), track.charge.long(), most_probable)
        mass = self.get_buffer("masses").index_select(0, pdg)[:, None]
        # Of seeds without a track the momentum is 0: with a massless code its logarithm would be infinite.
        track_energy = torch.sqrt(track.momentum.square() + mass.square()).clamp(min=1e-6)
        # Energy of hits, or of the tracks of a neutral particle that turned into charged ones.
        of_tracks = torch.linalg.vector_norm(proxies.track_momentum, dim=1, keepdim=True)
        # 10 MeV more: a particle without hits and tracks has a finite ln E.
        energy = proxies.energy + corrections.trust.sigmoid() * (of_tracks - proxies.energy) + 1e-2  # GeV
        log_energy = energy.log() + CORRECTION_UNIT * corrections.energy
        log_sigma, direction = corrections.direction_log_sigma.clamp(*DIRECTION_LOG_SIGMA), proxies.direction
        if directions:
            # A mean of directions, weighted by trust: the logits; the first is 0.
            towards = [proxies.direction, proxies.linear_direction, proxies.track_direction]
            trust = [torch.zeros_like(log_sigma), corrections.direction_trust]
            if refiner is not None and refiner.front_trust is not None:
                front = front_direction(proxies.showers, pairs, depth=FRONT_DEPTH)
                known = front.square().sum(1, keepdim=True) > 0.5
                towards.append(torch.where(known, front, proxies.direction))
                trust.append(refiner.front_trust(described).to(hit_fraction.dtype))
            weights = torch.cat(trust, dim=1).softmax(-1).chunk(len(towards), dim=1)
            weighted = [weight * vector for weight, vector in zip(weights, towards, strict=True)]
            mean = normalise(sum(weighted[1:], weighted[0]))
            theta, phi = tangent_basis(mean)
            # In units of sigma: the gradient of a likelihood with a small sigma would be as large as sigma is small.
            off_theta, off_phi = (log_sigma.exp().detach() * corrections.angles).chunk(2, dim=1)
            direction = normalise(mean + off_theta * theta + off_phi * phi)
            if refiner is not None:
                direction = refiner.direction_correction(features, direction, proxies.showers, pairs)
        return Particles(
            pdg_logits=pdg_logits,
            pdg=pdg,
            charge_logits=charge_logits,
            charge=charge.squeeze(1),
            log_energy=torch.where(by_track, track_energy.log(), log_energy).squeeze(1),
            direction=torch.where(by_track, track.unit, direction),
            energy_log_sigma=corrections.energy_log_sigma.clamp(*ENERGY_LOG_SIGMA).squeeze(1),
            direction_log_sigma=log_sigma.squeeze(1),
            by_track=by_track.squeeze(1),
            deposit=proxies.energy.squeeze(1),
            pooled=pooled,
        )
