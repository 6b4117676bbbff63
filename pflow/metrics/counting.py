"""Number of particles: exactly right, off by how much, and one photon against two."""

from __future__ import annotations

from collections import Counter

import numpy as np

from pflow.metrics.stats import Axis, Tree, fraction, fractions
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import angle_between
from pflow.physics.pdg import CLASSES

__all__ = ["OPENING_ANGLE", "CountMetrics"]

OPENING_ANGLE = Axis(
    name="opening_angle",
    label="Opening angle of the two photons",
    unit="mrad",
    edges=np.array([10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 90.0, 130.0, 200.0]),
    log=True,
)
MIN_WIDE_MRAD = 30.0
"""Opening angle, an edge of the bins, below which pairs of photons do not count for the accuracy of wide pairs."""
PHOTON = CLASSES.index("photon")


class CountMetrics:
    """Fraction of events with the right number of particles, and the separation of one photon from two.

    The separation takes the events whose targets are one or two photons and nothing else: one reconstructed particle
    is right for one photon, two or more are right for two.
    """

    def __init__(self, *, axis: Axis = OPENING_ANGLE) -> None:
        self.axis = axis
        self.n_events = 0
        self.differences: Counter[int] = Counter()
        self.singles = np.zeros(2, dtype=np.int64)  # right, all
        self.pairs = np.zeros((2, len(axis) + 1), dtype=np.int64)  # right, all, in bins of the opening angle

    def update(self, truth: ParticleTable, reco: ParticleTable) -> None:
        """Count events."""
        self.n_events += len(truth.counts)
        self.differences.update((reco.counts - truth.counts).tolist())

        n_photons = np.bincount(truth.event[truth.classes == PHOTON], minlength=len(truth.counts))
        only_photons = n_photons == truth.counts
        right = np.minimum(reco.counts, 2) == truth.counts
        single = only_photons & (truth.counts == 1)
        self.singles += [np.sum(right[single]), np.sum(single)]
        pair = np.flatnonzero(only_photons & (truth.counts == 2))
        first = truth.offsets[pair]
        bins = self.axis.index(1e3 * angle_between(truth.momentum[first], truth.momentum[first + 1]))
        n = len(self.axis) + 1
        self.pairs += np.stack([np.bincount(bins[right[pair]], minlength=n), np.bincount(bins, minlength=n)])

    def result(self) -> Tree:
        """Keys under ``count``."""
        right, total = (self.singles + self.pairs.sum(axis=1)).tolist()
        found, pairs = self.pairs[:, :-1]
        wide = self.axis.edges[:-1] >= MIN_WIDE_MRAD
        wide_right, wide_total = (self.singles + self.pairs[:, :-1][:, wide].sum(axis=1)).tolist()
        return {
            "exact_fraction": fraction(self.differences[0], self.n_events),
            "one_vs_two_accuracy": fraction(right, total),
            "one_vs_two_accuracy_above_30_mrad": fraction(wide_right, wide_total),
            "difference": {str(value): self.differences[value] for value in sorted(self.differences)},
            "two_photons_found": {
                "edges": self.axis.edges.tolist(),
                "unit": self.axis.unit,
                "n_events": pairs.tolist(),
                "efficiency": fractions(found, pairs),
            },
        }
