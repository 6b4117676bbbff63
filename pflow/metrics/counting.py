"""How many particles: exactly right, off by how much, and one photon against two."""

from __future__ import annotations

from collections import Counter

import numpy as np

from pflow.metrics.intervals import fraction
from pflow.metrics.number import Axis, Series, Tree
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
PHOTON = CLASSES.index("photon")


class CountMetrics:
    """Fraction of events with the right number of particles, and the separation of one photon from two.

    One against two: in events whose targets are one or two photons and nothing else, one particle answers one and two
    or more answer two; no particle at all is wrong. Against the opening angle it is the fraction of pairs that
    are answered by two.
    """

    def __init__(self, *, axis: Axis = OPENING_ANGLE) -> None:
        self.axis = axis
        self.n_events = 0
        self.differences: Counter[int] = Counter()
        self.singles = [0, 0]  # right, all
        self.pairs = np.zeros((2, len(axis) + 1), dtype=np.int64)  # right, all, in bins of the opening angle

    def update(self, truth: ParticleTable, reco: ParticleTable) -> None:
        """Count events."""
        self.n_events += len(truth.counts)
        values, counts = np.unique(reco.counts - truth.counts, return_counts=True)
        self.differences.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

        n_photons = np.bincount(truth.event[truth.classes == PHOTON], minlength=len(truth.counts))
        only_photons = n_photons == truth.counts
        right = np.minimum(reco.counts, 2) == truth.counts
        single = only_photons & (truth.counts == 1)
        self.singles[0] += int(np.sum(right[single]))
        self.singles[1] += int(np.sum(single))
        pair = np.flatnonzero(only_photons & (truth.counts == 2))
        first = truth.offsets[pair]
        opening = 1e3 * angle_between(truth.momentum[first], truth.momentum[first + 1])
        bins = self.axis.index(opening)
        n = len(self.axis) + 1
        self.pairs += np.stack([np.bincount(bins[right[pair]], minlength=n), np.bincount(bins, minlength=n)])

    def merge(self, other: CountMetrics) -> None:
        """Count what another one has counted in the same bins.

        Raises
        ------
        ValueError
            The bins of the opening angle differ.
        """
        if not np.array_equal(self.axis.edges, other.axis.edges):
            raise ValueError("cannot merge: bins of the opening angle differ")
        self.n_events += other.n_events
        self.differences.update(other.differences)
        self.singles = [a + b for a, b in zip(self.singles, other.singles, strict=True)]
        self.pairs += other.pairs

    def result(self) -> Tree:
        """Keys under ``count``."""
        right = self.singles[0] + int(self.pairs[0].sum())
        total = self.singles[1] + int(self.pairs[1].sum())
        columns = zip(*self.pairs[:, : len(self.axis)].tolist(), strict=True)
        return {
            "exact_fraction": fraction(self.differences[0], self.n_events),
            "one_vs_two_accuracy": fraction(right, total),
            "difference": {str(value): self.differences[value] for value in sorted(self.differences)},
            "two_photons_found": {
                "edges": self.axis.edges.tolist(),
                "unit": self.axis.unit,
                "n_events": self.pairs[1, : len(self.axis)].tolist(),
                "efficiency": Series.of(fraction(passed, n) for passed, n in columns),
            },
        }
