"""Showers of particles, proxies (HGPflow's word) by hits and tracks, and what showers tell of photons and conversions.

The first electrons of a shower are near the photon's line; scattering takes those behind them away from it. Below some
GeV, where a shower is a few electrons, the direction to the barycentre of its front is two to three times nearer to the
photon's than that to the barycentre of all hits.

The magnetic field bends the electrons of a converted photon on their way to the calorimeter. Their showers are inclined
in azimuth with respect to the line from the vertex by the angle by which they miss the impact point of the photon; by
more if it converted late.

Letters: N particles, P pairs of a particle and an item, Q pairs of particles, R subdetectors; B, T, M, W as elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pflow.model.common.transformer import ConstantLinear, FullyConnected, gelu
from pflow.model.common.vectors import LOG_WEIGHT, normalise, tangent_basis
from pflow.model.pointing.assignment import (
    N_DELTA_FEATURES,
    PairList,
    Pairs,
    delta_features,
    lengths,
    ramp,
    rows_of_each,
    sums_of_each,
)
from pflow.model.pointing.geometry import FractionSums, ItemSums

# Energy of a particle's hits from which they are a shower, GeV; over the width below it, the weight of its shape and
# direction rises from 0. Less is a small rest of hits that are assigned to others, whose shape has no meaning.
DEPOSIT, DEPOSIT_WIDTH = 3e-5, 2.5e-5
EPS_ENERGY = 1e-3  # added to energies before a logarithm, GeV
# Momentum of tracks, GeV, from which `Proxies.track_direction` is theirs; over the width below it, it turns
# there from `Proxies.direction`.
TRACK_MOMENTUM, TRACK_MOMENTUM_WIDTH = 0.075, 0.05
ANGLE_UNIT = 0.03  # of the angles between the directions, rad
CORE_RADIUS, CORE_RADIUS_WIDTH = 16.5, 3.0  # mm from the axis; weights fall from 1 to 0 over the width before it
MIN_DEPTH = 2.0  # smallest depth over which the weights of a shower's front fall by e, mm
MAX_EXPONENT = 50.0  # largest exponent of a weight: a stray hit far ahead of a shower must not overflow
FRONT_RADIUS, FRONT_RADIUS_WIDTH = 20.0, 10.0  # mm, as `CORE_RADIUS`, for the direction to the front
# Angle to the barycentre, rad, from which hits are not in the fit of slopes, where the few far ones would dominate it,
# and over which their weight falls.
CORE_ANGLE, CORE_ANGLE_WIDTH = 0.016, 2e-3
SLOPE_UNIT = 0.02  # the resolution of slopes for showers of about 15 GeV, rad
EPS_DEPTH = 10.0  # added in quadrature to the spread in depth, mm: a shower in one layer has no slope
RANGE = 0.3  # messages fall by e over this angle between particles, rad
# Fraction of an item from which it counts in the slope of a shower, and over which its weight rises.
MIN_SLOPE_FRACTION, SLOPE_FRACTION_WIDTH = 0.01, 0.002
N_SLOPE_FEATURES = 4

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
    def of(cls, hit_fraction: Tensor, pairs: Pairs, item_sums: Tensor) -> Showers:
        """From the fraction float [P] of each pair's item that is the particle's, in its precision."""
        items = ItemSums.of(pairs.item_rows(item_sums, hit_fraction.dtype), dim=0)
        of_items = items.by_fraction * hit_fraction
        sums = FractionSums.of(pairs.sums(of_items))
        energy, deposit = sums.energy, FractionSums.of(of_items, dim=0).energy
        presence = ramp(energy, DEPOSIT - DEPOSIT_WIDTH, DEPOSIT_WIDTH)
        fraction = deposit * pairs.particle_rows(presence / energy.clamp(min=1e-9))
        weight = (LOG_WEIGHT + (fraction + 1e-12).log()).clamp(min=0.0)
        position = items.position
        centre, norm, linear, by_subdetector = sums_of_each(
            pairs, weight * position, weight, fraction * position, fraction * items.by_subdetector
        )
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


def make_proxies(hit_fraction: Tensor, pairs: Pairs, item_sums: Tensor, seed_unit: Tensor) -> Proxies:
    """Compute the proxies in the precision of `hit_fraction`, [P], the particle's fraction of the pair's item.

    In single precision distances from the axis and angles between directions, small differences of large numbers, have
    errors of 10^-3: reconstruction computes them in double precision. `item_sums` [B * M, F] are columns of `ItemSums`,
    `seed_unit` [N, 3] unit vectors of the seeds.
    """
    showers = Showers.of(hit_fraction, pairs, item_sums)
    position, fraction, presence, sums = showers.position, showers.fraction, showers.presence, showers.sums
    energy, track_energy = sums.energy, sums.track_energy

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
        torch.cat([theta_off, phi_off.abs(), track_off], dim=1) / ANGLE_UNIT,
        showers.by_subdetector,
    ]
    return Proxies(energy, sums.momentum, direction, linear, by_tracks, torch.cat(features, dim=1), showers)


def front_direction(showers: Showers, pairs: Pairs, *, depth: float) -> Tensor:
    """Unit vectors to the barycentres of the fronts of showers, float [N, 3]; null vectors without hits.

    Weights are the log-weighted barycentre's times exp(-d / lambda) for a depth d along the shower's axis, with
    lambda = `depth` sqrt(E / GeV) in mm, within a core around the axis that these weights give.
    """
    position = showers.position
    axis = normalise(showers.centre)
    mean = (showers.linear_centre * axis).sum(1, keepdim=True)  # along the axis, mm
    falls_over = (depth * showers.sums.energy.sqrt()).clamp(min=MIN_DEPTH)
    axis_of, mean_of, falls_over_of = rows_of_each(pairs, axis, mean, falls_over)
    ahead = mean_of - (position * axis_of).sum(0, keepdim=True)
    weight = showers.weight * (ahead / falls_over_of).clamp(max=MAX_EXPONENT).exp()
    axis_of = pairs.particle_rows(normalise(pairs.sums(weight * position)))
    off = lengths(position - (position * axis_of).sum(0) * axis_of)
    return normalise(pairs.sums(weight * ramp(off, FRONT_RADIUS, -FRONT_RADIUS_WIDTH) * position))


def shower_slopes(showers: Showers, pairs: Pairs) -> Tensor:
    """Slopes of showers in polar angle and in azimuth, float32 [N, 2], rad.

    The slope of a linear fit, weighted by energy, of a hit's angles to the log-weighted barycentre against the
    logarithm of its depth from the vertex: the angle, if small, between the shower's axis and the line from the vertex.
    """
    position, fraction = showers.position, showers.fraction
    # A shower of many small hits has no weights.
    centre = torch.where(showers.norm > 0, showers.centre, showers.linear_centre)
    direction = normalise(centre)
    axes = pairs.particle_rows(torch.cat([direction, *tangent_basis(direction)], dim=1)).view(3, 3, -1)
    along = (axes * position).sum(1)  # mm
    depth, off = along[:1], along[1:]
    ahead = depth > 1.0
    off = off * (ahead / depth.clamp(min=1.0))  # [2, P], rad
    core = fraction * ahead * ramp(lengths(off), CORE_ANGLE, -CORE_ANGLE_WIDTH)
    norm, depths = sums_of_each(pairs, core, core * depth)
    norm = norm.clamp(min=1e-9)
    mean = depths / norm
    norm_of, mean_of = rows_of_each(pairs, norm, mean)
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

    def forward(self, features: Tensor, direction: Tensor, showers: Showers, pairs: Pairs) -> Tensor:
        """Corrected unit vectors [N, 3], of features [N, F] and unit vectors [N, 3]."""
        slope = shower_slopes(showers, pairs)
        size = (slope / SLOPE_UNIT).abs().asinh()
        fraction = self.fraction(torch.cat([features, size], dim=-1)).sigmoid()
        _, phi = tangent_basis(direction)
        return normalise(direction - fraction * slope[..., 1:] * phi)


class PairwiseMessages(nn.Module):
    """Messages between particles near each other, from the angles between them and their energies; initially none.

    The electrons of a converted photon lie side by side in azimuth, separated by the field by angles that fall as 1/E,
    and their showers point away from each other (`shower_slopes`); two photons have any relative position.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.geometry = nn.Linear(N_DELTA_FEATURES + 3 + N_SLOPE_FEATURES, width, bias=False)
        self.out = ConstantLinear(width, width)

    def forward(
        self,
        x: Tensor,
        log_energy: Tensor,
        direction: Tensor,
        mask: Tensor,
        hit_fraction: Tensor,
        item_sums: Tensor,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """The sum of the messages to each particle, float [B, T, W], of slopes in the precision `dtype`.

        Of embedded particles [B, T, W], ln(E / GeV) [B, T], unit vectors [B, T, 3], mask bool [B, T], fractions of
        items [B, T, M], and columns of `ItemSums` [B * M, F].
        """
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
        showers = Showers.of(fraction.to(dtype), pairs, item_sums)
        slope = shower_slopes(showers, pairs)
        features = [
            delta_features(start, end),
            torch.stack([(angle + 1e-3).log() / 2.0, *energies], dim=-1),
            _slope_features(slope.index_select(0, to), slope.index_select(0, by), start, end).to(angle.dtype),
        ]
        geometry = self.geometry(torch.cat(features, dim=-1).to(x.dtype))
        receivers, senders = self.receiver(x).flatten(0, 1), self.sender(x).flatten(0, 1)
        message = receivers.index_select(0, to).add_(senders.index_select(0, by)).add_(geometry)
        weighted = gelu(message).mul_((-angle / RANGE).exp().to(x.dtype)[:, None])
        total = weighted.new_zeros(x.shape).flatten(0, 1).index_add(0, to, weighted)
        return self.out(total.view_as(x))  # type: ignore[no-any-return]


def _slope_features(slope: Tensor, other_slope: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Slopes in azimuth towards each other and absolute slopes in polar angle, float [Q, N_SLOPE_FEATURES]."""
    side = (start[:, 0] * end[:, 1] - start[:, 1] * end[:, 0]).sign().to(slope.dtype)  # 1: the other is at larger phi
    theta, phi = (slope / SLOPE_UNIT).asinh().unbind(-1)
    other_theta, other_phi = (other_slope / SLOPE_UNIT).asinh().unbind(-1)
    return torch.stack([phi * side, -other_phi * side, theta.abs(), other_theta.abs()], dim=-1)
