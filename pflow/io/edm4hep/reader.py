"""Reader of EDM4hep files, TTree and RNTuple, with digitised (REC) or simulated (SIM) hits."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, InputError, nearest
from pflow.event import jagged
from pflow.event.build import make_hits, make_particles, make_tracker_hits, make_truth
from pflow.event.events import Events, Flag
from pflow.event.links import Links
from pflow.event.truth_tracks import make_truth_tracks
from pflow.io.edm4hep.digitise import digitise
from pflow.io.edm4hep.podio import Joined, PodioFile, expand, relation
from pflow.io.edm4hep.sim_tracker_hits import count_layers
from pflow.io.edm4hep.simulated import Contributions, read_contributions, sum_weights
from pflow.io.edm4hep.tracks import read_tracks
from pflow.physics.detector import Calorimeter, Detector

__all__ = ["Edm4hepReader", "HitOrigins", "missing_collections"]

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HitOrigins:
    """Which objects of a file the hits of consecutive entries are.

    Parameters
    ----------
    collections, ids
        Names and ids of the collections that the hits of every event come from, in this order.
    counts
        int64 [collection, event]: hits from each.
    index
        int32 [hit]: index in its collection.
    cell_id
        uint64 [hit]: cell id, 0 unknown.
    """

    collections: tuple[str, ...]
    ids: npt.NDArray[np.uint32]
    counts: Ints
    index: npt.NDArray[np.int32]
    cell_id: npt.NDArray[np.uint64]

    @property
    def slot(self) -> Ints:
        """int64 [hit]: which of the collections each hit is from."""
        n_collections, n_events = self.counts.shape
        return np.repeat(np.tile(np.arange(n_collections), n_events), self.counts.T.ravel())


class Edm4hepReader:
    """Reader of one open EDM4hep file (a `pflow.io.reader.Reader`).

    Parameters
    ----------
    file
        From `pflow.io.edm4hep.podio.open_podio`. The reader closes it.
    detector
        Names of the collections.
    sim
        Read simulated instead of digitised hits. By default where the file holds no digitised calorimeter
        collection of the detector. The two are never mixed: their energies are on different scales.
    truth_tracks
        Where the file has none of the detector's track collections, make tracks from its Monte Carlo particles
        (`pflow.event.truth_tracks`) and flag the events ``Flag.TRUTH_TRACKS``.

    Attributes
    ----------
    truth_tracks
        Whether tracks are made so.
    sources
        Collections that are read, by part: each calorimeter's name, ``tracks``, ``tracker_hits``, ``truth``,
        ``hit_links``, ``track_links``, ``reference``.

    Raises
    ------
    InputError
        A required collection is absent; names the nearest matches.
    ConfigError
        Simulated hits are asked for, and the detector names no simulated collections; or tracks from Monte Carlo
        particles, and the detector does not describe them.
    """

    def __init__(
        self, file: PodioFile, *, detector: Detector, sim: bool | None = None, truth_tracks: bool = False
    ) -> None:
        columns = file.columns
        self.file = file
        self.schema = file.schema
        self.path = file.path
        self.uuid = file.uuid
        self.num_entries = columns.num_entries
        self.detector = detector
        self.sim = _only_simulated(file, detector) if sim is None else sim
        if not any(_calorimeter_names(calorimeter, self.sim) for calorimeter in detector.calorimeters):
            raise ConfigError(
                f"detector '{detector.name}' names no {'simulated' if self.sim else 'digitised'} collections"
            )
        missing = missing_collections(file, detector, sim=self.sim)
        if missing:
            names = " or ".join(f"'{name}'" for name in missing[0])
            raise InputError(
                f"required collection {names} of detector '{detector.name}' is not in the file",
                file=self.path,
                field=missing[0][0],
                suggestions=nearest(missing[0][0], columns.collections),
            )
        self.sources: Mapping[str, tuple[str, ...]] = _sources(file, detector, sim=self.sim)
        wanted = _wanted(detector, sim=self.sim)
        self.truth_tracks = truth_tracks and not self.sources["tracks"]
        if self.truth_tracks:
            self._check_truth_tracks()
        found = {name for names in self.sources.values() for name in names}
        self.absent = tuple(
            name
            for part, names in wanted.items()
            for name in names
            if name not in found and not (part in _ALTERNATIVES and self.sources[part])
        )

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self.file.close()

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Entries `start` to `stop`; see `pflow.io.reader.Reader.read`."""
        hits, joined, contributions = self._hits(start, stop)
        parts: dict[str, Any] = {}
        event = self.file.event_numbers(start, stop)
        if self.sources["tracks"]:
            (tracks,) = self.sources["tracks"]
            parts["tracks"] = read_tracks(self.file, tracks, start, stop, b_field=self.detector.b_field)
        if self.sources["tracker_hits"]:
            parts["tracker_hits"] = self._tracker_hits(start, stop)
        if truth and self.sources["truth"]:
            parts |= self._truth(start, stop, joined, contributions, parts.get("tracks"))
        if self.truth_tracks:
            tracks, track_links = self._truth_tracks(start, stop, event)
            parts["tracks"] = tracks
            parts["flags"] = np.full(stop - start, Flag.TRUTH_TRACKS, dtype=np.uint32)
            if truth:
                parts["track_links"] = track_links
        if truth and self.sources["reference"]:
            parts["reference"] = self._reference(start, stop)
            parts["reference_name"] = self.sources["reference"][0]
        return Events(
            detector=self.detector,
            hits=hits,
            path=self.path,
            entry=np.arange(start, stop),
            event=event,
            absent=self.absent,
            **parts,
        )

    def hit_origins(self, start: int, stop: int) -> HitOrigins:
        """Which objects of the file the hits of the entries `start` to `stop` are, in the order of ``Events.hits``."""
        names: list[str] = []
        index: list[ak.Array] = []
        cells: list[ak.Array] = []
        for calorimeter in self.detector.calorimeters:
            for name in self.sources[calorimeter.name]:
                names.append(name)
                if self.sim:
                    columns, _ = self._collection(start, stop, name, calorimeter)
                    index.append(columns["index"])
                else:
                    index.append(_local_index(self._get(start, stop, name, "energy")))
                if self.file.columns.has(name, "cellID"):
                    cells.append(self._get(start, stop, name, "cellID")[index[-1]])
                else:
                    cells.append(ak.zeros_like(index[-1], dtype=np.uint64))
        counts = [jagged.count(array) for array in index]
        joined = jagged.join({"index": index, "cell": cells}) if names else {"index": [], "cell": []}
        return HitOrigins(
            collections=tuple(names),
            ids=np.array([self.file.id_of(name) for name in names], dtype=np.uint32),
            counts=np.array(counts, dtype=np.int64).reshape(len(names), stop - start),
            index=jagged.flat(joined["index"], np.int32),
            cell_id=jagged.flat(joined["cell"], np.uint64),
        )

    def _get(self, start: int, stop: int, collection: str, *members: str) -> ak.Array:
        return self.file.columns.get(collection, *members, start=start, stop=stop)

    def _hits(self, start: int, stop: int) -> tuple[ak.Array, Joined, dict[str, Contributions]]:
        """Hits of all calorimeters, where each collection went, and the contributions to each simulated one."""
        names: list[str] = []
        contributions: dict[str, Contributions] = {}
        pieces: defaultdict[str, list[ak.Array]] = defaultdict(list)
        for subdetector, calorimeter in enumerate(self.detector.calorimeters):
            for name in self.sources[calorimeter.name]:
                names.append(name)
                columns, own = self._collection(start, stop, name, calorimeter)
                if own is not None:
                    contributions[name] = own
                columns["subdetector"] = _filled(columns["energy"], np.int32(subdetector))
                del columns["index"]
                for key, values in columns.items():
                    pieces[key].append(values)
        counts = [jagged.count(energy) for energy in pieces["energy"]]
        joined = Joined(names, counts or np.zeros((1, stop - start)))
        none = jagged.unflatten(np.zeros(0, dtype=np.float32), np.zeros(stop - start, dtype=np.int64))
        columns = jagged.join(pieces) if names else dict.fromkeys(("energy", "x", "y", "z"), none)
        return make_hits(**columns), joined, contributions

    def _collection(
        self, start: int, stop: int, name: str, calorimeter: Calorimeter
    ) -> tuple[dict[str, ak.Array], Contributions | None]:
        """Columns of one collection of hits, ``index`` in the file's collection among them, and what made them."""
        energy = self._get(start, stop, name, "energy")
        columns = {"energy": energy, "index": _local_index(energy)}
        columns |= {axis: self._get(start, stop, name, f"position.{axis}") for axis in "xyz"}
        columns["layer"] = self._layers(start, stop, name, energy, calorimeter.cell_encoding)
        if self.sim:
            return _digitised(calorimeter, columns, read_contributions(self.file, name, start, stop))
        timed = self.file.columns.has(name, "time")
        columns["time"] = self._get(start, stop, name, "time") if timed else _filled(energy, np.float32(np.nan))
        return columns, None

    def _layers(self, start: int, stop: int, name: str, like: ak.Array, fallback: str | None) -> ak.Array:
        encoding = self.file.encodings.get(name, fallback)
        if encoding is None and self.file.columns.has(name, "layer"):  # a member of edm4eic's hits
            return ak.values_astype(self._get(start, stop, name, "layer"), np.int32)
        if encoding is None or not self.file.columns.has(name, "cellID"):
            return _filled(like, np.int32(-1))
        cells = jagged.flat(self._get(start, stop, name, "cellID"))
        return jagged.unflatten(self.file.layers(name, cells, encoding), jagged.count(like))

    def _tracker_hits(self, start: int, stop: int) -> ak.Array:
        pieces: dict[str, list[ak.Array]] = {name: [] for name in ("x", "y", "z", "energy", "time", "layer")}
        for name in self.sources["tracker_hits"]:
            for axis in "xyz":
                pieces[axis].append(self._get(start, stop, name, f"position.{axis}"))
            pieces["energy"].append(self._get(start, stop, name, "eDep", "EDep", "edep"))
            pieces["time"].append(self._get(start, stop, name, "time"))
            pieces["layer"].append(self._layers(start, stop, name, pieces["x"][-1], None))
        return make_tracker_hits(**jagged.join(pieces))

    def _truth(
        self, start: int, stop: int, joined: Joined, contributions: Mapping[str, Contributions], tracks: ak.Array | None
    ) -> dict[str, Any]:
        particles, truth = self._particles(start, stop)
        found: dict[str, Any] = {"truth": particles}
        pieces = [self._links(start, stop, link, joined, truth) for link in self.sources["hit_links"]]
        pieces += [self._sim_links(name, own, joined, truth) for name, own in contributions.items()]
        if pieces:
            found["hit_links"] = Links.join(pieces).normalised().records()
        if tracks is not None and self.sources["track_links"]:
            own = Joined(self.sources["tracks"], [jagged.count(tracks)])
            pieces = [self._links(start, stop, link, own, truth) for link in self.sources["track_links"]]
            found["track_links"] = Links.join(pieces).normalised().records()
        return found

    def _particles(self, start: int, stop: int) -> tuple[ak.Array, Joined]:
        """Monte Carlo particles, and where their collection went."""
        (name,) = self.sources["truth"]
        columns = {
            key: self._get(start, stop, name, member)
            for key, member in _TRUTH_MEMBERS.items()
            if key not in ("vx", "vy", "vz") or self.file.columns.has(name, member)
        }
        particles = make_truth(**columns, parent=self._parents(start, stop, name, columns["pdg"]))
        return particles, Joined([name], [jagged.count(particles)])

    def _check_truth_tracks(self) -> None:
        """Refuse what tracks cannot be made from."""
        settings = self.detector.truth_tracks
        if settings is None:
            raise ConfigError(f"detector '{self.detector.name}' does not describe truth_tracks, how they are made")
        for names in (settings.sim_tracker_hits, self.detector.truth_particles):
            if self.file.columns.first(*names) is None:
                raise InputError(
                    f"tracks from Monte Carlo particles need one of {', '.join(names)}, and the file has none of them",
                    file=self.path,
                    field=names[0] if names else None,
                    suggestions=nearest(names[0], self.file.columns.collections) if names else (),
                )

    def _truth_tracks(self, start: int, stop: int, event: Ints) -> tuple[ak.Array, ak.Array]:
        """Tracks made from Monte Carlo particles, and the links from them."""
        settings = self.detector.truth_tracks
        assert settings is not None  # checked when the file was opened
        particles, truth = self._particles(start, stop)
        names = [name for name in settings.sim_tracker_hits if self.file.columns.has(name)]
        n_layers = count_layers(self.file, names, truth, start, stop)
        return make_truth_tracks(
            particles,
            n_layers,
            detector=self.detector,
            settings=settings,
            event=event,
            entry=np.arange(start, stop),
        )

    def _parents(self, start: int, stop: int, name: str, like: ak.Array) -> ak.Array:
        """First parent of each particle, -1 for none; an index outside the list stays as it is."""
        references = relation(self.file.columns, name, 0, "parents")
        counts = jagged.count(like)
        parent = np.full(int(counts.sum()), -1, dtype=np.int64)
        if references is not None:
            begin, end = (self._get(start, stop, name, f"parents_{side}") for side in ("begin", "end"))
            index = self._get(start, stop, references, "index")
            child, member = expand(begin, end, jagged.count(index))
            first = np.unique(child, return_index=True)[1]
            parent[child[first]] = np.maximum(jagged.flat(index)[member[first]], -1)
        return jagged.unflatten(parent, counts)

    def _links(self, start: int, stop: int, link: str, sources: Joined, truth: Joined) -> Links:
        """Links of one collection; those to or from collections that are not read are left out."""
        ends = []
        for end, names in enumerate((("from", "rec"), ("to", "sim"))):
            branch = relation(self.file.columns, link, end, *names)
            if branch is None:
                raise InputError(
                    f"the links have no references; expected _{link}_{names[0]} or {link}#{end}",
                    file=self.path,
                    field=link,
                )
            ends.append(branch)
        weights = self._get(start, stop, link, "weight")
        weight, event = jagged.flat(weights), jagged.event_index(jagged.count(weights))
        resolved = []
        for branch, joined in zip(ends, (sources, truth), strict=True):
            ids = self._get(start, stop, branch, "collectionID")
            collection_id, id_event = jagged.flat(ids), jagged.event_index(jagged.count(ids))
            index = jagged.flat(self._get(start, stop, branch, "index"))
            if len(collection_id) != len(weight):
                raise InputError(
                    f"{len(collection_id)} references for {len(weight)} links",
                    file=self.path,
                    entry=start,
                    field=branch,
                )
            resolved.append(joined.resolve(self.file, collection_id, index, id_event))
        (source, source_known), (particle, particle_known) = resolved
        keep = source_known & particle_known
        return Links.by_event(event[keep], source[keep], particle[keep], weight[keep].astype(np.float64), stop - start)

    def _sim_links(self, name: str, contributions: Contributions, joined: Joined, truth: Joined) -> Links:
        """Links of one simulated collection: the energy that each particle left in each of its hits."""
        slot = joined.names.index(name)
        event = contributions.event
        particle, known = truth.resolve(self.file, contributions.particle_id, contributions.particle, event)
        hit = contributions.hit - jagged.offsets(contributions.counts)[event] + joined.offsets[slot, event]
        sums = sum_weights(event[known], hit[known], particle[known], contributions.energy[known])
        return Links.by_event(*sums, len(contributions.counts))

    def _reference(self, start: int, stop: int) -> ak.Array:
        (name,) = self.sources["reference"]
        optional = {
            key: self._get(start, stop, name, member)
            for key, member in (("mass", "mass"), ("score", "goodnessOfPID"))
            if self.file.columns.has(name, member)
        }
        return make_particles(
            pdg=self._get(start, stop, name, "PDG", "type"),  # the code was called type before EDM4hep 0.99
            charge=self._get(start, stop, name, "charge"),
            energy=self._get(start, stop, name, "energy"),
            px=self._get(start, stop, name, "momentum.x"),
            py=self._get(start, stop, name, "momentum.y"),
            pz=self._get(start, stop, name, "momentum.z"),
            **optional,
        )


