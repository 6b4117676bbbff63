"""Propagation of particles through a solenoid field to the calorimeter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pflow.physics.detector import Detector
from pflow.physics.kinematics import GEV_PER_TESLA_MM

Float = npt.NDArray[np.float64]


def propagate(
    start: npt.ArrayLike, momentum: npt.ArrayLike, charge: npt.ArrayLike, length: npt.ArrayLike, *, b_field: float
) -> tuple[Float, Float]:
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
    chord = sin_theta * along * np.sinc(half_turn / np.pi)  # np.sinc(x) is sin(pi x) / (pi x)
    middle, last = phi - half_turn, phi - 2 * half_turn
    step = np.stack([chord * np.cos(middle), chord * np.sin(middle), cos_theta * along], axis=-1)
    cos_theta = np.broadcast_to(cos_theta, along.shape)
    return x[:, None] + step, np.stack([sin_theta * np.cos(last), sin_theta * np.sin(last), cos_theta], axis=-1)


def length_to_cylinder(
    start: npt.ArrayLike,
    momentum: npt.ArrayLike,
    charge: npt.ArrayLike,
    *,
    b_field: float,
    radius: float,
    half_length: float,
    max_turns: float,
) -> Float:
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
        half_turn = np.mod(np.arctan(0.5 * curvature * chord), np.pi)
        to_barrel = np.where(square < 0, np.inf, 2 * half_turn / curvature)
        to_endcap = (np.copysign(half_length, n[:, 2]) - x[:, 2]) / n[:, 2]
    length = np.minimum(np.minimum(to_barrel, 2 * np.pi * max_turns / curvature), np.nan_to_num(to_endcap, nan=np.inf))
    return np.where((missing <= 0) | (np.abs(x[:, 2]) >= half_length) | ~n.any(axis=1), 0.0, length)


def length_to_prism(
    start: npt.ArrayLike,
    momentum: npt.ArrayLike,
    charge: npt.ArrayLike,
    *,
    b_field: float,
    apothem: float,
    half_length: float,
    sides: int,
) -> Float:
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
        angle = np.arccos(np.where(np.abs(cosine) <= 1, cosine, np.nan))
        ahead = np.arctan2(from_centre[:, 1], from_centre[:, 0])[:, None] - phi
        turned = np.mod(
            np.sign(kappa)[:, None, None] * (ahead[..., None] + np.stack([angle, -angle], axis=-1)), 2 * np.pi
        )
        to_barrel = np.nan_to_num(turned, nan=np.inf).min(axis=(1, 2)) / np.abs(kappa)
        to_endcap = (np.copysign(half_length, n[:, 2]) - x[:, 2]) / n[:, 2]
    length = np.minimum(to_barrel, np.where(n[:, 2] == 0, np.inf, to_endcap))
    return np.where(inside & n.any(axis=1), length, 0.0)


def follow_to_calorimeter(
    position: Float, momentum: Float, charge: Float, detector: Detector, sides: int | None
) -> tuple[Float, Float]:
    """Position, mm, and momentum, GeV, [track, 3] at the entry into the calorimeter; NaN for a track without entry."""
    helix = (position, momentum, charge)
    b_field, radius, half_length = detector.b_field, detector.ecal_inner_radius, detector.ecal_inner_z
    if sides is None:
        length = length_to_cylinder(*helix, b_field=b_field, radius=radius, half_length=half_length, max_turns=np.inf)
    else:
        length = length_to_prism(*helix, b_field=b_field, apothem=radius, half_length=half_length, sides=sides)
    length = np.where(np.isfinite(length) & (length > 0), length, np.nan)
    entry, direction = propagate(*helix, length[:, None], b_field=b_field)
    return entry[:, 0], direction[:, 0] * np.linalg.norm(momentum, axis=1)[:, None]


def _track(
    start: npt.ArrayLike, momentum: npt.ArrayLike, charge: npt.ArrayLike, b_field: float
) -> tuple[Float, Float, Float]:
    """Start [n, 3], unit direction [n, 3] (null without momentum) and curvature kappa [n]."""
    x, p = (np.asarray(vectors, dtype=np.float64).reshape(-1, 3) for vectors in (start, momentum))
    q = np.nan_to_num(np.asarray(charge, dtype=np.float64).reshape(-1))
    size = np.linalg.norm(p, axis=1)
    size = np.where(size > 0, size, np.inf)
    return x, p / size[:, None], GEV_PER_TESLA_MM * q * b_field / size
