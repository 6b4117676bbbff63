"""The way of a charged particle through the solenoid field, as points to draw."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.physics.units import GEV_PER_TESLA_MM

__all__ = ["helix_end", "helix_points"]

Array = npt.NDArray[np.float64]

STRAIGHT = 1e-8
"""Curvature, 1/mm, below which a path counts as straight: it bends by less than 0.1 mm over 5 m."""


def helix_points(
    start: npt.ArrayLike,
    momentum: npt.ArrayLike,
    charge: npt.ArrayLike,
    *,
    b_field: float,
    radius: float,
    half_length: float,
    n_points: int = 96,
    max_turns: float = 2.0,
) -> Array:
    """Points of equal distance along each particle's path from `start` to the surface of a cylinder around the beam.

    With p the momentum and l the length of the path, the direction turns about z by -kappa l, where
    kappa = 0.299792458e-3 q B / p [1/mm] (a positive particle turns clockwise, seen against the field along +z).

    Parameters
    ----------
    start : float [n, 3]
        Where the paths begin, mm; one that begins outside the cylinder stays at its start.
    momentum : float [n, 3]
        Momentum there, GeV; without any, a path stays at its start.
    charge : float [n]
        Charge in e; 0 or NaN gives a straight path.
    b_field
        Field along z, T; 0 gives straight paths.
    radius, half_length
        Of the cylinder, mm.
    n_points
        Points a path, at least 2.
    max_turns
        A path that turns in the field without reaching the surface ends after so many turns.

    Returns
    -------
    float64 [n, n_points, 3], mm.

    Raises
    ------
    ValueError
        Fewer than two points.
    """
    if n_points < 2:
        raise ValueError(f"a path needs at least 2 points, found {n_points}")
    path = _Path.of(start, momentum, charge, b_field, radius, half_length, max_turns)
    points, _ = path.at(path.length[:, None] * np.linspace(0.0, 1.0, n_points))
    return points


def helix_end(
    start: npt.ArrayLike,
    momentum: npt.ArrayLike,
    charge: npt.ArrayLike,
    *,
    b_field: float,
    radius: float,
    half_length: float,
    max_turns: float = 100.0,
) -> tuple[Array, Array]:
    """Where each path of `helix_points` ends, and its direction there; parameters as there.

    Returns
    -------
    position, direction
        float64 [n, 3]: mm, and unit vectors (null without momentum).
    """
    path = _Path.of(start, momentum, charge, b_field, radius, half_length, max_turns)
    position, direction = path.at(path.length[:, None])
    return position[:, 0], direction[:, 0]


@dataclasses.dataclass(frozen=True, eq=False)
class _Path:
    """Helices of known length: start [n, 3], direction [n, 3], curvature [n] and length [n]."""

    start: Array
    direction: Array
    kappa: Array
    length: Array

    @classmethod
    def of(
        cls,
        start: npt.ArrayLike,
        momentum: npt.ArrayLike,
        charge: npt.ArrayLike,
        b_field: float,
        radius: float,
        half_length: float,
        max_turns: float,
    ) -> _Path:
        x = np.asarray(start, dtype=np.float64).reshape(-1, 3)
        p = np.asarray(momentum, dtype=np.float64).reshape(-1, 3)
        q = np.nan_to_num(np.asarray(charge, dtype=np.float64).reshape(-1))
        size = np.linalg.norm(p, axis=1)
        n = p / np.where(size > 0, size, 1.0)[:, None]  # [n, 3], null where there is no momentum
        kappa = GEV_PER_TESLA_MM * q * b_field / np.where(size > 0, size, np.inf)
        length = np.minimum(
            _to_endcap(x, n, half_length),
            np.where(
                np.abs(kappa) < STRAIGHT,
                _to_barrel_straight(x, n, radius),
                _to_barrel_curved(x, n, kappa, radius, max_turns),
            ),
        )
        outside = (np.hypot(x[:, 0], x[:, 1]) >= radius) | (np.abs(x[:, 2]) >= half_length)
        return cls(x, n, kappa, np.where(outside | (size == 0), 0.0, length))

    def at(self, along: Array) -> tuple[Array, Array]:
        """Positions in mm and directions [n, point, 3] after the lengths `along` [n, point]."""
        half_turn = 0.5 * self.kappa[:, None] * along
        chord = along * np.sinc(half_turn / np.pi)  # np.sinc(x) is sin(pi x) / (pi x)
        phi = np.arctan2(self.direction[:, 1], self.direction[:, 0])[:, None]
        sin_theta = np.hypot(self.direction[:, 0], self.direction[:, 1])[:, None]
        cos_theta = self.direction[:, 2, None]
        transverse, middle, last = sin_theta * chord, phi - half_turn, phi - 2 * half_turn
        step = (transverse * np.cos(middle), transverse * np.sin(middle), cos_theta * along)
        direction = (sin_theta * np.cos(last), sin_theta * np.sin(last), np.broadcast_to(cos_theta, along.shape))
        return self.start[:, None, :] + np.stack(step, axis=-1), np.stack(direction, axis=-1)


def _to_endcap(start: Array, n: Array, half_length: float) -> Array:
    """Length of the path to the endcap in front, infinite for a path across the beam."""
    nz: Any = np.where(n[:, 2] == 0, np.nan, n[:, 2])
    return np.asarray(np.nan_to_num((np.copysign(half_length, nz) - start[:, 2]) / nz, nan=np.inf))


def _to_barrel_straight(start: Array, n: Array, radius: float) -> Array:
    """Length of a straight path to the barrel, infinite along the beam: |x + l n| = radius in the x-y plane."""
    sin_theta = np.hypot(n[:, 0], n[:, 1])
    safe = np.where(sin_theta > 0, sin_theta, 1.0)
    along = (start[:, 0] * n[:, 0] + start[:, 1] * n[:, 1]) / safe
    square = np.maximum(along**2 - start[:, 0] ** 2 - start[:, 1] ** 2 + radius**2, 0.0)
    return np.where(sin_theta > 0, (np.sqrt(square) - along) / safe, np.inf)


def _to_barrel_curved(start: Array, n: Array, kappa: Array, radius: float, max_turns: float) -> Array:
    """Length of a helix to the barrel, or of `max_turns` turns where it does not get there.

    The circle in the x-y plane has its centre at distance d from the beam and the radius rho. A point on it at angle
    beta from the direction of the centre has r^2 = d^2 + rho^2 + 2 d rho cos(beta), so that the path, on which beta
    grows, leaves the cylinder at beta = 2 pi - arccos((radius^2 - d^2 - rho^2) / (2 d rho)).
    """
    sign = np.sign(kappa)
    safe = np.where(np.abs(kappa) < STRAIGHT, 1.0, np.abs(kappa))
    sin_theta = np.hypot(n[:, 0], n[:, 1])
    rho = sin_theta / safe
    phi = np.arctan2(n[:, 1], n[:, 0])
    # From the start, the centre is to the right of the momentum for a positive particle.
    centre_x = start[:, 0] + sign * rho * np.sin(phi)
    centre_y = start[:, 1] - sign * rho * np.cos(phi)
    d = np.hypot(centre_x, centre_y)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        cosine = (radius**2 - d**2 - rho**2) / (2 * d * rho)
    reaches = np.abs(cosine) <= 1
    exit_beta = 2 * np.pi - np.arccos(np.where(reaches, cosine, 0.0))
    alpha = np.arctan2(start[:, 1] - centre_y, start[:, 0] - centre_x)
    beta = -sign * (alpha - np.arctan2(centre_y, centre_x))
    turned = np.where(reaches, np.mod(exit_beta - beta, 2 * np.pi), np.inf)
    return np.minimum(turned, 2 * np.pi * max_turns) / safe