def missing_collections(file: PodioFile, detector: Detector, *, sim: bool | None = None) -> list[tuple[str, ...]]:
    """Alternatives of each required part of the detector that the file lacks; `sim` as in `Edm4hepReader`."""
    simulated = _only_simulated(file, detector) if sim is None else sim
    groups = [
        _calorimeter_names(calorimeter, simulated) for calorimeter in detector.calorimeters if calorimeter.required
    ]
    if detector.tracks_required:
        groups.append(detector.tracks)
    return [names for names in groups if file.columns.first(*names) is None and names]


_ALTERNATIVES = ("tracks", "truth", "reference")
"""Parts of which only the first available collection is read; of the others all are joined."""

_TRUTH_MEMBERS = {
    "pdg": "PDG",
    "mass": "mass",
    "charge": "charge",
    "status": "generatorStatus",
    "px": "momentum.x",
    "py": "momentum.y",
    "pz": "momentum.z",
    "vx": "vertex.x",
    "vy": "vertex.y",
    "vz": "vertex.z",
}


def _calorimeter_names(calorimeter: Calorimeter, sim: bool) -> tuple[str, ...]:
    return calorimeter.sim_collections if sim else calorimeter.collections


def _only_simulated(file: PodioFile, detector: Detector) -> bool:
    def any_of(sim: bool) -> bool:
        names = [name for calorimeter in detector.calorimeters for name in _calorimeter_names(calorimeter, sim)]
        return file.columns.first(*names) is not None

    return any_of(True) and not any_of(False)


