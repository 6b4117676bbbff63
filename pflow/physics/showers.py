"""Position and direction of showers from their hits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LOG_WEIGHT = 4.0
"""Hits with a fraction below exp(-4) of their shower's energy do not count for its position (T. C. Awes et al., NIM A
311 (1992) 130)."""

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]


def log_weighted_barycentre(shower: Ints, energy: Floats, position: Floats, n_showers: int) -> npt.NDArray[np.float64]:
    """Mean position [n_showers, 3], mm, of hits by shower, weighted by max(0, `LOG_WEIGHT` + ln(E_hit / E_shower)).

    Hits have a `shower` int [H], from 0, `energy` [H], GeV, and `position` [H, 3], mm. A shower without energy, or with
    all weights 0, has the unweighted mean; a shower without hits is at the origin.
    """
    total = np.bincount(shower, energy, n_showers)[shower]
    fraction = np.divide(energy, total, out=np.zeros(len(energy)), where=total > 0)
    with np.errstate(divide="ignore"):
        weight = np.maximum(0.0, LOG_WEIGHT + np.log(fraction))
    return _weighted_mean(shower, weight, position, n_showers)[0]


def cluster_shape(
    cluster: Ints, energy: Floats, position: Floats, n_clusters: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Energy-weighted mean position of each cluster's hits, and the axis of their largest spread; [n_clusters, 3].

    The axis is the eigenvector of the largest eigenvalue of the energy-weighted covariance of the positions, pointing
    away from the origin (MarlinUtil's ClusterShapes, used by DDMarlinPandora for edm4hep::Cluster). If hits have
    no spread, e.g. a single hit, it is the direction of the position. Arguments as for `log_weighted_barycentre`. A
    cluster without energy has the unweighted mean; a cluster without hits is at the origin, with axis z.
    """
    position = np.asarray(position, dtype=np.float64)
    mean, weight, total = _weighted_mean(cluster, energy, position, n_clusters)
    distance = position - mean[cluster]
    products = (weight[:, None, None] * distance[:, :, None] * distance[:, None, :]).reshape(-1, 9)  # [H, 9]
    covariance = np.stack([np.bincount(cluster, column, n_clusters) for column in products.T], axis=1)
    spread, axes = np.linalg.eigh(covariance.reshape(-1, 3, 3) / total[:, None, None])
    axis = axes[:, :, -1]
    axis *= np.where(np.einsum("ij,ij->i", axis, mean) < 0, -1.0, 1.0)[:, None]
    size = np.linalg.norm(mean, axis=1)
    outwards = np.divide(mean, size[:, None], out=np.tile([0.0, 0.0, 1.0], (n_clusters, 1)), where=size[:, None] > 0)
    no_spread = spread[:, -1] <= np.finfo(np.float64).eps * size**2  # but rounding of positions
    return mean, np.where(no_spread[:, None], outwards, axis)


def _weighted_mean(
    group: Ints, weight: Floats, position: Floats, n: int
) -> tuple[npt.NDArray[np.float64], Floats, Floats]:
    """Mean position of `n` groups, the weights of all hits (1 in a group without weight) and their sums by group."""
    weight = np.where(np.bincount(group, weight, n)[group] > 0, weight, 1.0)
    total = np.maximum(np.bincount(group, weight, n), np.finfo(np.float64).tiny)
    return np.stack([np.bincount(group, weight * x, n) for x in position.T], axis=1) / total[:, None], weight, total
