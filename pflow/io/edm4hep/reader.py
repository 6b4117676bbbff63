"""Reader of EDM4hep files, TTree and RNTuple, with digitised (REC) or simulated (SIM) hits.

`choose_sources` picks the collections of a file; `read_hits`, `read_tracks`, `read_truth` and `read_links` read them in
a span of entries, and `Edm4hepReader.read` makes events of them. What the file leaves in doubt is noted, by topic, in
`Sources.notes`, which become warnings.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, InputError, nearest
from pflow.event import jagged
from pflow.event.events import Events, Flag
from pflow.event.jagged import Links, sum_by_pair, with_same_source
from pflow.event.scales import CHARGE_ROUNDING
from pflow.event.schema import make_hits, make_particles, make_tracker_hits, make_tracks, make_truth
from pflow.io.edm4hep import simulated
from pflow.io.edm4hep.podio import (
    LINK_ENDS,
    PERIGEE,
    SUBSET,
    Collection,
    Joined,
    PodioFile,
    count_objects,
    expand,
    link_pairs,
    list_collections,
    particle_columns,
    relation,
    track_states,
)
from pflow.physics import kinematics
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import Detector, TruthTracking
from pflow.physics.kinematics import at_calorimeter, follow_to_calorimeter
from pflow.physics.pdg import known_charges

ELSEWHERE, AT_IP, AT_FIRST_HIT, AT_LAST_HIT, AT_CALORIMETER = range(5)
"""Values of ``location`` in edm4hep::TrackState. A track's vertex is its first state in this order, else any other."""

FIRST_ONLY = ("tracks", "truth", "reference")
"""Only the first available collection of these parts is read; all collections of another part are joined."""

TRUTH_MEMBERS = {
    "pdg": "PDG",
    "mass": "mass",
    "charge": "charge",
    "status": "generatorStatus",
    **{f"p{axis}": f"momentum.{axis}" for axis in "xyz"},
    **{f"v{axis}": f"vertex.{axis}" for axis in "xyz"},
}

OVERLAY = 1 << 23
"""Bit of ``simulatorStatus`` of particles of overlaid background (edm4hep::MCParticle::BITOverlay)."""

STATE = ("D0", "Z0", "phi", "omega", "tanLambda", "referencePoint.x", "referencePoint.y", "referencePoint.z")
"""Members of edm4hep::TrackState that are read."""

FORWARD = 0.25  # collections whose hits all have a smaller r / |z| are of luminosity and other forward calorimeters
COPY = 0.5  # a collection that shares more than this fraction of its cells with others is a copy of their hits
MIN_STATES = 100  # states of tracks of which one surely is at the calorimeter, if the file has such states at all
MIN_BEHIND = 2.0  # GeV of a track that bends too little to enter the calorimeter on the other side of the IP
MANY_BEHIND = 5  # of so many of these in an event one may have its state there, which is not used
MAX_LINKED = 10  # entries that are read to find the targets of links
MOSTLY = 0.8  # fraction of links that must lead into the collections read; others: to detectors that are not described
NAMELESS = 0.01  # largest fraction of references to objects of collections that the file does not name
AT_AXIS = 10.0  # mm from the z axis, within which a reference point is at the IP


