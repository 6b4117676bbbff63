"""The solenoid's field from what a file holds of charged particles."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.io.edm4hep.podio import PodioFile, relation
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.edm4hep.sim_tracker_hits import BY_SECONDARY
from pflow.physics.detector import Detector
from pflow.physics.field import FieldEstimate, field_from_momenta, field_from_steps

__all__ = ["MeasuredField", "measure_field"]

MIN_PT = 0.1
"""Slower particles lose too much energy on the way from one tracker layer to the next, GeV."""
MIN_CHORD = 5.0
"""Shorter steps turn particles by less than what scattering does, mm."""
ELECTRON = 11

PARAMETER = r"(?i)(b_?field|magnetic_?field|solenoid_?field)(_?z)?$"
"""Parameters of a file's metadata that give the field, T."""
MAX_FIELD = 10.0
"""Larger values of such a parameter are in other units."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredField:
    """Field along z, T, its uncertainty (0 for a value that the file states), and in words where it comes from."""

    b_field: float
    uncertainty: float
    source: str


class TrackerHits(NamedTuple):
    """Simulated tracker hits, all float64.

    Parameters
    ----------
    particle : [N, 3]
        Event, collection id and index of the particle that made the hit.
    time : [N], ns
    position : [N, 2], x and y, mm
    momentum : [N, 2], px and py of the particle, GeV
    """

    particle: npt.NDArray[np.float64]
    time: npt.NDArray[np.float64]
    position: npt.NDArray[np.float64]
    momentum: npt.NDArray[np.float64]

    def at(self, index: npt.NDArray[np.int64]) -> TrackerHits:
        """Some of them, or all in another order."""
        return TrackerHits(*(column[index] for column in self))


def measure_field(
    file: PodioFile, detector: Detector, sim_tracker_hits: Sequence[str], stop: int
) -> list[MeasuredField]:
    """Every way to know the field from the first `stop` entries, the most certain first.

    Parameters
    ----------
    file
        Open file.
    detector
        Its collections; the field does not count.
    sim_tracker_hits
        Collections of simulated tracker hits.
    stop
        Entries that are looked at.
    """
    found = _stated(file)
    for estimate, what in (
        (_from_tracks(file, detector, stop), "tracks and the particles that they are linked to"),
        (_from_steps(file, sim_tracker_hits, stop), "steps of particles between simulated tracker hits"),
    ):
        if estimate is not None:
            source = f"{estimate.count} {what}"
            found.append(MeasuredField(b_field=estimate.b_field, uncertainty=estimate.uncertainty, source=source))
    return sorted(found, key=lambda own: own.uncertainty)


def _stated(file: PodioFile) -> list[MeasuredField]:
    found = []
    for key, values in file.parameters.items():
        if re.search(PARAMETER, key) and len(values) == 1:
            try:
                value = abs(float(values[0]))
            except ValueError:
                continue
            if 0 < value < MAX_FIELD:
                source = f"parameter '{key}' of the file's metadata"
                found.append(MeasuredField(b_field=value, uncertainty=0.0, source=source))
    return found


def _from_tracks(file: PodioFile, detector: Detector, stop: int) -> FieldEstimate | None:
    """From the transverse momenta of charged particles and their tracks in 1 T; electrons, which radiate, left out."""
    reader = Edm4hepReader(file, detector=dataclasses.replace(detector, b_field=1.0))
    if not (reader.sources["tracks"] and reader.sources["track_links"] and reader.sources["truth"]):
        return None
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
    hits = TrackerHits(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
    hits = hits.at(np.lexsort((hits.time, *hits.particle.T[::-1])))
    same = (hits.particle[1:] == hits.particle[:-1]).all(axis=1)
    start, end = hits.at(np.flatnonzero(same)), hits.at(np.flatnonzero(same) + 1)
    pt = np.minimum(np.hypot(*start.momentum.T), np.hypot(*end.momentum.T))
    chord = np.hypot(*(end.position - start.position).T)
    ahead = (start.momentum * end.momentum).sum(axis=1) > 0  # less than a quarter turn
    use = np.flatnonzero((pt > MIN_PT) & (chord > MIN_CHORD) & ahead)
    start, end = start.at(use), end.at(use)
    return field_from_steps(start.position, end.position, start.momentum, end.momentum)


def _tracker_hits(file: PodioFile, name: str, stop: int) -> TrackerHits | None:
    """The hits of a collection, without those of secondaries; None without particles."""
    branch = relation(file.columns, name, 0, "particle", "MCParticle")
    if branch is None or not file.columns.has(name, "time"):
        return None

    def get(collection: str, member: str) -> npt.NDArray[np.float64]:
        return jagged.flat(file.columns.get(collection, member, start=0, stop=stop), np.float64)

    event = jagged.event_index(jagged.count(file.columns.get(name, "time", start=0, stop=stop)))
    particle = [event, get(branch, "collectionID"), get(branch, "index")]
    time = get(name, "time")
    position, momentum = ([get(name, f"{vector}.{axis}") for axis in "xy"] for vector in ("position", "momentum"))
    if len({len(column) for column in (*particle, time, *position, *momentum)}) > 1:
        return None
    hits = TrackerHits(np.stack(particle, axis=1), time, np.stack(position, axis=1), np.stack(momentum, axis=1))
    if file.columns.has(name, "quality"):
        hits = hits.at(np.flatnonzero((get(name, "quality").astype(np.int64) & BY_SECONDARY) == 0))
    return hits
