"""Proxies (HGPflow's word): estimates of energy and direction from the hits and tracks of a particle.

Letters: B batch, T particles, P pairs of a particle and an item.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pflow.model.common.directions import tangent_basis
from pflow.model.pointing.geometry import BY_DEPOSIT, BY_FRACTION, Scene, gather
from pflow.model.pointing.pairs import Pairs
from pflow.model.pointing.showers import Showers, ramp_down, ramp_up

__all__ = ["PROXY_FEATURES", "Proxies", "make_proxies", "n_proxy_features"]

EPS_ENERGY = 1e-3
"""Added to energies before a logarithm, GeV."""

TRACK_MOMENTUM, TRACK_MOMENTUM_WIDTH = 0.075, 0.05
"""Momentum of tracks, GeV, from which `Proxies.track_direction` is theirs. Over the width below it, it turns there from
`Proxies.direction`."""

ANGLE_UNIT = 0.03
"""Unit of the angles between the directions, rad."""

CORE_RADIUS, CORE_RADIUS_WIDTH = 16.5, 3.0
"""Distance from the shower's axis from which hits are not in its core; their weight falls from 1 to 0 over the width
before it, mm."""

PROXY_FEATURES = (
    *("log_energy", "log_track_energy", "log_ratio", "log_n_hits", "n_tracks", "charge", "log_width", "core"),
    *("log_spread", "abs_z", "z_squared", "concentration", "theta_off", "phi_off", "track_off"),
)
"""Columns of `Proxies.features` before those by subdetector. Width and spread are the shower's extent across and along
its axis, `core` is the fraction of its energy near the axis, `concentration` the sum of the squares of the hits'
fractions. z is the cosine of the axis' polar angle. The last three are angles from the axis: two components of that to
the linear barycentre, and that to the tracks' direction."""

_MOMENTUM, _TRACKS_AND_HITS = slice(0, 3), slice(3, 7)
"""Columns of the sums over a particle's items, as of `Scene.item_sums`."""

_AXIS, _MEAN_ALONG = slice(0, 3), 3
"""Rows of what pairs read of their particle: unit vector of the axis, and mean position along it, mm."""


def n_proxy_features(n_subdetectors: int) -> int:
    """Number of features that `make_proxies` computes."""
    return len(PROXY_FEATURES) + 2 * n_subdetectors


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
    showers : the hits
    """

    energy: Tensor
    track_momentum: Tensor
    direction: Tensor
    linear_direction: Tensor
    track_direction: Tensor
    features: Tensor
    showers: Showers


def make_proxies(hit_fraction: Tensor, pairs: Pairs, scene: Scene, seed: Tensor) -> Proxies:
    """Compute the proxies, all but the features in the precision of `hit_fraction`.

    In single precision the distances from the axis and the angles between the directions, small differences of large
    numbers, have errors of 10^-3: evaluation computes them in double precision.

    Parameters
    ----------
    hit_fraction : float or double [P], fraction of the pair's item that is the particle's
    pairs, scene
        Pairs and scene of the batch.
    seed : int64 [B, T]
    """
    size = seed.numel()
    showers = Showers.of(hit_fraction, pairs, scene, size)
    energy, fraction = showers.energy, showers.fraction

    items = pairs.item_values(scene.item_sums)
    weighted = [hit_fraction[:, None] * items[:, BY_FRACTION], fraction[:, None] * items[:, BY_DEPOSIT]]
    sums = pairs.particle_sums(torch.cat(weighted, dim=1), size)
    momenta = sums[:, _MOMENTUM]
    track_energy, charge, n_tracks, n_hits = sums[:, _TRACKS_AND_HITS].unbind(1)

    seed_unit = gather(scene.token_unit, seed).flatten(0, 1).to(momenta.dtype)
    along_tracks = functional.normalize(momenta + 1e-6 * seed_unit, dim=-1)
    linear_centre = showers.linear_centre.t()  # [B * T, 3], mm
    centre, linear_unit = (functional.normalize(one, dim=-1) for one in (showers.centre.t(), linear_centre))
    direction = _between(along_tracks, centre, showers.presence)
    linear = _between(direction, linear_unit, showers.presence)
    presence_of_tracks = ramp_up(track_energy, TRACK_MOMENTUM, width=TRACK_MOMENTUM_WIDTH)
    by_tracks = _between(direction, along_tracks, presence_of_tracks)
    theta, phi = tangent_basis(direction)

    mean_along = (linear_centre * direction).sum(-1, keepdim=True)
    axis = pairs.particle_rows(torch.cat([direction, mean_along], dim=-1).t())  # [4, P]
    position = showers.position
    along = (position * axis[_AXIS]).sum(0)
    across = (position - along * axis[_AXIS]).square().sum(0).sqrt()  # mm
    core = ramp_down(across, CORE_RADIUS, width=CORE_RADIUS_WIDTH)
    beyond = (along - axis[_MEAN_ALONG]).square()
    shape = pairs.particle_row_sums(fraction * torch.stack([across, core, beyond, fraction]), size)
    width, in_core, spread, concentration = shape.unbind(0)
    columns = [  # in the order of `PROXY_FEATURES`
        (energy + EPS_ENERGY).log() / 2.0,
        (track_energy + EPS_ENERGY).log() / 2.0,
        ((energy + 0.05) / (track_energy + 0.05)).log(),
        torch.log1p(n_hits) / 2.0,
        n_tracks,
        charge,
        torch.log1p(width / 10.0),
        in_core,
        torch.log1p(spread.clamp(min=0.0).sqrt() / 50.0),
        direction[:, 2].abs(),
        direction[:, 2].square(),
        concentration,
        ((linear - direction) * theta).sum(-1) / ANGLE_UNIT,
        ((linear - direction) * phi).sum(-1).abs() / ANGLE_UNIT,
        ((by_tracks - direction).square().sum(-1) + 1e-8).sqrt() / ANGLE_UNIT,
    ]
    joined = torch.cat([torch.stack(columns, dim=-1), sums[:, BY_DEPOSIT]], dim=-1)

    def of_particles(values: Tensor) -> Tensor:
        return values.reshape(*seed.shape, *values.shape[1:])

    return Proxies(
        of_particles(energy),
        of_particles(momenta),
        of_particles(direction),
        of_particles(linear),
        of_particles(by_tracks),
        of_particles(joined.to(scene.item_energy.dtype)),
        showers,
    )


def _between(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """Unit vectors [N, 3]: `a` where the weight float [N] of `b` is 0, `b` where it is 1."""
    return functional.normalize(a + weight[:, None] * (b - a), dim=-1)
