"""Metrics of whole events: visible energy and visible mass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pflow.metrics.distribution import Distribution
from pflow.metrics.number import Floats, Tree
from pflow.metrics.table import ParticleTable

__all__ = ["EventMetrics"]

MIN_MASS_SHARE = 0.01
"""An event whose true visible mass is a smaller share of its visible energy (one particle) has no mass response."""
RESPONSE_EDGES = np.linspace(0.5, 1.5, 101)


class EventMetrics:
    """Response of the visible energy and mass, reconstructed over true.

    The truth of an event is everything visible in it, whether it is a target or not: particles that were too soft
    or missed the detector count as energy that was lost.
    """

    def __init__(self) -> None:
        self.energy = Distribution()
        self.mass = Distribution()

    def update(self, visible: ParticleTable, reco: ParticleTable) -> None:
        """Count events: their visible truth and what was reconstructed."""
        true_energy, true_mass = _energy_and_mass(visible)
        energy, mass = _energy_and_mass(reco)
        there = true_energy > 0
        self.energy.add(energy[there] / true_energy[there])
        heavy = there & (true_mass > MIN_MASS_SHARE * true_energy)
        self.mass.add(mass[heavy] / true_mass[heavy])

    def merge(self, other: EventMetrics) -> None:
        """Count what another one has counted."""
        self.energy.merge(other.energy)
        self.mass.merge(other.mass)

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


def _energy_and_mass(table: ParticleTable) -> tuple[Floats, npt.NDArray[np.float64]]:
    """Sum of energies and invariant mass of each event, GeV; rounding below 0 becomes mass 0."""
    energy = table.sum_by_event(table.energy)
    momentum = [table.sum_by_event(table.momentum[:, axis]) for axis in range(3)]
    return energy, np.sqrt(np.maximum(0.0, energy**2 - sum(p**2 for p in momentum)))
