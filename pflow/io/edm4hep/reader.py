"""Reader of EDM4hep files, TTree and RNTuple, with digitised (REC) or simulated (SIM) hits.

`Edm4hepReader` chooses the collections of a file when it is made; `read` makes events of a span of entries. What the
file leaves in doubt is noted, by topic, in its `notes`, which become warnings.
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
    SUBSET,
    Joined,
    PodioFile,
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
from pflow.physics.kinematics import follow_to_calorimeter
from pflow.physics.pdg import known_charges

AT_IP, AT_FIRST_HIT, AT_LAST_HIT, AT_CALORIMETER = 1, 2, 3, 4
"""Values of ``location`` in edm4hep::TrackState. A track's vertex is its first state in this order, else any other."""

FIRST_ONLY = {"tracks": "trackStates_begin", "truth": "PDG", "reference": "energy"}
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
MIN_BEHIND = 2.0  # GeV of a track that bends too little to enter the calorimeter on the other side of the IP
MANY_BEHIND = 5  # of so many of these in an event one may have its state there, which is not used
MAX_LINKED = 10  # entries that are read to find the targets of links
MOSTLY = 0.8  # fraction of links that must lead into the collections read; others: to detectors that are not described
AT_AXIS = 10.0  # mm from the z axis, within which a reference point is at the IP
FRONT = 0.9  # share of the distance to the calorimeter's front face from which on a point is near it


@dataclasses.dataclass(frozen=True, eq=False)
class HitOrigins:
    """Which objects of a file the hits of consecutive entries are, in the order of ``Events.hits``."""

    counts: Index  # [collection, event]: hits of each collection, in order
    collection_id: npt.NDArray[np.uint32]  # [hit]: id of its collection
    index: npt.NDArray[np.int32]  # [hit]: index in its collection
    cell_id: npt.NDArray[np.uint64]  # [hit]: cell id, 0 unknown


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Hits:
    """Hits of consecutive entries, and the objects of the file that they are."""

    records: ak.Array  # [event, hit], as of `Events.hits`
    index: Sequence[ak.Array]  # of each collection of `joined`, [event, hit]: which of its objects were read
    joined: Joined  # the collections, in the order of the hits
    contributions: Mapping[str, simulated.Contributions]  # to the hits of each simulated collection