class Edm4hepReader:
    """Reader of one open EDM4hep file (a `pflow.io.open.Reader`), closed with it; parameters as of `choose_sources`."""

    def __init__(
        self, file: PodioFile, *, detector: Detector, sim: bool | None = None, truth_tracks: bool = False
    ) -> None:
        self.file, self.close, self.detector = file, file.close, detector
        self.schema, self.path, self.uuid = file.schema, file.path, file.uuid
        self.tree, self.num_entries = file.columns.tree, file.num_entries
        self.chosen = chosen = choose_sources(file, detector, sim, truth_tracks=truth_tracks)
        self.sim, self.truth_tracks = chosen.sim, chosen.truth_tracks is not None
        self.absent, self.notes = chosen.absent, chosen.notes

    @property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """Collections by calorimeter or other part."""
        return self.chosen.collections

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Entries `start` to `stop`; see `pflow.io.open.Reader`."""
        return self._read(range(start, stop), truth)[0]

    def read_with_origins(self, start: int, stop: int, *, truth: bool = True) -> tuple[Events, HitOrigins]:
        """The same, with the file's object behind each hit; an `InputError` where the file has no ids."""
        file, span = self.file, range(start, stop)
        events, hits = self._read(span, truth)
        pieces: dict[str, list[ak.Array]] = {"id": [], "index": list(hits.index), "cell": []}
        for name, index in zip(hits.joined.names, hits.index, strict=True):
            pieces["id"].append(_filled(index, np.uint32(file.id_of(name))))
            with_cell = file.columns.has(name, "cellID")
            pieces["cell"].append(file.get(span, name, "cellID")[index] if with_cell else _filled(index, np.uint64(0)))
        joined = jagged.join(pieces) if hits.index else pieces
        return events, HitOrigins(
            hits.joined.counts,
            jagged.flat(joined["id"], np.uint32),
            jagged.flat(joined["index"], np.int32),
            jagged.flat(joined["cell"], np.uint64),
        )

    def _read(self, span: range, truth: bool) -> tuple[Events, Hits]:
        file, chosen, detector = self.file, self.chosen, self.detector
        hits = read_hits(file, chosen, span)
        event, entry = file.event_numbers(span), np.array(span, dtype=np.int64)
        parts: dict[str, Any] = {"path": self.path, "absent": self.absent, "hits": hits.records}
        if self.sources["tracks"]:
            parts["tracks"] = read_tracks(file, chosen, span)
        if self.sources["tracker_hits"]:
            parts["tracker_hits"] = read_tracker_hits(file, chosen, span)
        # Tracks that are made of particles need these even if the caller does not ask for them.
        if (truth or self.truth_tracks) and self.sources["truth"]:
            particles = read_truth(file, chosen, span)
            if truth:
                parts["truth"] = particles
                parts |= read_links(file, chosen, span, hits, particles, parts.get("tracks"))
            if (settings := chosen.truth_tracks) is not None:
                names = [name for name in settings.sim_tracker_hits if file.columns.has(name)]
                n_layers = simulated.count_layers(file, names, chosen.truth(particles), span)
                self.notes.update(simulated.track_notes(file, particles, n_layers, settings))
                parts["tracks"], track_links = simulated.make_truth_tracks(particles, n_layers, detector, event, entry)
                parts["flags"] = np.full(len(entry), Flag.TRUTH_TRACKS, dtype=np.uint32)
                parts |= {"track_links": track_links} if truth else {}
        if truth and self.sources["reference"]:
            (parts["reference_name"],) = self.sources["reference"]
            parts["reference"] = make_particles(**particle_columns(file, parts["reference_name"], span))
        return Events(detector=detector, entry=entry, event=event, **parts), hits

    def note_unnamed(self) -> None:
        """Note hit collections of the first entries that no calorimeter names.

        Copies of named collections and very forward calorimeters (luminosity) are left out.
        """
        file, head, names = self.file, range(min(self.num_entries, MAX_LINKED)), self.chosen.hit_collections
        kind = "SimCalorimeterHit" if self.sim else "CalorimeterHit"
        known = {name for part in self.detector.calorimeters for name in (*part.collections, *part.sim_collections)}
        known |= _with_hits(file, names, self.chosen.subsets)
        listed = list_collections(file)
        unknown = [c for c in listed if not (c.subset or c.unreadable or c.name in known)]
        others = [c.name for c in unknown if c.kind == kind]
        # In an output of ours the digitised hits of NAME are NAMECaloHits.
        ours = {f"{c.name}CaloHits" for c in listed}
        digitised = [c.name for c in unknown if self.sim and c.kind == "CalorimeterHit" and c.name not in ours]
        if not (others or digitised) or not head:
            return

        def get(name: str, member: str) -> npt.NDArray[Any]:
            return jagged.flat(file.get(head, name, member))

        with suppress(InputError):  # an entry that cannot be decoded
            if filled := [name for name in digitised if len(get(name, "energy"))]:
                text = f"'{self.detector.name}' names no calorimeter for the digitised hits of {', '.join(filled)}"
                self.notes["digitised"] = f"detector {text}: simulated hits are read"
            full = [name for name in names if name not in self.chosen.subsets]
            # Begins with an empty array, as all collections may be subsets and np.concatenate refuses an empty list.
            read = np.concatenate([np.zeros(0, np.uint64), *(get(name, "cellID") for name in full)])
            energy, missing = sum(float(np.nansum(get(name, "energy"))) for name in full), 0.0
            unnamed = []
            for name in others:
                radius, z = np.hypot(get(name, "position.x"), get(name, "position.y")), np.abs(get(name, "position.z"))
                # An empty collection lacks no energy, so it is left out as a copy is.
                copied = np.isin(get(name, "cellID"), read).mean() > COPY if len(z) else True
                if not copied and (radius > FORWARD * z).any():
                    missing += (mine := float(np.nansum(get(name, "energy"))))
                    unnamed.append(f"{name} ({len(z):,} hits, {mine:.3g} GeV)")
            if unnamed:
                self.notes["hits"] = (
                    f"detector '{self.detector.name}' names no calorimeter for the hits of {', '.join(unnamed)} in the "
                    f"first {len(head)} entries: {missing:.3g} of {energy + missing:.3g} GeV are missing from the "
                    "particles"
                )


@dataclasses.dataclass(eq=False, kw_only=True)
class Sources:
    """The collections of a file that a detector's description names."""

    detector: Detector
    sim: bool  # whether hits are simulated
    collections: Mapping[str, tuple[str, ...]]  # by calorimeter or other part, those that the file holds
    absent: tuple[str, ...]  # that the detector names, and that are not read
    subsets: frozenset[str]  # of hits, that refer to hits of other collections
    chain: Mapping[str, tuple[str, ...]]  # collections of simulated hits by links from digitised ones to them
    truth_tracks: TruthTracking | None  # how tracks are made from Monte Carlo particles; None: they are read
    notes: MutableMapping[str, str]
    states_elsewhere: bool | None = None  # whether many states at the calorimeter are elsewhere; None: not looked at

    @property
    def hit_collections(self) -> list[str]:
        """Collections of hits, in order."""
        return [name for calorimeter in self.detector.calorimeters for name in self.collections[calorimeter.name]]

    def truth(self, particles: ak.Array) -> Joined:
        """The collection of Monte Carlo particles, for references to them."""
        return Joined(self.collections["truth"], [jagged.count(particles)], len(particles))


