"""Directions of photons, corrected by the fronts and by the slopes of their showers.

The first electrons of a shower are near the photon's line; scattering takes those behind them away from it. Below some
GeV, where a shower is a few electrons, the direction to the barycentre of its front is two to three times nearer to the
photon's than that to the barycentre of all hits.

The magnetic field bends the electrons of a converted photon on their way to the calorimeter. Their showers are inclined
in azimuth with respect to the line from the vertex by the angle by which they miss the impact point of the photon; by
more if it converted late.

Letters: N particles, P pairs of a particle and an item.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pflow.model.common.directions import normalise, tangent_basis
from pflow.model.common.layers import FullyConnected
from pflow.model.pointing.pairs import Pairs, rows_of_each, sums_of_each
from pflow.model.pointing.showers import Showers, ramp_down

MIN_DEPTH = 2.0
"""Smallest depth over which weights fall by e, mm."""

MAX_EXPONENT = 50.0
"""Largest exponent of a weight: a stray hit far ahead of a shower must not overflow."""

CORE_RADIUS, CORE_RADIUS_WIDTH = 20.0, 10.0
"""Distance from the axis from which hits do not count; their weight falls from 1 to 0 over the width before it, mm."""

FULL_ENERGY = 8.0
"""A shower of this energy gives the front and the network's own direction equal weights, GeV."""

MAX_CHANGE = 0.02
"""Angle between the two from which the network's stays, rad: the hits of a converted photon are not around its line."""


def front_direction(showers: Showers, pairs: Pairs, *, depth: float) -> Tensor:
    """Unit vectors to the barycentres of the fronts of showers, float [N, 3]; null vectors without hits.

    Weights are the log-weighted barycentre's times exp(-d / lambda) for a depth d along the shower's axis, with
    lambda = `depth` sqrt(E / GeV) in mm, within a core around the axis that these weights give.
    """
    position = showers.position

    def towards(weight: Tensor) -> Tensor:
        return normalise(pairs.sums(weight * position))  # [N, 3]

    axis = normalise(showers.centre)
    mean = (showers.linear_centre * axis).sum(1, keepdim=True)  # along the axis, mm
    falls_over = (depth * showers.energy.sqrt()).clamp(min=MIN_DEPTH)
    axis_of, mean_of, falls_over_of = rows_of_each(pairs, axis, mean, falls_over)
    ahead = mean_of - (position * axis_of).sum(0, keepdim=True)
    weight = showers.weight * (ahead / falls_over_of).clamp(max=MAX_EXPONENT).exp()
    axis_of = pairs.particle_rows(towards(weight))
    off = (position - (position * axis_of).sum(0) * axis_of).square().sum(0, keepdim=True).sqrt()
    return towards(weight * ramp_down(off, CORE_RADIUS, width=CORE_RADIUS_WIDTH))


def with_front_direction(
    direction: Tensor, is_photon: Tensor, showers: Showers, pairs: Pairs, *, depth: float
) -> Tensor:
    """Unit vectors double [N, 3]; photons' are averaged with the directions to the fronts of their showers.

    The weight of the front is 1 / (1 + (E / `FULL_ENERGY`)^4): above, the network's own direction is the better one.
    `is_photon` is bool [N]; `depth` is as in `front_direction`.
    """
    front = front_direction(showers, pairs, depth=depth)
    near = (front - direction).square().sum(-1) < MAX_CHANGE**2  # the angle, as it is small
    weight = 1.0 / (1.0 + (showers.energy / FULL_ENERGY).square().square())
    joined = normalise(direction + weight * (front - direction))
    return torch.where((is_photon & near)[..., None], joined, direction)


CORE_ANGLE, CORE_ANGLE_WIDTH = 0.016, 2e-3
"""Angle to the barycentre from which hits are not in the fit, where the few far ones would dominate it, and over which
their weight falls, rad."""

SLOPE_UNIT = 0.02
"""Unit of slopes: their resolution for showers of about 15 GeV, rad."""

EPS_DEPTH = 10.0
"""Added in quadrature to the spread in depth, mm: a shower in one layer has no slope."""


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
    core = fraction * ahead * ramp_down(off.square().sum(0, keepdim=True).sqrt(), CORE_ANGLE, width=CORE_ANGLE_WIDTH)
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
        self.fraction = FullyConnected((features + 2, hidden_width, 1), activation="gelu")

    @torch.no_grad()
    def set_initial_values(self) -> None:
        """Set the initial fraction."""
        self.fraction[-1].weight.zero_()  # type: ignore[operator]
        self.fraction[-1].bias.fill_(-4.0)  # type: ignore[operator]

    def forward(self, features: Tensor, direction: Tensor, showers: Showers, pairs: Pairs) -> Tensor:
        """Corrected unit vectors [N, 3], of features [N, F] and unit vectors [N, 3]."""
        slope = shower_slopes(showers, pairs)
        size = (slope / SLOPE_UNIT).abs().asinh()
        fraction = self.fraction(torch.cat([features, size], dim=-1)).sigmoid()
        _, phi = tangent_basis(direction)
        return normalise(direction - fraction * slope[..., 1:] * phi)
