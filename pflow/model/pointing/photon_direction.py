"""Directions of photons from where their showers begin.

The first electrons of a shower are near the photon's line; scattering takes those behind them away from it. Below some
GeV, where a shower is a few electrons, the direction to the barycentre of its front is two to three times nearer to the
photon's than that to the barycentre of all hits.

Letters: N particles, P pairs of a particle and an item.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pflow.model.pointing.pairs import Pairs
from pflow.model.pointing.showers import Showers, ramp_down

__all__ = ["front_direction", "with_front_direction"]

MIN_DEPTH = 2.0
"""Smallest depth over which weights fall by e, mm."""

MAX_EXPONENT = 50.0
"""Largest exponent of a weight: a stray hit far ahead of a shower must not overflow."""

CORE_RADIUS, CORE_RADIUS_WIDTH = 20.0, 10.0
"""Distance from the axis from which hits do not count; their weight falls from 1 to 0 over the width before it, mm."""

FULL_ENERGY = 8.0
"""Energy at which the front and the network's own direction have equal weights, GeV."""

MAX_CHANGE = 0.02
"""Angle between the two from which the network's stays, rad: the hits of a converted photon are not around its line."""


def front_direction(showers: Showers, pairs: Pairs, *, depth: float) -> Tensor:
    """Unit vectors to the barycentres of the fronts of showers, float [N, 3]; null vectors without hits.

    Weights are those of the log-weighted barycentre times exp(-d / lambda) for a depth d along the shower's axis, with
    lambda = `depth` sqrt(E / GeV) in mm, within a core around the axis that these weights give.
    """
    position = showers.position

    def towards(weight: Tensor) -> Tensor:
        return functional.normalize(pairs.sums(weight * position), dim=1)  # [N, 3]

    axis = functional.normalize(showers.centre, dim=1)
    mean = (showers.linear_centre * axis).sum(1, keepdim=True)  # along the axis, mm
    falls_over = (depth * showers.energy.sqrt()).clamp(min=MIN_DEPTH)
    rows = pairs.particle_rows(torch.cat([axis, mean, falls_over], dim=1))
    axis_of, mean_of, falls_over_of = torch.split(rows, [3, 1, 1])
    ahead = mean_of - (position * axis_of).sum(0, keepdim=True)
    weight = showers.weight * (ahead / falls_over_of).clamp(max=MAX_EXPONENT).exp()
    axis_of = pairs.particle_rows(towards(weight))
    off = (position - (position * axis_of).sum(0) * axis_of).square().sum(0, keepdim=True).sqrt()
    return towards(weight * ramp_down(off, CORE_RADIUS, width=CORE_RADIUS_WIDTH))


def with_front_direction(
    direction: Tensor, is_photon: Tensor, showers: Showers, pairs: Pairs, *, depth: float
) -> Tensor:
    """Unit vectors double [N, 3], those of photons joined with the directions to the fronts of their showers.

    The weight of the front is 1 / (1 + (E / `FULL_ENERGY`)^4): above, the network's own direction is the better one.
    `is_photon` is bool [N]; `depth` is as in `front_direction`.
    """
    front = front_direction(showers, pairs, depth=depth)
    near = (front - direction).square().sum(-1) < MAX_CHANGE**2  # the angle, as it is small
    weight = 1.0 / (1.0 + (showers.energy / FULL_ENERGY).square().square())
    joined = functional.normalize(direction + weight * (front - direction), dim=-1)
    return torch.where((is_photon & near)[..., None], joined, direction)
