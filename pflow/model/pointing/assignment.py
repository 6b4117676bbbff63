"""Hits and tracks to a particle, given its seed. Letters: N particles, S tokens, M items, P pairs, W width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pflow.model.common.layers import FullyConnected, gelu
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.geometry import (
    ARC_UNIT,
    MIN_RHO,
    THETA_UNIT,
    ItemFeatures,
    ItemPlaces,
    Items,
    Tables,
    TokenFrames,
    cosines,
    gather,
)
from pflow.model.pointing.pairs import MIN_UNASSIGNED, MIN_UNASSIGNED_WIDTH, Pairs, lengths
from pflow.model.pointing.showers import ramp_up

MIN_COSINE = math.cos(0.3)
"""Cosine of the largest angle between a seed and the hits and tracks that its particle can be assigned."""

FEATURES = (
    *("log_across", "near", "wide", "along", "depth", "log_angle", "angle", "same_token"),
    *("theta", "near_theta", "arc", "near_theta_arc"),
)
"""Features of the position of an item relative to a seed. Of the distance across the shower's axis: logarithm, and
exponentials over a short and a long distance; of that along the axis: itself, and exponential; of the angle: logarithm,
and exponential; whether the item is in the seed's token; and `delta_features`: without tracks they tell the two showers
of a converted photon, which the field separates in azimuth, from two photons."""

N_DELTA_FEATURES = 4


class Assignment(NamedTuple):
    """Hits and tracks of particles."""

    query: Tensor  # float [N, W], what describes the particle to the assignment and to its head
    pairs: Pairs
    logits: Tensor  # float [P], of the particle's fraction of the item's unassigned part
    hit_fraction: Tensor  # float [P], fraction of the item that is the particle's


class ParticleAssignment(nn.Module):
    """Assign items to the particles that start at given seeds."""

    def __init__(self, config: PointingNetworkConfig, *, n_subdetectors: int) -> None:
        super().__init__()
        width = config.width
        self.query = FullyConnected((2 * width, width, width), activation="gelu")
        self.pair_logits = AssignmentLogits(
            width=width, hidden_width=config.hidden_width, n_subdetectors=n_subdetectors
        )

    def forward(self, states: Tensor, seed: Tensor, tables: Tables, unassigned: Tensor, pairs: Pairs) -> Assignment:
        """Assign to particles with decoder states [N, W] and seeds int64 [N], indices into B * S.

        `unassigned`, float [P], is the unassigned fraction of each pair's item before the particle.
        """
        query = self.query(torch.cat([states, tables.states.index_select(0, seed)], dim=1))
        logits = self.pair_logits(query, seed, tables, tables.hidden, (1.0 - unassigned)[None], pairs)
        width = MIN_UNASSIGNED_WIDTH
        available = unassigned * ramp_up(unassigned, MIN_UNASSIGNED + width, width=width)
        return Assignment(query, pairs, logits, logits.sigmoid() * available)


def selected(seed_unit: Tensor, tables: Tables, unassigned: Tensor) -> Tensor:
    """Whether an item is near the seed [B, T, 3] and not assigned to others ([B, T, M]), bool [B, T, M]."""
    near = (cosines(seed_unit, tables.items.direction) > MIN_COSINE) & (unassigned >= MIN_UNASSIGNED)
    return near & tables.items.mask.view(len(near), 1, tables.n_items) if tables.padded else near


class AssignmentLogits(nn.Module):
    """A logit for each pair of a particle and an item.

    It is computed from the particle's query, the memory of the item's token, the item itself, its position relative to
    the seed along and across the axis of the shower that starts there, and `n_known` known fractions of the item.
    """

    def __init__(self, *, width: int, hidden_width: int, n_subdetectors: int, n_known: int = 1) -> None:
        super().__init__()
        self.query = nn.Linear(width, hidden_width)
        self.token = nn.Linear(width, hidden_width, bias=False)
        self.item = nn.Linear(sum(ItemFeatures.widths()) + n_subdetectors, hidden_width, bias=False)
        self.geometry = nn.Linear(len(FEATURES) + n_known, hidden_width, bias=False)
        self.out = FullyConnected((hidden_width, 16, 1), activation="gelu")
        # Distances over which exponentials fall by e: of across (twice) and along [mm], angle [rad], theta.
        falls_over = torch.tensor([[10.0], [50.0], [50.0], [0.02], [1.0]])
        self.register_buffer("falls_over", falls_over, persistent=False)

    def items(self, memory: Tensor, items: Items) -> Tensor:
        """The part that all particles share, float [B, M, hidden]: memory float [B, S, W] of the tokens, and items."""
        return gather(self.token(memory), items.token) + self.item(items.features)  # type: ignore[no-any-return]

    def forward(
        self, query: Tensor, seed: Tensor, tables: Tables, hidden: Tensor, known: Tensor, pairs: Pairs
    ) -> Tensor:
        """Logits float [P] of queries [N, W] and seeds int64 [N], indices into B * S.

        `hidden`, float [B * M, hidden], is from `items`; `known`, float [n_known, P], are known fractions of the pair's
        item.
        """
        x = pairs.of_items(hidden) + pairs.of_particles(self.query(query))
        features = torch.cat([*self._features(seed, tables, pairs), known])
        x = torch.addmm(x, features.t(), self.geometry.weight.t())
        return self.out(gelu(x)).squeeze(-1)  # type: ignore[no-any-return]

    def _features(self, seed: Tensor, tables: Tables, pairs: Pairs) -> Sequence[Tensor]:
        """`FEATURES`, float [1, P] each."""
        start = TokenFrames.of(pairs.particle_rows(tables.tokens.frames.index_select(0, seed)), dim=0)
        from_start = ItemPlaces.of(pairs.item_rows(tables.items.places) - start.place, dim=0)
        offset, apart = from_start.position, from_start.unit
        along = (offset * start.axis).sum(0, keepdim=True)
        across = lengths(offset.addcmul(along, start.axis, value=-1))
        angle = lengths(apart)
        theta = from_start.theta.sum(0, keepdim=True)
        arc = (apart * start.azimuth).sum(0, keepdim=True)
        sizes = torch.cat([across, across, along.abs(), angle, theta.abs()])
        near, wide, depth, narrow, near_theta = (sizes / -self.get_buffer("falls_over")).exp().chunk(5)
        same = (pairs.of_items(tables.items.token) == pairs.of_particles(seed))[None].to(along.dtype)
        turned, bent = torch.cat([theta, arc]).asinh().chunk(2)
        return (
            *(torch.log1p(across / 10.0), near, wide, (along / 300.0).clamp(-3.0, 5.0), depth),
            *((angle + 1e-3).log() / 2.0, narrow, same, turned, near_theta, bent, near_theta * bent.abs()),
        )


def delta_features(start: Tensor, end: Tensor) -> Tensor:
    """Features [..., N_DELTA_FEATURES] of the differences in theta and in phi (as an arc) of unit vectors [..., 3]."""
    # Of differences of the components, which are exact where the vectors are near each other.
    (x, y, z), (end_x, end_y, end_z) = start.unbind(-1), end.unbind(-1)
    dx, dy, dz = end_x - x, end_y - y, end_z - z
    rho, end_rho = torch.hypot(x, y), torch.hypot(end_x, end_y)
    outwards = (dx * (x + end_x) + dy * (y + end_y)) / (rho + end_rho).clamp(min=1e-6)
    theta = torch.atan2(outwards * z - dz * rho, rho * end_rho + z * end_z) / THETA_UNIT
    bent = torch.asinh((x * dy - y * dx) / rho.clamp(min=MIN_RHO) / ARC_UNIT)
    near_theta = torch.exp(-theta.abs())
    return torch.stack([theta.asinh(), near_theta, bent, near_theta * bent.abs()], dim=-1)
