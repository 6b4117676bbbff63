"""The solenoid's field from what a file holds of charged particles."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from contextlib import suppress

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.io.edm4hep.podio import PodioFile, relation
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.edm4hep.simulated import BY_SECONDARY
from pflow.physics.detector import Detector
from pflow.physics.field import FieldEstimate, field_from_momenta, field_from_steps

__all__ = ["measure_field"]

MIN_PT = 0.1  # slower particles lose too much energy on the way from one tracker layer to the next, GeV
MIN_CHORD = 5.0  # shorter steps turn particles by less than what scattering does, mm
ELECTRON = 11

PARAMETER = r"(?i)(b_?field|magnetic_?field|solenoid_?field)(_?z)?$"
"""Parameters of a file's metadata that give the field, T."""
MAX_FIELD = 10.0  # larger values of such a parameter are in other units


def measure_field(
    file: PodioFile, detector: Detector, sim_tracker_hits: Sequence[str], stop: int
) -> list[tuple[FieldEstimate, str]]:
    """Every way to know the field from the first `stop` entries, the most certain first, and in words its source.

    A value that the file states has no uncertainty. Of `detector` the collections count, not the field;
    `sim_tracker_hits` are names of collections.
    """
    found = []
    for key, values in file.parameters.items():
        if re.search(PARAMETER, key) and len(values) == 1:
            with suppress(ValueError):
                if 0 < (value := abs(float(values[0]))) < MAX_FIELD:
                    stated = FieldEstimate(b_field=value, uncertainty=0.0, count=1)
                    found.append((stated, f"parameter '{key}' of the file's metadata"))
    for estimate, what in (
        (_from_tracks(file, detector, stop), "tracks and the particles that they are linked to"),
        (_from_steps(file, sim_tracker_hits, stop), "steps of particles between simulated tracker hits"),
    ):
        if estimate is not None:
            found.append((estimate, f"{estimate.count} {what}"))
    return sorted(found, key=lambda own: own[0].uncertainty)


def _from_tracks(file: PodioFile, detector: Detector, stop: int) -> FieldEstimate | None:
    """From the transverse momenta of charged particles and their tracks in 1 T; electrons, which radiate, left out."""
    reader = Edm4hepReader(file, detector=dataclasses.replace(detector, b_field=1.0))
    try:
        events = reader.read(0, stop)
    except InputError:
        return None
    tracks, truth, links = events.tracks, events.truth, events.track_links
    if tracks is None or truth is None or links is None:
        return None
    good = (links.source < ak.num(tracks)) & (links.particle >= 0) & (links.particle < ak.num(truth))
    links = links[good & (links.weight > 0.5)]
    particles, pt_per_tesla = truth[links.particle], jagged.flat(tracks.momentum.pt[links.source], np.float64)
    use = (jagged.flat(particles.charge) != 0) & (np.abs(jagged.flat(particles.pdg)) != ELECTRON)
    pt = jagged.flat(particles.momentum.pt, np.float64)
    return field_from_momenta(pt[use], pt_per_tesla[use])


def _from_steps(file: PodioFile, collections: Sequence[str], stop: int) -> FieldEstimate | None:
    """From the directions of each particle at its tracker hits, one after the other in time."""
    pieces = [piece for name in collections if (piece := _tracker_hits(file, name, stop)) is not None]
    if not pieces:
        return None
    particle, time, position, momentum = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    order = np.lexsort((time, *particle.T[::-1]))
    particle, position, momentum = particle[order], position[order], momentum[order]
    start = np.flatnonzero((particle[1:] == particle[:-1]).all(axis=1))
    end = start + 1
    pt = np.hypot(*momentum.T)
    chord = np.hypot(*(position[end] - position[start]).T)
    ahead = (momentum[start] * momentum[end]).sum(axis=1) > 0  # less than a quarter turn
    use = (np.minimum(pt[start], pt[end]) > MIN_PT) & (chord > MIN_CHORD) & ahead
    start, end = start[use], end[use]
    return field_from_steps(position[start], position[end], momentum[start], momentum[end])


def _tracker_hits(file: PodioFile, name: str, stop: int) -> tuple[npt.NDArray[np.float64], ...] | None:
    """Hits of a collection, without those of secondaries; None without particles.

    Particle (event, collection id, index) [N, 3], time [N] in ns, position [N, 2] in mm, momentum [N, 2] in GeV.
    """
    branch = relation(file.columns, name, 0, "particle", "MCParticle")
    if branch is None or not file.columns.has(name, "time"):
        return None

    def get(collection: str, member: str) -> npt.NDArray[np.float64]:
        return jagged.flat(file.columns.get(collection, member, start=0, stop=stop), np.float64)

    event = jagged.event_index(jagged.count(file.columns.get(name, "time", start=0, stop=stop)))
    members = [f"{vector}.{axis}" for vector in ("position", "momentum") for axis in "xy"]
    columns = [
        event,
        get(branch, "collectionID"),
        get(branch, "index"),
        *(get(name, own) for own in ("time", *members)),
    ]
    if len({len(column) for column in columns}) > 1:
        return None
    table = np.stack(columns, axis=1)
    if file.columns.has(name, "quality"):
        table = table[(get(name, "quality").astype(np.int64) & BY_SECONDARY) == 0]
    return table[:, :3], table[:, 3], table[:, 4:6], table[:, 6:]
