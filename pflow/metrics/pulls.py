"""Pulls: whether the uncertainties that a reconstruction states are as large as its errors."""

from __future__ import annotations

import awkward as ak
import numpy as np

from pflow.metrics.match import Matches
from pflow.metrics.stats import Floats
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import tangent_basis

__all__ = ["QUANTITIES", "covariances", "pulls"]

QUANTITIES = ("log_energy", "theta", "phi")
"""ln E, and the two components of the direction across it: along rising polar angle and along the azimuth."""


def covariances(particles: ak.Array) -> Floats | None:
    """Covariance of (px, py, pz, E) of all particles, float64 [N, 4, 4], GeV^2; None where the records have none."""
    if "covariance" not in particles.fields:
        return None
    stored = ak.to_numpy(ak.flatten(particles["covariance"], axis=1))  # [N, 10], the lower triangle by rows
    full = np.zeros((len(stored), 4, 4))
    rows, columns = np.tril_indices(4)
    full[:, rows, columns] = stored
    full[:, columns, rows] = stored
    return full


def pulls(truth: ParticleTable, reco: ParticleTable, covariance: Floats, matches: Matches) -> Floats:
    """(reconstructed - true) / sigma of matched pairs, float64 [M, 3], in the order of `QUANTITIES`.

    sigma(ln E) = sqrt(cov(E, E)) / E. For a unit vector e across the direction, sigma = sqrt(e^T cov(p, p) e) / p, and
    the error is the component along e of the difference between the two directions. Not finite where a sigma is 0 or
    unknown.
    """
    i, j = matches.truth, matches.reco
    energy, momentum = reco.energy[j], reco.momentum[j]
    size = np.linalg.norm(momentum, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = momentum / size[:, None]
        true = truth.momentum[i] / np.linalg.norm(truth.momentum[i], axis=1)[:, None]
        columns = [(np.log(energy) - np.log(truth.energy[i])) * energy / np.sqrt(covariance[j, 3, 3])]
        for axis in tangent_basis(found):
            variance = np.einsum("ma,mab,mb->m", axis, covariance[j, :3, :3], axis)
            columns.append(np.sum((found - true) * axis, axis=1) * size / np.sqrt(variance))
    return np.stack(columns, axis=1)