def _is_filled(file: PodioFile, name: str) -> bool:
    """Whether a collection has an object in the first entries."""
    with suppress(InputError):  # an entry that cannot be decoded
        return count_objects(file, Collection(name=name, type=""), min(file.num_entries, MAX_LINKED)) > 0
    return True


def choose_sources(
    file: PodioFile, detector: Detector, sim: bool | None = None, *, truth_tracks: bool = False
) -> Sources:
    """The collections of a file that are read for a detector.

    `sim`: simulated hits, by default where the file has no digitised collection of the detector; never both, as
    their energies are on different scales. `truth_tracks`: where there are no tracks, make them from Monte Carlo
    particles (`pflow.io.edm4hep.simulated`). An `InputError` names an absent required collection; a `ConfigError` a
    detector that has no collections of the wanted kind, or does not describe `truth_tracks` or `sim_scale`.
    """
    columns = file.columns
    sim, named, there = _hit_collections(file, detector, sim)
    if not any(named.values()):
        raise ConfigError(f"detector '{detector.name}' names no {'simulated' if sim else 'digitised'} collections")
    for first, *others in missing_collections(file, detector, sim=sim):
        either = " or ".join(f"'{name}'" for name in (first, *others))
        message = f"required collection {either} of detector '{detector.name}' is not in the file"
        raise InputError(message, file=file.path, field=first, suggestions=nearest(first, columns.collections))
    # Those without a branch of their own name were found by their references.
    subsets = frozenset(name for names in there.values() for name in names if not columns.has(name))
    others_named = {
        "tracks": detector.tracks,
        "tracker_hits": detector.tracker_hits,
        "truth": detector.truth_particles,
        "hit_links": () if sim else detector.hit_links,  # those point to digitised hits
        "track_links": detector.track_links,
        "reference": detector.references,
    }
    notes: MutableMapping[str, str] = ChainMap({}, file.notes)  # of its own: another detector may be tried
    for part, names in others_named.items():
        held = there[part] = tuple(name for name in names if columns.has(name))
        if part in FIRST_ONLY and len(held) > 1:
            first = next((name for name in held if _is_filled(file, name)), held[0])
            there[part] = (first,)
            if first != held[0]:
                notes[held[0]] = f"{held[0]} is empty in the first entries, and {first} is read"

    read, absent = list(itertools.chain.from_iterable(there.values())), []
    if twice := [name for name in read if read.count(name) > 1]:
        raise ConfigError(f"detector '{detector.name}' names {twice[0]} twice, and what it holds would count twice")
    for part, names in (named | others_named).items():
        # Of alternatives one is enough: the others are not missed.
        if not (part in FIRST_ONLY and there[part]):
            absent += [name for name in names if name not in read]
        for name in () if there[part] else names:
            if columns.has(f"{name}{SUBSET}"):
                notes[name] = f"{name} only refers to objects of other collections (a subset) and is not read"
    calorimeters = [calorimeter for calorimeter in detector.calorimeters if sim and there[calorimeter.name]]
    if unknown := [calorimeter.name for calorimeter in calorimeters if calorimeter.sim_scale is None]:
        raise ConfigError(
            f"detector '{detector.name}' does not say sim_scale of {', '.join(unknown)}, the factor from the "
            "deposited to the calibrated energy of simulated hits: write it into its YAML file (1 keeps them)"
        )
    # In crystals all energy is deposited where it is measured.
    if uncalibrated := [of.name for of in calorimeters if of.sim_scale == 1 and not 0 < of.n_layers <= 2]:
        text = f"simulated hits of {', '.join(uncalibrated)} have the energy that was deposited: sim_scale is 1"
        notes["sim_scale"] = text
    kinds = {collection.name: collection.kind for collection in list_collections(file)}
    tracks = [name for name, kind in kinds.items() if kind == "Track"]
    if tracks and not there["tracks"]:
        what = f"the file has no {', '.join(detector.tracks)}" if detector.tracks else "the description names none"
        close = nearest(detector.tracks[0], tracks, n=1) if detector.tracks else []
        near = f" (nearest: {(close or tracks)[0]}, for 'tracks' of the description)" if detector.tracks else ""
        notes["tracks"] = f"no tracks are read: {what}, and the file has {', '.join(tracks)}{near}"
    lists = [name for name, kind in kinds.items() if kind == "ReconstructedParticle" and columns.has(name)]
    for wrong in () if there["reference"] else detector.references:
        if wrong not in kinds and (close := nearest(wrong, lists, n=1)):  # subsets have their own note
            near = f"the file has no {wrong} (nearest: {close[0]}, for 'references' of the description)"
            notes["reference"] = f"no particles of another algorithm are read: {near}"

    settings = None
    if truth_tracks and not there["tracks"]:
        settings = detector.truth_tracks
        if settings is None or settings.unknown:
            lacks = "" if settings is None else ": " + ", ".join(settings.unknown)
            raise ConfigError(
                f"detector '{detector.name}' does not describe truth_tracks, how tracks are made{lacks}; "
                "pflow detector FILE --tracks-as DETECTOR takes them from a built-in one, for a file with simulated "
                "tracker hits (edm4hep::SimTrackerHit)"
            )
        of = {"sim_tracker_hits": settings.sim_tracker_hits, "truth_particles": detector.truth_particles}
        for field, needed in of.items():
            if columns.first(*needed) is None:
                needs = f"one of {', '.join(needed)}, and the file holds none"
                needs = needs if needed else f"{field}, of which detector '{detector.name}' names none"
                close = nearest(needed[0], columns.collections) if needed else []
                message = f"tracks from Monte Carlo particles need {needs}"
                raise InputError(message, file=file.path, field=next(iter(needed), None), suggestions=close)

    # Without links from digitised hits to particles, particles follow from the simulated hits that they are linked to.
    chain = {}
    if not sim and not there["hit_links"] and file.ids_stored:
        digitised = _with_hits(file, [name for part in named for name in there[part]], subsets)
        for link in (name for name, kind in kinds.items() if kind == "Link"):
            pairs = link_pairs(file, link, min(file.num_entries, MAX_LINKED))
            ends = {end for hit, end in pairs if hit in digitised and kinds.get(end) == "SimCalorimeterHit"}
            if ends:
                chain[link] = tuple(sorted(ends))
    return Sources(
        detector=detector,
        sim=sim,
        collections=there,
        absent=tuple(absent),
        subsets=subsets,
        chain=chain,
        truth_tracks=settings,
        notes=notes,
    )


