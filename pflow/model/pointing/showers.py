"""Hits of showers with their weights, from which proxies, slopes and directions are computed.

Letters: B batch, T particles, M items (hits, then tracks), P pairs of a particle and an item.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pflow.model.pointing.geometry import DEPOSIT_ENERGY, DEPOSIT_POSITION, Scene
from pflow.model.pointing.pairs import Pairs

__all__ = ["Showers", "log_weights", "ramp_down", "ramp_up"]

LOG_WEIGHT = 4.0
"""Offset w0 of the barycentre's weights max(0, w0 + ln(E_hit / E_sum)) (Awes et al. 1992, NIM A 311, 130)."""

DEPOSIT, DEPOSIT_WIDTH = 3e-5, 2.5e-5
"""Energy of a particle's hits from which they are a shower, GeV; over the width below it, the weight of its shape and
direction rises from 0. Any one hit has more: less is a small rest of hits that are assigned to others, whose shape has
no meaning."""

_CENTRE, _NORM, _LINEAR_CENTRE = slice(0, 3), 3, slice(4, None)
"""Rows of what is summed over the pairs of a particle."""


def log_weights(fraction: Tensor) -> Tensor:
    """Weights of hits in the log-weighted barycentre, from their fractions of the shower's energy."""
    return (LOG_WEIGHT + (fraction + 1e-12).log()).clamp(min=0.0)


def ramp_down(values: Tensor, end: float, *, width: float) -> Tensor:
    """1 below ``end - width``, 0 from `end`, linear between: a cut at one value would turn rounding into a jump."""
    return ((end - values) / width).clamp(0.0, 1.0)


def ramp_up(values: Tensor, end: float, *, width: float) -> Tensor:
    """0 below ``end - width``, 1 from `end`, linear between."""
    return 1.0 - ramp_down(values, end, width=width)


class Showers(NamedTuple):
    """Hits of showers. Pairs are the last axis: so each operation goes through memory once.

    Parameters
    ----------
    position : float [3, P], of the pair's item, mm
    fraction : float [P], fraction of the shower's energy, times its presence
    weight : float [P], `log_weights` of it
    energy : float [B * T], GeV
    presence : float [B * T], 0 where there are no hits, 1 where their energy is that of a shower
    centre : float [3, B * T], sum of positions by weight, mm
    norm : float [B * T], sum of weights
    linear_centre : float [3, B * T], barycentre weighted by energy, mm
    """

    position: Tensor
    fraction: Tensor
    weight: Tensor
    energy: Tensor
    presence: Tensor
    centre: Tensor
    norm: Tensor
    linear_centre: Tensor

    @classmethod
    def of(cls, hit_fraction: Tensor, pairs: Pairs, scene: Scene, size: int) -> Showers:
        """From the fraction float [P] of each pair's item that is the particle's, of `size` = B * T particles.

        All is in the precision of the fractions.
        """
        items = pairs.item_rows(scene.item_deposit, hit_fraction.dtype)  # [4, P]
        position, deposit = items[DEPOSIT_POSITION], hit_fraction * items[DEPOSIT_ENERGY]  # mm, GeV; 0 GeV for tracks
        energy = pairs.particle_sums(deposit, size)
        presence = ramp_up(energy, DEPOSIT, width=DEPOSIT_WIDTH)
        fraction = deposit * pairs.flat_particle_values(presence / energy.clamp(min=1e-9))
        weight = log_weights(fraction)
        sums = pairs.particle_row_sums(torch.cat([weight * position, weight[None], fraction * position]), size)
        centre, norm = sums[_CENTRE], sums[_NORM]
        linear_centre = sums[_LINEAR_CENTRE] / presence.clamp(min=1e-9)
        return cls(position, fraction, weight, energy, presence, centre, norm, linear_centre)
