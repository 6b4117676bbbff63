"""Shapes of an event display as points: arrows of particles, the inner surface, bends of lines, sizes of hits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.physics.detector import Detector

__all__ = ["arrow_points", "bends", "hit_size", "outline_points"]

Float = npt.NDArray[np.float64]


def arrow_points(start: npt.ArrayLike, direction: npt.ArrayLike, energy: npt.ArrayLike, unit: float) -> Float:
    """Arrows as polylines that look like arrows in space, in x-y and in z-r.

    An arrow is one `unit` long at 1 GeV and half a `unit` more or less for each factor of ten, between 0.2 and 2.5.
    The four barbs of its head point along and across the polar angle: two of them are seen in each projection.

    Parameters
    ----------
    start : float [n, 3]
        Where the arrows begin, mm.
    direction : float [n, 3]
        Unit vectors.
    energy : float [n]
        GeV.
    unit
        Length of an arrow of 1 GeV, mm.

    Returns
    -------
    float64 [n, 10, 3], mm: start, tip, and the barbs with the way back to the tip.
    """
    start = np.asarray(start, dtype=np.float64).reshape(-1, 3)
    n = np.asarray(direction, dtype=np.float64).reshape(-1, 3)
    with np.errstate(divide="ignore"):
        units = 1.0 + 0.5 * np.log10(np.asarray(energy, dtype=np.float64).reshape(-1))
    tip = start + (unit * np.clip(units, 0.2, 2.5))[:, None] * n
    phi, cosine = np.arctan2(n[:, 1], n[:, 0]), n[:, 2]
    sine = np.hypot(n[:, 0], n[:, 1])
    theta_hat = np.stack([cosine * np.cos(phi), cosine * np.sin(phi), -sine], axis=-1)
    phi_hat = np.stack([-np.sin(phi), np.cos(phi), np.zeros_like(phi)], axis=-1)
    back, side = 0.15 * unit, 0.06 * unit
    points = [start, tip]
    for across in (theta_hat, -theta_hat, phi_hat, -phi_hat):
        points += [tip - back * n + side * across, tip]
    return np.stack(points, axis=1)


def bends(line: npt.ArrayLike, tolerance: float) -> npt.NDArray[np.int64]:
    """Which points of a polyline to keep, so that what is left out was nowhere further than `tolerance` from the rest.

    Between two points that are kept, the one furthest from the straight line between them is kept too if it is further
    away than that (Douglas and Peucker, Cartographica 10 (1973) 112).

    Parameters
    ----------
    line : float [point, 3]
        At least one point, mm.
    tolerance
        mm, at least 0.

    Returns
    -------
    int64 [kept], ascending; the first and the last point are always kept.

    Raises
    ------
    ValueError
        No points, or a negative `tolerance`.
    """
    points = np.asarray(line, dtype=np.float64).reshape(-1, 3)
    if not len(points) or tolerance < 0:
        raise ValueError(f"{len(points)} points, tolerance {tolerance}: expected points and at least 0")
    kept, parts = {0, len(points) - 1}, [(0, len(points) - 1)]
    while parts:
        first, last = parts.pop()
        if last - first < 2:
            continue
        chord, between = points[last] - points[first], points[first + 1 : last] - points[first]
        square = chord @ chord
        along = np.clip(between @ chord / square, 0.0, 1.0) if square > 0 else np.zeros(len(between))
        away = np.linalg.norm(between - along[:, None] * chord, axis=1)
        furthest = int(np.argmax(away))
        if away[furthest] > tolerance:
            middle = first + 1 + furthest
            kept.add(middle)
            parts += [(first, middle), (middle, last)]
    return np.array(sorted(kept), dtype=np.int64)


def outline_points(detector: Detector, *, n_points: int = 73) -> tuple[Float, Float]:
    """The ECAL's inner surface as a wireframe.

    Returns
    -------
    circles, bars
        float64 [5, n_points, 3] around the beam, and [12, 2, 3] along it; mm.
    """
    radius, half = detector.ecal_inner_radius, detector.ecal_inner_z
    around = np.linspace(0.0, 2 * np.pi, n_points)
    ring = np.stack([radius * np.cos(around), radius * np.sin(around), np.zeros_like(around)], axis=-1)
    along = np.array([0.0, 0.0, half])
    circles = np.stack([ring + share * along for share in (-1.0, -0.5, 0.0, 0.5, 1.0)])
    edge = ring[np.linspace(0, n_points - 1, 13).round().astype(int)[:-1]]
    bars = np.stack([edge - along, edge + along], axis=1)
    return circles, bars


def hit_size(energy: npt.ArrayLike) -> npt.NDArray[Any]:
    """Size to draw a hit with, between 0 (0.1 MeV and less) and 1 (1 GeV and more), linear in the log of its energy.

    `energy` in GeV; same shape, float64.
    """
    with np.errstate(divide="ignore"):
        return np.clip(1.0 + 0.25 * np.log10(np.asarray(energy, dtype=np.float64)), 0.0, 1.0)