class Edm4hepReader:
    """Reader of one open EDM4hep file (a `pflow.io.open.Reader`), closed with it.

    `sim`: simulated hits, by default where the file has no digitised collection of the detector; never both, as
    their energies are on different scales. `truth_tracks`: where there are no tracks, make them from Monte Carlo
    particles (`pflow.io.edm4hep.simulated`). An `InputError` names an absent required collection; a `ConfigError` a
    detector that has no collections of the wanted kind, or does not describe `truth_tracks` or `sim_scale`.

    Of the collections that the detector names, `sources` are read, by calorimeter or other part, and `absent` are not.
    The `subsets` among `hit_collections` refer to hits of other collections; `chain` has collections of simulated hits
    by the links from digitised ones to them.
    """

    def __init__(
        self, file: PodioFile, *, detector: Detector, sim: bool | None = None, truth_tracks: bool = False
    ) -> None:
        columns = file.columns
        self.file, self.close, self.detector = file, file.close, detector
        self.schema, self.path, self.uuid = file.schema, file.path, file.uuid
        self.tree, self.num_entries = columns.tree, file.num_entries
        self.notes: MutableMapping[str, str] = ChainMap({}, file.notes)  # of its own: another detector may be tried
        self._head = range(min(self.num_entries, MAX_LINKED))
        self._many_elsewhere: bool | None = None  # states at the calorimeter; None: not looked at
        self.sim, named, self.sources = _hit_collections(file, detector, sim)
        if not any(named.values()):
            kind = "simulated" if self.sim else "digitised"
            raise ConfigError(f"detector '{detector.name}' names no {kind} collections")
        for first, *others in missing_collections(file, detector, sim=self.sim):
            either = " or ".join(f"'{name}'" for name in (first, *others))
            message = f"required collection {either} of detector '{detector.name}' is not in the file"
            raise InputError(message, file=file.path, field=first, suggestions=nearest(first, columns.collections))
        self.hit_collections = [name for names in self.sources.values() for name in names]
        # Those without a branch of their own name were found by their references.
        self.subsets = frozenset(name for name in self.hit_collections if not columns.has(name))
        named |= {
            "tracks": detector.tracks,
            "tracker_hits": detector.tracker_hits,
            "truth": detector.truth_particles,
            "hit_links": () if self.sim else detector.hit_links,  # those point to digitised hits
            "track_links": detector.track_links,
            "reference": detector.references,
        }
        self.absent = tuple(self._choose(named))
        self._check_scales()
        kinds = {collection.name: collection.kind for collection in list_collections(file)}
        self._note_tracks([name for name, kind in kinds.items() if kind == "Track"])
        self._tracking = self._describe_tracks() if truth_tracks and not self.sources["tracks"] else None
        self.truth_tracks = self._tracking is not None
        self.chain = dict(self._chains(kinds))

    def _chains(self, kinds: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Links from digitised to simulated hits, and the collections of these, where no links lead to particles."""
        if self.sim or self.sources["hit_links"] or not self.file.ids_stored:
            return
        digitised = self._with_targets()
        for link in (name for name, kind in kinds.items() if kind == "Link"):
            pairs = link_pairs(self.file, link, len(self._head))
            ends = {end for hit, end in pairs if hit in digitised and kinds.get(end) == "SimCalorimeterHit"}
            if ends:
                yield link, tuple(sorted(ends))

    def _choose(self, named: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
        """Choose the collections of parts other than hits by their names; gives those of any part that are not read."""
        for part in (part for part in named if part not in self.sources):
            held = self.sources[part] = tuple(name for name in named[part] if self.file.columns.has(name))
            if part in FIRST_ONLY and len(held) > 1:
                first = next((name for name in held if self._is_filled(name, FIRST_ONLY[part])), held[0])
                self.sources[part] = (first,)
                if first != held[0]:
                    self.notes[held[0]] = f"{held[0]} is empty in the first entries, and {first} is read"
        read = set(itertools.chain.from_iterable(self.sources.values()))
        for part, names in named.items():
            # Of alternatives one is enough: the others are not missed.
            if not (part in FIRST_ONLY and self.sources[part]):
                yield from (name for name in names if name not in read)
            for name in () if self.sources[part] else names:
                if self.file.columns.has(f"{name}{SUBSET}"):
                    text = f"{name} only refers to objects of other collections (a subset) and is not read"
                    self.notes[name] = text

    def _check_scales(self) -> None:
        """Refuse simulated hits without a scale, and note those whose energy is the deposited one."""
        detector = self.detector
        calorimeters = [part for part in detector.calorimeters if self.sim and self.sources[part.name]]
        if unknown := [part.name for part in calorimeters if part.sim_scale is None]:
            raise ConfigError(
                f"detector '{detector.name}' does not say sim_scale of {', '.join(unknown)}, the factor from the "
                "deposited to the calibrated energy of simulated hits: write it into its YAML file (1 keeps them)"
            )
        if uncalibrated := [part.name for part in calorimeters if part.sim_scale == 1]:
            text = f"simulated hits of {', '.join(uncalibrated)} have the energy that was deposited: sim_scale is 1"
            self.notes["sim_scale"] = text

    def _note_tracks(self, tracks: Sequence[str]) -> None:
        """Note that none of the `tracks` of the file is read."""
        names = self.detector.tracks
        if tracks and not self.sources["tracks"]:
            what = f"the file has no {', '.join(names)}" if names else "the description names none"
            close = nearest(names[0], tracks, n=1) if names else []
            near = f" (nearest: {(close or tracks)[0]}, for 'tracks' of the description)" if names else ""
            self.notes["tracks"] = f"no tracks are read: {what}, and the file has {', '.join(tracks)}{near}"

    def _describe_tracks(self) -> TruthTracking:
        """How tracks are made from Monte Carlo particles."""
        settings, columns = self.detector.truth_tracks, self.file.columns
        if settings is None or settings.unknown:
            lacks = "" if settings is None else ": " + ", ".join(settings.unknown)
            raise ConfigError(
                f"detector '{self.detector.name}' does not describe truth_tracks, how tracks are made{lacks}; "
                "pflow detector FILE --tracks-as DETECTOR takes them from a built-in one, for a file with simulated "
                "tracker hits (edm4hep::SimTrackerHit)"
            )
        for needed in (settings.sim_tracker_hits, self.detector.truth_particles):
            if columns.first(*needed) is None:
                message = f"tracks from Monte Carlo particles need one of {', '.join(needed)}, and the file holds none"
                close = nearest(needed[0], columns.collections) if needed else []
                raise InputError(message, file=self.path, field=next(iter(needed), None), suggestions=close)
        return settings

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
        file, detector, hits = self.file, self.detector, self._read_hits(span)
        event, entry = file.event_numbers(span), np.array(span, dtype=np.int64)
        parts: dict[str, Any] = {"path": self.path, "absent": self.absent, "hits": hits.records}
        if self.sources["tracks"]:
            parts["tracks"] = self._read_tracks(span)
        if self.sources["tracker_hits"]:
            parts["tracker_hits"] = self._read_tracker_hits(span)
        # Tracks that are made of particles need these even if the caller does not ask for them.
        if (truth or self.truth_tracks) and self.sources["truth"]:
            particles = self._read_truth(span)
            if truth:
                parts["truth"] = particles
                parts |= self._read_links(span, hits, particles, parts.get("tracks"))
            if (settings := self._tracking) is not None:
                names = [name for name in settings.sim_tracker_hits if file.columns.has(name)]
                n_layers = simulated.count_layers(file, names, self._joined("truth", particles), span)
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
        file, head = self.file, self._head
        kind = "SimCalorimeterHit" if self.sim else "CalorimeterHit"
        known = {name for part in self.detector.calorimeters for name in (*part.collections, *part.sim_collections)}
        known |= self._with_targets()
        others = [c.name for c in list_collections(file) if c.kind == kind and not (c.subset or c.unreadable)]
        others = [name for name in others if name not in known]
        if not others or not head:
            return

        def get(name: str, member: str) -> npt.NDArray[Any]:
            return jagged.flat(file.get(head, name, member))

        with suppress(InputError):  # an entry that cannot be decoded
            full = [name for name in self.hit_collections if name not in self.subsets]
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

    def _is_filled(self, name: str, member: str) -> bool:
        """Whether a collection with this member has an object in the first entries."""
        with suppress(InputError):  # an entry that cannot be decoded
            return bool(jagged.count(self.file.get(self._head, name, member)).any())
        return True

    def _with_targets(self) -> set[str]:
        """The collections of hits, and those that their subsets refer to in the first entries."""
        targets = (self.file.names(self.file.references(f"{name}{SUBSET}", self._head)[1]) for name in self.subsets)
        return set(self.hit_collections).union(*targets)

    def _read_hits(self, span: range) -> Hits:
        """Hits of all calorimeters."""
        pieces: defaultdict[str, list[ak.Array]] = defaultdict(list)
        digitised: dict[str, simulated.Digitised] = {}
        names: list[str] = []
        chosen: list[ak.Array | None] = []
        for number, calorimeter in enumerate(self.detector.calorimeters):
            collections = (self._members(span, name) for name in self.sources[calorimeter.name])
            for name, index in itertools.chain.from_iterable(collections):
                energy = self.file.get(span, name, "energy")
                counts = jagged.count(energy)
                # Digitisation drops hits: the index then still says which objects of the file are left.
                columns = {"energy": energy, "index": jagged.unflatten(jagged.local_index(counts), counts)}
                columns |= {axis: self.file.get(span, name, f"position.{axis}") for axis in "xyz"}
                columns["layer"] = self._layers(span, name, energy, calorimeter.cell_encoding)
                if self.sim:
                    contributions = simulated.read_contributions(self.file, name, span)
                    digitised[name] = simulated.digitise(calorimeter, columns, contributions)
                    columns = digitised[name].columns
                elif self.file.columns.has(name, "time"):
                    columns["time"] = self.file.get(span, name, "time")
                else:
                    columns["time"] = _filled(energy, np.float32(np.nan))
                if index is not None:
                    columns = {key: values[index] for key, values in columns.items()}
                columns["subdetector"] = _filled(columns["energy"], np.int32(number))
                names.append(name)
                chosen.append(index)
                for key, values in columns.items():
                    pieces[key].append(values)
        self.notes.update(simulated.energy_notes(digitised))
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

    def _members(self, span: range, name: str) -> Iterator[tuple[str, ak.Array | None]]:
        """Collections that the hits of one are from, and which of their objects, [event, hit] (None: all)."""
        if name not in self.subsets:
            yield name, None
            return
        counts, ids, index = self.file.references(f"{name}{SUBSET}", span)
        event, lost = jagged.event_index(counts), np.ones(len(ids), dtype=np.bool_)
        for source in self.file.names(ids):
            if self.file.columns.has(source, "energy"):
                size = jagged.count(self.file.get(span, source, "energy"))[event]
                mine = np.isin(ids, self.file.ids_of(source)) & (index >= 0) & (index < size)
                lost &= ~mine
                yield source, jagged.unflatten(index[mine], np.bincount(event[mine], minlength=len(counts)))
        if lost.any():
            self.notes[name] = f"{lost.sum()} of {len(lost)} references of {name} lead to no hit of the file"

    def _layers(self, span: range, name: str, like: ak.Array, fallback: str | None = None) -> ak.Array:
        """Layers of the hits of a collection, -1 unknown."""
        layers = self.file.layers(span, name, fallback)
        return _filled(like, np.int32(-1)) if layers is None else jagged.unflatten(layers, jagged.count(like))

    def _read_tracker_hits(self, span: range) -> ak.Array:
        """Tracker hits of all collections."""
        pieces: defaultdict[str, list[ak.Array]] = defaultdict(list)
        for name in self.sources["tracker_hits"]:
            for axis in "xyz":
                pieces[axis].append(self.file.get(span, name, f"position.{axis}"))
            pieces["energy"].append(self.file.get(span, name, "eDep", "EDep", "edep"))
            pieces["time"].append(self.file.get(span, name, "time"))
            pieces["layer"].append(self._layers(span, name, pieces["x"][-1]))
        return make_tracker_hits(**jagged.join(pieces))

    def _read_tracks(self, span: range) -> ak.Array:
        """Tracks of one collection.

        Momentum, charge and track parameters come from the state at the IP, else at the first hit, the last, the
        calorimeter, or any, followed along the helix to where it is closest to the z axis; NaN without a finite, curved
        state. Position and momentum at the calorimeter come from the state there, at
        ``referencePoint + (-D0 sin phi, D0 cos phi, Z0)``; without such a state the helix is followed, and so it is for
        a few hard tracks whose state is on the other side of the IP.
        """
        (collection,), detector = self.sources["tracks"], self.detector
        location_by_event, parameters = self._states(collection, span)
        location = jagged.flat(location_by_event)
        begin, end = (self.file.get(span, collection, f"trackStates_{side}") for side in ("begin", "end"))
        track, member = expand(begin, end, jagged.count(location_by_event))
        counts = jagged.count(begin)

        d0, z0, phi, omega, tan_lambda, x, y, _ = parameters
        usable = np.isfinite(parameters).all(axis=0) & (omega != 0)
        track, member, omega = track[usable[member]], member[usable[member]], np.where(usable, omega, np.nan)
        charge, b_field = np.sign(omega), detector.b_field
        position = _position(parameters)
        momentum: Floats = np.stack(kinematics.momentum_from_track(omega, phi, tan_lambda, b_field))
        away = (location != AT_IP) | (np.hypot(x, y) > AT_AXIS)
        self._note_states(collection, "IP", away[location == AT_IP])
        rank = np.where((location >= AT_IP) & (location <= AT_CALORIMETER), location, AT_CALORIMETER + 1)
        vertex = _first_state(track, member, rank[member], int(counts.sum()))
        there = location[member] == AT_CALORIMETER
        elsewhere = ~_at_front(position, detector)
        if elsewhere[member[there]].any() and self._states_elsewhere(collection):
            there &= ~elsewhere[member]
        face = _first_state(track[there], member[there], rank[member][there], int(counts.sum()))
        # Taken before position and momentum move to the z axis. A track without a state at the calorimeter has the face
        # -1, which picks the appended NaN.
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
        return make_tracks(
            b_field=b_field, **{name: jagged.unflatten(values, counts) for name, values in columns.items()}
        )

    def _states(self, collection: str, span: range) -> tuple[ak.Array, Floats]:
        """Locations [event, state] and parameters of all states of tracks: `STATE`, float64 [8, state]."""
        states = track_states(self.file.columns, collection)
        if states is None:
            message = f"the tracks have no states; expected _{collection}_trackStates or {collection}_1"
            raise InputError(message, file=self.path, field=collection)
        parameters = [jagged.flat(self.file.get(span, states, name), np.float64) for name in STATE]
        return self.file.get(span, states, "location"), np.stack(parameters)

    def _states_elsewhere(self, collection: str) -> bool:
        """Whether many states at the calorimeter are elsewhere, by the first entries: the same for all spans."""
        if self._many_elsewhere is None:
            # Set first: where an entry cannot be decoded, it is not read again for every span.
            self._many_elsewhere = False
            with suppress(InputError):  # an entry that cannot be decoded
                location, parameters = self._states(collection, self._head)
                elsewhere = ~_at_front(_position(parameters), self.detector)
                mine = elsewhere[jagged.flat(location) == AT_CALORIMETER]
                self._many_elsewhere = self._note_states(collection, "calorimeter", mine)
        return self._many_elsewhere

    def _read_truth(self, span: range) -> ak.Array:
        """Monte Carlo particles. Parent: the first one, -1 for none; an index outside the list stays as it is."""
        (name,) = self.sources["truth"]
        columns = {
            key: self.file.get(span, name, member)
            for key, member in TRUTH_MEMBERS.items()
            if not member.startswith("vertex") or self.file.columns.has(name, member)
        }
        counts = jagged.count(columns["pdg"])
        parent = np.full(int(counts.sum()), -1, dtype=np.int64)
        branch = relation(self.file.columns, name, 0, "parents")
        if branch is not None:
            n_references, _, index = self.file.references(branch, span)
            begin, end = (self.file.get(span, name, f"parents_{side}") for side in ("begin", "end"))
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
            self.notes[f"{name}.charge"] = f"{text}; the PDG's is used"
            columns["charge"] = jagged.unflatten(np.where(np.isnan(known), charge, known), counts)
        if self.file.columns.has(name, "simulatorStatus"):
            bits = jagged.flat(self.file.get(span, name, "simulatorStatus"), np.int64)
            columns["overlay"] = jagged.unflatten((bits & OVERLAY) > 0, counts)
        return make_truth(**columns, parent=jagged.unflatten(parent, counts))

    def _read_links(self, span: range, hits: Hits, particles: ak.Array, tracks: ak.Array | None) -> dict[str, ak.Array]:
        """Links of hits and tracks to particles; those to or from collections that are not read are left out."""
        truth = self._joined("truth", particles)
        of_hits = [self._links(span, name, hits.joined, truth) for name in self.sources["hit_links"]]
        for name, steps in hits.contributions.items():
            of_hits.append(self._links_of_contributions(name, steps, hits.joined, truth))
        for name, simulated_hits in self.chain.items():
            of_hits.append(self._chained_links(span, name, simulated_hits, hits.joined, truth))
        pieces = {"hit_links": of_hits}
        if tracks is not None:
            joined = self._joined("tracks", tracks)
            names = self.sources["track_links"]
            pieces["track_links"] = [self._links(span, name, joined, truth) for name in names]
        return {name: Links.join(sets).normalised().records() for name, sets in pieces.items() if sets}

    def _joined(self, part: str, records: ak.Array) -> Joined:
        """The one collection of a part, for references to its objects."""
        return Joined(self.sources[part], [jagged.count(records)], len(records))

    def _links(self, span: range, link: str, starts: Joined, ends: Joined) -> Links:
        """Links of one collection of the file, from `starts` to `ends`."""
        weights = self.file.get(span, link, "weight")
        counts, weight = jagged.count(weights), jagged.flat(weights, np.float64)
        event = jagged.event_index(counts)
        resolved, both_ids = [], []
        for side, (names, joined) in enumerate(zip(LINK_ENDS, (starts, ends), strict=True)):
            branch = relation(self.file.columns, link, side, *names)
            if branch is None:
                message = f"the links have no references; expected _{link}_{names[0]} or {link}#{side}"
                raise InputError(message, file=self.path, field=link)
            _, ids, index = self.file.references(branch, span, of=counts)
            both_ids.append(ids)
            resolved.append(joined.resolve(self.file, ids, index, event))
        (source, source_known), (particle, particle_known) = resolved
        keep = source_known & particle_known
        self._note_unresolved(link, keep, both_ids, f"{' or '.join(starts.names)} to {' or '.join(ends.names)}")
        return Links.by_event(event[keep], source[keep], particle[keep], weight[keep], len(span))

    def _links_of_contributions(self, name: str, steps: simulated.Contributions, hits: Joined, truth: Joined) -> Links:
        """Links of one simulated collection: the energy that each particle left in each of its hits."""
        particle, known = truth.resolve(self.file, steps.particle_id, steps.particle, steps.event)
        first = hits.offsets[hits.names.index(name)] - jagged.offsets(steps.counts)[:-1]
        # A file without references to particles (id -1) has lost no particle.
        hit, lead = steps.hit + first[steps.event], known | (steps.particle_id < 0)
        self._note_unresolved(name, lead, [steps.particle_id], f"{name} to {truth.names[0]}")
        stride = int(hit[known].max(initial=0)) + 1
        event_hit = (steps.event * stride + hit)[known]
        event_hit, particle, energy = sum_by_pair(event_hit, particle[known], steps.energy[known])
        return Links.by_event(event_hit // stride, event_hit % stride, particle, energy, len(steps.counts))

    def _chained_links(self, span: range, link: str, names: Sequence[str], hits: Joined, truth: Joined) -> Links:
        """Links of digitised hits by the contributions to the simulated hits that they are linked to."""
        made = {name: simulated.read_contributions(self.file, name, span) for name in names}
        steps = {name: of_hits for name, of_hits in made.items() if of_hits is not None}
        middle = Joined(list(steps), [of_hits.counts for of_hits in steps.values()], len(span))
        # Next, indices count over all events, where an object outside its list would be one of another event.
        first = _inside(self._links(span, link, hits, middle), hits, middle)
        second = [self._links_of_contributions(name, of_hits, middle, truth) for name, of_hits in steps.items()]
        last = _inside(Links.join([Links.of(None, len(span)), *second]), middle, truth)
        a, b = with_same_source(first.flat_particle(middle.totals), last.flat_source(middle.totals))
        energy = first.weight[a] * last.weight[b]
        source, particle = first.flat_source(hits.totals)[a], last.flat_particle(truth.totals)[b]
        source, particle, energy = sum_by_pair(source, particle, energy)
        event = jagged.event_index(hits.totals)[source]
        source -= jagged.offsets(hits.totals)[event]
        return Links.by_event(event, source, particle - jagged.offsets(truth.totals)[event], energy, len(span))

    def _note_states(self, collection: str, place: str, elsewhere: Mask) -> bool:
        """Whether many states of a place lie elsewhere, [state], which then is noted."""
        if many := bool(elsewhere.sum() > (1 - MOSTLY) * len(elsewhere)):
            where = f"{collection} at the {place}"
            states = f"{elsewhere.sum()} of {len(elsewhere)} states of {where} have a reference point elsewhere"
            self.notes[where] = f"{states} (expected mm); their tracks are followed along the helix"
        return many

    def _note_unresolved(self, link: str, known: Mask, ids: Sequence[Index], ends: str) -> None:
        """Note a collection whose links all lead elsewhere, or many into collections that the file does not hold."""
        if not len(known) or known.mean() >= MOSTLY:
            return
        lost, names = np.zeros(len(known), dtype=np.bool_), set()
        for end_ids in ids:
            for number in np.unique(end_ids[~known]):
                name = self.file.ids.get(int(number), "a collection without a name")
                if not self.file.columns.has(name):
                    names.add(name)
                    lost |= end_ids == number
        if lost.mean() > 1 - MOSTLY or not known.any():
            gone = f": {', '.join(sorted(names))} is not in the file" if names else ""
            self.notes[link] = f"{known.sum()} of {len(known)} references of {link} lead from {ends}{gone}"


def missing_collections(file: PodioFile, detector: Detector, *, sim: bool | None = None) -> list[tuple[str, ...]]:
    """Alternatives of each required part of the detector that the file lacks; `sim` as of `Edm4hepReader`."""
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


def _filled(like: ak.Array, value: np.generic) -> ak.Array:
    """One value of its type for each object of an array [event, object]."""
    counts = jagged.count(like)
    return jagged.unflatten(np.full(int(counts.sum()), value), counts)


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
    radius, z = np.hypot(*position[:2]), np.abs(position[2])
    most = detector.ecal_outer_radius / detector.ecal_inner_radius / FRONT
    inside = (radius < FRONT * detector.ecal_inner_radius) & (z < FRONT * detector.ecal_inner_z)
    beyond = (radius > most * detector.ecal_inner_radius) | (z > most * detector.ecal_inner_z)
    return np.asarray(~inside & ~beyond)


def _inside(links: Links, starts: Joined, ends: Joined) -> Links:
    """Those that lead to and from objects that are there."""
    inside = (links.source < starts.totals[links.event]) & (links.particle < ends.totals[links.event])
    return links.take(inside & (links.source >= 0) & (links.particle >= 0))
