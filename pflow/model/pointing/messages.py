"""Messages between decoded particles with their relative geometry.

Letters: B batch, T particles, M items, Q pairs of particles, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pflow.model.common.activation import gelu
from pflow.model.pointing.assignment import N_DELTA_FEATURES, delta_features
from pflow.model.pointing.conversion import SLOPE_UNIT, shower_slopes
from pflow.model.pointing.pairs import PairList
from pflow.model.pointing.showers import Showers, ramp_up

__all__ = ["PairwiseMessages"]

RANGE = 0.3
"""Messages fall by e over this angle between particles, rad."""

MIN_SLOPE_FRACTION, SLOPE_FRACTION_WIDTH = 0.01, 0.002
"""Fraction of an item from which it counts in the slope of a shower, and over which its weight rises."""

N_SLOPE_FEATURES = 4


class PairwiseMessages(nn.Module):
    """Messages between particles near each other, from the angles between them and their energies; initially none.

    The electrons of a converted photon lie side by side in azimuth, separated by the field by angles proportional to 1
    / E, and their showers point away from each other (`pflow.model.pointing.conversion`); two photons have any relative
    position.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.geometry = nn.Linear(N_DELTA_FEATURES + 3 + N_SLOPE_FEATURES, width, bias=False)
        self.out = nn.Linear(width, width)

    @torch.no_grad()
    def initialise(self) -> None:
        """Set the initial messages to none."""
        self.out.weight.zero_()

    def forward(
        self, x: Tensor, log_energy: Tensor, direction: Tensor, mask: Tensor, hit_fraction: Tensor, item_sums: Tensor
    ) -> Tensor:
        """The sum of the messages to each particle, float [B, T, W].

        Of embedded particles [B, T, W], ln(E / GeV) [B, T], unit vectors [B, T, 3], mask bool [B, T], fractions of
        items [B, T, M], and columns of `ItemSums` [B * M, F].
        """
        n = x.shape[1]
        order = torch.arange(n, device=x.device)
        both = mask[:, :, None] & mask[:, None] & (order[:, None] != order)
        event, to, by = both.nonzero(as_tuple=True)
        to, by = event * n + to, event * n + by  # receiver and sender of each pair, [Q]
        start, end = (direction.flatten(0, 1).index_select(0, at) for at in (to, by))
        angle = (end - start).square().sum(-1).clamp(min=1e-12).sqrt()  # rad, for small angles
        energies = (log_energy.flatten().index_select(0, at) / 2.0 for at in (to, by))
        pairs = PairList.where(hit_fraction > MIN_SLOPE_FRACTION)
        fraction = pairs.values(hit_fraction)
        full = MIN_SLOPE_FRACTION + SLOPE_FRACTION_WIDTH
        fraction = fraction * ramp_up(fraction, full, width=SLOPE_FRACTION_WIDTH)
        showers = Showers.of(fraction if self.training else fraction.double(), pairs, item_sums)
        slope = shower_slopes(showers, pairs)
        features = [
            delta_features(start, end),
            torch.stack([(angle + 1e-3).log() / 2.0, *energies], dim=-1),
            _slope_features(slope.index_select(0, to), slope.index_select(0, by), start, end),
        ]
        geometry = self.geometry(torch.cat(features, dim=-1).to(x.dtype))
        receivers, senders = self.receiver(x).flatten(0, 1), self.sender(x).flatten(0, 1)
        message = receivers.index_select(0, to) + senders.index_select(0, by) + geometry
        weighted = gelu(message) * (-angle / RANGE).exp().to(x.dtype)[:, None]
        total = weighted.new_zeros(x.shape).flatten(0, 1).index_add(0, to, weighted)
        return self.out(total.view_as(x))  # type: ignore[no-any-return]


def _slope_features(slope: Tensor, other_slope: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Slopes in azimuth towards each other and absolute slopes in polar angle, float [Q, N_SLOPE_FEATURES].

    Of `shower_slopes` [Q, 2] and unit vectors [Q, 3] of the first and the other particle.
    """
    side = (start[:, 0] * end[:, 1] - start[:, 1] * end[:, 0]).sign()  # 1: the other has the larger azimuth
    theta, phi = (slope / SLOPE_UNIT).asinh().unbind(-1)
    other_theta, other_phi = (other_slope / SLOPE_UNIT).asinh().unbind(-1)
    return torch.stack([phi * side, -other_phi * side, theta.abs(), other_theta.abs()], dim=-1)
