"""The first paper's metrics: the i-th reconstructed particle is compared with the i-th true one."""

from __future__ import annotations

import numpy as np

from pflow.metrics.stats import Distribution, Tree, fraction
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import angle_between

__all__ = ["IndexedMetrics"]


class IndexedMetrics:
    """Count, energy, charge, identity and direction of pairs by rank in energy.

    True and reconstructed particles of an event are sorted by falling energy and paired by index over the overlap;
    additional particles on either side enter the count alone. Pairs of all events weigh the same.
    """

    def __init__(self) -> None:
        self.count_difference = Distribution()
        self.rel_error = Distribution()
        self.angle = Distribution()
        self.n_charge = 0
        self.n_pdg = 0

    def update(self, truth: ParticleTable, reco: ParticleTable) -> None:
        """Count events; true energies must be above 0."""
        self.count_difference.add(reco.counts - truth.counts)
        overlap = np.minimum(truth.counts, reco.counts)
        i = truth.by_falling_energy()[truth.local_index < overlap[truth.event]]
        j = reco.by_falling_energy()[reco.local_index < overlap[reco.event]]
        self.rel_error.add((reco.energy[j] - truth.energy[i]) / truth.energy[i])
        self.angle.add(np.degrees(angle_between(truth.momentum[i], reco.momentum[j])))
        self.n_charge += int(np.sum(np.rint(truth.charge[i]) == np.rint(reco.charge[j])))
        self.n_pdg += int(np.sum(np.abs(truth.pdg[i]) == np.abs(reco.pdg[j])))

    def result(self) -> Tree:
        """Keys under ``energy_rank``."""
        n_pairs = self.rel_error.count
        return {
            "n_pairs": n_pairs,
            "count_difference": self.count_difference.mean(),
            "mean_abs_rel_error": Distribution(np.abs(self.rel_error.values)).mean(),
            "mean_rel_error": self.rel_error.mean(),
            "charge_accuracy": fraction(self.n_charge, n_pairs),
            "pdg_accuracy": fraction(self.n_pdg, n_pairs),
            "angle_mean_deg": self.angle.mean(),
            "angle_median_deg": self.angle.median(),
        }
