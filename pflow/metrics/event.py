"""Metrics of whole events: visible energy and visible mass."""

from __future__ import annotations

import numpy as np

from pflow.metrics.particles import RESPONSE_EDGES
from pflow.metrics.stats import Distribution, Floats, Tree
from pflow.metrics.table import ParticleTable

__all__ = ["EventMetrics"]

MIN_MASS_FRACTION = 0.01
"""Fraction of the true visible energy that the true visible mass must exceed; one particle has no mass response."""


class EventMetrics:
    """Response of the visible energy and mass, reconstructed over true.

    The truth is all that is visible in the event, target or not: the energy of soft particles and of those outside the
    acceptance counts as lost.
    """

    def __init__(self) -> None:
        self.energy = Distribution()
        self.mass = Distribution()

    def update(self, visible: ParticleTable, reco: ParticleTable) -> None:
        """Count events: their visible truth and what was reconstructed."""
        true_energy, true_mass = _energy_and_mass(visible)
        energy, mass = _energy_and_mass(reco)
        used = true_energy > 0
        self.energy.add(energy[used] / true_energy[used])
        massive = used & (true_mass > MIN_MASS_FRACTION * true_energy)
        self.mass.add(mass[massive] / true_mass[massive])

    def result(self) -> Tree:
        """Keys under ``event``."""
        return {"visible_energy": _numbers(self.energy), "visible_mass": _numbers(self.mass)}


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
    """Sum of energies and invariant mass of each event, GeV; a negative square of the mass counts as 0."""
    energy, px, py, pz = map(table.sum_by_event, (table.energy, *table.momentum.T))
    return energy, np.sqrt(np.maximum(0.0, energy**2 - (px**2 + py**2 + pz**2)))
