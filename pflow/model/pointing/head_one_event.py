"""The particle of one decoder step in plain numbers: proxies and head, as for batches but for rounding.

Where one particle is decoded, its few scalars and three-vectors as tensors would cost more time in calls than in
arithmetic. The batched definitions are `pflow.model.pointing.proxies.make_proxies` and
`pflow.model.pointing.head.ParticleHead`; a test holds both to the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pflow.model.pointing.head import CORRECTION_UNIT, DIRECTION_LOG_SIGMA, ENERGY_LOG_SIGMA
from pflow.model.pointing.proxies import (
    ANGLE_UNIT,
    EPS_ENERGY,
    TRACK_MOMENTUM,
    TRACK_MOMENTUM_WIDTH,
)
from pflow.model.pointing.showers import DEPOSIT, DEPOSIT_WIDTH

__all__ = [
    "Directions",
    "HeadOutputs",
    "Particle",
    "Shape",
    "Sums",
    "correct",
    "presence",
    "proxy_directions",
    "proxy_features",
]

Vector = tuple[float, float, float]


class Sums(NamedTuple):
    """Sums over a particle's items, each by the fraction that is the particle's.

    Parameters
    ----------
    energy : energy of the hits, GeV
    momentum : of the tracks, GeV
    track_energy : sum of the absolute momenta of the tracks, GeV
    charge : of the tracks, e
    n_tracks, n_hits : number of tracks and hits
    linear_centre, log_centre : barycentres weighted by energy and by its logarithm, mm; 0 without weights
    by_subdetector, depth : fraction of the deposit, and fraction times layer, by subdetector
    """

    energy: float
    momentum: Vector
    track_energy: float
    charge: float
    n_tracks: float
    n_hits: float
    linear_centre: Vector
    log_centre: Vector
    by_subdetector: Sequence[float]
    depth: Sequence[float]


class Directions(NamedTuple):
    """Directions of `pflow.model.pointing.proxies.Proxies`, unit vectors."""

    log: Vector
    linear: Vector
    track: Vector


class Shape(NamedTuple):
    """Shape of a shower around its axis; means are weighted by energy.

    Parameters
    ----------
    across : mean distance from the axis, mm
    core : fraction of the deposit near the axis
    spread : mean square of the position along the axis around its mean, mm^2
    concentration : sum of the squares of the hits' fractions
    """

    across: float
    core: float
    spread: float
    concentration: float


class HeadOutputs(NamedTuple):
    """Outputs of the head's linear maps.

    Parameters
    ----------
    pdg, charge : logits
    corrections : the 8 of `pflow.model.pointing.head.Corrections`
    """

    pdg: list[float]
    charge: list[float]
    corrections: list[float]


class Particle(NamedTuple):
    """A decoded particle; `charge` and `pdg` are indices into the vocabularies, `pdg_logits` of all of them.

    `by_track`: its momentum is that of the track that is its seed.
    """

    pdg: int
    charge: int
    log_energy: float
    direction: Vector
    pdg_logits: list[float]
    energy_sigma: float
    direction_sigma: float
    by_track: bool


def presence(energy: float) -> float:
    """Presence of a shower of some energy, see `pflow.model.pointing.showers.Showers`."""
    return _rising_step(energy, DEPOSIT, DEPOSIT_WIDTH)


def proxy_directions(sums: Sums, seed_unit: Sequence[float]) -> Directions:
    """Directions of the log-weighted and the linear barycentre, and of the tracks."""
    towards = (p + 1e-6 * u for p, u in zip(sums.momentum, seed_unit, strict=True))
    along_tracks = _normalised(*towards)
    of_hits, of_tracks = presence(sums.energy), _rising_step(sums.track_energy, TRACK_MOMENTUM, TRACK_MOMENTUM_WIDTH)
    log = _between(along_tracks, _normalised(*sums.log_centre), of_hits)
    linear = _between(log, _normalised(*sums.linear_centre), of_hits)
    return Directions(log, linear, _between(log, along_tracks, of_tracks))


def proxy_features(sums: Sums, directions: Directions, shape: Shape) -> list[float]:
    """Features of `pflow.model.pointing.proxies.Proxies`."""
    axis = directions.log
    theta, phi = _tangent_basis(axis)
    off = [a - b for a, b in zip(directions.linear, axis, strict=True)]
    track_off = sum((a - b) ** 2 for a, b in zip(directions.track, axis, strict=True))
    return [
        math.log(sums.energy + EPS_ENERGY) / 2.0,
        math.log(sums.track_energy + EPS_ENERGY) / 2.0,
        math.log((sums.energy + 0.05) / (sums.track_energy + 0.05)),
        math.log1p(sums.n_hits) / 2.0,
        sums.n_tracks,
        sums.charge,
        math.log1p(shape.across / 10.0),
        shape.core,
        math.log1p(math.sqrt(max(shape.spread, 0.0)) / 50.0),
        abs(axis[2]),
        axis[2] ** 2,
        shape.concentration,
        _dot(off, theta) / ANGLE_UNIT,
        abs(_dot(off, phi)) / ANGLE_UNIT,
        math.sqrt(track_off + 1e-8) / ANGLE_UNIT,
        *sums.by_subdetector,
        *sums.depth,
    ]


def correct(
    outputs: HeadOutputs,
    sums: Sums,
    directions: Directions,
    *,
    masses: Sequence[float],
    charged: Sequence[bool],
    track: tuple[Vector, float] | None,
) -> Particle:
    """The particle of the head's outputs.

    Parameters
    ----------
    outputs, sums, directions
        Of the particle.
    masses, charged
        Mass [GeV] and whether there is a charge, of each |PDG|.
    track
        Momentum [GeV] and charge [e] of the track that is the seed, or None.
    """
    energy, track_trust, off_theta, off_phi, energy_sigma, direction_sigma, linear, by_tracks = outputs.corrections
    pdg = max(range(len(outputs.pdg)), key=outputs.pdg.__getitem__)
    p = 0.0 if track is None else math.hypot(*track[0])
    sigma = math.exp(min(max(direction_sigma, DIRECTION_LOG_SIGMA[0]), DIRECTION_LOG_SIGMA[1]))
    charge = 1
    if charged[pdg]:
        charge = 2 if outputs.charge[2] > outputs.charge[0] else 0
    by_track = track is not None and charged[pdg] and p > 0.0
    if track is not None and by_track:
        charge = 1 + (track[1] > 0) - (track[1] < 0)
        log_energy = math.log(max(math.hypot(p, masses[pdg]), 1e-6))
        direction = _normalised(*track[0])
    else:
        trust = 1.0 / (1.0 + math.exp(-track_trust))
        base = (1.0 - trust) * sums.energy + trust * math.hypot(*sums.momentum) + 1e-2
        log_energy = math.log(base) + CORRECTION_UNIT * energy
        largest = max(0.0, linear, by_tracks)
        weights = [math.exp(logit - largest) for logit in (0.0, linear, by_tracks)]
        parts = zip(directions.log, directions.linear, directions.track, strict=True)
        mean = _normalised(*(_dot(part, weights) / sum(weights) for part in parts))
        theta, phi = _tangent_basis(mean)
        moved = (m + sigma * (off_theta * t + off_phi * f) for m, t, f in zip(mean, theta, phi, strict=True))
        direction = _normalised(*moved)
    return Particle(
        pdg=pdg,
        charge=charge,
        log_energy=log_energy,
        direction=direction,
        pdg_logits=outputs.pdg,
        energy_sigma=math.exp(min(max(energy_sigma, ENERGY_LOG_SIGMA[0]), ENERGY_LOG_SIGMA[1])),
        direction_sigma=sigma,
        by_track=by_track,
    )


def _rising_step(value: float, end: float, width: float) -> float:
    return 1.0 - min(max((end - value) / width, 0.0), 1.0)


def _between(a: Vector, b: Vector, weight: float) -> Vector:
    """Unit vector: `a` where the weight of `b` is 0, `b` where it is 1."""
    x, y, z = (start + weight * (end - start) for start, end in zip(a, b, strict=True))
    return _normalised(x, y, z)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _normalised(x: float, y: float, z: float) -> Vector:
    length = max(math.sqrt(x * x + y * y + z * z), 1e-12)
    return x / length, y / length, z / length


def _tangent_basis(direction: Vector) -> tuple[Vector, Vector]:
    """As `pflow.model.common.directions.tangent_basis`."""
    x, y, z = direction
    on_axis = x * x + y * y < 1e-12
    sine, cosine = (-y, 1.0) if on_axis else (-y, x)
    rho = math.hypot(sine, cosine)
    sine, cosine = sine / rho, cosine / rho
    return (cosine * z, -sine * z, sine * y - cosine * x), (sine, cosine, 0.0)
