"""Assignment of hits and tracks to a particle, given its seed.

Letters: B batch, T particles, S source tokens, M items (hits, then tracks), P pairs of a particle and an item, W width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pflow.model.common.activation import gelu
from pflow.model.common.layers import FullyConnected
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.encoder import EncodedSource
from pflow.model.pointing.geometry import ITEM_FEATURES, Scene, gather
from pflow.model.pointing.pairs import MIN_UNASSIGNED, MIN_UNASSIGNED_WIDTH, Pairs, select_pairs
from pflow.model.pointing.showers import ramp_up

__all__ = [
    "N_DELTA_FEATURES",
    "Assignment",
    "AssignmentLogits",
    "ParticleAssignment",
    "delta_theta_phi_features",
    "feature_columns",
]

POSITION_FEATURES = ("log_across", "near", "wide", "along", "depth", "log_angle", "angle", "same_token")
"""Features of the position of an item relative to a seed. Of the distance across the shower's axis: logarithm, and
exponentials over a short and a long distance; of that along the axis: itself, and exponential; of the angle: logarithm,
and exponential; and whether the item is in the seed's token."""

DELTA_FEATURES = ("theta", "near_theta", "arc", "near_theta_arc")
"""`delta_theta_phi_features`: difference in polar angle, exponential of it, arc in azimuth, product of these two."""

N_DELTA_FEATURES = len(DELTA_FEATURES)


class Assignment(NamedTuple):
    """Hits and tracks of particles.

    Parameters
    ----------
    query : float [B, T, W]
        What describes the particle to the assignment and to its head.
    pairs
        Pairs of particles and items.
    logits : float [P]
        Logit of the particle's fraction of what is unassigned of the item.
    hit_fraction : float [P]
        Fraction of the item that is the particle's.
    """

    query: Tensor
    pairs: Pairs
    logits: Tensor
    hit_fraction: Tensor


class ParticleAssignment(nn.Module):
    """Assign items to the particles that start at given seeds.

    Parameters
    ----------
    config
        Sizes and parts of the network.
    n_subdetectors
        Number of calorimeters.
    """

    def __init__(self, config: PointingNetworkConfig, *, n_subdetectors: int) -> None:
        super().__init__()
        width = config.width
        self.min_cosine = math.cos(config.cone_angle)
        self.query = FullyConnected((2 * width, width, width), activation="gelu")
        self.pair_logits = AssignmentLogits(
            width=width,
            hidden_width=config.hidden_width,
            n_subdetectors=n_subdetectors,
            delta_features=config.delta_theta_phi_features,
        )

    def select(self, seed: Tensor, source: EncodedSource, unassigned: Tensor, mask: Tensor) -> Tensor:
        """The pairs that `forward` looks at, bool [B, T, M]."""
        return select_pairs(source.scene, seed, unassigned, mask, min_cosine=self.min_cosine)

    def forward(
        self,
        state: Tensor,
        seed: Tensor,
        source: EncodedSource,
        unassigned: Tensor,
        mask: Tensor,
        pairs: Pairs | None = None,
    ) -> Assignment:
        """Assign.

        Parameters
        ----------
        state : float [B, T, W], decoder states
        seed : int64 [B, T]
        source
            Encoded source of the batch.
        unassigned : float [B, T, M], unassigned fraction of each item before the particle
        mask : bool [B, T], True = real particle
        pairs
            Those of `select`, where they are at hand.
        """
        query = self.query(torch.cat([state, gather(source.states, seed)], dim=-1))
        if pairs is None:
            pairs = Pairs.where(self.select(seed, source, unassigned, mask))
        of_pairs = pairs.pair_values(unassigned)
        logits = self.pair_logits(query, source.items, source.scene, seed, (1.0 - of_pairs)[:, None], pairs)
        width = MIN_UNASSIGNED_WIDTH
        available = of_pairs * ramp_up(of_pairs, MIN_UNASSIGNED + width, width=width)
        return Assignment(query, pairs, logits, logits.sigmoid() * available)


