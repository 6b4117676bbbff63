"""Directions of converted photons, corrected by the slopes of their showers.

The magnetic field bends the electrons of a converted photon on their way to the calorimeter. Their showers are inclined
in azimuth with respect to the line from the vertex by the angle by which they miss the impact point of the photon; by
more if it converted late.

Letters: N particles, P pairs of a particle and an item.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.common.directions import tangent_basis
from pflow.model.common.layers import FullyConnected
from pflow.model.pointing.pairs import Pairs
from pflow.model.pointing.showers import Showers, ramp_down

__all__ = ["CORE_ANGLE", "SLOPE_UNIT", "ConversionDirectionCorrection", "shower_slopes"]

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
    direction = functional.normalize(centre, dim=1)
    axes = pairs.particle_rows(torch.cat([direction, *tangent_basis(direction)], dim=1)).view(3, 3, -1)
    depth, off = torch.split((axes * position).sum(1), [1, 2])  # mm
    ahead = depth > 1.0
    off = off * (ahead / depth.clamp(min=1.0))  # [2, P], rad
    core = fraction * ahead * ramp_down(off.square().sum(0, keepdim=True).sqrt(), CORE_ANGLE, width=CORE_ANGLE_WIDTH)
    norm, depths = torch.split(pairs.sums(torch.cat([core, core * depth])), 1, dim=1)  # [N, 1] each
    norm = norm.clamp(min=1e-9)
    mean = depths / norm
    norm_of, mean_of = torch.split(pairs.particle_rows(torch.cat([norm, mean], dim=1)), 1)
    beyond = depth - mean_of
    away = core / norm_of * beyond
    spread, slopes = torch.split(pairs.sums(torch.cat([away * beyond, away * off])), [1, 2], dim=1)
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
    def initialise(self) -> None:
        """Set the initial fraction."""
        self.fraction[-1].weight.zero_()  # type: ignore[operator]
        self.fraction[-1].bias.fill_(-4.0)  # type: ignore[operator]

    def forward(self, features: Tensor, direction: Tensor, showers: Showers, pairs: Pairs) -> Tensor:
        """Corrected unit vectors [N, 3], of features [N, F] and unit vectors [N, 3]."""
        slope = shower_slopes(showers, pairs)
        size = (slope / SLOPE_UNIT).abs().asinh()
        fraction = self.fraction(torch.cat([features, size], dim=-1)).sigmoid()
        _, phi = tangent_basis(direction)
        return functional.normalize(direction - fraction * slope[..., 1:] * phi, dim=-1)
