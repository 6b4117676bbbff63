"""Reader of EDM4hep files, TTree and RNTuple, with digitised (REC) or simulated (SIM) hits."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from pflow.errors import ConfigError, InputError, nearest
from pflow.event import jagged
from pflow.event.events import Events, Flag
from pflow.event.jagged import Links, sum_by_pair
from pflow.event.schema import make_hits, make_particles, make_tracker_hits, make_tracks, make_truth
from pflow.io.edm4hep import simulated
from pflow.io.edm4hep.collections import SUBSET, link_pairs, list_collections
from pflow.io.edm4hep.podio import Joined, PodioFile, expand, particle_columns, relation, track_states
from pflow.physics import kinematics
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import Calorimeter, Detector, TruthTracking
from pflow.physics.kinematics import follow_to_calorimeter
from pflow.physics.pdg import known_charges

AT_IP, AT_FIRST_HIT, AT_LAST_HIT, AT_CALORIMETER = 1, 2, 3, 4
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
MAX_LINKED = 10  # entries that are read to find the targets of links
MOSTLY = 0.8  # fraction of links that must lead into the collections read; others: to detectors that are not described
MOST_CUT = 0.4  # largest plausible fraction of the energy of simulated hits that a time window cuts
EARLY = 0.01  # largest plausible fraction of the energy of all hits that comes before light from the origin
LEAST_ENERGY = 5.0  # GeV, needed to check the times
CROSSING_PT, CROSSING_TAN_LAMBDA = 1.0, 3.0  # GeV, particles above and below which should cross the tracker
MIN_CROSSING = 5  # particles needed to check that they get tracks
AT_AXIS = 10.0  # mm from the z axis, within which a reference point is at the IP
FRONT = 0.9  # share of the distance to the calorimeter's front face from which on a point is near it
CHARGE_ROUNDING = 0.01  # largest difference, e, of a charge from the PDG's that counts as none


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HitOrigins:
    """Which objects of a file the hits of consecutive entries are, in the order of ``Events.hits``."""

    ids: npt.NDArray[np.uint32]  # [collection]: of the collections that the hits of every event are from, in order
    counts: Index  # [collection, event]: hits from each
    index: npt.NDArray[np.int32]  # [hit]: index in its collection
    cell_id: npt.NDArray[np.uint64]  # [hit]: cell id, 0 unknown

    @property
    def slot(self) -> Index:
        """int64 [hit]: which of the collections each hit is from."""
        n_collections, n_events = self.counts.shape
        return np.repeat(np.tile(np.arange(n_collections), n_events), self.counts.T.ravel())


class Edm4hepReader:
    """Reader of one open EDM4hep file (a `pflow.io.open.Reader`), closed with it.

    `sim`: read simulated hits, by default where the file has no digitised collection of the detector; never both, as
    their energies are on different scales. `truth_tracks`: where there are no tracks, make them from Monte Carlo
    particles (`pflow.io.edm4hep.simulated`) and flag the events. An `InputError` names an absent required collection; a
    `ConfigError` a detector that has no collections of the wanted kind, or does not describe `truth_tracks`.
    """

    def __init__(
        self, file: PodioFile, *, detector: Detector, sim: bool | None = None, truth_tracks: bool = False
    ) -> None:
        self.file, columns = file, file.columns
        self.schema, self.path, self.uuid, self.tree = file.schema, file.path, file.uuid, columns.tree
        self.num_entries, self.close = columns.num_entries, file.close
        # Notes of its own: another detector may be tried on the same file.
        self.notes: MutableMapping[str, str] = ChainMap({}, file.notes)
        self.detector = detector
        self.sim = _only_simulated(file, detector) if sim is None else sim
        if not any(_names(calorimeter, self.sim) for calorimeter in detector.calorimeters):
            kind = "simulated" if self.sim else "digitised"
            raise ConfigError(f"detector '{detector.name}' names no {kind} collections")
        for first, *others in missing_collections(file, detector, sim=self.sim):
            names = " or ".join(f"'{name}'" for name in (first, *others))
            message = f"required collection {names} of detector '{detector.name}' is not in the file"
            raise InputError(message, file=self.path, field=first, suggestions=nearest(first, columns.collections))
        candidates = {calorimeter.name: _names(calorimeter, self.sim) for calorimeter in detector.calorimeters} | {
            "tracks": detector.tracks,
            "tracker_hits": detector.tracker_hits,
            "truth": detector.truth_particles,
            "hit_links": () if self.sim else detector.hit_links,  # those point to digitised hits
            "track_links": detector.track_links,
            "reference": detector.references,
        }
        there = {part: tuple(name for name in names if columns.has(name)) for part, names in candidates.items()}
        for calorimeter in detector.calorimeters:
            there[calorimeter.name] = tuple(n for n in _names(calorimeter, self.sim) if _holds(file, n, self.sim))
        self.hit_collections = [name for calorimeter in detector.calorimeters for name in there[calorimeter.name]]
        self.subsets = frozenset(name for name in self.hit_collections if not columns.has(name))
        self.sources: Mapping[str, tuple[str, ...]] = {
            part: names[:1] if part in FIRST_ONLY else names for part, names in there.items()
        }
        self.chain = {} if self.sim or self.sources["hit_links"] else self._chain()
        read = set(itertools.chain.from_iterable(self.sources.values()))
        unread = {part: names for part, names in candidates.items() if part not in FIRST_ONLY or not there[part]}
        self.absent = tuple(name for names in unread.values() for name in names if name not in read)
        for name in (name for part, names in unread.items() if not there[part] for name in names):
            if columns.has(f"{name}{SUBSET}"):
                self.notes[name] = f"{name} only refers to objects of other collections (a subset) and is not read"
        self._check_scales()
        listed = [collection.name for collection in list_collections(file) if collection.kind == "Track"]
        if detector.tracks and not self.sources["tracks"] and listed:
            close = nearest(detector.tracks[0], listed, n=1) or listed
            text = f"no tracks are read: the file has no {', '.join(detector.tracks)}, and has {', '.join(listed)}"
            self.notes["tracks"] = f"{text} (nearest: {close[0]}, for 'tracks' of the description)"
        self.truth_tracks = truth_tracks and not self.sources["tracks"]
        if not self.truth_tracks:
            return
        settings = detector.truth_tracks
        if settings is None or settings.unknown:
            lacks = "" if settings is None else ": " + ", ".join(settings.unknown)
            raise ConfigError(
                f"detector '{detector.name}' does not describe truth_tracks, how tracks are made{lacks}; "
                "pflow detector FILE --tracks-as DETECTOR takes them from a built-in one, for a file with simulated "
                "tracker hits (edm4hep::SimTrackerHit)"
            )
        for needed in (settings.sim_tracker_hits, detector.truth_particles):
            if columns.first(*needed) is None:
                message = f"tracks from Monte Carlo particles need one of {', '.join(needed)}, and the file holds none"
                close = nearest(needed[0], columns.collections) if needed else []
                raise InputError(message, file=self.path, field=next(iter(needed), None), suggestions=close)

    def _check_scales(self) -> None:
        """Refuse simulated hits without a `sim_scale`; note calorimeters read with deposited energies (scale 1)."""
        if not self.sim:
            return
        read = [calorimeter for calorimeter in self.detector.calorimeters if self.sources[calorimeter.name]]
        if unknown := [calorimeter.name for calorimeter in read if calorimeter.sim_scale is None]:
            raise ConfigError(
                f"detector '{self.detector.name}' does not say sim_scale of {', '.join(unknown)}, the factor from the "
                "deposited to the calibrated energy of simulated hits: write it into its YAML file (1 keeps them)"
            )
        if uncalibrated := [calorimeter.name for calorimeter in read if calorimeter.sim_scale == 1]:
            text = f"simulated hits of {', '.join(uncalibrated)} have the energy that was deposited: sim_scale is 1"
            self.notes["sim_scale"] = text

    def note_unnamed(self) -> None:
        """Note hit collections of the first entries that no calorimeter names.

        Copies of named collections and very forward calorimeters (luminosity) are left out.
        """
        file, stop = self.file, min(self.num_entries, MAX_LINKED)
        kind = "SimCalorimeterHit" if self.sim else "CalorimeterHit"
        known = {name for part in self.detector.calorimeters for name in (*part.collections, *part.sim_collections)}
        for name in self.subsets:
            known.update(file.names(file.references(f"{name}{SUBSET}", 0, stop)[1]))
        others = [c.name for c in list_collections(file) if c.kind == kind and not (c.subset or c.unreadable)]
        others = [name for name in others if name not in known]
        if not others or not stop:
            return

        def get(name: str, member: str) -> npt.NDArray[Any]:
            return jagged.flat(file.columns.get(name, member, start=0, stop=stop))

        with suppress(InputError):  # an entry that cannot be decoded
            full = [name for name in self.hit_collections if name not in self.subsets]
            read = np.concatenate([np.zeros(0, np.uint64), *(get(name, "cellID") for name in full)])
            energy, missing = sum(float(np.nansum(get(name, "energy"))) for name in full), 0.0
            unnamed = []
            for name in others:
                radius, z = np.hypot(get(name, "position.x"), get(name, "position.y")), np.abs(get(name, "position.z"))
                copied = np.isin(get(name, "cellID"), read).mean() > COPY if len(z) else True
                if not copied and (radius > FORWARD * z).any():
                    missing += (mine := float(np.nansum(get(name, "energy"))))
                    unnamed.append(f"{name} ({len(z):,} hits, {mine:.3g} GeV)")
            if unnamed:
                self.notes["hits"] = (
                    f"detector '{self.detector.name}' names no calorimeter for the hits of {', '.join(unnamed)} in the "
                    f"first {stop} entries: {missing:.3g} of {energy + missing:.3g} GeV are missing from the particles"
                )

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Entries `start` to `stop`; see `pflow.io.open.Reader`."""
        return _Range(self, start, stop).events(truth)

    def read_with_origins(self, start: int, stop: int, *, truth: bool = True) -> tuple[Events, HitOrigins]:
        """The same, with the file's object behind each hit."""
        chosen = _Range(self, start, stop)
        return chosen.events(truth), chosen.hit_origins()

    @functools.cached_property
    def states_elsewhere(self) -> bool:
        """Whether many states at the calorimeter are elsewhere, by the first entries."""
        (collection,), first = self.sources["tracks"], _Range(self, 0, min(self.num_entries, MAX_LINKED))
        with suppress(InputError):  # an entry that cannot be decoded
            location, parameters = first.states(collection)
            mine = jagged.flat(location) == AT_CALORIMETER
            return first.note_states(collection, "calorimeter", ~_at_front(_position(parameters), self.detector)[mine])
        return False

    def _chain(self) -> dict[str, tuple[str, ...]]:
        """Links from the digitised hits to simulated ones, through which particles follow from contributions."""
        digitised = set(self.hit_collections)
        for name in self.subsets:
            _, ids, _ = self.file.references(f"{name}{SUBSET}", 0, min(self.num_entries, MAX_LINKED))
            digitised |= set(self.file.names(ids))
        listed = {collection.name: collection.kind for collection in list_collections(self.file)}
        chain = {}
        for link in (name for name, kind in listed.items() if kind == "Link"):
            pairs = link_pairs(self.file, link, min(self.num_entries, MAX_LINKED)) if self.file.ids_stored else {}
            ends = {sim for hit, sim in pairs if hit in digitised and listed.get(sim) == "SimCalorimeterHit"}
            if ends:
                chain[link] = tuple(sorted(ends))
        return chain


