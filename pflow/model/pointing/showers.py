"""Hits of showers with their weights. Letters: N particles, P pairs of a particle and an item, R subdetectors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pflow.model.pointing.geometry import ItemSums
from pflow.model.pointing.pairs import Pairs

LOG_WEIGHT = 4.0
"""Offset w0 of the barycentre's weights max(0, w0 + ln(E_hit / E_sum)) (Awes et al. 1992, NIM A 311, 130)."""

DEPOSIT, DEPOSIT_WIDTH = 3e-5, 2.5e-5
"""Energy of a particle's hits from which they are a shower, GeV; over the width below it, the weight of its shape and
direction rises from 0. Any one hit has more: less is a small rest of hits that are assigned to others, whose shape has
no meaning."""


def log_weights(fraction: Tensor) -> Tensor:
    """Weights of hits in the log-weighted barycentre, from their fractions of the shower's energy."""
    return (LOG_WEIGHT + (fraction + 1e-12).log()).clamp(min=0.0)


def ramp_down(values: Tensor, end: float, *, width: float) -> Tensor:
    """1 below ``end - width``, 0 from `end`, linear between: a cut at one value would turn rounding into a jump."""
    return ((end - values) / width).clamp(0.0, 1.0)


def ramp_up(values: Tensor, end: float, *, width: float) -> Tensor:
    """0 below ``end - width``, 1 from `end`, linear between."""
    return ((values - (end - width)) / width).clamp(0.0, 1.0)


class Showers(NamedTuple):
    """Hits of the showers of particles, by the fraction that is a particle's."""

    position: Tensor  # float [3, P], of the pair's item, mm
    fraction: Tensor  # float [1, P], of the shower's energy, times its presence
    weight: Tensor  # float [1, P], `log_weights` of it
    energy: Tensor  # float [N, 1], of the hits, GeV
    sums: Tensor  # float [N, 8], `ItemSums.by_fraction` of the items
    presence: Tensor  # float [N, 1], 0 where there are no hits, 1 where their energy is that of a shower
    centre: Tensor  # float [N, 3], sum of positions by weight, mm
    norm: Tensor  # float [N, 1], sum of weights
    linear_centre: Tensor  # float [N, 3], barycentre weighted by energy, mm
    by_subdetector: Tensor  # float [N, 2 R], fraction of the energy, and fraction times layer

    @classmethod
    def of(cls, hit_fraction: Tensor, pairs: Pairs, item_sums: Tensor) -> Showers:
        """From the fraction float [P] of each pair's item that is the particle's, in its precision."""
        items = ItemSums.of(pairs.item_rows(item_sums, hit_fraction.dtype), dim=0)
        of_items = items.by_fraction * hit_fraction
        sums = pairs.sums(of_items)
        energy, _ = torch.split(sums, [1, 7], dim=1)
        deposit, _ = torch.split(of_items, [1, 7])
        presence = ramp_up(energy, DEPOSIT, width=DEPOSIT_WIDTH)
        fraction = deposit * pairs.particle_rows(presence / energy.clamp(min=1e-9))
        weight = log_weights(fraction)
        position = items.position
        of_items = torch.cat([weight * position, weight, fraction * position, fraction * items.by_subdetector])
        weighted = pairs.sums(of_items)
        centre, norm, linear, by_subdetector = torch.split(weighted, [3, 1, 3, int(weighted.shape[1]) - 7], dim=1)
        linear = linear / presence.clamp(min=1e-9)
        return cls(position, fraction, weight, energy, sums, presence, centre, norm, linear, by_subdetector)
