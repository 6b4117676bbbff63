"""Reader of EDM4hep files, TTree and RNTuple, with digitised (REC) or simulated (SIM) hits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, InputError, nearest
from pflow.event import jagged
from pflow.event.build import make_hits, make_links, make_particles, make_tracker_hits, make_truth
from pflow.event.events import Events
from pflow.io.edm4hep.cellid import layer_from_cell_id
from pflow.io.edm4hep.podio import Joined, PodioFile, expand, relation
from pflow.io.edm4hep.simulated import Contributions, earliest_times, read_contributions, shares
from pflow.io.edm4hep.tracks import read_tracks
from pflow.physics.detector import Calorimeter, Detector

__all__ = ["Edm4hepReader", "missing_collections"]

Ints = npt.NDArray[np.int64]
LinkColumns = tuple[Ints, Ints, Ints, npt.NDArray[np.float64]]


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

    Attributes
    ----------
    sources
        Collections that are read, by part: each calorimeter's name, ``tracks``, ``tracker_hits``, ``truth``,
        ``hit_links``, ``track_links``, ``reference``.

    Raises
    ------
    InputError
        A required collection is absent; names the nearest matches.
    ConfigError
        Simulated hits are asked for, and the detector names no simulated collections.
    """

    def __init__(self, file: PodioFile, *, detector: Detector, sim: bool | None = None) -> None:
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
        contributions = self._contributions(start, stop) if self.sim else {}
        hits, joined = self._hits(start, stop, contributions)
        parts: dict[str, Any] = {}
        if self.sources["tracks"]:
            (tracks,) = self.sources["tracks"]
            parts["tracks"] = read_tracks(self.file, tracks, start, stop, b_field=self.detector.b_field)
        if self.sources["tracker_hits"]:
            parts["tracker_hits"] = self._tracker_hits(start, stop)
        if truth and self.sources["truth"]:
            parts |= self._truth(start, stop, joined, contributions, parts.get("tracks"))
        if truth and self.sources["reference"]:
            parts["reference"] = self._reference(start, stop)
            parts["reference_name"] = self.sources["reference"][0]
        return Events(
            detector=self.detector,
            hits=hits,
            path=self.path,
            entry=np.arange(start, stop),
            event=self._event_numbers(start, stop),
            absent=self.absent,
            **parts,
        )

    def _get(self, start: int, stop: int, collection: str, *members: str) -> ak.Array:
        return self.file.columns.get(collection, *members, start=start, stop=stop)

    def _event_numbers(self, start: int, stop: int) -> Ints:
        entries = np.arange(start, stop, dtype=np.int64)
        if not self.file.columns.has("EventHeader", "eventNumber"):
            return entries
        numbers = ak.firsts(self._get(start, stop, "EventHeader", "eventNumber"))
        known = ~ak.to_numpy(ak.is_none(numbers))
        return np.where(known, ak.to_numpy(ak.fill_none(numbers, 0)), entries).astype(np.int64)

    def _contributions(self, start: int, stop: int) -> dict[str, Contributions]:
        """Contributions to the hits of each simulated collection that has them in the file."""
        names = [name for calorimeter in self.detector.calorimeters for name in self.sources[calorimeter.name]]
        found = {name: read_contributions(self.file, name, start, stop) for name in names}
        return {name: own for name, own in found.items() if own is not None}

    def _hits(self, start: int, stop: int, contributions: Mapping[str, Contributions]) -> tuple[ak.Array, Joined]:
        """Hits of all calorimeters, one collection after the other, and their numbers."""
        names: list[str] = []
        pieces: dict[str, list[ak.Array]] = {name: [] for name in _HIT_COLUMNS}
        for subdetector, calorimeter in enumerate(self.detector.calorimeters):
            for name in self.sources[calorimeter.name]:
                names.append(name)
                energy = self._get(start, stop, name, "energy")
                pieces["energy"].append(energy * np.float32(calorimeter.sim_scale) if self.sim else energy)
                for axis in "xyz":
                    pieces[axis].append(self._get(start, stop, name, f"position.{axis}"))
                if name in contributions:
                    pieces["time"].append(earliest_times(contributions[name]))
                elif self.file.columns.has(name, "time"):
                    pieces["time"].append(self._get(start, stop, name, "time"))
                else:
                    pieces["time"].append(ak.full_like(energy, np.nan))
                pieces["subdetector"].append(ak.full_like(energy, subdetector, dtype=np.int32))
                pieces["layer"].append(self._layers(start, stop, name, energy, calorimeter.cell_encoding))
        counts = [jagged.count(energy) for energy in pieces["energy"]]
        joined = Joined(names, counts or np.zeros((1, stop - start)))
        none = ak.unflatten(np.zeros(0, dtype=np.float32), np.zeros(stop - start, dtype=np.int64))
        return make_hits(**{key: _join(arrays, none) for key, arrays in pieces.items()}), joined

    def _layers(self, start: int, stop: int, name: str, like: ak.Array, fallback: str | None) -> ak.Array:
        encoding = self.file.encodings.get(name, fallback)
        if encoding is None or not self.file.columns.has(name, "cellID"):
            return ak.full_like(like, -1, dtype=np.int32)
        cells = jagged.flat(self._get(start, stop, name, "cellID"))
        try:
            layers = layer_from_cell_id(cells, encoding)
        except ValueError as error:
            raise InputError(f"cell encoding: {error}", file=self.path, field=name) from error
        return ak.unflatten(layers, jagged.count(like))

    def _tracker_hits(self, start: int, stop: int) -> ak.Array:
        pieces: dict[str, list[ak.Array]] = {name: [] for name in ("x", "y", "z", "energy", "time", "layer")}
        for name in self.sources["tracker_hits"]:
            for axis in "xyz":
                pieces[axis].append(self._get(start, stop, name, f"position.{axis}"))
            pieces["energy"].append(self._get(start, stop, name, "eDep", "EDep"))
            pieces["time"].append(self._get(start, stop, name, "time"))
            pieces["layer"].append(self._layers(start, stop, name, pieces["x"][-1], None))
        return make_tracker_hits(**{key: ak.concatenate(arrays, axis=1) for key, arrays in pieces.items()})

    def _truth(
        self, start: int, stop: int, joined: Joined, contributions: Mapping[str, Contributions], tracks: ak.Array | None
    ) -> dict[str, Any]:
        (name,) = self.sources["truth"]
        columns = {
            key: self._get(start, stop, name, member)
            for key, member in _TRUTH_MEMBERS.items()
            if key not in ("vx", "vy", "vz") or self.file.columns.has(name, member)
        }
        particles = make_truth(**columns, parent=self._parents(start, stop, name, columns["pdg"]))
        truth = Joined([name], [jagged.count(particles)])
        found: dict[str, Any] = {"truth": particles}
        pieces = [self._links(start, stop, link, joined, truth) for link in self.sources["hit_links"]]
        pieces += [self._sim_links(name, own, joined, truth) for name, own in contributions.items()]
        if pieces:
            found["hit_links"] = _make_links(pieces, stop - start)
        if tracks is not None and self.sources["track_links"]:
            own = Joined(self.sources["tracks"], [jagged.count(tracks)])
            pieces = [self._links(start, stop, link, own, truth) for link in self.sources["track_links"]]
            found["track_links"] = _make_links(pieces, stop - start)
        return found

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
        return ak.unflatten(parent, counts)

    def _links(self, start: int, stop: int, link: str, sources: Joined, truth: Joined) -> LinkColumns:
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
        return event[keep], source[keep], particle[keep], weight[keep].astype(np.float64)

    def _sim_links(self, name: str, contributions: Contributions, joined: Joined, truth: Joined) -> LinkColumns:
        """Links of one simulated collection: the energy that each particle left in each of its hits."""
        slot = joined.names.index(name)
        event = contributions.event
        particle, known = truth.resolve(self.file, contributions.particle_id, contributions.particle, event)
        hit = contributions.hit - jagged.offsets(contributions.counts)[event] + joined.offsets[slot, event]
        return shares(event[known], hit[known], particle[known], contributions.energy[known])

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


_HIT_COLUMNS = ("energy", "x", "y", "z", "time", "subdetector", "layer")

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


def _join(arrays: list[ak.Array], none: ak.Array) -> ak.Array:
    return ak.concatenate(arrays, axis=1) if arrays else none


def _make_links(pieces: Iterable[LinkColumns], n_events: int) -> ak.Array:
    event, source, particle, weight = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    order = np.argsort(event, kind="stable")
    counts = np.bincount(event, minlength=n_events)
    return make_links(
        source=ak.unflatten(source[order], counts),
        particle=ak.unflatten(particle[order], counts),
        weight=ak.unflatten(weight[order], counts),
    )
