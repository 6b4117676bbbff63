"""Relations between momenta, angles and track parameters. Pure functions on numpy arrays or numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.units import GEV_PER_TESLA_MM

__all__ = ["angle_between", "energy", "momentum_from_track", "track_from_momentum", "transverse_momentum"]

Array = npt.NDArray[np.floating[Any]]


def energy(px: Array, py: Array, pz: Array, mass: Array) -> Array:
    """Energy from momentum and mass, E^2 = m^2 + p^2; all in GeV, shapes broadcast."""
    return np.sqrt(px**2 + py**2 + pz**2 + mass**2)


def transverse_momentum(omega: Array, b_field: float, charge: Array | float = 1.0) -> Array:
    """Transverse momentum of a helix, pt [GeV] = 0.299792458e-3 |q| B [T] / |omega [1/mm]|.

    A straight track (omega 0) gives infinity. `b_field` in T; `charge` in units of e.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(GEV_PER_TESLA_MM * np.abs(charge) * abs(b_field) / np.abs(omega))


def momentum_from_track(omega: Array, phi: Array, tan_lambda: Array, b_field: float) -> tuple[Array, Array, Array]:
    """Momentum (px, py, pz) in GeV of a track of unit charge, from EDM4hep track parameters.

    Parameters
    ----------
    omega
        Signed curvature, 1/mm; its sign is the charge for a field along +z.
    phi
        Azimuth of the momentum at the reference point, rad.
    tan_lambda
        pz / pt.
    b_field
        Field along z, T.
    """
    pt = transverse_momentum(omega, b_field)
    return pt * np.cos(phi), pt * np.sin(phi), pt * tan_lambda


def track_from_momentum(px: Array, py: Array, pz: Array, charge: Array, b_field: float) -> tuple[Array, Array, Array]:
    """Inverse of `momentum_from_track`: (omega [1/mm], phi [rad], tan_lambda) from a momentum in GeV."""
    pt = np.hypot(px, py)
    with np.errstate(divide="ignore", invalid="ignore"):
        omega = np.sign(charge) * GEV_PER_TESLA_MM * abs(b_field) / pt
        tan_lambda = pz / pt
    return omega, np.arctan2(py, px), tan_lambda


def angle_between(a: Array, b: Array) -> Array:
    """Angle in rad between vectors, both of shape [..., 3]; accurate near 0 and pi. Null vectors give 0.

    Uses atan2(|a x b|, a . b), which keeps full precision where arccos of the dot product loses half the digits.
    """
    cross = np.linalg.norm(np.cross(a, b), axis=-1)
    dot = np.sum(np.asarray(a) * np.asarray(b), axis=-1)
    return np.asarray(np.arctan2(cross, dot))
