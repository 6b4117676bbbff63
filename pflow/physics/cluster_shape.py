"""Position and direction of calorimeter clusters from their hits, as Pandora gives them to EDM4hep."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["cluster_shape"]


def cluster_shape(
    cluster: npt.NDArray[np.integer[Any]],
    energy: npt.NDArray[np.floating[Any]],
    position: npt.NDArray[np.floating[Any]],
    n_clusters: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Energy-weighted mean position of each cluster's hits, and the axis along which they spread most.

    The axis is the eigenvector of the largest eigenvalue of the energy-weighted covariance of the positions, turned
    away from the origin (ClusterShapes of MarlinUtil, with which DDMarlinPandora fills edm4hep::Cluster). Where hits
    have no spread, as a single one has none, it is the direction of the position.

    Parameters
    ----------
    cluster
        int [H]: cluster of each hit, from 0.
    energy
        float [H]: energy of the hit that the cluster has, GeV. A cluster without energy has the plain mean.
    position
        float [H, 3], mm.
    n_clusters
        Number of clusters; one without hits is at the origin, with axis z.

    Returns
    -------
    position : float64 [n_clusters, 3], mm.
    axis : float64 [n_clusters, 3], unit vectors.
    """
    position = np.asarray(position, dtype=np.float64)
    weight = np.where(np.bincount(cluster, energy, n_clusters)[cluster] > 0, energy, 1.0)
    total = np.maximum(np.bincount(cluster, weight, n_clusters), np.finfo(np.float64).tiny)
    mean = np.stack([np.bincount(cluster, weight * x, n_clusters) for x in position.T], axis=1) / total[:, None]
    distance = position - mean[cluster]
    products = (weight[:, None, None] * distance[:, :, None] * distance[:, None, :]).reshape(-1, 9)  # [H, 9]
    covariance = np.stack([np.bincount(cluster, column, n_clusters) for column in products.T], axis=1)
    spread, axes = np.linalg.eigh(covariance.reshape(-1, 3, 3) / total[:, None, None])
    axis = axes[:, :, -1]
    axis *= np.where(np.einsum("ij,ij->i", axis, mean) < 0, -1.0, 1.0)[:, None]
    size = np.linalg.norm(mean, axis=1)
    outwards = np.divide(mean, size[:, None], out=np.tile([0.0, 0.0, 1.0], (n_clusters, 1)), where=size[:, None] > 0)
    flat = spread[:, -1] <= np.finfo(np.float64).eps * size**2  # rounding of positions, no spread
    return mean, np.where(flat[:, None], outwards, axis)
