"""The metrics of the first paper: the i-th reconstructed particle is compared with the i-th true one."""

from __future__ import annotations

import numpy as np

from pflow.metrics.distribution import Distribution
from pflow.metrics.intervals import fraction
from pflow.metrics.number import Tree
from pflow.metrics.sums import Mean
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import angle_between

__all__ = ["LegacyMetrics"]


class LegacyMetrics:
    """Count, energy, charge, identity and direction of pairs by rank.

    True and reconstructed particles of an event are both sorted by falling energy and paired by index over the
    overlap; what one side has more of is only seen by the count. Pairs of all events weigh the same.
    """

    def __init__(self) -> None:
        self.count_difference = Mean()
        self.abs_rel_error = Mean()
        self.rel_error = Mean()
        self.angle = Mean()
        self.angles = Distribution()
        self.n_pairs = 0
        self.n_charge = 0
        self.n_pdg = 0

    def update(self, truth: ParticleTable, reco: ParticleTable) -> None:
        """Count events; true energies must be above 0."""
        self.count_difference.add(reco.counts - truth.counts)
        overlap = np.minimum(truth.counts, reco.counts)
        within = np.arange(overlap.sum()) - np.repeat(np.cumsum(overlap) - overlap, overlap)
        i = truth.by_falling_energy()[np.repeat(truth.offsets[:-1], overlap) + within]
        j = reco.by_falling_energy()[np.repeat(reco.offsets[:-1], overlap) + within]
        relative = (reco.energy[j] - truth.energy[i]) / truth.energy[i]
        angle = angle_between(truth.momentum[i], reco.momentum[j])
        self.abs_rel_error.add(np.abs(relative))
        self.rel_error.add(relative)
        self.angle.add(angle)
        self.angles.add(angle)
        self.n_pairs += len(i)
        self.n_charge += int(np.sum(np.rint(truth.charge[i]) == np.rint(reco.charge[j])))
        self.n_pdg += int(np.sum(np.abs(truth.pdg[i]) == np.abs(reco.pdg[j])))

    def merge(self, other: LegacyMetrics) -> None:
        """Count what another one has counted."""
        for name in ("count_difference", "abs_rel_error", "rel_error", "angle", "angles"):
            getattr(self, name).merge(getattr(other, name))
        for name in ("n_pairs", "n_charge", "n_pdg"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def result(self) -> Tree:
        """Keys under ``legacy``."""
        return {
            "n_pairs": self.n_pairs,
            "count_difference": self.count_difference.result(),
            "mean_abs_rel_error": self.abs_rel_error.result(),
            "mean_rel_error": self.rel_error.result(),
            "charge_accuracy": fraction(self.n_charge, self.n_pairs),
            "pdg_accuracy": fraction(self.n_pdg, self.n_pairs),
            "angle_mean_deg": self.angle.result() * float(np.degrees(1)),
            "angle_median_deg": self.angles.median() * float(np.degrees(1)),
        }
