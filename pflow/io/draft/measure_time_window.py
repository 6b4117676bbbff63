"""The time after which energy does not count, from a file with simulated and digitised hits."""

from __future__ import annotations

import dataclasses

import numpy as np

from pflow.errors import InputError
from pflow.io.draft.collect import Group
from pflow.io.draft.hits import join_samples
from pflow.io.draft.measure_calorimeters import Digitisation
from pflow.io.edm4hep.digitise import time_after_flight
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.edm4hep.simulated import read_contributions

__all__ = ["TimeWindow", "measure_time_window"]

LATEST = (1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 40, 50, 70, 100, 150, 200, 300, 500, 1000)
"""Times that are tried, ns: those that people choose."""
EARLIEST = -1.0
"""Earliest possible time, ns, relative to a straight flight at c."""
SAME_ENERGY = 1e-3
"""Relative difference of a cell's energies that counts as agreement."""
MIN_LATE_CELLS = 5
"""Cells that a time window must explain beyond those that are explained without one."""
MIN_EXPLAINED = 0.9
"""Fraction of the cells that it must explain; with fewer, digitisation did something else."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeWindow:
    """Latest time that counts, ns after a straight flight at c; cells explained with it, without it, and in all."""

    latest: float
    explained: int
    explained_without: int
    n_cells: int


def measure_time_window(file: PodioFile, group: Group, found: Digitisation, stop: int) -> TimeWindow | None:
    """The time up to which contributions count, by the simulated cells that it explains.

    A cell is explained if its energy up to then is above the threshold and is what was digitised, or is below and the
    cell was not digitised.

    Parameters
    ----------
    file
        Open file.
    group
        Calorimeter with digitised and simulated hits.
    found
        Its scale and threshold.
    stop
        Entries that were read.

    Returns
    -------
    None where no time explains most cells and `MIN_LATE_CELLS` more than no time window does, or where the file has no
    contributions that can be followed.
    """
    digitised = join_samples([sample for sample in group.of(simulated=False) if len(sample)])
    times = np.array([*LATEST, np.inf])
    explained = np.zeros(len(times), dtype=np.int64)
    n_cells = 0
    for sample in group.of(simulated=True):
        try:
            contributions = read_contributions(file, sample.name, 0, stop)
        except InputError:  # the file does not say which collection they are in
            continue
        if contributions is None or int(contributions.counts.sum()) != len(sample) or not len(sample):
            continue
        n_cells += len(sample)
        flown = time_after_flight(contributions.time, sample.position[contributions.hit])
        _, here, there = np.intersect1d(digitised.cells(), sample.cells(), return_indices=True)
        energy = np.zeros(len(sample))
        energy[there] = digitised.energy[here] / found.scale
        for number, latest in enumerate(times):
            early = flown < latest
            visible = np.bincount(contributions.hit[early], contributions.energy[early], minlength=len(sample))
            visible[visible < found.threshold * (1 - SAME_ENERGY)] = 0.0
            explained[number] += int(np.sum(np.abs(visible - energy) <= SAME_ENERGY * energy))
    best = int(np.argmax(explained))
    if explained[best] < max(explained[-1] + MIN_LATE_CELLS, MIN_EXPLAINED * n_cells):
        return None
    return TimeWindow(
        latest=float(times[best]),
        explained=int(explained[best]),
        explained_without=int(explained[-1]),
        n_cells=n_cells,
    )
