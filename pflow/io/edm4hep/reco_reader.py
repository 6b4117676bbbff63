"""Reader of the reconstructed particles of an EDM4hep file, ours (`pflow.io.edm4hep.reco_names`) or any other."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError, nearest
from pflow.event import jagged
from pflow.event.build import make_particles
from pflow.event.links import Links
from pflow.event.particles import Reconstruction
from pflow.io.edm4hep.podio import PodioFile, expand
from pflow.io.edm4hep.reco_names import RecoNames
from pflow.physics.pdg import CLASSES

__all__ = ["Edm4hepRecoReader"]

Ints = npt.NDArray[np.int64]


class Edm4hepRecoReader:
    """Reads a collection of edm4hep::ReconstructedParticle as a reconstruction.

    Parameters
    ----------
    file
        From `pflow.io.edm4hep.podio.open_podio`; closed with it.
    name
        The collection. Of another program's file its particles are read, without links and probabilities.
    links
        Whether to read links of hits and tracks.

    Raises
    ------
    InputError
        No such collection, with the nearest names.
    """

    def __init__(self, file: PodioFile, name: str, *, links: bool) -> None:
        columns = file.columns
        if not columns.has(name, "energy", "momentum.x", "charge"):
            known = [found for found in columns.collections if columns.has(found, "goodnessOfPID")]
            raise InputError(
                "no such collection of reconstructed particles"
                + (f"; the file holds {', '.join(known)}" if known else ""),
                file=file.path,
                field=name,
                suggestions=nearest(name, known),
            )
        self.num_entries = columns.num_entries
        self._file = file
        self._names = RecoNames(name)
        metadata = file.frame_parameters("metadata") if "metadata" in file.categories() else []
        texts, numbers = (metadata[0].get(kind, {}) if metadata else {} for kind in ("String", "Int"))
        self._hit_ids = np.array(numbers.get(f"{name}__HitCollectionIDs", []), dtype=np.int64) & 0xFFFFFFFF
        parts = set(texts.get(f"{name}__Parts", []))
        self.parts = frozenset(parts if links else parts - {"hit_links", "track_links"})
        """What the file holds of links, ``scores`` and ``covariance``."""

    def read(self, start: int, stop: int) -> Reconstruction:
        """Entries `start` to `stop` (exclusive).

        Raises
        ------
        InputError
            A member is missing or cannot be decoded, or lists do not have the lengths that they should.
        """
        name = self._names.particles
        columns: dict[str, Any] = {
            "pdg": self._get(start, stop, name, "PDG", "type"),
            **{member: self._get(start, stop, name, member) for member in ("charge", "energy", "mass")},
            **{f"p{axis}": self._get(start, stop, name, f"momentum.{axis}") for axis in "xyz"},
            "score": self._get(start, stop, name, "goodnessOfPID"),
        }
        counts = jagged.count(columns["energy"])
        if "covariance" in self.parts:
            columns["covariance"] = self._get(start, stop, name, "covMatrix.values")
        if "scores" in self.parts:
            columns["scores"] = self._scores(start, stop, counts)
        links = {}
        if "hit_links" in self.parts:
            links["hit_links"] = self._hit_links(start, stop, counts)
        if "track_links" in self.parts:
            links["track_links"] = self._track_links(start, stop, counts)
        flags = self._parameter(start, stop, "flags")
        return Reconstruction(
            particles=make_particles(**columns),
            event=self._file.event_numbers(start, stop),
            flags=np.array([values[0] if values else 0 for values in flags], dtype=np.int32).astype(np.uint32),
            name=name,
            **links,
        )

    def _get(self, start: int, stop: int, collection: str, *members: str) -> ak.Array:
        return self._file.columns.get(collection, *members, start=start, stop=stop)

    def _parameter(self, start: int, stop: int, name: str) -> list[list[int]]:
        """A whole-number parameter of each frame, empty where it has none."""
        key = f"{self._names.particles}_{name}"
        return [frame.get("Int", {}).get(key, []) for frame in self._file.frame_parameters("events", start, stop)]

    def _members(self, start: int, stop: int, collection: str, relation: str, sizes: Ints) -> tuple[Ints, Ints]:
        """Object and member of each entry of a one-to-many relation, both counted over all events."""
        begin, end = (self._get(start, stop, collection, f"{relation}_{side}") for side in ("begin", "end"))
        return expand(begin, end, sizes)

    def _scores(self, start: int, stop: int, counts: Ints) -> ak.Array:
        field = f"_{self._names.particle_id}_parameters"
        values = self._get(start, stop, field, "")
        self._check(start, field, jagged.count(values), counts * len(CLASSES), "probabilities of the particles")
        return ak.unflatten(jagged.flat(values).reshape(-1, len(CLASSES)), counts)

    def _hit_links(self, start: int, stop: int, counts: Ints) -> ak.Array:
        names = self._names
        field = f"_{names.clusters}_hits"
        collection_id = self._get(start, stop, field, "collectionID")
        n_links, n_clusters = (
            jagged.count(collection_id),
            jagged.count(self._get(start, stop, names.clusters, "energy")),
        )
        weight = self._get(start, stop, names.hit_weights, "")
        self._check(start, names.hit_weights, jagged.count(weight), n_links, "weights of the hits")
        particle_of = np.zeros(int(n_clusters.sum()), dtype=np.int64)
        particle, cluster = self._members(start, stop, names.particles, "clusters", n_clusters)
        particle_of[cluster] = particle
        cluster, link = self._members(start, stop, names.clusters, "hits", n_links)
        event = jagged.event_index(n_links)[link]
        source = jagged.flat(self._get(start, stop, field, "index"), np.int64)[link]
        if len(self._hit_ids) and len(link):
            offsets = np.array(self._parameter(start, stop, "hitOffsets"), dtype=np.int64)  # [event, collection]
            from_it = jagged.flat(collection_id, np.int64)[link, None] == self._hit_ids  # [link, collection]
            source = source + (offsets[event] * from_it).sum(axis=1)
        return self._links(source, particle_of[cluster], jagged.flat(weight)[link], event, counts)

    def _track_links(self, start: int, stop: int, counts: Ints) -> ak.Array:
        names = self._names
        index = self._get(start, stop, f"_{names.particles}_tracks", "index")
        n_links = jagged.count(index)
        weight = self._get(start, stop, names.track_weights, "")
        self._check(start, names.track_weights, jagged.count(weight), n_links, "weights of the tracks")
        particle, link = self._members(start, stop, names.particles, "tracks", n_links)
        event = jagged.event_index(n_links)[link]
        return self._links(jagged.flat(index)[link], particle, jagged.flat(weight)[link], event, counts)

    def _links(
        self, source: npt.NDArray[Any], particle: Ints, weight: npt.NDArray[Any], event: Ints, counts: Ints
    ) -> ak.Array:
        local = particle - jagged.offsets(counts)[event]
        return Links.by_event(event, source, local, weight, len(counts)).records()

    def _check(self, start: int, field: str, found: Ints, expected: Ints, what: str) -> None:
        wrong = np.flatnonzero(found != expected)
        if len(wrong):
            at = wrong[0]
            raise InputError(
                f"{found[at]} numbers, expected {expected[at]}: the {what}",
                file=self._file.path,
                entry=start + int(at),
                field=field,
            )
