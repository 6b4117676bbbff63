"""Metrics of whole events: numbers of particles, visible energy and mass, and momentum of tracks."""

from __future__ import annotations

from collections import Counter

import numpy as np

from pflow.metrics.particles import RESPONSE_EDGES
from pflow.metrics.stats import Axis, Distribution, Floats, Tree, WeightedFraction, fraction, fractions
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import angle_between
from pflow.physics.pdg import CLASSES

OPENING_ANGLE = Axis(
    name="opening_angle",
    label="Opening angle of the two photons",
    unit="mrad",
    edges=np.array([10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 90.0, 130.0, 200.0]),
    log=True,
)
MIN_WIDE_MRAD = 30.0
"""Smallest opening angle of a wide pair of photons; an edge of the bins."""
PHOTON = CLASSES.index("photon")


class CountMetrics:
    """Fraction of events with the right number of particles, and the separation of one photon from two.

    The separation counts events whose only targets are one or two photons: one reconstructed particle is right for one
    photon, two or more are right for two.
    """

    def __init__(self, *, axis: Axis = OPENING_ANGLE) -> None:
        self.axis = axis
        self.differences: Counter[int] = Counter()
        self.singles = np.zeros(2, dtype=np.int64)  # right, all
        self.pairs = np.zeros((2, len(axis) + 1), dtype=np.int64)  # right, all, in bins of the opening angle

    def update(self, truth: ParticleTable, reco: ParticleTable) -> None:
        """Count events."""
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
        binned = self.pairs[:, :-1]
        wide = self.axis.edges[:-1] >= MIN_WIDE_MRAD
        wide_right, wide_total = (self.singles + binned[:, wide].sum(axis=1)).tolist()
        return {
            "exact_fraction": fraction(self.differences[0], self.differences.total()),
            "one_vs_two_accuracy": fraction(right, total),
            "one_vs_two_accuracy_above_30_mrad": fraction(wide_right, wide_total),
            "difference": {str(value): self.differences[value] for value in sorted(self.differences)},
            "two_photons_found": {
                "edges": self.axis.edges.tolist(),
                "unit": self.axis.unit,
                "n_events": binned[1].tolist(),
                "efficiency": fractions(*binned),
            },
        }


MIN_MASS_FRACTION = 0.01
"""Smallest ratio of true visible mass and energy for a mass response; excludes single particles."""


class EventMetrics:
    """Response of the visible energy and mass: reconstructed over true, of all visible particles, target or not."""

    def __init__(self) -> None:
        self.energy, self.mass = Distribution(), Distribution()

    def update(self, visible: ParticleTable, reco: ParticleTable) -> None:
        """Count events by their visible truth and reconstructed particles."""
        true_energy, true_mass = _energy_and_mass(visible)
        energy, mass = _energy_and_mass(reco)
        used = true_energy > 0
        self.energy.add(energy[used] / true_energy[used])
        massive = used & (true_mass > MIN_MASS_FRACTION * true_energy)
        self.mass.add(mass[massive] / true_mass[massive])

    def result(self) -> Tree:
        """Keys under ``event``."""
        return {"visible_energy": _numbers(self.energy), "visible_mass": _numbers(self.mass)}


class TrackMetrics:
    """Fractions of the track momentum in neutral particles, and in no particle."""

    def __init__(self) -> None:
        self.neutral, self.none = WeightedFraction(), WeightedFraction()

    def update(self, momentum: Floats) -> None:
        """Count events by their `pflow.event.particles.Reconstruction.track_momentum`."""
        total, neutral, none = momentum[momentum[:, 0] > 0].T
        self.none.add(total, none / total)
        if not np.isnan(neutral).any():  # unknown without links from tracks
            self.neutral.add(total, neutral / total)

    def result(self) -> Tree:
        """Keys under ``track_momentum``."""
        return {"in_neutral": self.neutral.result(), "in_none": self.none.result()}


def _numbers(response: Distribution) -> Tree:
    return {
        "n_events": response.count,
        "response_median": response.median(),
        "resolution_68": response.resolution_68(),
        "resolution_68_over_median": response.resolution_68_over_median(),
        "rms90": response.rms90(),
        "histogram": response.histogram(RESPONSE_EDGES),
    }


def _energy_and_mass(table: ParticleTable) -> tuple[Floats, Floats]:
    """Sum of energies and invariant mass of each event, GeV; 0 for a negative squared mass."""
    n, columns = len(table.counts), (table.energy, *table.momentum.T)
    energy, px, py, pz = (np.bincount(table.event, column, n).astype(np.float64) for column in columns)
    return energy, np.sqrt(np.maximum(0.0, energy**2 - (px**2 + py**2 + pz**2)))