class AssignmentLogits(nn.Module):
    """A logit for each pair of a particle and an item.

    It is computed from the particle's query, the memory of the item's token, the item itself, its position relative to
    the seed along and across the axis of the shower that starts there, and the known fractions of the item.

    Parameters
    ----------
    width
        W of queries and memory.
    hidden_width
        Width of the hidden layer.
    n_subdetectors
        Number of calorimeters.
    delta_features
        Whether `delta_theta_phi_features` are added: the magnetic field separates the electrons of a converted photon
        in azimuth only.
    n_known
        Number of known fractions of the item of a pair.
    """

    def __init__(
        self, *, width: int, hidden_width: int, n_subdetectors: int, delta_features: bool = False, n_known: int = 1
    ) -> None:
        super().__init__()
        self.delta_features = delta_features
        self.query = nn.Linear(width, hidden_width)
        self.token = nn.Linear(width, hidden_width, bias=False)
        self.item = nn.Linear(ITEM_FEATURES + n_subdetectors, hidden_width, bias=False)
        n_features = len(POSITION_FEATURES) + N_DELTA_FEATURES * delta_features + n_known
        self.geometry = nn.Linear(n_features, hidden_width, bias=False)
        self.out = FullyConnected((hidden_width, 16, 1), activation="gelu")

    def items(self, memory: Tensor, scene: Scene) -> Tensor:
        """The part that all particles share, float [B, M, hidden]: memory float [B, S, W] of the tokens, and items."""
        return gather(self.token(memory), scene.item_token) + self.item(scene.item_features)  # type: ignore[no-any-return]

    def forward(self, query: Tensor, items: Tensor, scene: Scene, seed: Tensor, known: Tensor, pairs: Pairs) -> Tensor:
        """Logits float [P].

        Parameters
        ----------
        query : float [B, T, W]
        items : float [B, M, hidden], from `items`
        scene
            Scene of the batch.
        seed : int64 [B, T]
        known : float [P, n_known], known fractions of the pair's item
        pairs
            Pairs of particles and items.
        """
        features = _relative_position(scene, seed, pairs, delta_features=self.delta_features)
        hidden = pairs.particle_values(self.query(query)) + pairs.item_values(items)
        hidden = hidden + self.geometry(torch.cat([features, known.t()]).t())
        return self.out(gelu(hidden)).squeeze(-1)  # type: ignore[no-any-return]


def _relative_position(scene: Scene, seed: Tensor, pairs: Pairs, *, delta_features: bool) -> Tensor:
    """`POSITION_FEATURES`, and with `delta_features` `DELTA_FEATURES`, float [F, P]."""
    starts = torch.cat([gather(scene.token_geometry, seed), seed[..., None].to(scene.token_geometry.dtype)], dim=-1)
    start, axis, unit, token = torch.split(pairs.particle_rows(starts.flatten(0, 1).t()), [3, 3, 3, 1])
    position, item_unit, item_token = torch.split(pairs.item_rows(scene.item_geometry), [3, 3, 1])
    offset = position - start  # mm
    along = (offset * axis).sum(0)
    across = (offset - along * axis).square().sum(0).sqrt()
    angle = (item_unit - unit).square().sum(0).sqrt()  # rad, for small angles
    features = [
        torch.log1p(across / 10.0),
        torch.exp(-across / 10.0),
        torch.exp(-across / 50.0),
        (along / 300.0).clamp(-3.0, 5.0),
        torch.exp(-along.abs() / 50.0),
        (angle + 1e-3).log() / 2.0,
        torch.exp(-angle / 0.02),
        (item_token == token)[0].to(along.dtype),
    ]
    if delta_features:
        features += _delta_theta_phi_features(unit.unbind(0), item_unit.unbind(0))
    return torch.stack(features)


def feature_columns(*names: str, delta_features: bool) -> list[int]:
    """Indices of features in the input of `AssignmentLogits.geometry`; ``known`` is that of one known fraction."""
    features = (*POSITION_FEATURES, *(DELTA_FEATURES if delta_features else ()), "known")
    return [features.index(name) for name in names]


def delta_theta_phi_features(start: Tensor, end: Tensor) -> Tensor:
    """Features of the differences in polar angle and in azimuth (as an arc) between unit vectors.

    Parameters
    ----------
    start, end : float [..., 3]

    Returns
    -------
    float [..., N_DELTA_FEATURES]
    """
    return torch.stack(_delta_theta_phi_features(start.unbind(-1), end.unbind(-1)), dim=-1)


def _delta_theta_phi_features(start: Sequence[Tensor], end: Sequence[Tensor]) -> list[Tensor]:
    """`delta_theta_phi_features` of the components of the vectors."""
    # Of differences of the components, which are exact where the vectors are near each other: those of polar angles
    # and products are rounded by some 1e-7 rad, which is much against 3 mrad.
    (x, y, z), (end_x, end_y, end_z) = start, end
    dx, dy, dz = end_x - x, end_y - y, end_z - z
    rho, end_rho = torch.hypot(x, y), torch.hypot(end_x, end_y)
    outwards = (dx * (x + end_x) + dy * (y + end_y)) / (rho + end_rho).clamp(min=1e-6)
    theta = torch.atan2(outwards * z - dz * rho, rho * end_rho + z * end_z)  # rad
    arc = torch.asinh((x * dy - y * dx) / rho.clamp(min=1e-3) / 0.01)
    falling = torch.exp(-theta.abs() / 0.003)
    return [torch.asinh(theta / 0.003), falling, arc, falling * arc.abs()]