def _wanted(detector: Detector, *, sim: bool) -> dict[str, tuple[str, ...]]:
    """Collections that the detector names, by part. Digitised links do not point to simulated hits."""
    parts = {calorimeter.name: _calorimeter_names(calorimeter, sim) for calorimeter in detector.calorimeters}
    return parts | {
        "tracks": detector.tracks,
        "tracker_hits": detector.tracker_hits,
        "truth": detector.truth_particles,
        "hit_links": () if sim else detector.hit_links,
        "track_links": detector.track_links,
        "reference": detector.references,
    }


def _sources(file: PodioFile, detector: Detector, *, sim: bool) -> dict[str, tuple[str, ...]]:
    """Those of the wanted collections that the file holds."""
    there = {
        part: tuple(name for name in names if file.columns.has(name))
        for part, names in _wanted(detector, sim=sim).items()
    }
    return {part: names[:1] if part in _ALTERNATIVES else names for part, names in there.items()}


def _digitised(
    calorimeter: Calorimeter, columns: dict[str, ak.Array], contributions: Contributions | None
) -> tuple[dict[str, ak.Array], Contributions | None]:
    """Columns of the hits that digitisation keeps, with their time, and the contributions that count to them."""
    values = {key: jagged.flat(array) for key, array in columns.items()}
    found = digitise(
        calorimeter,
        energy=values["energy"].astype(np.float64),
        position=np.stack([values[axis] for axis in "xyz"], axis=-1).astype(np.float64),
        layer=values["layer"],
        contributions=contributions,
    )
    values |= {"energy": found.energy, "time": found.time}
    event = jagged.event_index(jagged.count(columns["energy"]))
    counts = np.bincount(event[found.kept], minlength=len(columns["energy"]))
    if contributions is not None and found.counted is not None:
        contributions = contributions.of_kept(found.kept, found.counted)
    return {key: jagged.unflatten(array[found.kept], counts) for key, array in values.items()}, contributions


def _local_index(like: ak.Array) -> ak.Array:
    """Index of each object in its event, int64 of the shape of an array [event, object]."""
    counts = jagged.count(like)
    return jagged.unflatten(jagged.local_index(counts), counts)


def _filled(like: ak.Array, value: np.generic) -> ak.Array:
    """One value of its type for each object of an array [event, object]."""
    counts = jagged.count(like)
    return jagged.unflatten(np.full(int(counts.sum()), value), counts)
