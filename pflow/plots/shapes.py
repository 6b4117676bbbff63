"""Shapes of an event display: arrows of particles, the calorimeter's inner surface, sizes of hits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.physics.detector import Detector
from pflow.physics.kinematics import tangent_basis

__all__ = ["arrow_points", "hit_size", "outline_points"]

Float = npt.NDArray[np.float64]

N_POINTS = 73
"""Points of a circle."""


def arrow_points(start: npt.ArrayLike, direction: npt.ArrayLike, energy: npt.ArrayLike, unit: float) -> Float:
    """Arrows as polylines that look like arrows in space, in x-y and in z-r.

    An arrow is one `unit` long at 1 GeV and half a `unit` more or less for each factor of ten, between 0.2 and 2.5.
    The four barbs of its head point along and across the polar angle: each projection shows two of them.

    Parameters
    ----------
    start : float [n, 3]
        Where the arrows start, mm.
    direction : float [n, 3]
        Unit vectors.
    energy : float [n]
        GeV.
    unit
        Length of an arrow of 1 GeV, mm.

    Returns
    -------
    float64 [n, 10, 3], mm: start, tip, and each barb followed by the tip.
    """
    start, n = (np.asarray(vectors, dtype=np.float64).reshape(-1, 3) for vectors in (start, direction))
    with np.errstate(divide="ignore"):
        units = 1.0 + 0.5 * np.log10(np.asarray(energy, dtype=np.float64).reshape(-1))
    tip = start + (unit * np.clip(units, 0.2, 2.5))[:, None] * n
    points = [start, tip]
    for across in tangent_basis(n):
        for side in (0.06 * unit, -0.06 * unit):
            points += [tip - 0.15 * unit * n + side * across, tip]
    return np.stack(points, axis=1)


def outline_points(detector: Detector) -> tuple[Float, Float]:
    """The ECAL's inner surface as circles [5, `N_POINTS`, 3] around the beam and bars [12, 2, 3] along it, mm."""
    radius, half = detector.ecal_inner_radius, detector.ecal_inner_z
    around = np.linspace(0.0, 2 * np.pi, N_POINTS)
    ring = np.stack([radius * np.cos(around), radius * np.sin(around), np.zeros_like(around)], axis=-1)
    along = np.array([0.0, 0.0, half])
    circles = np.stack([ring + share * along for share in (-1.0, -0.5, 0.0, 0.5, 1.0)])
    edge = ring[np.linspace(0, N_POINTS - 1, 13).round().astype(int)[:-1]]
    return circles, np.stack([edge - along, edge + along], axis=1)


def hit_size(energy: npt.ArrayLike) -> npt.NDArray[Any]:
    """Relative size of a drawn hit: 0 up to 0.1 MeV, 1 from 1 GeV on, linear in the logarithm of its energy [GeV]."""
    with np.errstate(divide="ignore"):
        return np.clip(1.0 + 0.25 * np.log10(np.asarray(energy, dtype=np.float64)), 0.0, 1.0)
