"""What a file of events holds, as plain data."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import awkward as ak
import numpy as np

from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.truth import select_targets
from pflow.io.detect import DetectorMatch, NoDetectorError, fitting_detectors
from pflow.io.edm4hep.collection_content import CollectionContent, collection_contents
from pflow.io.edm4hep.podio import open_podio
from pflow.io.missing_parts import MissingPart, missing_in_collections, missing_in_events
from pflow.io.open import EventFile, open_events
from pflow.physics.detector import Detector

__all__ = [
    "DetectorFit",
    "EventTruth",
    "FileContent",
    "Part",
    "TruthParticle",
    "inspect_file",
    "inspect_truth",
]

CHUNK_SIZE = 100
"""Entries read at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectorFit:
    """Whether a built-in detector fits the file, and why not."""

    name: str
    fits: bool
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the events: a calorimeter, tracks, truth, ...

    Parameters
    ----------
    name, kind
        Name of the calorimeter or of the part of `Events`; ``ecal``, ``hcal``, ``muon``, ``lumi`` or "".
    collections
        Collections of the file that it is read from; empty for formats without named collections.
    count, mean
        Objects in the entries that were read, and per entry.
    mean_energy
        Summed energy per entry, GeV; None for what has no energy.
    """

    name: str
    kind: str
    collections: tuple[str, ...]
    count: int
    mean: float
    mean_energy: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileContent:
    """What a file holds.

    Parameters
    ----------
    path, schema, uuid, num_entries
        The file.
    detector
        Detector that it was read as; "" if none fits.
    detectors
        How the built-in detectors fit, best first.
    entries_read
        Entries from the start that the counts are taken over.
    parts
        Parts of the events that are there.
    calorimeter_hits
        Hits of all calorimeters, muon system included, in the entries that were read.
    absent
        Optional collections of the detector that the file does not hold.
    has_truth
        Whether truth particles and links from hits to them are there.
    truth_tracks
        Whether its tracks are made from Monte Carlo particles.
    bad_entries
        Entries that cannot be used, and what is wrong with each.
    collections
        Every collection of a podio file, whether the detector names it or not; empty for other files.
    missing
        What is missing for reconstruction, training and evaluation.
    """

    path: str
    schema: str
    uuid: str
    num_entries: int
    detector: str
    detectors: tuple[DetectorFit, ...]
    entries_read: int
    parts: tuple[Part, ...]
    calorimeter_hits: int
    absent: tuple[str, ...]
    has_truth: bool
    truth_tracks: bool
    bad_entries: dict[int, str]
    collections: tuple[CollectionContent, ...]
    missing: tuple[MissingPart, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruthParticle:
    """A Monte Carlo particle under a truth rule: its index in the event, energy in GeV, and why it was dropped."""

    index: int
    pdg: int
    energy: float
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventTruth:
    """Targets and dropped particles of one event; energies in GeV."""

    entry: int
    event: int
    targets: tuple[TruthParticle, ...]
    dropped: tuple[TruthParticle, ...]
    target_energy: float
    dropped_energy: float


def inspect_file(
    path: str | Path,
    *,
    detector: str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | None = None,
    truth_tracks: bool = False,
    max_entries: int = 1000,
) -> FileContent:
    """Summarise a file; parameters as of `pflow.io.open.open_events`.

    Counts and means are over the first `max_entries` entries; entries that cannot be used count as empty. A podio file
    that no built-in detector fits is summarised by its collections.

    Raises
    ------
    InputError, ConfigError
        The file cannot be opened; see `pflow.io.open.open_events`.
    """
    try:
        file = open_events(path, detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks)
    except NoDetectorError as error:
        return _without_detector(path, error.summary, sim=schema == "edm4hep-sim", max_entries=max_entries)
    with file:
        stop = min(file.num_entries, max_entries)
        collections = file.collections(stop)
        sums, unread = _sum_up(file, stop)
        kinds = {own.name: own.kind for own in file.detector.calorimeters}
        n_entries = max(stop, 1)
        counts, energies = sums.counts, sums.energies
        parts = tuple(
            Part(
                name=name,
                kind=kinds.get(name, ""),
                collections=tuple(file.sources.get(name, ())),
                count=counts[name],
                mean=counts[name] / n_entries,
                mean_energy=energies[name] / n_entries if name in energies else None,
            )
            for name in (*kinds, *(name for name, _ in sums.template.parts() if name != "hits"))
        )
        without_layers = [name for name in kinds if counts[name] and not sums.layered[name]]
        return FileContent(
            path=file.path,
            schema=file.schema,
            uuid=file.uuid,
            num_entries=file.num_entries,
            detector=file.detector.name,
            detectors=_fits(file.detector_matches()),
            entries_read=stop,
            parts=parts,
            calorimeter_hits=sum(counts[name] for name in kinds),
            absent=file.absent,
            has_truth=sums.template.has_truth,
            truth_tracks=file.truth_tracks,
            bad_entries=sums.bad,
            collections=collections,
            missing=(*unread, *missing_in_events(sums.template, collections, without_layers)),
        )


def inspect_truth(
    path: str | Path,
    *,
    rule: str = "stable",
    e_min: float = 0.1,
    use_tracks: bool = True,
    entries: int = 10,
    detector: str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | None = None,
    truth_tracks: bool = False,
) -> list[EventTruth]:
    """Targets and dropped particles of the first `entries` events; `rule`, `e_min`, `use_tracks`: see `select_targets`.

    Entries that cannot be used have neither.

    Raises
    ------
    InputError
        The file cannot be opened, or holds no truth.
    ConfigError
        Unknown rule, schema, detector or layout.
    """
    with open_events(path, detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks) as file:
        events, _ = file.read_all(0, entries)
    targets = select_targets(events, rule=rule, e_min=e_min, use_tracks=use_tracks)
    return [
        _event_truth(events, event, targets.particles[event], targets.dropped[event]) for event in range(len(events))
    ]


@dataclasses.dataclass(kw_only=True)
class _Sums:
    """Sums over entries: objects, hits with a layer and energies by part; and an event-less `Events` with all parts."""

    template: Events
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    layered: Counter[str] = dataclasses.field(default_factory=Counter)
    energies: defaultdict[str, float] = dataclasses.field(default_factory=lambda: defaultdict(float))
    bad: dict[int, str] = dataclasses.field(default_factory=dict)

    def add(self, events: Events) -> None:
        """Add a chunk of events."""
        for name, part in events.parts():
            if name == "hits":
                continue
            self.counts[name] += int(jagged.count(part).sum())
            if name == "reference":
                self.energies[name] += float(ak.sum(part.energy))
        subdetector = jagged.flat(events.hits.subdetector)
        energy, layer = jagged.flat(events.hits.energy, np.float64), jagged.flat(events.hits.layer)
        for index, calorimeter in enumerate(events.detector.calorimeters):
            mine = subdetector == index
            self.counts[calorimeter.name] += int(mine.sum())
            self.layered[calorimeter.name] += int((layer[mine] >= 0).sum())
            self.energies[calorimeter.name] += float(energy[mine].sum())


def _sum_up(file: EventFile, stop: int) -> tuple[_Sums, tuple[MissingPart, ...]]:
    """Sums over the first entries; without truth, and then said to be missing, where that cannot be read at all.

    Raises
    ------
    InputError
        The other parts cannot be read either.
    """
    try:
        return _sum_up_parts(file, stop, truth=True), ()
    except InputError as error:
        sums = _sum_up_parts(file, stop, truth=False)
        return sums, (MissingPart(name="truth", needed_for="training and evaluation", reason=str(error)),)


def _sum_up_parts(file: EventFile, stop: int, *, truth: bool) -> _Sums:
    sums = _Sums(template=file.read_all(file.num_entries, truth=truth)[0])
    for start in range(0, stop, CHUNK_SIZE):
        events, found = file.read_all(start, min(start + CHUNK_SIZE, stop), truth=truth)
        sums.bad |= {entry.entry: str(entry.error) for entry in found}
        sums.add(events)
    return sums


def _without_detector(path: str | Path, reason: str, *, sim: bool, max_entries: int) -> FileContent:
    """A podio file that no detector fits, by its collections."""
    file = open_podio(path)
    try:
        stop = min(file.columns.num_entries, max_entries)
        collections = collection_contents(file, stop)
        return FileContent(
            path=file.path,
            schema=file.schema,
            uuid=file.uuid,
            num_entries=file.columns.num_entries,
            detector="",
            detectors=_fits(fitting_detectors(file, sim=sim or None)),
            entries_read=stop,
            parts=(),
            calorimeter_hits=0,
            absent=(),
            has_truth=any(own.kind == "MCParticle" for own in collections),
            truth_tracks=False,
            bad_entries={},
            collections=collections,
            missing=missing_in_collections(collections, reason),
        )
    finally:
        file.close()


def _fits(matches: Iterable[DetectorMatch]) -> tuple[DetectorFit, ...]:
    return tuple(DetectorFit(name=match.detector.name, fits=match.fits, reason=match.reason) for match in matches)


def _event_truth(events: Events, index: int, particles: ak.Array, dropped: ak.Array) -> EventTruth:
    fields = ("index", "pdg", "energy")
    return EventTruth(
        entry=int(events.entry[index]),
        event=int(events.event[index]),
        targets=tuple(TruthParticle(**target) for target in particles[[*fields]].to_list()),
        dropped=tuple(TruthParticle(**particle) for particle in dropped[[*fields, "reason"]].to_list()),
        target_energy=float(ak.sum(particles.energy)),
        dropped_energy=float(ak.sum(dropped.energy)),
    )
