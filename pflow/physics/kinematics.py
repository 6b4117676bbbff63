"""Relations between momenta, angles and track parameters, and paths in a solenoid; GeV, mm, T, rad, charges in e.

`unit_vector` and `four_momentum_covariance` also take torch tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.physics.arrays import Floats, constant, double, namespace
from pflow.physics.detector import Detector

GEV_PER_TESLA_MM = 0.299792458e-3
"""Transverse momentum per charge, field and radius of curvature: pt [GeV] = 0.299792458e-3 |q| B [T] R [mm]
(the speed of light in m/ns times 1e-3)."""

COVARIANCE = ("xx", "xy", "yy", "xz", "yz", "zz", "xt", "yt", "zt", "tt")
"""Stored elements of the covariance of (px, py, pz, E); x, y, z stand for the momentum's components, t for E.

The lower triangle, row by row, as in edm4hep::ReconstructedParticle::covMatrix: element (i, j), i >= j, is at
i (i + 1) / 2 + j (edm4hep.yaml, utils/cov_matrix_utils.h, edm4hep::FourMomCoords)."""

FRONT = 0.98  # share of the way to the calorimeter's front face from which on a point is near it

Array = npt.NDArray[np.floating[Any]]


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


def perigee(
    x: Array, y: Array, z: Array, px: Array, py: Array, pz: Array, charge: Array, *, b_field: float
) -> tuple[Array, Array, Array, Array]:
    """Distance d0 from the z axis and z0, mm, of a helix's closest point to the axis, and px, py, GeV, there.

    The helix passes the point x, y, z, mm, further along, with momentum px, py, pz, GeV; pz does not change. In a field
    along z a charge of sign q moves on a circle of radius R = pt / (0.299792458e-3 |q| B), clockwise for q > 0, around
    c = r + q/|q| R (py, -px)/pt. At the perigee c (1 - R/|c|) the momentum is tangent to the circle; d0 = |c| - R is
    positive if the circle does not enclose the axis; z0 = z - pz/pt R a, with the angle a on the circle from the
    perigee (less than half a turn). Neutral particles, and particles without transverse momentum, keep their momentum,
    d0 and z0 are 0; with the centre on the axis the momentum stays.
    """
    pt = np.hypot(px, py)
    sense = np.sign(charge * b_field)
    # Neutral particles have an infinite radius, particles along z no pt: what is not finite is replaced below.
    with np.errstate(divide="ignore", invalid="ignore"):
        radius = pt / (GEV_PER_TESLA_MM * np.abs(charge * b_field))
        centre_x, centre_y = x + sense * radius * py / pt, y - sense * radius * px / pt
        distance = np.hypot(centre_x, centre_y)
        d0 = distance - radius
        turned = np.arctan2(y - centre_y, x - centre_x) - np.arctan2(-centre_y, -centre_x)
        # The difference of two angles may be off by a full turn, and the path is less than half a turn.
        z0 = z - pz / pt * radius * np.abs(np.remainder(turned + np.pi, 2 * np.pi) - np.pi)
        perigee_px, perigee_py = -sense * pt * centre_y / distance, sense * pt * centre_x / distance
    finite = np.isfinite(d0) & np.isfinite(z0)
    known = np.isfinite(perigee_px) & np.isfinite(perigee_py)
    position = np.where(finite, d0, 0.0), np.where(finite, z0, 0.0)
    return *position, np.where(known, perigee_px, px), np.where(known, perigee_py, py)


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
    # `where` computes both branches: without the inner one, null vectors would warn of 0 / 0.
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
    # The lower triangle row by row is the order of `COVARIANCE`.
    for i, j in zip(*np.tril_indices(4), strict=True):
        column = by_energy[i] * by_energy[j]
        columns.append(column + across * (float(i == j) - n[i] * n[j]) if i < 3 else column)
    return xp.stack(columns, -1)


def propagate(start: Any, momentum: Any, charge: Any, length: Any, *, b_field: float) -> tuple[Floats, Floats]:
    """Position [n, P, 3], mm, and unit direction [n, P, 3] of particles after path lengths [n, P], mm; float64.

    `start` and `momentum` [n, 3] at length 0, mm and GeV; charges [n], e, NaN counts as 0; field along z, T. A particle
    with a null momentum stays at its start. The direction turns around z by -kappa l with kappa = 0.299792458e-3 q B /
    p [1/mm]: a positive particle turns clockwise, seen against a field along +z.
    """
    x, n, kappa = _track(start, momentum, charge, b_field)
    along = np.asarray(length, dtype=np.float64)
    half_turn = 0.5 * kappa[:, None] * along  # [n, P]
    phi = np.arctan2(n[:, 1], n[:, 0])[:, None]
    sin_theta, cos_theta = np.hypot(n[:, 0], n[:, 1])[:, None], n[:, 2, None]
    # sinc is 1 at 0, so that a straight path needs no formula of its own.
    chord = sin_theta * along * np.sinc(half_turn / np.pi)  # np.sinc(x) is sin(pi x) / (pi x)
    # The chord of an arc points along the direction in the middle of the arc.
    middle, last = phi - half_turn, phi - 2 * half_turn
    step = np.stack([chord * np.cos(middle), chord * np.sin(middle), cos_theta * along], axis=-1)
    cos_theta = np.broadcast_to(cos_theta, along.shape)
    return x[:, None] + step, np.stack([sin_theta * np.cos(last), sin_theta * np.sin(last), cos_theta], axis=-1)


def length_to_cylinder(
    start: Any, momentum: Any, charge: Any, *, b_field: float, radius: float, half_length: float, max_turns: float
) -> Floats:
    """Path length [n], mm, to the surface of a cylinder around the z axis, of particles as for `propagate`.

    With the start x, the unit direction n and lambda = (2 / kappa) tan(kappa l / 2), which is l for a straight path,
    the condition that the path of `propagate` is at the radius R reads (n_T^2 + v kappa - D kappa^2 / 4) lambda^2 + 2 u
    lambda - D = 0, where D = R^2 - x_T^2, u = x_T . n_T and v = (x_T x n_T)_z. With the first coefficient a, the first
    crossing is at lambda = D / (u + sqrt(u^2 + a D)). The path is at most `max_turns` long, and 0 for a particle that
    starts outside or has a null momentum.
    """
    x, n, kappa = _track(start, momentum, charge, b_field)
    missing = radius**2 - x[:, 0] ** 2 - x[:, 1] ** 2
    u = x[:, 0] * n[:, 0] + x[:, 1] * n[:, 1]
    v = x[:, 0] * n[:, 1] - x[:, 1] * n[:, 0]
    square = u**2 + (n[:, 0] ** 2 + n[:, 1] ** 2 + v * kappa - missing * kappa**2 / 4) * missing
    curvature = np.maximum(np.abs(kappa), 1e-12)  # 1/mm; at this curvature the formula holds for straight paths
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        chord = missing / (u + np.sqrt(np.maximum(square, 0.0)))
        # arctan ends at pi / 2: a first crossing after more than half a turn comes out negative.
        half_turn = np.mod(np.arctan(0.5 * curvature * chord), np.pi)
        # No real solution: the circle never reaches the radius.
        to_barrel = np.where(square < 0, np.inf, 2 * half_turn / curvature)
        to_endcap = (np.copysign(half_length, n[:, 2]) - x[:, 2]) / n[:, 2]
    length = np.minimum(np.minimum(to_barrel, 2 * np.pi * max_turns / curvature), np.nan_to_num(to_endcap, nan=np.inf))
    return np.where((missing <= 0) | (np.abs(x[:, 2]) >= half_length) | ~n.any(axis=1), 0.0, length)


def length_to_prism(
    start: Any, momentum: Any, charge: Any, *, b_field: float, apothem: float, half_length: float, sides: int
) -> Floats:
    """Path length [n], mm, of charged particles to a regular prism around the z axis, the shape of calorimeter barrels.

    The path of `propagate` turns by kappa l on a circle with centre c and radius R. At the angle a on the circle it
    meets the plane at distance d along the unit vector m if c m + R cos(a - phi_m) = d; the first of all planes counts.
    The normals of the sides point to multiples of 2 pi / `sides`. Charge and field must not be 0. The length is 0 for a
    particle that starts outside or has a null momentum, inf for one that never leaves.
    """
    x, n, kappa = _track(start, momentum, charge, b_field)
    phi = 2 * np.pi / sides * np.arange(sides)
    normals = np.stack([np.cos(phi), np.sin(phi)])  # [2, sides]
    inside = ((x[:, :2] @ normals).max(axis=1) < apothem) & (np.abs(x[:, 2]) < half_length)
    with np.errstate(divide="ignore", invalid="ignore"):
        from_centre = np.stack([-n[:, 1], n[:, 0]], axis=-1) / kappa[:, None]  # [n, 2]
        radius = np.hypot(n[:, 0], n[:, 1]) / np.abs(kappa)
        cosine = (apothem - (x[:, :2] - from_centre) @ normals) / radius[:, None]  # [n, sides]
        # A circle that does not reach a plane has no crossing there: NaN, which counts as infinite below.
        angle = np.arccos(np.where(np.abs(cosine) <= 1, cosine, np.nan))
        ahead = np.arctan2(from_centre[:, 1], from_centre[:, 0])[:, None] - phi
        crossings = ahead[..., None] + np.stack([angle, -angle], axis=-1)  # [n, sides, 2]
        # In the sense of the flight and from 0 on: crossings behind the start come a turn later.
        turned = np.mod(np.sign(kappa)[:, None, None] * crossings, 2 * np.pi)
        to_barrel = np.nan_to_num(turned, nan=np.inf).min(axis=(1, 2)) / np.abs(kappa)
        # Infinite across the axis: numerator and denominator then have the sign of the zero.
        to_endcap = (np.copysign(half_length, n[:, 2]) - x[:, 2]) / n[:, 2]
    return np.where(inside & n.any(axis=1), np.minimum(to_barrel, to_endcap), 0.0)


def follow_to_calorimeter(
    position: Floats, momentum: Floats, charge: Floats, detector: Detector
) -> tuple[Floats, Floats]:
    """Position, mm, and momentum, GeV, [track, 3] at the entry into the calorimeter; NaN for a track without entry."""
    helix, radius = (position, momentum, charge), detector.ecal_inner_radius
    solenoid = {"b_field": detector.b_field, "half_length": detector.ecal_inner_z}
    if detector.truth_tracks is None or detector.truth_tracks.sides is None:
        length = length_to_cylinder(*helix, radius=radius, max_turns=np.inf, **solenoid)
    else:
        length = length_to_prism(*helix, apothem=radius, sides=detector.truth_tracks.sides, **solenoid)
    # 0 is a start outside or a null momentum, inf a particle that never leaves: neither has an entry.
    length = np.where(np.isfinite(length) & (length > 0), length, np.nan)
    entry, direction = propagate(*helix, length[:, None], b_field=detector.b_field)
    return entry[:, 0], direction[:, 0] * np.linalg.norm(momentum, axis=1)[:, None]


def at_calorimeter(position: Floats, detector: Detector, *, most: float = 3.0) -> npt.NDArray[np.bool_]:
    """Whether points [N, 3], mm, lie from `FRONT` of the way to the calorimeter's front face to `most` times it.

    Others are no entry: a state in the tracker, the origin, -999 for none. Found of tracks are 0.996 to 1.741.
    """
    r = np.hypot(position[:, 0], position[:, 1]) / detector.ecal_inner_radius
    z = np.abs(position[:, 2]) / detector.ecal_inner_z
    return np.asarray(((r >= FRONT) | (z >= FRONT)) & (r <= most) & (z <= most))


def _track(start: Any, momentum: Any, charge: Any, b_field: float) -> tuple[Floats, Floats, Floats]:
    """Start [n, 3], unit direction [n, 3] (null without momentum) and curvature kappa [n]."""
    x, p = (np.asarray(vectors, dtype=np.float64).reshape(-1, 3) for vectors in (start, momentum))
    q = np.nan_to_num(np.asarray(charge, dtype=np.float64).reshape(-1))
    size = np.linalg.norm(p, axis=1)
    # A null momentum over infinity gives direction and curvature 0, not NaN.
    size = np.where(size > 0, size, np.inf)
    return x, p / size[:, None], GEV_PER_TESLA_MM * q * b_field / size
