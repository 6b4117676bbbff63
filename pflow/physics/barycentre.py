"""Position of a shower: the log-weighted barycentre of its hits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LOG_WEIGHT", "log_weighted_barycentre"]

LOG_WEIGHT = 4.0
"""Hits with a fraction below exp(-4) of their shower's energy do not count for its position (T. C. Awes et al., NIM A
311 (1992) 130)."""


def log_weighted_barycentre(
    shower: npt.NDArray[np.integer[Any]],
    energy: npt.NDArray[np.floating[Any]],
    position: npt.NDArray[np.floating[Any]],
    n_showers: int,
) -> npt.NDArray[np.float64]:
    """Mean position of the hits of each shower, weighted by max(0, `LOG_WEIGHT` + ln(E_hit / E_shower)).

    A shower without energy, or in which every weight is 0, has the plain mean of its hits.

    Parameters
    ----------
    shower
        int [H]: shower of each hit, from 0.
    energy
        float [H], GeV.
    position
        float [H, 3], mm.
    n_showers
        Number of showers; one without hits is at the origin.

    Returns
    -------
    float64 [n_showers, 3], mm.
    """
    total = np.bincount(shower, energy, n_showers)[shower]
    fraction = np.divide(energy, total, out=np.zeros(len(energy)), where=total > 0)
    with np.errstate(divide="ignore"):
        weight = np.maximum(0.0, LOG_WEIGHT + np.log(fraction))
    weight = np.where(np.bincount(shower, weight, n_showers)[shower] > 0, weight, 1.0)
    norm = np.maximum(np.bincount(shower, weight, n_showers), np.finfo(np.float64).tiny)
    return np.stack([np.bincount(shower, weight * x, n_showers) for x in position.T], axis=1) / norm[:, None]
