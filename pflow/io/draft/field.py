"""The solenoid's field from what a file holds: a parameter, or tracks and the particles that they are linked to."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

import awkward as ak
import numpy as np

from pflow.errors import InputError
from pflow.event import jagged
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.physics.detector import Detector

__all__ = ["MeasuredField", "measure_field"]

MIN_TRACKS = 3  # fewer have no spread that could be believed
ELECTRON = 11

PARAMETER = r"(?i)(b_?field|magnetic_?field|solenoid_?field)(_?z)?$"
"""Parameters of a file's metadata that give the field, T."""
MAX_FIELD = 10.0  # larger values of such a parameter are in other units


class MeasuredField(NamedTuple):
    """Field along z, T, its uncertainty (0 for a value that the file states), and in words where it comes from."""

    b_field: float
    uncertainty: float
    source: str


def measure_field(file: PodioFile, detector: Detector, stop: int) -> list[MeasuredField]:
    """Every way to know the field from the first `stop` entries, the most certain first.

    Of `detector` the collections count, not the field.
    """
    return [*_stated(file), *_from_tracks(file, detector, stop)]


def _stated(file: PodioFile) -> list[MeasuredField]:
    found = []
    for key, values in file.parameters.items():
        if re.search(PARAMETER, key) and len(values) == 1:
            try:
                value = abs(float(values[0]))
            except ValueError:
                continue
            if 0 < value < MAX_FIELD:
                found.append(MeasuredField(value, 0.0, f"parameter '{key}' of the file's metadata"))
    return found


def _from_tracks(file: PodioFile, detector: Detector, stop: int) -> list[MeasuredField]:
    """From the transverse momenta of charged particles and their tracks in 1 T; electrons, which radiate, left out."""
    reader = Edm4hepReader(file, detector=dataclasses.replace(detector, b_field=1.0))
    try:
        events = reader.read(0, stop)
    except InputError:
        return []
    tracks, truth, links = events.tracks, events.truth, events.track_links
    if tracks is None or truth is None or links is None:
        return []
    good = (links.source < ak.num(tracks)) & (links.particle >= 0) & (links.particle < ak.num(truth))
    links = links[good & (links.weight > 0.5)]
    particles, pt_per_tesla = truth[links.particle], jagged.flat(tracks.momentum.pt[links.source], np.float64)
    use = (jagged.flat(particles.charge) != 0) & (np.abs(jagged.flat(particles.pdg)) != ELECTRON)
    pt = jagged.flat(particles.momentum.pt, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = pt[use] / pt_per_tesla[use]
    values = values[np.isfinite(values)]
    if len(values) < MIN_TRACKS:
        return []
    median = float(np.median(values))
    # 1.4826: standard deviation of a Gaussian over its median deviation; 1.2533: error of its median over its mean's.
    uncertainty = 1.4826 * 1.2533 * float(np.median(np.abs(values - median))) / len(values) ** 0.5
    source = f"{len(values)} tracks and the particles that they are linked to"
    return [MeasuredField(median, uncertainty, source)]
