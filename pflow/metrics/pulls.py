"""Pulls: whether the uncertainties that a reconstruction states are as large as its errors."""

from __future__ import annotations

import awkward as ak
import numpy as np

from pflow.metrics.match import Matches
from pflow.metrics.stats import Distribution, Floats, Tree
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import tangent_basis
from pflow.physics.pdg import CLASSES

__all__ = ["QUANTITIES", "PullMetrics", "covariances", "pulls"]

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


class PullMetrics:
    """Mean and width of the pulls of each true class."""

    def __init__(self) -> None:
        self.n_without = 0
        self.values = {name: {quantity: Distribution() for quantity in QUANTITIES} for name in CLASSES}

    def update(self, truth: ParticleTable, reco: ParticleTable, covariance: Floats, matches: Matches) -> None:
        """Count the matched pairs of events; pairs without finite pulls are counted in `n_without` only."""
        values = pulls(truth, reco, covariance, matches)
        known = np.isfinite(values).all(axis=1)
        self.n_without += int(np.sum(~known))
        classes = truth.classes[matches.truth]
        for c, name in enumerate(CLASSES):
            for k, quantity in enumerate(QUANTITIES):
                self.values[name][quantity].add(values[known & (classes == c), k])

    def result(self) -> Tree:
        """By class and quantity: number, mean, median, and width, half the narrowest interval with 68.3%."""
        return {
            "n_without": self.n_without,
            **{
                name: {
                    quantity: {
                        "n": pull.count,
                        "mean": pull.mean(),
                        "median": pull.median(),
                        "width": pull.resolution_68(),
                    }
                    for quantity, pull in by_quantity.items()
                }
                for name, by_quantity in self.values.items()
                if by_quantity["log_energy"].count
            },
        }
