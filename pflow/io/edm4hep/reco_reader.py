"""Reader of the reconstructed particles of an EDM4hep file, ours (`pflow.io.edm4hep.reco`) or any other."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError, nearest
from pflow.event import jagged
from pflow.event.links import Links
from pflow.event.particles import Reconstruction
from pflow.event.schema import make_particles
from pflow.io.edm4hep.podio import PodioFile, expand
from pflow.io.edm4hep.reco import RecoNames
from pflow.physics.pdg import CLASSES

Ints = npt.NDArray[np.int64]


class Edm4hepRecoReader:
    """Reads the collection `name` of edm4hep::ReconstructedParticle; another program's without links and probabilities.

    `parts`: what the file holds of links, ``existence``, ``scores`` and ``covariance``.
    """

    def __init__(self, file: PodioFile, name: str, *, hit_links: bool) -> None:
        columns = file.columns
        if not columns.has(name, "energy", "momentum.x", "charge"):
            known = [collection for collection in columns.collections if columns.has(collection, "goodnessOfPID")]
            raise InputError(
                "no such collection of reconstructed particles"
                + (f"; the file holds {', '.join(known)}" if known else ""),
                file=file.path,
                field=name,
                suggestions=nearest(name, known),
            )
        self.tree = columns.tree
        self._file = file
        self._names = RecoNames(name)
        metadata = file.frame_parameters("metadata") if "metadata" in file.categories() else []
        texts, numbers = (metadata[0].get(kind, {}) if metadata else {} for kind in ("String", "Int"))
        self._hit_ids = np.array(numbers.get(f"{name}__HitCollectionIDs", []), dtype=np.int64) & 0xFFFFFFFF
        parts = set(texts.get(f"{name}__Parts", []))
        self.parts = frozenset(parts if hit_links else parts - {"hit_links"})

    def read(self, start: int, stop: int) -> Reconstruction:
        """Entries `start` to `stop` (exclusive)."""

        def get(collection: str, *members: str) -> ak.Array:
            return self._file.columns.get(collection, *members, start=start, stop=stop)

        def parameter(name: str) -> list[list[int]]:
            """A whole-number parameter of each frame, empty where it has none."""
            key = f"{self._names.particles}_{name}"
            return [frame.get("Int", {}).get(key, []) for frame in self._file.frame_parameters("events", start, stop)]

        def check(field: str, lengths: Ints, expected: Ints, what: str) -> None:
            wrong = np.flatnonzero(lengths != expected)
            if len(wrong):
                number = int(wrong[0])
                message = f"{lengths[number]} numbers, expected {expected[number]}: the {what}"
                raise InputError(message, file=self._file.path, entry=start + number, field=field)

        def links(source: Any, particle: Ints, weight: Any, event: Ints) -> ak.Array:
            local = particle - jagged.offsets(counts)[event]
            return Links.by_event(event, source, local, weight, len(counts)).records()

        names, parts = self._names, self.parts
        name = names.particles
        columns: dict[str, Any] = {
            "pdg": get(name, "PDG", "type"),
            **{member: get(name, member) for member in ("charge", "energy", "mass")},
            **{f"p{axis}": get(name, f"momentum.{axis}") for axis in "xyz"},
            "score": get(name, "goodnessOfPID"),
        }
        counts = jagged.count(columns["energy"])
        if "covariance" in parts:
            columns["covariance"] = get(name, "covMatrix.values")
        if "scores" in parts:
            field = f"_{names.particle_id}_parameters"
            values = get(field, "")
            length = len(CLASSES) + ("existence" in parts)
            check(field, jagged.count(values), counts * length, "probabilities of the particles")
            probabilities = jagged.flat(values).reshape(-1, length)
            columns["scores"] = ak.unflatten(probabilities[:, : len(CLASSES)], counts)
            if "existence" in parts:
                columns["existence"] = jagged.unflatten(probabilities[:, -1], counts)
        links_read = {}
        if "hit_links" in parts:
            n_links, ids, index = self._file.references(f"_{names.clusters}_hits", start, stop)
            n_clusters, weight = jagged.count(get(names.clusters, "energy")), get(names.hit_weights, "")
            check(names.hit_weights, jagged.count(weight), n_links, "weights of the hits")
            particle_of = np.zeros(int(n_clusters.sum()), dtype=np.int64)
            particle, cluster = expand(get(name, "clusters_begin"), get(name, "clusters_end"), n_clusters)
            particle_of[cluster] = particle
            cluster, link = expand(get(names.clusters, "hits_begin"), get(names.clusters, "hits_end"), n_links)
            event, source = jagged.event_index(n_links)[link], index[link]
            if len(self._hit_ids) and len(link):
                rows = parameter("hitOffsets")
                lengths = np.array([len(row) for row in rows])
                check("hitOffsets", lengths, np.full(len(rows), len(self._hit_ids)), "offsets of the hits")
                from_it = ids[link, None] == self._hit_ids  # [link, collection]
                source = source + (np.array(rows, dtype=np.int64)[event] * from_it).sum(axis=1)
            links_read["hit_links"] = links(source, particle_of[cluster], jagged.flat(weight)[link], event)
        if "track_links" in parts:
            n_links, _, index = self._file.references(f"_{name}_tracks", start, stop)
            weight = get(names.track_weights, "")
            check(names.track_weights, jagged.count(weight), n_links, "weights of the tracks")
            particle, link = expand(get(name, "tracks_begin"), get(name, "tracks_end"), n_links)
            event = jagged.event_index(n_links)[link]
            source = index[link]
            for number, unused in enumerate(parameter("unusedTracks")):  # events count the tracks without them
                source[event == number] -= np.searchsorted(unused, source[event == number])
            links_read["track_links"] = links(source, particle, jagged.flat(weight)[link], event)
        return Reconstruction(
            particles=make_particles(**columns),
            event=self._file.event_numbers(start, stop),
            flags=np.array([row[0] if row else 0 for row in parameter("flags")], dtype=np.int32).astype(np.uint32),
            name=name,
            **links_read,
        )