def missing_collections(file: PodioFile, detector: Detector, *, sim: bool | None = None) -> list[tuple[str, ...]]:
    """Alternatives of each required part of the detector that the file lacks; `sim` as of `choose_sources`."""
    sim, named, held = _hit_collections(file, detector, sim)
    required = [part.name for part in detector.calorimeters if part.required]
    missing = [named[name] for name in required if named[name] and not held[name]]
    if detector.tracks_required and detector.tracks and file.columns.first(*detector.tracks) is None:
        missing.append(detector.tracks)
    return missing


def _hit_collections(
    file: PodioFile, detector: Detector, sim: bool | None
) -> tuple[bool, dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Whether hits are simulated, and collections of hits by calorimeter: that the detector names, that the file has.

    A digitised collection may be a subset of another one. By default simulated hits are for a file without others.
    """
    if sim is None:
        has = {kind: any(_hit_collections(file, detector, kind)[2].values()) for kind in (True, False)}
        sim = has[True] and not has[False]
    named = {part.name: part.sim_collections if sim else part.collections for part in detector.calorimeters}
    suffixes = ("",) if sim else ("", SUBSET)
    held = {
        part: tuple(name for name in names if any(file.columns.has(f"{name}{suffix}") for suffix in suffixes))
        for part, names in named.items()
    }
    return sim, named, held


def _with_hits(file: PodioFile, names: Sequence[str], subsets: frozenset[str]) -> set[str]:
    """These collections, and those that their subsets refer to in the first entries."""
    head = range(min(file.num_entries, MAX_LINKED))
    targets = (file.names(file.references(f"{name}{SUBSET}", head)[1]) for name in subsets)
    return set(names).union(*targets)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Hits:
    """Hits of consecutive entries, and the objects of the file that they are."""

    records: ak.Array  # [event, hit], as of `Events.hits`
    index: Sequence[ak.Array]  # of each collection of `joined`, [event, hit]: which of its objects were read
    joined: Joined  # the collections, in the order of the hits
    contributions: Mapping[str, simulated.Contributions]  # to the hits of each simulated collection


def read_hits(file: PodioFile, sources: Sources, span: range) -> Hits:
    """Hits of all calorimeters."""
    pieces: defaultdict[str, list[ak.Array]] = defaultdict(list)
    digitised: dict[str, simulated.Digitised] = {}
    names: list[str] = []
    chosen: list[ak.Array | None] = []
    for number, calorimeter in enumerate(sources.detector.calorimeters):
        collections = (_members(file, sources, span, name) for name in sources.collections[calorimeter.name])
        for name, index in itertools.chain.from_iterable(collections):
            energy = file.get(span, name, "energy")
            counts = jagged.count(energy)
            # Digitisation drops hits: the index then still says which objects of the file are left.
            columns = {"energy": energy, "index": jagged.unflatten(jagged.local_index(counts), counts)}
            columns |= {axis: file.get(span, name, f"position.{axis}") for axis in "xyz"}
            columns["layer"] = _layers(file, span, name, energy, calorimeter.cell_encoding)
            if sources.sim:
                contributions = simulated.read_contributions(file, name, span)
                digitised[name] = simulated.digitise(calorimeter, columns, contributions)
                columns = digitised[name].columns
            elif file.columns.has(name, "time"):
                columns["time"] = file.get(span, name, "time")
            else:
                columns["time"] = _filled(energy, np.float32(np.nan))
            if index is not None:
                columns = {key: values[index] for key, values in columns.items()}
            columns["subdetector"] = _filled(columns["energy"], np.int32(number))
            names.append(name)
            chosen.append(index)
            for key, values in columns.items():
                pieces[key].append(values)
    sources.notes.update(simulated.energy_notes(digitised))
    index = pieces.pop("index", [])
    if not names:
        none = jagged.unflatten(np.zeros(0, np.float32), np.zeros(len(span), np.int64))
        pieces = defaultdict(list, {key: [none] for key in ("energy", "x", "y", "z")})
    return Hits(
        records=make_hits(**jagged.join(pieces)),
        index=index,
        joined=Joined(names, [jagged.count(array) for array in index], len(span), chosen),
        contributions={name: made.contributions for name, made in digitised.items() if made.contributions},
    )


def _members(file: PodioFile, sources: Sources, span: range, name: str) -> Iterator[tuple[str, ak.Array | None]]:
    """Collections that the hits of one are from, and which of their objects, [event, hit] (None: all)."""
    if name not in sources.subsets:
        yield name, None
        return
    counts, ids, index = file.references(f"{name}{SUBSET}", span)
    event, lost = jagged.event_index(counts), np.ones(len(ids), dtype=np.bool_)
    for source in file.names(ids):
        if file.columns.has(source, "energy"):
            size = jagged.count(file.get(span, source, "energy"))[event]
            mine = np.isin(ids, file.ids_of(source)) & (index >= 0) & (index < size)
            lost &= ~mine
            yield source, jagged.unflatten(index[mine], np.bincount(event[mine], minlength=len(counts)))
    if lost.any():
        sources.notes[name] = f"{lost.sum()} of {len(lost)} references of {name} lead to no hit of the file"


def _layers(file: PodioFile, span: range, name: str, like: ak.Array, fallback: str | None = None) -> ak.Array:
    """Layers of the hits of a collection, -1 unknown."""
    layers = file.layers(span, name, fallback)
    return _filled(like, np.int32(-1)) if layers is None else jagged.unflatten(layers, jagged.count(like))


def _filled(like: ak.Array, value: np.generic) -> ak.Array:
    """One value of its type for each object of an array [event, object]."""
    counts = jagged.count(like)
    return jagged.unflatten(np.full(int(counts.sum()), value), counts)


@dataclasses.dataclass(frozen=True, eq=False)
class HitOrigins:
    """Which objects of a file the hits of consecutive entries are, in the order of ``Events.hits``."""

    counts: Index  # [collection, event]: hits of each collection, in order
    collection_id: npt.NDArray[np.uint32]  # [hit]: id of its collection
    index: npt.NDArray[np.int32]  # [hit]: index in its collection
    cell_id: npt.NDArray[np.uint64]  # [hit]: cell id, 0 unknown


def read_tracker_hits(file: PodioFile, sources: Sources, span: range) -> ak.Array:
    """Tracker hits of all collections."""
    pieces: defaultdict[str, list[ak.Array]] = defaultdict(list)
    for name in sources.collections["tracker_hits"]:
        for axis in "xyz":
            pieces[axis].append(file.get(span, name, f"position.{axis}"))
        pieces["energy"].append(file.get(span, name, "eDep", "EDep", "edep"))
        pieces["time"].append(file.get(span, name, "time"))
        pieces["layer"].append(_layers(file, span, name, pieces["x"][-1]))
    return make_tracker_hits(**jagged.join(pieces))


def read_tracks(file: PodioFile, sources: Sources, span: range) -> ak.Array:
    """Tracks of one collection.

    Momentum, charge and track parameters come from the state at the IP, else at the first hit, the last, the
    calorimeter, or any, followed along the helix to where it is closest to the z axis; NaN without a finite, curved
    state. Position and momentum at the calorimeter come from the state there, at
    ``referencePoint + (-D0 sin phi, D0 cos phi, Z0)``; without such a state, or with one that is not at the
    calorimeter, the helix is followed, and so it is for a few hard tracks whose state is on the other side of the IP.
    """
    (collection,), detector = sources.collections["tracks"], sources.detector
    location_by_event, parameters = _states(file, sources, collection, span)
    location, counts = jagged.flat(location_by_event), jagged.count(location_by_event)
    track = member = np.arange(len(location))
    if file.columns.has(collection, "trackStates_begin"):
        begin, end = (file.get(span, collection, f"trackStates_{side}") for side in ("begin", "end"))
        track, member = expand(begin, end, counts)
        counts = jagged.count(begin)

    d0, z0, phi, omega, tan_lambda, x, y, _ = parameters
    usable = np.isfinite(parameters).all(axis=0) & (omega != 0)
    track, member, omega = track[usable[member]], member[usable[member]], np.where(usable, omega, np.nan)
    charge, b_field = np.sign(omega), detector.b_field
    position = _position(parameters)
    momentum: Floats = np.stack(kinematics.momentum_from_track(omega, phi, tan_lambda, b_field))
    away = (location != AT_IP) | (np.hypot(x, y) > AT_AXIS)
    note_states(sources, collection, "IP", away[location == AT_IP])
    rank = np.where((location >= AT_IP) & (location <= AT_CALORIMETER), location, AT_CALORIMETER + 1)
    vertex = _first_state(track, member, rank[member], int(counts.sum()))
    there = (location[member] == AT_CALORIMETER) & at_calorimeter(position.T, detector)[member]
    if len(location) >= MIN_STATES and not (location == AT_CALORIMETER).any():
        text = f"no track of {collection} has a state at the calorimeter (location {AT_CALORIMETER})"
        sources.notes[f"{collection} at the calorimeter"] = f"{text}: they are followed there along the helix"
    elsewhere = ~_at_front(position, detector)
    if elsewhere[location == AT_CALORIMETER].any() and _states_elsewhere(file, sources, collection):
        there &= ~elsewhere[member]
    face = _first_state(track[there], member[there], rank[member][there], int(counts.sum()))
    # Taken before position and momentum move to the z axis. A track without a state at the calorimeter has the face -1,
    # which picks the appended NaN.
    at_face = np.append(np.concatenate([position, momentum]), np.full((6, 1), np.nan), axis=1)[:, face]

    if away.any():
        helix = [*position, *momentum, charge]
        distance, z_axis, *perigee = kinematics.perigee(*helix, b_field=b_field)
        d0, z0 = np.where(away, -np.sign(charge * b_field) * distance, d0), np.where(away, z_axis, z0)
        phi = np.where(away, np.arctan2(perigee[1], perigee[0]), phi)
        momentum[:2] = np.where(away, perigee, momentum[:2])
        position = np.where(away, [-d0 * np.sin(phi), d0 * np.cos(phi), z0], position)
    # A hard track's state on the other side of the IP is of another track, unless there are many.
    hard = (vertex >= 0) & (np.linalg.norm(momentum, axis=0)[vertex] > MIN_BEHIND)
    behind = hard & (face >= 0) & (np.einsum("ct,ct->t", momentum[:, vertex], at_face[:3]) < 0)
    event, n_events = jagged.event_index(counts), len(counts)
    n_behind, n_hard = (np.bincount(event[rows], minlength=n_events) for rows in (behind, hard))
    behind &= (MANY_BEHIND * n_behind <= n_hard)[event]
    follow = np.flatnonzero(((face < 0) & (vertex >= 0)) | behind)
    if len(follow):
        start = vertex[follow]
        reached = follow_to_calorimeter(position[:, start].T, momentum[:, start].T, charge[start], detector)
        at_face[:, follow] = np.concatenate(reached, axis=1).T
    columns = {"omega": omega, "phi": phi, "tan_lambda": tan_lambda, "d0": d0, "z0": z0}
    # A track without a usable state has the vertex -1, which picks the appended NaN.
    columns = {name: np.append(values, np.nan)[vertex] for name, values in columns.items()}
    columns |= {f"calo_{name}": at_face[row] for row, name in enumerate(("x", "y", "z", "px", "py", "pz"))}
    return make_tracks(b_field=b_field, **{name: jagged.unflatten(values, counts) for name, values in columns.items()})


def _states(file: PodioFile, sources: Sources, collection: str, span: range) -> tuple[ak.Array, Floats]:
    """Locations [event, state] and parameters of all states of tracks: `STATE`, float64 [8, state].

    Tracks of edm4eic have one each, whose curvature follows from momentum and field.
    """
    if file.columns.has(collection, "momentum.x"):
        x, y, z, px, py, pz, charge = (jagged.flat(file.get(span, collection, key), np.float64) for key in PERIGEE)
        if at_rest := np.count_nonzero((px == 0) & (py == 0) & (pz == 0)):
            text = f"{at_rest} of {len(px)} tracks of {collection} have no momentum, and are left out: older EICrecon"
            sources.notes[f"{collection}.momentum"] = f"{text} has it in track parameters alone, which are not read"
        omega, phi, tan_lambda = kinematics.track_from_momentum(px, py, pz, charge, sources.detector.b_field)
        location = _filled(file.get(span, collection, "charge"), np.int32(ELSEWHERE))
        return location, np.stack([0 * x, 0 * x, phi, omega, tan_lambda, x, y, z])
    states = track_states(file.columns, collection)
    if states is None:
        message = f"the tracks have no states; expected _{collection}_trackStates or {collection}_1"
        raise InputError(message, file=file.path, field=collection)
    parameters = [jagged.flat(file.get(span, states, name), np.float64) for name in STATE]
    return file.get(span, states, "location"), np.stack(parameters)


def _position(parameters: Floats) -> Floats:
    """Where states of tracks with parameters `STATE` [8, state] are, [3, state], mm."""
    d0, z0, phi, _, _, x, y, z = parameters
    return np.stack([x - d0 * np.sin(phi), y + d0 * np.cos(phi), z + z0])


def _first_state(track: Index, member: Index, rank: Index, n_tracks: int) -> Index:
    """State of lowest rank of each track, the first among equals; -1 for a track without any."""
    best = jagged.largest_weight(track, member, -rank)
    chosen = np.full(n_tracks, -1, dtype=np.int64)
    chosen[track[best]] = member[best]
    return chosen


def _at_front(position: Floats, detector: Detector) -> Mask:
    """Whether points [3, N], mm, lie near the front face of the calorimeter."""
    most = detector.ecal_outer_radius / detector.ecal_inner_radius / kinematics.FRONT
    return at_calorimeter(position.T, detector, most=most)


def _states_elsewhere(file: PodioFile, sources: Sources, collection: str) -> bool:
    """Whether many states at the calorimeter are elsewhere, by the first entries: the same for all spans."""
    if sources.states_elsewhere is None:
        # Set first: where an entry cannot be decoded, it is not read again for every span.
        sources.states_elsewhere = False
        with suppress(InputError):  # an entry that cannot be decoded
            location, parameters = _states(file, sources, collection, range(min(file.num_entries, MAX_LINKED)))
            elsewhere = ~_at_front(_position(parameters), sources.detector)
            mine = elsewhere[jagged.flat(location) == AT_CALORIMETER]
            sources.states_elsewhere = note_states(sources, collection, "calorimeter", mine)
    return sources.states_elsewhere


def read_truth(file: PodioFile, sources: Sources, span: range) -> ak.Array:
    """Monte Carlo particles. Parent: the first one, -1 for none; an index outside the list stays as it is."""
    (name,) = sources.collections["truth"]
    columns = {
        key: file.get(span, name, member)
        for key, member in TRUTH_MEMBERS.items()
        if not member.startswith("vertex") or file.columns.has(name, member)
    }
    counts = jagged.count(columns["pdg"])
    parent = np.full(int(counts.sum()), -1, dtype=np.int64)
    branch = relation(file.columns, name, 0, "parents")
    if branch is not None:
        n_references, _, index = file.references(branch, span)
        begin, end = (file.get(span, name, f"parents_{side}") for side in ("begin", "end"))
        child, member = expand(begin, end, n_references)
        first = np.unique(child, return_index=True)[1]
        # podio's reference to nothing has the index -2, and no parent is -1 here.
        parent[child[first]] = np.maximum(index[member[first]], -1)
    codes, charge = jagged.flat(columns["pdg"]), jagged.flat(columns["charge"], np.float64)
    known = known_charges(codes)
    # Where the PDG's charge is not known it is NaN, and no charge is wrong.
    wrong = np.flatnonzero(np.abs(known - charge) > CHARGE_ROUNDING)
    if len(wrong):
        first = wrong[0]
        expected = f"PDG code {codes[first]}: {charge[first]:g} e, expected {known[first]:g} e"
        text = f"{name}.charge is not the PDG's for {len(wrong)} of {len(charge)} particles ({expected})"
        sources.notes[f"{name}.charge"] = f"{text}; the PDG's is used"
        columns["charge"] = jagged.unflatten(np.where(np.isnan(known), charge, known), counts)
    if file.columns.has(name, "simulatorStatus"):
        bits = jagged.flat(file.get(span, name, "simulatorStatus"), np.int64)
        columns["overlay"] = jagged.unflatten((bits & OVERLAY) > 0, counts)
    return make_truth(**columns, parent=jagged.unflatten(parent, counts))


def read_links(
    file: PodioFile, sources: Sources, span: range, hits: Hits, particles: ak.Array, tracks: ak.Array | None
) -> dict[str, ak.Array]:
    """Links of hits and tracks to particles; those to or from collections that are not read are left out."""
    truth = sources.truth(particles)
    of_hits = [_links(file, sources, span, name, hits.joined, truth) for name in sources.collections["hit_links"]]
    for name, steps in hits.contributions.items():
        of_hits.append(_links_of_contributions(file, sources, name, steps, hits.joined, truth))
    for name, simulated_hits in sources.chain.items():
        of_hits.append(_chained_links(file, sources, span, name, simulated_hits, hits.joined, truth))
    pieces = {"hit_links": of_hits}
    if tracks is not None:
        joined = Joined(sources.collections["tracks"], [jagged.count(tracks)], len(tracks))
        names = sources.collections["track_links"]
        pieces["track_links"] = [_links(file, sources, span, name, joined, truth) for name in names]
    return {name: Links.join(sets).normalised().records() for name, sets in pieces.items() if sets}


def _links(file: PodioFile, sources: Sources, span: range, link: str, starts: Joined, ends: Joined) -> Links:
    """Links of one collection of the file, from `starts` to `ends`."""
    weights = file.get(span, link, "weight")
    counts, weight = jagged.count(weights), jagged.flat(weights, np.float64)
    event = jagged.event_index(counts)
    resolved, references = [], []
    for side, (names, joined) in enumerate(zip(LINK_ENDS, (starts, ends), strict=True)):
        branch = relation(file.columns, link, side, *names)
        if branch is None:
            message = f"the links have no references; expected _{link}_{names[0]} or {link}#{side}"
            raise InputError(message, file=file.path, field=link)
        _, ids, index = file.references(branch, span, of=counts)
        references.append((ids, index))
        resolved.append(joined.resolve(file, ids, index, event))
    (source, source_known), (particle, particle_known) = resolved
    keep = source_known & particle_known
    note_unresolved(file, sources, link, keep, references, f"{' or '.join(starts.names)} to {' or '.join(ends.names)}")
    return Links.by_event(event[keep], source[keep], particle[keep], weight[keep], len(span))


def _links_of_contributions(
    file: PodioFile, sources: Sources, name: str, steps: simulated.Contributions, hits: Joined, truth: Joined
) -> Links:
    """Links of one simulated collection: the energy that each particle left in each of its hits."""
    particle, known = truth.resolve(file, steps.particle_id, steps.particle, steps.event)
    first = hits.offsets[hits.names.index(name)] - jagged.offsets(steps.counts)[:-1]
    # A file without references to particles (id -1) has lost no particle.
    hit, lead = steps.hit + first[steps.event], known | (steps.particle_id < 0)
    to_particles = [(steps.particle_id, steps.particle)]
    note_unresolved(file, sources, name, lead, to_particles, f"{name} to {truth.names[0]}")
    stride = int(hit[known].max(initial=0)) + 1
    event_hit = (steps.event * stride + hit)[known]
    event_hit, particle, energy = sum_by_pair(event_hit, particle[known], steps.energy[known])
    return Links.by_event(event_hit // stride, event_hit % stride, particle, energy, len(steps.counts))


def _chained_links(
    file: PodioFile, sources: Sources, span: range, link: str, names: Sequence[str], hits: Joined, truth: Joined
) -> Links:
    """Links of digitised hits by the contributions to the simulated hits that they are linked to."""
    made = {name: simulated.read_contributions(file, name, span) for name in names}
    steps = {name: of_hits for name, of_hits in made.items() if of_hits is not None}
    middle = Joined(list(steps), [of_hits.counts for of_hits in steps.values()], len(span))
    # Next, indices count over all events, where an object outside its list would be one of another event.
    first = _inside(_links(file, sources, span, link, hits, middle), hits, middle)
    second = [_links_of_contributions(file, sources, name, of_hits, middle, truth) for name, of_hits in steps.items()]
    last = _inside(Links.join([Links.of(None, len(span)), *second]), middle, truth)
    a, b = with_same_source(first.flat_particle(middle.totals), last.flat_source(middle.totals))
    energy = first.weight[a] * last.weight[b]
    source, particle = first.flat_source(hits.totals)[a], last.flat_particle(truth.totals)[b]
    source, particle, energy = sum_by_pair(source, particle, energy)
    event = jagged.event_index(hits.totals)[source]
    source -= jagged.offsets(hits.totals)[event]
    return Links.by_event(event, source, particle - jagged.offsets(truth.totals)[event], energy, len(span))


def _inside(links: Links, starts: Joined, ends: Joined) -> Links:
    """Those that lead to and from objects that are there."""
    inside = (links.source < starts.totals[links.event]) & (links.particle < ends.totals[links.event])
    return links.take(inside & (links.source >= 0) & (links.particle >= 0))


def note_states(sources: Sources, collection: str, place: str, elsewhere: Mask) -> bool:
    """Whether many states of a place lie elsewhere, [state], which then is noted."""
    if many := bool(elsewhere.sum() > (1 - MOSTLY) * len(elsewhere)):
        where = f"{collection} at the {place}"
        states = f"{elsewhere.sum()} of {len(elsewhere)} states of {where} have a reference point elsewhere"
        sources.notes[where] = f"{states} (expected mm); their tracks are followed along the helix"
    return many


def note_unresolved(
    file: PodioFile, sources: Sources, link: str, known: Mask, references: Sequence[tuple[Index, Index]], ends: str
) -> None:
    """Note a collection whose links all lead elsewhere, many into collections that the file does not hold, or some into
    ones that it does not even name; `references`: ids of collections and indices, by end."""
    if known.all():
        return
    lost, nameless, names = np.zeros(len(known), dtype=np.bool_), np.zeros(len(known), dtype=np.bool_), set()
    for ids, index in references:
        for number in np.unique(ids[~known]):
            name = file.ids.get(int(number), "a collection without a name")
            if not file.columns.has(name):
                names.add(name)
                lost |= ids == number
            if file.ids_stored and int(number) not in file.ids:  # index -1: a reference to nothing
                nameless |= (ids == number) & (index >= 0)
    if lost.mean() > 1 - MOSTLY or nameless.mean() > NAMELESS or not known.any():
        gone = f": {', '.join(sorted(names))} is not in the file" if names else ""
        sources.notes[link] = f"{known.sum()} of {len(known)} references of {link} lead from {ends}{gone}"
