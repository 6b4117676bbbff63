"""Directions of photons from where their showers begin.

The first electrons of a shower are near the photon's line; scattering takes those behind them away from it. Below some
GeV, where a shower is a few electrons, the direction to the barycentre of its front is two to three times nearer to the
photon's than that to the barycentre of all hits.

Letters: B batch, T particles, P pairs of a particle and an item.
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

_AXIS, _MEAN_ALONG, _DEPTH = slice(0, 3), 3, 4
"""Rows of what pairs read of their shower: axis, mean position along it, and depth over which weights fall by e, mm."""


def front_direction(showers: Showers, pairs: Pairs, shape: tuple[int, int], *, depth: float) -> Tensor:
    """Unit vectors to the barycentres of the fronts of showers, float [B, T, 3]; null vectors without hits.

    Weights are those of the log-weighted barycentre times exp(-d / lambda) for a depth d along the shower's axis, with
    lambda = `depth` sqrt(E / GeV), within a core around the axis that these weights give.

    Parameters
    ----------
    showers, pairs
        Hits of the showers, and pairs of the batch.
    shape
        B and T.
    depth
        Depth over which the weights of hits of a shower of 1 GeV fall by e, mm.
    """
    position, size = showers.position, shape[0] * shape[1]

    def towards(weight: Tensor) -> Tensor:
        return functional.normalize(pairs.particle_row_sums(weight * position, size), dim=0)  # [3, B * T]

    axis = functional.normalize(showers.centre, dim=0)
    mean = (showers.linear_centre * axis).sum(0, keepdim=True)  # along the axis, mm
    falls_over = (depth * showers.energy.sqrt()).clamp(min=MIN_DEPTH)[None]
    shower = pairs.particle_rows(torch.cat([axis, mean, falls_over]))  # [5, P]
    ahead = shower[_MEAN_ALONG] - (position * shower[_AXIS]).sum(0)
    weight = showers.weight * (ahead / shower[_DEPTH]).clamp(max=MAX_EXPONENT).exp()
    axis = pairs.particle_rows(towards(weight))
    off = (position - (position * axis).sum(0) * axis).square().sum(0).sqrt()
    core = ramp_down(off, CORE_RADIUS, width=CORE_RADIUS_WIDTH)
    return towards(weight * core).t().reshape(*shape, 3)


def with_front_direction(
    direction: Tensor, is_photon: Tensor, showers: Showers, pairs: Pairs, *, depth: float
) -> Tensor:
    """Directions, those of photons joined with the directions to the fronts of their showers; unit vectors [B, T, 3].

    The weight of the front is 1 / (1 + (E / `FULL_ENERGY`)^4): above, the network's own direction is the better one.

    Parameters
    ----------
    direction : double [B, T, 3], unit vectors
    is_photon : bool [B, T]
    showers, pairs, depth
        As in `front_direction`.
    """
    shape = (direction.shape[0], direction.shape[1])
    front = front_direction(showers, pairs, shape, depth=depth)
    near = (front - direction).square().sum(-1) < MAX_CHANGE**2  # the angle, as it is small
    weight = 1.0 / (1.0 + (showers.energy.view(*shape, 1) / FULL_ENERGY).square().square())
    joined = functional.normalize(direction + weight * (front - direction), dim=-1)
    return torch.where((is_photon & near)[..., None], joined, direction)