class _Range:
    """Consecutive entries of a reader's file."""

    def __init__(self, reader: Edm4hepReader, start: int, stop: int) -> None:
        self.reader, self.file, self.sources = reader, reader.file, reader.sources
        self.start, self.stop = start, stop
        self.names: list[str] = []
        self.index: list[ak.Array] = []
        self.chosen: list[bool] = []  # whether a subset selects some hits of the collection
        self.contributions: dict[str, simulated.Contributions] = {}

    def get(self, collection: str, *members: str) -> ak.Array:
        return self.file.columns.get(collection, *members, start=self.start, stop=self.stop)

    def references(self, branch: str, of: Index | None = None) -> tuple[Index, Index, Index]:
        return self.file.references(branch, self.start, self.stop, of=of)

    def events(self, truth: bool) -> Events:
        detector, sources = self.reader.detector, self.sources
        parts: dict[str, Any] = {"hits": self.hits()}
        event, entry = self.file.event_numbers(self.start, self.stop), np.arange(self.start, self.stop)
        if sources["tracks"]:
            parts["tracks"] = self.tracks(sources["tracks"][0])
        if sources["tracker_hits"]:
            parts["tracker_hits"] = self.tracker_hits()
        if (truth or self.reader.truth_tracks) and sources["truth"]:
            particles = self.particles()
            joined = Joined(sources["truth"], [jagged.count(particles)])
            if truth:
                parts["truth"] = particles
                parts |= self.links(joined, parts.get("tracks"))
            if self.reader.truth_tracks:
                settings = detector.truth_tracks
                assert settings is not None  # checked when the file was opened
                names = [name for name in settings.sim_tracker_hits if self.file.columns.has(name)]
                n_layers = simulated.count_layers(self.file, names, joined, self.start, self.stop)
                self.note_untracked(particles, n_layers, settings)
                parts["tracks"], track_links = simulated.make_truth_tracks(particles, n_layers, detector, event, entry)
                parts["flags"] = np.full(len(entry), Flag.TRUTH_TRACKS, dtype=np.uint32)
                if truth:
                    parts["track_links"] = track_links
        if truth and sources["reference"]:
            (parts["reference_name"],) = sources["reference"]
            columns = particle_columns(self.file.columns, parts["reference_name"], self.start, self.stop)
            parts["reference"] = make_particles(**columns)
        about: Any = {"path": self.reader.path, "absent": self.reader.absent}
        return Events(detector=detector, entry=entry, event=event, **about, **parts)

    def hits(self) -> ak.Array:
        """Hits of all calorimeters; notes where each collection went, and the contributions to each simulated one."""
        pieces: defaultdict[str, list[ak.Array]] = defaultdict(list)
        digitised: dict[str, simulated.Digitised] = {}
        has = self.file.columns.has
        for subdetector, calorimeter in enumerate(self.reader.detector.calorimeters):
            for name, index in itertools.chain.from_iterable(map(self.members, self.sources[calorimeter.name])):
                energy = self.get(name, "energy")
                counts = jagged.count(energy)
                columns = {"energy": energy, "index": jagged.unflatten(jagged.local_index(counts), counts)}
                columns |= {axis: self.get(name, f"position.{axis}") for axis in "xyz"}
                columns["layer"] = self.layers(name, energy, calorimeter.cell_encoding)
                if self.reader.sim:
                    contributions = simulated.read_contributions(self.file, name, self.start, self.stop)
                    digitised[name] = simulated.digitise(calorimeter, columns, contributions)
                    columns = digitised[name].columns
                else:
                    unknown = np.float32(np.nan)
                    columns["time"] = self.get(name, "time") if has(name, "time") else _filled(energy, unknown)
                if index is not None:
                    columns = {key: values[index] for key, values in columns.items()}
                self.chosen.append(index is not None)
                columns["subdetector"] = _filled(columns["energy"], np.int32(subdetector))
                self.names.append(name)
                self.index.append(columns.pop("index"))
                for key, values in columns.items():
                    pieces[key].append(values)
        self.contributions = {name: made.contributions for name, made in digitised.items() if made.contributions}
        self.note_lost(digitised)
        if not self.names:
            none = jagged.unflatten(np.zeros(0, np.float32), np.zeros(self.stop - self.start, np.int64))
            return make_hits(**dict.fromkeys(("energy", "x", "y", "z"), none))
        return make_hits(**jagged.join(pieces))

    def members(self, name: str) -> Iterator[tuple[str, ak.Array | None]]:
        """Collections that the hits of one are from, and which of their objects, [event, hit] (None: all)."""
        if name not in self.reader.subsets:
            yield name, None
            return
        counts, ids, index = self.references(f"{name}{SUBSET}")
        event, lost = jagged.event_index(counts), np.ones(len(ids), dtype=np.bool_)
        for source in self.file.names(ids):
            if self.file.columns.has(source, "energy"):
                size = jagged.count(self.get(source, "energy"))[event]
                mine = np.isin(ids & 0xFFFFFFFF, self.file.ids_of(source)) & (index >= 0) & (index < size)
                lost &= ~mine
                yield source, jagged.unflatten(index[mine], np.bincount(event[mine], minlength=len(counts)))
        if lost.any():
            self.reader.notes[name] = f"{lost.sum()} of {len(lost)} references of {name} lead to no hit of the file"

    def note_lost(self, digitised: Mapping[str, simulated.Digitised]) -> None:
        """Note simulated hits without all of their contributions, and energy that a time window cuts."""
        everything = sum(made.total for made in digitised.values())
        lost, cut = [], []
        for name, made in digitised.items():
            if made.lost > simulated.ROUNDING * made.total:
                absent = made.contributions and made.contributions.absent
                gone = f" ({', '.join(absent)} is not in the file)" if absent else ""
                lost.append(f"{made.lost / made.total:.0%} of {name}{gone}")
            early, outside = made.early, made.early + made.late
            if early > EARLY * everything or outside > MOST_CUT * max(made.total, everything / 4):
                cut.append(f"{outside / made.total:.0%} of {name} ({early / made.total:.0%} comes earlier than light)")
        if lost:
            text = "contributions do not sum to the energy of their hits, which is used: without contributions are"
            self.reader.notes["contributions"] = f"{text} {', '.join(lost)}"
        if cut and everything > LEAST_ENERGY:
            self.reader.notes["times"] = f"time windows cut energy, as if times were not in ns: {', '.join(cut)}"

    def note_untracked(self, particles: ak.Array, n_layers: Index, settings: TruthTracking) -> None:
        """Note stable charged particles that cross the tracker and get no track, as where tracker hits are missing."""
        columns = jagged.columns(particles)
        pt = np.hypot(columns["px"], columns["py"])
        radius = np.hypot(columns["vertex.x"], columns["vertex.y"])
        assert settings.max_vertex_radius is not None
        assert settings.min_layers is not None
        charged = (np.abs(columns["charge"]) == 1) & (columns["status"] == 1) & (radius < settings.max_vertex_radius)
        crossing = charged & (pt > CROSSING_PT) & (np.abs(columns["pz"]) < CROSSING_TAN_LAMBDA * pt)
        n_tracks, n = int((n_layers[crossing] >= settings.min_layers).sum()), int(crossing.sum())
        if n >= MIN_CROSSING and n_tracks < MOSTLY * n:
            absent = [name for name in settings.sim_tracker_hits if not self.file.columns.has(name)]
            gone = f" ({', '.join(absent)}: not in the file)" if absent else ""
            layers = f"have hits in {settings.min_layers} layers and so a track{gone}"
            text = f"only {n_tracks} of {n} charged particles that cross the tracker {layers}"
            self.reader.notes["truth tracks"] = text

    def hit_origins(self) -> HitOrigins:
        """The file's object behind each hit; call after `hits`."""
        cells = [
            self.get(name, "cellID")[index] if self.file.columns.has(name, "cellID") else _filled(index, np.uint64(0))
            for name, index in zip(self.names, self.index, strict=True)
        ]
        counts = np.array([jagged.count(array) for array in self.index], dtype=np.int64)
        joined = jagged.join({"index": self.index, "cell": cells}) if self.names else {"index": [], "cell": []}
        return HitOrigins(
            ids=np.array([self.file.id_of(name) for name in self.names], dtype=np.uint32),
            counts=counts.reshape(len(self.names), self.stop - self.start),
            index=jagged.flat(joined["index"], np.int32),
            cell_id=jagged.flat(joined["cell"], np.uint64),
        )

    def layers(self, name: str, like: ak.Array, fallback: str | None = None) -> ak.Array:
        """Layers of the hits of a collection, -1 unknown."""
        encoding = self.file.encodings.get(name, fallback)
        if encoding is None and self.file.columns.has(name, "layer"):  # a member of edm4eic's hits
            return ak.values_astype(self.get(name, "layer"), np.int32)
        if encoding is None or not self.file.columns.has(name, "cellID"):
            return _filled(like, np.int32(-1))
        cells = jagged.flat(self.get(name, "cellID"))
        return jagged.unflatten(self.file.layers(name, cells, encoding), jagged.count(like))

    def tracker_hits(self) -> ak.Array:
        pieces: dict[str, list[ak.Array]] = {name: [] for name in ("x", "y", "z", "energy", "time", "layer")}
        for name in self.sources["tracker_hits"]:
            for axis in "xyz":
                pieces[axis].append(self.get(name, f"position.{axis}"))
            pieces["energy"].append(self.get(name, "eDep", "EDep", "edep"))
            pieces["time"].append(self.get(name, "time"))
            pieces["layer"].append(self.layers(name, pieces["x"][-1]))
        return make_tracker_hits(**jagged.join(pieces))

    def tracks(self, collection: str) -> ak.Array:
        """Tracks of one collection.

        Momentum, charge and track parameters come from the state at the IP, else at the first hit, the last, the
        calorimeter, or any, followed along the helix to where it is closest to the z axis; NaN without a finite, curved
        state. Position and momentum at the calorimeter come from the state there, at
        ``referencePoint + (-D0 sin phi, D0 cos phi, Z0)``; without such a state the helix is followed.
        """
        location_by_event, parameters = self.states(collection)
        location = jagged.flat(location_by_event)
        begin, end = self.get(collection, "trackStates_begin"), self.get(collection, "trackStates_end")
        track, member = expand(begin, end, jagged.count(location_by_event))
        counts = jagged.count(begin)

        d0, z0, phi, omega, tan_lambda, x, y, _ = parameters
        usable = np.isfinite(parameters).all(axis=0) & (omega != 0)
        track, member, omega = track[usable[member]], member[usable[member]], np.where(usable, omega, np.nan)
        detector, charge = self.reader.detector, np.sign(omega)
        b_field = detector.b_field
        position = _position(parameters)
        momentum: Floats = np.stack(kinematics.momentum_from_track(omega, phi, tan_lambda, b_field))
        away = (location != AT_IP) | (np.hypot(x, y) > AT_AXIS)
        self.note_states(collection, "IP", away[location == AT_IP])
        rank = np.where((location >= AT_IP) & (location <= AT_CALORIMETER), location, AT_CALORIMETER + 1)
        vertex = _first_state(track, member, rank[member], int(counts.sum()))
        there = location[member] == AT_CALORIMETER
        elsewhere = ~_at_front(position, detector)
        if elsewhere[member[there]].any() and self.reader.states_elsewhere:
            there &= ~elsewhere[member]
        face = _first_state(track[there], member[there], rank[member][there], int(counts.sum()))
        at_face = np.append(np.concatenate([position, momentum]), np.full((6, 1), np.nan), axis=1)[:, face]

        if away.any():
            helix = [*position, *momentum, charge]
            distance, z_axis, *perigee = kinematics.perigee(*helix, b_field=b_field)
            d0, z0 = np.where(away, -np.sign(charge * b_field) * distance, d0), np.where(away, z_axis, z0)
            phi = np.where(away, np.arctan2(perigee[1], perigee[0]), phi)
            momentum[:2] = np.where(away, perigee, momentum[:2])
            position = np.where(away, [-d0 * np.sin(phi), d0 * np.cos(phi), z0], position)
        follow = np.flatnonzero((face < 0) & (vertex >= 0))
        if len(follow):
            start = vertex[follow]
            reached = follow_to_calorimeter(position[:, start].T, momentum[:, start].T, charge[start], detector)
            at_face[:, follow] = np.concatenate(reached, axis=1).T
        columns = {"omega": omega, "phi": phi, "tan_lambda": tan_lambda, "d0": d0, "z0": z0}
        columns = {name: np.append(values, np.nan)[vertex] for name, values in columns.items()}
        columns |= {f"calo_{name}": at_face[row] for row, name in enumerate(("x", "y", "z", "px", "py", "pz"))}
        return make_tracks(
            b_field=b_field, **{name: jagged.unflatten(values, counts) for name, values in columns.items()}
        )

    def note_states(self, collection: str, place: str, elsewhere: Mask) -> bool:
        """Whether many states of a place lie elsewhere, [state], which then is noted."""
        if many := bool(elsewhere.sum() > (1 - MOSTLY) * len(elsewhere)):
            where = f"{collection} at the {place}"
            states = f"{elsewhere.sum()} of {len(elsewhere)} states of {where} have a reference point elsewhere"
            self.reader.notes[where] = f"{states} (expected mm); their tracks are followed along the helix"
        return many

    def states(self, collection: str) -> tuple[ak.Array, Floats]:
        """Locations [event, state] and parameters of all states of tracks: `STATE`, float64 [8, state]."""
        states = track_states(self.file.columns, collection)
        if states is None:
            message = f"the tracks have no states; expected _{collection}_trackStates or {collection}_1"
            raise InputError(message, file=self.file.path, field=collection)
        parameters = [jagged.flat(self.get(states, name), np.float64) for name in STATE]
        return self.get(states, "location"), np.stack(parameters)

    def particles(self) -> ak.Array:
        """Monte Carlo particles. Parent: the first one, -1 for none; an index outside the list stays as it is."""
        (name,) = self.sources["truth"]
        columns = {
            key: self.get(name, member)
            for key, member in TRUTH_MEMBERS.items()
            if not member.startswith("vertex") or self.file.columns.has(name, member)
        }
        counts = jagged.count(columns["pdg"])
        parent = np.full(int(counts.sum()), -1, dtype=np.int64)
        branch = relation(self.file.columns, name, 0, "parents")
        if branch is not None:
            n_references, _, index = self.references(branch)
            child, member = expand(self.get(name, "parents_begin"), self.get(name, "parents_end"), n_references)
            first = np.unique(child, return_index=True)[1]
            parent[child[first]] = np.maximum(index[member[first]], -1)
        codes, charge = jagged.flat(columns["pdg"]), jagged.flat(columns["charge"], np.float64)
        known = known_charges(codes)
        wrong = np.flatnonzero(np.abs(known - charge) > CHARGE_ROUNDING)
        if len(wrong):
            first = wrong[0]
            expected = f"PDG code {codes[first]}: {charge[first]:g} e, expected {known[first]:g} e"
            text = f"{name}.charge is not the PDG's for {len(wrong)} of {len(charge)} particles ({expected})"
            self.reader.notes[f"{name}.charge"] = f"{text}; the PDG's is used"
            columns["charge"] = jagged.unflatten(np.where(np.isnan(known), charge, known), counts)
        if self.file.columns.has(name, "simulatorStatus"):
            bits = jagged.flat(self.get(name, "simulatorStatus"), np.int64)
            columns["overlay"] = jagged.unflatten((bits & OVERLAY) > 0, counts)
        return make_truth(**columns, parent=jagged.unflatten(parent, counts))

    def links(self, truth: Joined, tracks: ak.Array | None) -> dict[str, ak.Array]:
        """Links of hits and tracks; those to or from collections that are not read are left out."""
        counts = [jagged.count(array) for array in self.index]
        chosen = [index if some else None for index, some in zip(self.index, self.chosen, strict=True)]
        hits = Joined(self.names, counts or np.zeros((1, self.stop - self.start)), chosen)
        of_hits = [self.links_of(name, hits, truth) for name in self.sources["hit_links"]]
        of_hits += [self.sim_links(name, steps, hits, truth) for name, steps in self.contributions.items()]
        of_hits += [self.chained_links(link, names, hits, truth) for link, names in self.reader.chain.items()]
        pieces = {"hit_links": of_hits}
        if tracks is not None:
            joined_tracks = Joined(self.sources["tracks"], [jagged.count(tracks)])
            pieces["track_links"] = [self.links_of(name, joined_tracks, truth) for name in self.sources["track_links"]]
        return {name: Links.join(sets).normalised().records() for name, sets in pieces.items() if sets}

    def links_of(self, link: str, sources: Joined, truth: Joined) -> Links:
        """Links of one collection."""
        weights = self.get(link, "weight")
        weight, event = jagged.flat(weights, np.float64), jagged.event_index(jagged.count(weights))
        resolved, both_ids = [], []
        for end, (names, joined) in enumerate(((("from", "rec"), sources), (("to", "sim"), truth))):
            branch = relation(self.file.columns, link, end, *names)
            if branch is None:
                message = f"the links have no references; expected _{link}_{names[0]} or {link}#{end}"
                raise InputError(message, file=self.file.path, field=link)
            _, ids, index = self.references(branch, of=jagged.count(weights))
            both_ids.append(ids)
            resolved.append(joined.resolve(self.file, ids, index, event))
        (source, source_known), (particle, particle_known) = resolved
        keep = source_known & particle_known
        self.note_unresolved(link, keep, both_ids, f"{' or '.join(sources.names)} to {' or '.join(truth.names)}")
        return Links.by_event(event[keep], source[keep], particle[keep], weight[keep], self.stop - self.start)

    def note_unresolved(self, link: str, known: Mask, ids: Sequence[Index], ends: str) -> None:
        """Note a collection whose links all lead elsewhere, or many into collections that the file does not hold."""
        if not len(known) or known.mean() >= MOSTLY:
            return
        lost, names = np.zeros(len(known), dtype=np.bool_), set()
        for end_ids in ids:
            for number in np.unique(end_ids[~known]):
                name = self.file.ids.get(int(number) & 0xFFFFFFFF, "a collection without a name")
                if not self.file.columns.has(name):
                    names.add(name)
                    lost |= end_ids == number
        if lost.mean() > 1 - MOSTLY or not known.any():
            gone = f": {', '.join(sorted(names))} is not in the file" if names else ""
            self.reader.notes[link] = f"{known.sum()} of {len(known)} references of {link} lead from {ends}{gone}"

    def sim_links(self, name: str, steps: simulated.Contributions, hits: Joined, truth: Joined) -> Links:
        """Links of one simulated collection: the energy that each particle left in each of its hits."""
        slot = hits.names.index(name)
        particle, known = truth.resolve(self.file, steps.particle_id, steps.particle, steps.event)
        hit = steps.hit - jagged.offsets(steps.counts)[steps.event] + hits.offsets[slot, steps.event]
        self.note_unresolved(name, known | (steps.particle_id < 0), [steps.particle_id], f"{name} to {truth.names[0]}")
        stride = int(hit[known].max(initial=0)) + 1
        event_hit = (steps.event * stride + hit)[known]
        event_hit, particle, energy = sum_by_pair(event_hit, particle[known], steps.energy[known])
        return Links.by_event(event_hit // stride, event_hit % stride, particle, energy, self.stop - self.start)

    def chained_links(self, link: str, names: Sequence[str], hits: Joined, truth: Joined) -> Links:
        """Links of digitised hits by the contributions to the simulated hits that they are linked to."""
        made = {name: simulated.read_contributions(self.file, name, self.start, self.stop) for name in names}
        there = {name: steps for name, steps in made.items() if steps is not None}
        counts = [steps.counts for steps in there.values()]
        sim_hits = Joined(list(there), counts or np.zeros((1, self.stop - self.start)))
        n_hits, n_sim, n_true = (jagged.offsets(joined.totals) for joined in (hits, sim_hits, truth))

        def matrix(links: Links, sources: Joined, ends: Joined) -> Any:
            """Weights [source, end] over all events."""
            inside = (links.source < sources.totals[links.event]) & (links.particle < ends.totals[links.event])
            links = links.take(inside & (links.source >= 0) & (links.particle >= 0))
            where = links.flat_source(sources.totals), links.flat_particle(ends.totals)
            return coo_array((links.weight, where), shape=(sources.totals.sum(), ends.totals.sum())).tocsr()

        weights = matrix(self.links_of(link, hits, sim_hits), hits, sim_hits)
        deposits = [self.sim_links(name, steps, sim_hits, truth) for name, steps in there.items()]
        energy = sum((matrix(links, sim_hits, truth) for links in deposits), csr_array((n_sim[-1], n_true[-1])))
        shares = (weights @ energy).sorted_indices().tocoo()
        event = jagged.event_index(hits.totals)[shares.row]
        source, particle = shares.row - n_hits[event], shares.col - n_true[event]
        return Links.by_event(event, source, particle, shares.data, self.stop - self.start)


def missing_collections(file: PodioFile, detector: Detector, *, sim: bool | None = None) -> list[tuple[str, ...]]:
    """Alternatives of each required part of the detector that the file lacks; `sim` as in `Edm4hepReader`."""
    sim = _only_simulated(file, detector) if sim is None else sim
    groups = [_names(calorimeter, sim) for calorimeter in detector.calorimeters if calorimeter.required]
    missing = [names for names in groups if names and not any(_holds(file, name, sim) for name in names)]
    if detector.tracks_required and detector.tracks and file.columns.first(*detector.tracks) is None:
        missing.append(detector.tracks)
    return missing


def _holds(file: PodioFile, name: str, sim: bool) -> bool:
    """Whether a file holds a collection of hits; a digitised one may be a subset of another collection."""
    return file.columns.has(name) or (not sim and file.columns.has(f"{name}{SUBSET}"))


def _names(calorimeter: Calorimeter, sim: bool) -> tuple[str, ...]:
    return calorimeter.sim_collections if sim else calorimeter.collections


def _only_simulated(file: PodioFile, detector: Detector) -> bool:
    has_simulated, has_digitised = (
        any(_holds(file, name, sim) for calorimeter in detector.calorimeters for name in _names(calorimeter, sim))
        for sim in (True, False)
    )
    return has_simulated and not has_digitised


def _position(parameters: Floats) -> Floats:
    """Where states of tracks with parameters `STATE` [8, state] are, [3, state], mm."""
    d0, z0, phi, _, _, x, y, z = parameters
    return np.stack([x - d0 * np.sin(phi), y + d0 * np.cos(phi), z + z0])


def _at_front(position: Floats, detector: Detector) -> Mask:
    """Whether points [3, N], mm, lie near the front face of the calorimeter."""
    radius, z = np.hypot(*position[:2]), np.abs(position[2])
    most = detector.ecal_outer_radius / detector.ecal_inner_radius / FRONT
    inside = (radius < FRONT * detector.ecal_inner_radius) & (z < FRONT * detector.ecal_inner_z)
    beyond = (radius > most * detector.ecal_inner_radius) | (z > most * detector.ecal_inner_z)
    return np.asarray(~inside & ~beyond)


def _first_state(track: Index, member: Index, rank: Index, n_tracks: int) -> Index:
    """State of lowest rank of each track, the first among equals; -1 for a track without any."""
    order = np.lexsort((member, rank, track))
    with_state, first = np.unique(track[order], return_index=True)
    chosen = np.full(n_tracks, -1, dtype=np.int64)
    chosen[with_state] = member[order][first]
    return chosen


def _filled(like: ak.Array, value: np.generic) -> ak.Array:
    """One value of its type for each object of an array [event, object]."""
    counts = jagged.count(like)
    return jagged.unflatten(np.full(int(counts.sum()), value), counts)
