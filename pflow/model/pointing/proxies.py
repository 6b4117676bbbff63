"""Proxies (HGPflow's word): estimates of energy and direction from the hits and tracks of a particle.

Letters: B batch, T particles, P pairs of a particle and an item.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pflow.model.common.directions import tangent_basis
from pflow.model.pointing.geometry import ITEM_FEATURES, LAYER, Scene, gather
from pflow.model.pointing.pairs import Pairs

__all__ = ["Proxies", "Showers", "falling_step", "make_proxies", "n_proxy_features"]

LOG_WEIGHT = 4.0
"""Offset w0 of the barycentre's weights max(0, w0 + ln(E_hit / E_sum)) (Awes et al. 1992, NIM A 311, 130)."""

EPS_ENERGY = 1e-3
"""Added to energies before a logarithm, GeV."""

MIN_TRACK_MOMENTUM = 0.05
"""Smallest momentum of tracks that gives their direction, GeV."""

ANGLE_UNIT = 0.03
"""Unit of the angles between the directions, rad."""

CORE_RADIUS, CORE_RADIUS_WIDTH = 15.25, 0.5
"""Distance from the shower's axis from which hits do not count as its core, and over which their weight falls, mm."""

_SHAPE_FEATURES = 15


def n_proxy_features(n_subdetectors: int) -> int:
    """Number of features that `make_proxies` computes."""
    return _SHAPE_FEATURES + 2 * n_subdetectors


def falling_step(values: Tensor, end: float, *, width: float) -> Tensor:
    """1 below ``end - width``, 0 from `end`, linear between: a cut at one value would turn rounding into a jump."""
    return ((end - values) / width).clamp(0.0, 1.0)


class Showers(NamedTuple):
    """Hits as parts of the showers of particles; tracks have no energy and count for nothing.

    Parameters
    ----------
    energy : float [B * T], sum of the energies of a particle's hits, GeV
    position : float [P, 3], of the pair's item, mm
    fraction : float [P], of the particle's energy that is in the item
    log_weight : float [P], weight of the item in the log-weighted barycentre
    """

    energy: Tensor
    position: Tensor
    fraction: Tensor
    log_weight: Tensor

    @classmethod
    def of(cls, hit_fraction: Tensor, pairs: Pairs, scene: Scene, size: int) -> Showers:
        """From hit fractions float [P], in their precision; `size`: B * T."""
        deposit = hit_fraction * pairs.at_items(scene.item_energy)  # [P], GeV
        energy = pairs.sums(deposit, size)
        fraction = deposit / pairs.each(energy.clamp(min=1e-9))
        log_weight = (LOG_WEIGHT + (fraction + 1e-12).log()).clamp(min=0.0)
        return cls(energy, pairs.at_items(scene.item_position), fraction, log_weight)


class Proxies(NamedTuple):
    """Proxies of particles; hits and tracks count by the fraction that is the particle's.

    Parameters
    ----------
    energy : float [B, T], sum of the energies of the hits, GeV
    track_momentum : float [B, T, 3], sum of the momenta of the tracks, GeV
    direction : float [B, T, 3], unit vector to the log-weighted barycentre of the hits; without hits, along the
        tracks' momentum or towards the seed
    linear_direction : float [B, T, 3], the same to the barycentre weighted by energy. The field separates the electrons
        of a converted photon by angles proportional to 1 / E: their energy-weighted mean is the photon's direction.
    track_direction : float [B, T, 3], unit vector of the tracks' momentum; without tracks, as `direction`
    features : float32 [B, T, F], features of energies, directions and the shape of the shower, of order 1
    """

    energy: Tensor
    track_momentum: Tensor
    direction: Tensor
    linear_direction: Tensor
    track_direction: Tensor
    features: Tensor


def make_proxies(hit_fraction: Tensor, pairs: Pairs, scene: Scene, seed: Tensor, *, n_subdetectors: int) -> Proxies:
    """Compute the proxies, all but the features in the precision of `hit_fraction`.

    In single precision the distances from the axis and the angles between the directions, small differences of large
    numbers, have errors of 10^-3: evaluation computes them in double precision.

    Parameters
    ----------
    hit_fraction : float or double [P], fraction of the pair's item that is the particle's
    pairs, scene
        Pairs and scene of the batch.
    seed : int64 [B, T]
    n_subdetectors
        Number of calorimeters.
    """
    shape = seed.shape
    size = seed.numel()

    def total(values: Tensor) -> Tensor:
        return pairs.sums(values, size)

    energy, position, fraction, weight = Showers.of(hit_fraction, pairs, scene, size)
    centre = total(weight[:, None] * position) / total(weight).clamp(min=1e-9)[:, None]  # [B * T, 3], mm

    # Tracks are the items behind the hits, and tokens of their own.
    is_track = (pairs.item >= scene.n_hits).float()
    momentum = pairs.at_tokens(scene.token_momentum, scene) * (hit_fraction * is_track)[:, None]
    charge = pairs.at_tokens(scene.token_charge, scene) * hit_fraction * is_track
    momenta = total(momentum)
    length = torch.linalg.vector_norm(momentum, dim=-1)
    track_energy = total(length)
    seed_unit = gather(scene.token_unit, seed).flatten(0, 1).to(momenta.dtype)
    along_tracks = functional.normalize(momenta + 1e-6 * seed_unit, dim=-1)
    has_hits = (energy > 1e-6)[:, None]
    direction = functional.normalize(torch.where(has_hits, centre, along_tracks), dim=-1)
    mean = functional.normalize(total(fraction[:, None] * position), dim=-1)
    linear = torch.where(has_hits, mean, direction)
    by_tracks = torch.where((track_energy > MIN_TRACK_MOMENTUM)[:, None], along_tracks, direction)
    theta, phi = tangent_basis(direction)

    axis = pairs.each(direction)
    along = (position * axis).sum(-1)
    across = torch.linalg.vector_norm(position - along[:, None] * axis, dim=-1)
    mean_along = total(fraction * along)
    spread = total(fraction * (along - pairs.each(mean_along)).square()).clamp(min=0.0).sqrt()
    features = pairs.at_items(scene.item_features)
    subdetector = features[:, ITEM_FEATURES : ITEM_FEATURES + n_subdetectors]
    by_subdetector = total(fraction[:, None] * subdetector)
    depth = total((fraction * features[:, LAYER])[:, None] * subdetector)
    columns = [
        (energy + EPS_ENERGY).log() / 2.0,
        (track_energy + EPS_ENERGY).log() / 2.0,
        ((energy + 0.05) / (track_energy + 0.05)).log(),
        torch.log1p(total(hit_fraction * (1.0 - is_track))) / 2.0,
        total(hit_fraction * is_track),
        total(charge),
        torch.log1p(total(fraction * across) / 10.0),
        total(fraction * falling_step(across, CORE_RADIUS, width=CORE_RADIUS_WIDTH)),
        torch.log1p(spread / 50.0),
        direction[:, 2].abs(),
        direction[:, 2].square(),
        total(fraction.square()),
        ((linear - direction) * theta).sum(-1) / ANGLE_UNIT,
        ((linear - direction) * phi).sum(-1).abs() / ANGLE_UNIT,
        ((by_tracks - direction).square().sum(-1) + 1e-8).sqrt() / ANGLE_UNIT,
    ]
    joined = torch.cat([torch.stack(columns, dim=-1), by_subdetector, depth], dim=-1)
    proxies = (energy, momenta, direction, linear, by_tracks, joined.to(scene.item_energy.dtype))
    return Proxies(*(values.view(*shape, *values.shape[1:]) for values in proxies))
