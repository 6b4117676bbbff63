"""Slopes of showers: whether they go on in the direction in which they lie, as those of photons do.

The field bends the electrons of a converted photon on their way to the calorimeter: they come in away from the line
from the vertex, in azimuth, by the angle by which they miss the place where the photon went; by more if it converted
late.

Letters: B batch, T particles, M items, P pairs of a particle and an item.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.common.layers import FullyConnected
from pflow.model.pointing.geometry import Scene
from pflow.model.pointing.pointer import Pairs
from pflow.model.pointing.proxies import log_weights, tangent_basis

__all__ = ["CORE", "SLOPE", "Unbend", "shower_slopes"]

CORE = 0.015
"""Hits at most this far from the barycentre count, rad: far ones are few and would decide a fit by their distance."""

SLOPE = 0.02
"""Slopes of showers of about 15 GeV are known to this, rad."""

MIN_DEPTH = 10.0
"""Added in quadrature to the spread in depth: a shower in one layer has no slope, mm."""


def shower_slopes(share: Tensor, pairs: Pairs, scene: Scene, shape: tuple[int, int]) -> Tensor:
    """Slopes of showers in polar angle and in azimuth, float [B, T, 2], rad.

    The change of a hit's angles to the log-weighted barycentre with the logarithm of the depth from the vertex, by a
    linear fit weighted by energy: the angle between the shower's axis and the line from the vertex, as far as small.

    Parameters
    ----------
    share : float [P], share of the pair's item that belongs to the particle
    pairs, scene
        Of the batch.
    shape
        B and T.
    """
    size = shape[0] * shape[1]

    def total(values: Tensor) -> Tensor:
        return pairs.sums(values, size)

    energy = share * pairs.at_items(scene.item_energy)
    position = pairs.at_items(scene.item_position)
    fraction = energy / pairs.each(total(energy).clamp(min=1e-9))
    weight = log_weights(fraction)
    weight = torch.where(pairs.each(total(weight)) > 0, weight, fraction)  # a shower of many small hits
    direction = functional.normalize(total(weight[:, None] * position), dim=-1)
    axes = torch.stack([direction, *tangent_basis(direction)], dim=1)  # [B * T, 3, 3]
    depth, off_theta, off_phi = ((pairs.each(axis) * position).sum(-1) for axis in axes.unbind(1))  # mm
    ahead = depth > 1.0
    off = torch.stack([off_theta, off_phi], dim=-1) * (ahead / depth.clamp(min=1.0))[:, None]  # [P, 2], rad
    core = fraction * ahead * (torch.linalg.vector_norm(off, dim=-1) < CORE)
    core = core / pairs.each(total(core).clamp(min=1e-9))
    mean = total(core * depth)
    beyond = depth - pairs.each(mean)
    away = core * beyond
    spread = total(away * beyond) + MIN_DEPTH**2  # mm^2
    slope = total(away[:, None] * off) * (mean / spread)[:, None]
    return slope.view(*shape, 2)


class Unbend(nn.Module):
    """Where a photon went of which little more than one electron is seen: back along its azimuth, by its slope.

    An electron made near the vertex misses the place where its photon went by as much as its shower is inclined; the
    share of this that a direction is turned back by is learnt. At birth it is next to nothing.

    Parameters
    ----------
    features
        Number of what describes a particle.
    hidden
        Of the map from these to the share.
    """

    def __init__(self, *, features: int, hidden: int) -> None:
        super().__init__()
        self.share = FullyConnected((features + 2, hidden, 1), activation="gelu")

    @torch.no_grad()
    def initialise(self) -> None:
        """Begin with a share of 2%."""
        self.share[-1].weight.zero_()  # type: ignore[operator]
        self.share[-1].bias.fill_(-4.0)  # type: ignore[operator]

    def forward(self, features: Tensor, direction: Tensor, slope: Tensor) -> Tensor:
        """Unit vectors float [B, T, 3].

        Parameters
        ----------
        features : float [B, T, F]
        direction : float [B, T, 3], unit vectors
        slope : float [B, T, 2], from `shower_slopes`
        """
        size = (slope / SLOPE).abs().asinh()
        share = self.share(torch.cat([features, size], dim=-1)).sigmoid()
        _, phi = tangent_basis(direction)
        return functional.normalize(direction - share * slope[..., 1:] * phi, dim=-1)
