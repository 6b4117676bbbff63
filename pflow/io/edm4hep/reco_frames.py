"""Content of the collections that hold a reconstruction (`pflow.io.edm4hep.reco_names`)."""

from __future__ import annotations

import dataclasses
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.links import shared_sources
from pflow.event.particles import Reconstruction
from pflow.io.edm4hep.collection_id import collection_id
from pflow.io.edm4hep.frame_writer import Filled
from pflow.io.edm4hep.reader import HitOrigins
from pflow.io.edm4hep.reco_names import RecoNames
from pflow.physics.pdg import CLASSES, class_index
from pflow.physics.showers import cluster_shape

__all__ = ["NO_OBJECT", "References", "algorithm_type", "flat_members", "reco_frames", "references"]

NO_OBJECT = -2
"""Index of a reference to nothing (podio, `ObjectID::invalid`); its collection id is 0."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class References:
    """What the hits, tracks and Monte Carlo particles of events are called in the output.

    Parameters
    ----------
    hits
        Objects of the input that the hits are; None if the hits are written as a collection of their own.
    track_id
        Id of the collection of the tracks.
    mc_id
        Id of that of the Monte Carlo particles; None to leave out the links to them.
    """

    hits: HitOrigins | None
    track_id: int
    mc_id: int | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Links:
    """Links of all events, by particle."""

    event: Ints
    source: Ints
    """Hit or track of its event."""
    particle: Ints
    """Counted over all events."""
    weight: Floats

    def over(self, counts: Ints) -> Ints:
        """The sources counted over all events, of which each has so many."""
        return self.source + jagged.offsets(counts)[self.event]

    def sorted(self, *keys: npt.NDArray[Any]) -> _Links:
        """Sorted by the last of the keys first, as `numpy.lexsort` does."""
        order = np.lexsort(keys)
        return _Links(**{field.name: getattr(self, field.name)[order] for field in dataclasses.fields(self)})

    @classmethod
    def of(cls, links: ak.Array | None, n_particles: Ints) -> _Links:
        """From records [event, link]; none for None."""
        if links is None:
            none = np.zeros(0, dtype=np.int64)
            return cls(event=none, source=none, particle=none, weight=np.zeros(0))
        return cls(
            event=jagged.event_index(jagged.count(links)),
            source=jagged.flat(links.source, np.int64),
            particle=jagged.global_index(links.particle, n_particles),
            weight=jagged.flat(links.weight, np.float64),
        )


def reco_frames(
    reconstruction: Reconstruction, events: Events, references: References, names: RecoNames
) -> dict[str, Filled]:
    """Content of the collections of a reconstruction, field by field, in consecutive events.

    Parameters
    ----------
    reconstruction
        The particles.
    events
        What they were made from; with truth and links to it where there are to be links to Monte Carlo particles.
    references
        Of the same events.
    names
        Names of the collections.
    """
    n_particles = jagged.count(reconstruction.particles)
    hits = _Links.of(reconstruction.hit_links, n_particles)
    hits = hits.sorted(hits.particle)  # stable: a particle's hits stay in their order
    tracks = _Links.of(reconstruction.track_links, n_particles)
    tracks = tracks.sorted(-tracks.weight, tracks.particle)
    energy = jagged.flat(events.hits.energy, np.float64)[hits.over(jagged.count(events.hits))] * hits.weight

    frames = _particles(reconstruction, hits, tracks, references.track_id, names)
    frames |= _clusters(events, hits, energy, references.hits, names)
    frames |= _particle_id(reconstruction, names)
    if references.mc_id is not None:
        frames |= _mc_links(events, n_particles, hits, tracks, references.mc_id, names)
    return frames


def references(ids: Any, index: npt.NDArray[Any], counts: Ints) -> Filled:
    """References to objects, `counts` in each event; `ids` of their collections, one or int [reference]."""
    numbers = np.broadcast_to(np.asarray(ids, dtype=np.uint32), index.shape)
    return Filled(counts=counts, columns={"index": index, "collectionID": numbers})


def flat_members(prefix: str, vectors: ak.Array, fields: tuple[str, ...] = ("x", "y", "z")) -> dict[str, Any]:
    """Columns ``prefix.x`` and so on of vectors [event, object] with the components `fields`."""
    return {f"{prefix}.{axis}": jagged.flat(vectors[field]) for axis, field in zip("xyz", fields, strict=True)}


def algorithm_type(names: RecoNames) -> int:
    """Number (int32) by which ``ParticleID`` names this algorithm: a hash, so that no other in the file has it."""
    return int(np.array(collection_id(names.particle_id), np.uint32).astype(np.int32))


def _particles(
    reconstruction: Reconstruction, hits: _Links, tracks: _Links, track_id: int, names: RecoNames
) -> dict[str, Filled]:
    particles = reconstruction.particles
    counts = jagged.count(particles)
    n_events, total = len(counts), int(counts.sum())
    event = jagged.event_index(counts)
    has_hits = np.zeros(total, dtype=np.int64)
    has_hits[hits.particle] = 1
    columns = {
        "PDG": jagged.flat(particles.pdg),
        "energy": jagged.flat(particles.energy),
        **flat_members("momentum", particles.momentum, fields=("px", "py", "pz")),
        "charge": jagged.flat(particles.charge),
        "mass": jagged.flat(particles.mass),
        "goodnessOfPID": jagged.flat(particles.score),
        **_ranges("clusters", has_hits, event, n_events),
        **_ranges("tracks", np.bincount(tracks.particle, minlength=total), event, n_events),
    }
    if "covariance" in particles.fields:
        columns["covMatrix.values"] = jagged.flat(particles.covariance)
    n_clusters = np.bincount(event, has_hits, n_events).astype(np.int64)
    n_tracks = np.bincount(tracks.event, minlength=n_events)
    name = names.particles
    return {
        name: Filled(counts=counts, columns=columns),
        f"_{name}_clusters": references(collection_id(names.clusters), jagged.local_index(n_clusters), n_clusters),
        f"_{name}_tracks": references(track_id, tracks.source, n_tracks),
        f"_{name}_decayVertex": references(0, np.full(total, NO_OBJECT), counts),
        names.track_weights: Filled(counts=n_tracks, columns={"": tracks.weight}),
    }


def _clusters(
    events: Events, hits: _Links, energy: Floats, origins: HitOrigins | None, names: RecoNames
) -> dict[str, Filled]:
    """Clusters of the particles that have hits, in their order; `energy` [link]: the part of the hit, GeV."""
    n_events, n_calorimeters = len(events), len(events.detector.calorimeters)
    _, first, cluster = np.unique(hits.particle, return_index=True, return_inverse=True)
    n_clusters = len(first)
    counts = np.bincount(hits.event[first], minlength=n_events)
    at = hits.over(jagged.count(events.hits))
    position = np.stack([jagged.flat(events.hits.position[axis]) for axis in "xyz"], axis=-1)[at]
    mean, axis = cluster_shape(cluster, energy, position, n_clusters)
    calorimeter = jagged.flat(events.hits.subdetector, np.int64)[at]
    by_calorimeter = np.bincount(cluster * n_calorimeters + calorimeter, energy, n_clusters * n_calorimeters)
    event = jagged.event_index(counts)
    columns = {
        "energy": np.bincount(cluster, energy, n_clusters),
        **{f"position.{name}": mean[:, i] for i, name in enumerate("xyz")},
        "iTheta": np.arccos(np.clip(axis[:, 2], -1.0, 1.0)),
        "iPhi": np.arctan2(axis[:, 1], axis[:, 0]),
        **_ranges("subdetectorEnergies", np.full(n_clusters, n_calorimeters), event, n_events),
        **_ranges("hits", np.bincount(cluster, minlength=n_clusters), event, n_events),
    }
    n_links = np.bincount(hits.event, minlength=n_events)
    if origins is None:
        to_hits = references(collection_id(names.hits), hits.source, n_links)
    else:
        origin = hits.over(origins.counts.sum(axis=0))
        to_hits = references(origins.ids[origins.slot[origin]], origins.index[origin], n_links)
    return {
        names.clusters: Filled(counts=counts, columns=columns),
        f"_{names.clusters}_hits": to_hits,
        f"_{names.clusters}_subdetectorEnergies": Filled(counts=counts * n_calorimeters, columns={"": by_calorimeter}),
        names.hit_weights: Filled(counts=n_links, columns={"": hits.weight}),
    }


def _particle_id(reconstruction: Reconstruction, names: RecoNames) -> dict[str, Filled]:
    particles = reconstruction.particles
    if "scores" not in particles.fields:
        return {}
    counts = jagged.count(particles)
    pdg = jagged.flat(particles.pdg)
    name, n_classes = names.particle_id, len(CLASSES)
    columns = {
        "type": class_index(pdg),
        "PDG": pdg,
        "algorithmType": np.full(len(pdg), algorithm_type(names)),
        "likelihood": jagged.flat(particles.score),
        **_ranges("parameters", np.full(len(pdg), n_classes), jagged.event_index(counts), len(counts)),
    }
    return {
        name: Filled(counts=counts, columns=columns),
        f"_{name}_parameters": Filled(counts=counts * n_classes, columns={"": jagged.flat(particles.scores).ravel()}),
        f"_{name}_particle": references(collection_id(names.particles), jagged.local_index(counts), counts),
    }


def _mc_links(
    events: Events, n_particles: Ints, hits: _Links, tracks: _Links, mc_id: int, names: RecoNames
) -> dict[str, Filled]:
    """Links from particles to Monte Carlo particles: through hits, and through tracks where a particle has no hits."""
    n_true = np.zeros(len(events), np.int64) if events.truth is None else jagged.count(events.truth)
    energy = jagged.flat(events.hits.energy, np.float64)
    without_hits = ~np.isin(tracks.particle, hits.particle)
    tracks = _Links(**{field.name: getattr(tracks, field.name)[without_hits] for field in dataclasses.fields(tracks)})
    pieces = []
    for links, true_links, sources, size in (
        (hits, events.hit_links, events.hits, energy),
        (tracks, events.track_links, events.tracks, None),
    ):
        if sources is None or true_links is None:
            continue
        counts = jagged.count(sources)
        size = np.ones(int(counts.sum())) if size is None else size
        ours, true = links.over(counts), _Links.of(true_links, n_true)
        particle, other, shared = shared_sources(
            (ours, links.particle, links.weight), (true.over(counts), true.particle, true.weight), size
        )
        total = np.bincount(links.particle, size[ours] * links.weight, int(n_particles.sum()))[particle]
        fraction = np.divide(shared, total, out=np.zeros(len(shared)), where=total > 0)
        pieces.append((particle, other, fraction))
    particle, other, weight = (
        (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        if pieces
        else (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    )
    order = np.argsort(particle, kind="stable")
    particle, other, weight = particle[order], other[order], weight[order]
    event = jagged.event_index(n_particles)[particle]
    counts = np.bincount(event, minlength=len(events))
    return {
        names.mc_links: Filled(counts=counts, columns={"weight": weight}),
        f"_{names.mc_links}_from": references(
            collection_id(names.particles), jagged.local_index(n_particles)[particle], counts
        ),
        f"_{names.mc_links}_to": references(mc_id, jagged.local_index(n_true)[other], counts),
    }


def _ranges(name: str, n_members: npt.NDArray[Any], event: Ints, n_events: int) -> dict[str, Ints]:
    """Columns ``name_begin`` and ``name_end``: where each object's `n_members` [object] are in their event's list."""
    of_event = jagged.offsets(np.bincount(event, n_members, n_events).astype(np.int64))
    end = np.cumsum(n_members) - of_event[event]
    return {f"{name}_begin": end - n_members, f"{name}_end": end}
