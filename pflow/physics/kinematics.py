"""Relations between momenta, angles and track parameters; GeV, mm, T, rad and charges in e.

`impact_parameters`, `unit_vector` and `four_momentum_covariance` also take torch tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.physics.arrays import constant, double, namespace

GEV_PER_TESLA_MM = 0.299792458e-3
"""Transverse momentum per charge, field and radius of curvature: pt [GeV] = 0.299792458e-3 |q| B [T] R [mm]
(the speed of light in m/ns times 1e-3)."""

COVARIANCE = ("xx", "xy", "yy", "xz", "yz", "zz", "xt", "yt", "zt", "tt")
"""Stored elements of the covariance of (px, py, pz, E); x, y, z stand for the momentum's components, t for E.

The lower triangle, row by row, as in edm4hep::ReconstructedParticle::covMatrix: element (i, j), i >= j, is at
i (i + 1) / 2 + j (edm4hep.yaml, utils/cov_matrix_utils.h, edm4hep::FourMomCoords)."""

Array = npt.NDArray[np.floating[Any]]


def energy(px: Array, py: Array, pz: Array, mass: Array) -> Array:
    """Energy from momentum and mass, E^2 = m^2 + p^2; all in GeV, shapes broadcast."""
    return np.sqrt(px**2 + py**2 + pz**2 + mass**2)


def momentum_from_track(omega: Array, phi: Array, tan_lambda: Array, b_field: float) -> tuple[Array, Array, Array]:
    """Momentum (px, py, pz), GeV, of unit charge, from EDM4hep's omega (1/mm), phi and tan_lambda; `b_field` in T.

    pt [GeV] = 0.299792458e-3 B [T] / |omega [1/mm]|; inf where omega is 0.
    """
    with np.errstate(divide="ignore"):
        pt = GEV_PER_TESLA_MM * abs(b_field) / np.abs(omega)
    return pt * np.cos(phi), pt * np.sin(phi), pt * tan_lambda


def track_from_momentum(px: Array, py: Array, pz: Array, charge: Array, b_field: float) -> tuple[Array, Array, Array]:
    """Inverse of `momentum_from_track`: (omega [1/mm], phi [rad], tan_lambda) from a momentum in GeV."""
    pt = np.hypot(px, py)
    with np.errstate(divide="ignore", invalid="ignore"):
        omega = np.sign(charge) * GEV_PER_TESLA_MM * abs(b_field) / pt
        tan_lambda = pz / pt
    return omega, np.arctan2(py, px), tan_lambda


def momentum_at_perigee(x: Array, y: Array, px: Array, py: Array, charge: Array, b_field: float) -> tuple[Array, Array]:
    """Transverse momentum (px, py), GeV, at the perigee of a helix, its point closest to the z axis.

    `px`, `py` are at the point x, y, mm. At the perigee c (1 - R/|c|) the momentum is tangent to the circle with centre
    c and radius R (see `_circle`); pz does not change. Neutral particles, and particles without transverse momentum or
    with the centre on the axis, keep their momentum.
    """
    pt = np.hypot(px, py)
    sense = np.sign(charge * b_field)
    _, centre_x, centre_y = _circle(x, y, px, py, charge, b_field)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.hypot(centre_x, centre_y)
        perigee_px, perigee_py = -sense * pt * centre_y / distance, sense * pt * centre_x / distance
    known = np.isfinite(perigee_px) & np.isfinite(perigee_py)
    return np.where(known, perigee_px, px), np.where(known, perigee_py, py)


def impact_parameters(
    x: Any, y: Any, z: Any, px: Any, py: Any, pz: Any, charge: Any, b_field: float
) -> tuple[Any, Any]:
    """Distance d0 of the perigee of a helix from the z axis, and its z0, both mm, from a point further along.

    With centre c and radius R (see `_circle`), d0 = |c| - R, positive if the circle does not enclose the axis, and z0 =
    z - pz/pt R a, with the angle a on the circle from the perigee (less than half a turn). Both are 0 for a neutral
    particle and without transverse momentum. Parameters as for `momentum_at_perigee`.
    """
    xp = namespace(x)
    radius, centre_x, centre_y = _circle(x, y, px, py, charge, b_field)
    with np.errstate(divide="ignore", invalid="ignore"):
        d0 = xp.hypot(centre_x, centre_y) - radius
        turned = xp.atan2(y - centre_y, x - centre_x) - xp.atan2(-centre_y, -centre_x)
        angle = xp.abs(xp.remainder(turned + np.pi, 2 * np.pi) - np.pi)
        z0 = z - pz / xp.hypot(px, py) * radius * angle
    known = xp.isfinite(d0) & xp.isfinite(z0)
    return xp.where(known, d0, 0.0), xp.where(known, z0, 0.0)


def _circle(x: Any, y: Any, px: Any, py: Any, charge: Any, b_field: float) -> tuple[Any, Any, Any]:
    """Radius and centre, mm, of the circle of a helix in the transverse plane.

    In a field along z a charge of sign q moves on a circle of radius R = pt / (0.299792458e-3 |q| B), clockwise for
    q > 0, around c = r + q/|q| R (py, -px)/pt.
    """
    xp = namespace(x)
    pt = xp.hypot(px, py)
    sense = xp.sign(charge * b_field)
    with np.errstate(divide="ignore", invalid="ignore"):
        radius = pt / (GEV_PER_TESLA_MM * xp.abs(charge * b_field))
        return radius, x + sense * radius * py / pt, y - sense * radius * px / pt


def angle_between(a: Array, b: Array) -> Array:
    """Angle in rad between vectors [..., 3] as atan2(|a x b|, a . b), accurate near 0 and pi; null vectors give 0."""
    cross = np.linalg.norm(np.cross(a, b), axis=-1)
    dot = np.sum(np.asarray(a) * np.asarray(b), axis=-1)
    return np.asarray(np.arctan2(cross, dot))


def unit_vector(vectors: Any, null: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Any:
    """Vectors [..., 3] divided by their lengths; null vectors become `null`."""
    xp = namespace(vectors)
    length = xp.sqrt((vectors**2).sum(axis=-1, keepdims=True))
    of_null = constant(np.array(null), like=vectors) if any(null) else 0.0
    return xp.where(length > 0, vectors / xp.where(length > 0, length, 1.0), of_null)


def tangent_basis(direction: Array) -> tuple[Array, Array]:
    """Unit vectors perpendicular to unit vectors [..., 3]: along polar angle, and azimuth (0 on the z axis)."""
    x, y, z = np.moveaxis(np.asarray(direction), -1, 0)
    radius = np.hypot(x, y)
    with np.errstate(invalid="ignore"):
        cos_phi, sin_phi = np.where(radius == 0, 1.0, x / radius), np.where(radius == 0, 0.0, y / radius)
    return np.stack([z * cos_phi, z * sin_phi, -radius], axis=-1), np.stack([-sin_phi, cos_phi, 0 * z], axis=-1)


def four_momentum_covariance(energy: Any, mass: Any, direction: Any, energy_sigma: Any, direction_sigma: Any) -> Any:
    """Covariance of (px, py, pz, E) of particles measured by energy and direction, with an exactly known mass.

    With p = sqrt(E^2 - m^2), dp = (E / p) dE along n, and p times the angle across n. With s_E = E sigma(ln E), and
    equal angular uncertainties along both axes across n, independent of the energy:

    cov(p, p) = (E s_E / p)^2 n n^T + (p sigma_angle)^2 (1 - n n^T), cov(p, E) = (E s_E^2 / p) n, cov(E, E) = s_E^2.

    Near rest dp / dE diverges, so dp is at most the momentum at the energy E + s_E. A particle with an energy below its
    mass is at rest. `energy`, `mass` [...], GeV; `direction` [..., 3], unit vectors n; `energy_sigma` [...] of ln E;
    `direction_sigma` [...], rad, of both angles. Returns float64 [..., 10], GeV^2, in the order of `COVARIANCE`.
    """
    xp = namespace(energy)
    total, m, sigma_ln, sigma_angle, n = map(double, (energy, mass, energy_sigma, direction_sigma, direction))
    s_energy = total * sigma_ln
    p = xp.sqrt((total**2 - m**2).clip(0.0))
    highest = xp.sqrt(((total + s_energy) ** 2 - m**2).clip(0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        linear = xp.where(p > 0, total * s_energy / p, np.inf)
    along, across = xp.minimum(linear, highest), (p * sigma_angle) ** 2
    n = [n[..., axis] for axis in range(3)]
    by_energy = [*(component * along for component in n), s_energy]  # change by a standard deviation of the energy
    columns = []
    for i, j in zip(*np.tril_indices(4), strict=True):
        column = by_energy[i] * by_energy[j]
        columns.append(column + across * (float(i == j) - n[i] * n[j]) if i < 3 else column)
    return xp.stack(columns, -1)
