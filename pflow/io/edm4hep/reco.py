"""A reconstruction as EDM4hep collections: names, content, and reading, also of another program's particles.

For a collection ``PFlow`` of particles (`RecoNames`):

====================== ========================================= ===================================================
collection             type                                      content
====================== ========================================= ===================================================
``PFlow``              edm4hep::ReconstructedParticle            one for each particle; the fourth coordinate of
                                                                 ``covMatrix`` is the energy
``PFlowClusters``      edm4hep::Cluster                          one for each particle that has hits: energy (of its
                                                                 parts of the hits), position and direction
                                                                 (`pflow.physics.geometry`), hits, and the energy
                                                                 in each calorimeter of the detector
``PFlowHitWeights``    podio::UserDataCollection<float>          fraction of the hit's energy, for each entry of
                                                                 ``_PFlowClusters_hits`` (the hits of all clusters,
                                                                 one cluster after the other)
``PFlowTrackWeights``  podio::UserDataCollection<float>          the same for ``_PFlow_tracks``; a particle's tracks are
                                                                 sorted by it, the largest first
``PFlowParticleID``    edm4hep::ParticleID                       one for each particle, if the model gives probabilities
                                                                 of the classes: they are its parameters
``PFlowCandidates``, ``PFlowCandidatesParticleID``               (if asked for) particles that probably do not exist;
                                                                 never add them to a sum; without clusters, with the
                                                                 parameters of ``PFlowParticleID``
``PFlowMCParticleLinks`` link to edm4hep::MCParticle             (if asked for) weight: fraction of the energy of the
                                                                 particle's hits that the Monte Carlo particle left;
                                                                 of its tracks if it has no hits; the largest link of
                                                                 a particle comes last
``PFlowCaloHits``      edm4hep::CalorimeterHit                   (if the input has none) the hits that were
                                                                 reconstructed, with calibrated energy; ``cellID`` is
                                                                 the simulated hit's, else 0
``PFlowCaloHitSimLinks`` link to edm4hep::SimCalorimeterHit      (if the input has simulated hits) where they come from
``PFlowTracks``        edm4hep::Track                            (if the input has none) the tracks that were used, with
                                                                 states at the interaction point and the calorimeter;
                                                                 no covariances and chi2; D0 = Z0 = 0 if unknown
====================== ========================================= ===================================================

Weights are user data because podio reads only links between types that EDM4hep declares, and a link between particles
and calorimeter hits is not among them: a file with one cannot be opened.

Parameters of a frame: ``PFlow_flags`` (`pflow.event.events.Flag`), ``PFlow_hitOffsets`` (where the hits of each input
collection begin in the list of all hits), ``PFlow_unusedTracks`` (tracks of the input that were left out). Parameters
of the file: names of the parameters of ``PFlowParticleID``, of the subdetectors of ``PFlowClusters`` and of the
collections of the hits.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError, nearest
from pflow.event import jagged
from pflow.event.events import Events, Reconstruction
from pflow.event.jagged import Links, sum_by_pair, with_same_source
from pflow.event.schema import make_particles, quantities_of
from pflow.io.edm4hep.podio import (
    ID_BITS,
    PARTICLE_MEMBERS,
    SCHEMA_VERSION,
    CollectionInfo,
    Filled,
    PodioFile,
    collection_id,
    expand,
    particle_columns,
)
from pflow.io.edm4hep.reader import AT_CALORIMETER, AT_IP, HitOrigins
from pflow.io.root import check_counts
from pflow.physics.arrays import Index
from pflow.physics.geometry import cluster_shape
from pflow.physics.kinematics import track_from_momentum
from pflow.physics.pdg import CLASSES, class_index

NO_OBJECT = -2  # index of a reference to nothing (podio, `ObjectID::invalid`); its collection id is 0


FLOATS, LINK = "podio::UserDataCollection<float>", "podio::LinkCollection<edm4hep::{},edm4hep::{}>"
COLLECTIONS = {
    "particles": ("", "edm4hep::ReconstructedParticleCollection"),
    "clusters": ("Clusters", "edm4hep::ClusterCollection"),
    "particle_id": ("ParticleID", "edm4hep::ParticleIDCollection"),
    "hit_weights": ("HitWeights", FLOATS),
    "track_weights": ("TrackWeights", FLOATS),
    "mc_links": ("MCParticleLinks", LINK.format("ReconstructedParticle", "MCParticle")),
    "hits": ("CaloHits", "edm4hep::CalorimeterHitCollection"),
    "sim_links": ("CaloHitSimLinks", LINK.format("CalorimeterHit", "SimCalorimeterHit")),
    "tracks": ("Tracks", "edm4hep::TrackCollection"),
    "candidates": ("Candidates", "edm4hep::ReconstructedParticleCollection"),
    "candidate_id": ("CandidatesParticleID", "edm4hep::ParticleIDCollection"),
}
"""The table above: what follows the name of the particles, and the type, of each collection."""


class RecoNames(SimpleNamespace):
    """Names of the collections of a reconstruction (`COLLECTIONS`), all made from the name `particles`."""

    def __init__(self, particles: str) -> None:
        super().__init__(**{part: f"{particles}{suffix}" for part, (suffix, _) in COLLECTIONS.items()})

    @property
    def algorithm_type(self) -> int:
        """Number (int32) by which ``ParticleID`` names this algorithm: EDM4hep's hash of its name (ParticleIDMeta)."""
        return int(np.array(collection_id(self.particles), np.uint32).astype(np.int32))

    def collections(self, **wanted: bool) -> tuple[CollectionInfo, ...]:
        """The collections of a file; `wanted`: optional ones to include (hits, tracks, links, candidates)."""
        kinds = {getattr(self, part): kind for part, (_, kind) in COLLECTIONS.items() if wanted.get(part, True)}
        versions = {True: 1, False: SCHEMA_VERSION}  # of podio's own types, of EDM4hep's
        return tuple(
            CollectionInfo(name=name, data_type=kind, schema_version=versions[kind.startswith("podio")])
            for name, kind in kinds.items()
        )


def reco_frames(
    reconstruction: Reconstruction,
    events: Events,
    names: RecoNames,
    *,
    hits: HitOrigins | None,
    track_id: int,
    mc_id: int | None,
    track_index: Index | None = None,
) -> dict[str, Filled]:
    """Content of the collections of a reconstruction, field by field, in consecutive events.

    `events` are what the particles were made from; `hits` the input's objects that its hits are, None if the output has
    its own hits; `track_id` and `mc_id` the ids of tracks and Monte Carlo particles, None without links to the latter;
    `track_index` [track] the index of each in its collection, where some were left out.
    """
    n_particles = jagged.count(reconstruction.particles)
    hit_links = Links.of(reconstruction.hit_links, len(events))
    # A cluster refers to a range of hits, so the hits of a particle must lie side by side.
    hit_links = hit_links.take(np.argsort(hit_links.flat_particle(n_particles), kind="stable"))
    tracks = Links.of(reconstruction.track_links, len(events))
    tracks = tracks.take(np.lexsort((-tracks.weight, tracks.flat_particle(n_particles))))

    index = tracks.source
    if track_index is not None:
        index = track_index[tracks.flat_source(jagged.count(events.tracks))]
    total = int(n_particles.sum())
    n_hits, n_tracks = (np.bincount(links.flat_particle(n_particles), minlength=total) for links in (hit_links, tracks))
    clusters = _clusters(events, n_particles, hit_links, hits, names)
    n_clusters = clusters[names.clusters].counts
    to_clusters = references(collection_id(names.clusters), jagged.local_index(n_clusters), n_clusters)
    to_tracks = references(track_id, index, tracks.counts)
    relations = {"clusters": (np.minimum(n_hits, 1), to_clusters), "tracks": (n_tracks, to_tracks)}
    frames = clusters | _particles(reconstruction.particles, names.particles, names.particle_id, relations, names)
    frames[names.track_weights] = Filled(counts=tracks.counts, columns={"": tracks.weight})
    if reconstruction.candidates is not None:
        frames |= _particles(reconstruction.candidates, names.candidates, names.candidate_id, {}, names)
    if mc_id is not None:
        frames |= _mc_links(events, n_particles, hit_links, tracks, mc_id, names)
    return frames


def hit_frames(events: Events, origins: HitOrigins | None, names: RecoNames) -> dict[str, Filled]:
    """The hits of events as calorimeter hits, and links to the simulated `origins` that they were made from, if any."""
    counts, flat = jagged.count(events.hits), jagged.columns(events.hits)
    members = ("energy", "time", "position.x", "position.y", "position.z")
    columns: dict[str, Any] = {"type": flat["subdetector"], **{name: flat[name] for name in members}}
    frames = {names.hits: Filled(counts=counts, columns=columns)}
    if origins is not None:
        totals = origins.counts.sum(axis=0)
        there = np.repeat(counts == totals, totals)  # events that could not be used were emptied
        columns["cellID"] = origins.cell_id[there]
        name, local = names.sim_links, jagged.local_index(counts)
        frames |= {
            name: Filled(counts=counts, columns={"weight": np.ones(len(local))}),
            f"_{name}_from": references(collection_id(names.hits), local, counts),
            f"_{name}_to": references(origins.collection_id[there], origins.index[there], counts),
        }
    return frames


def track_frames(events: Events, name: str) -> dict[str, Filled]:
    """The tracks of events as collection `name`, with a state at the interaction point and one at the calorimeter."""
    tracks = events.tracks
    if tracks is None:
        return {}
    counts, flat = jagged.count(tracks), jagged.columns(tracks)
    px, py, pz = (flat[f"calo_momentum.{axis}"].astype(np.float64) for axis in ("px", "py", "pz"))
    # Not finite where the track was not followed that far.
    omega, phi, tan_lambda = track_from_momentum(px, py, pz, flat["omega"], events.detector.b_field)
    zero, location = np.zeros(len(omega)), np.ones(len(omega), dtype=np.int64)
    pairs: dict[str, Any] = {
        "location": (AT_IP * location, AT_CALORIMETER * location),
        "D0": (np.nan_to_num(flat["d0"]), zero),  # a state that is not finite could not be read back
        "phi": (flat["phi"], phi),
        "omega": (flat["omega"], omega),
        "Z0": (np.nan_to_num(flat["z0"]), zero),
        "tanLambda": (flat["tan_lambda"], tan_lambda),
        **{f"referencePoint.{axis}": (zero, flat[f"calo_position.{axis}"]) for axis in "xyz"},
    }
    # Along axis 1: the two states of a track must follow each other, as its range says.
    states = {name: np.stack(pair, axis=1).ravel() for name, pair in pairs.items()}
    end = 2 * jagged.local_index(counts) + 2
    return {
        name: Filled(counts=counts, columns={"trackStates_begin": end - 2, "trackStates_end": end}),
        f"_{name}_trackStates": Filled(counts=2 * counts, columns=states),
    }


def _particles(
    particles: ak.Array, name: str, id_name: str, relations: dict[str, tuple[Index, Filled]], names: RecoNames
) -> dict[str, Filled]:
    """Collection `name` of particles, with the number of objects of each relation, int64 [particle], and references.

    A relation that is left out has no objects: what `TreeWriter` is not given is 0 or empty. Collection `id_name` of
    ParticleID has the probabilities of their classes, if they have them.
    """
    counts, flat, fields = jagged.count(particles), jagged.columns(particles), quantities_of("particles")
    total = int(counts.sum())
    columns = {member: flat[fields[quantity]] for member, quantity in PARTICLE_MEMBERS.items()}
    columns |= {"covMatrix.values": flat["covariance"]} if "covariance" in flat else {}
    # podio wants one reference for each object of a one-to-one relation, also where there is nothing to refer to.
    frames = {f"_{name}_decayVertex": references(0, np.full(total, NO_OBJECT), counts)}
    for relation, (n_members, members) in relations.items():
        columns |= ranges(relation, n_members, counts)
        frames[f"_{name}_{relation}"] = members
    frames[name] = Filled(counts=counts, columns=columns)
    if "scores" not in flat:
        return frames
    parameters = np.column_stack([flat[key] for key in ("scores", "existence") if key in flat])
    n = parameters.shape[1]
    id_columns = {
        "type": class_index(flat["pdg"]),
        "PDG": flat["pdg"],
        "algorithmType": np.full(total, names.algorithm_type),
        "likelihood": flat["score"],
        **ranges("parameters", np.full(total, n), counts),
    }
    return frames | {
        id_name: Filled(counts=counts, columns=id_columns),
        f"_{id_name}_parameters": Filled(counts=counts * n, columns={"": parameters.ravel()}),
        f"_{id_name}_particle": references(collection_id(name), jagged.local_index(counts), counts),
    }


def _clusters(
    events: Events, n_particles: Index, hits: Links, origins: HitOrigins | None, names: RecoNames
) -> dict[str, Filled]:
    """Clusters of the particles that have hits, in their order."""
    n_events, n_calorimeters = len(events), len(events.detector.calorimeters)
    _, first, cluster = np.unique(hits.flat_particle(n_particles), return_index=True, return_inverse=True)
    n_clusters = len(first)
    counts = np.bincount(hits.event[first], minlength=n_events)
    hit, flat = hits.flat_source(jagged.count(events.hits)), jagged.columns(events.hits)
    energy = flat["energy"].astype(np.float64)[hit] * hits.weight  # the cluster's part of each hit
    position = np.stack([flat[f"position.{axis}"][hit] for axis in "xyz"], axis=-1)
    mean, axis = cluster_shape(cluster, energy, position, n_clusters)
    calorimeter = flat["subdetector"].astype(np.int64)[hit]
    # Cluster and calorimeter as one number, so that one bincount does for all calorimeters.
    by_calorimeter = np.bincount(cluster * n_calorimeters + calorimeter, energy, n_clusters * n_calorimeters)
    # The clip: rounding may take a component of a unit vector beyond 1, where arccos is NaN.
    columns = {
        "energy": np.bincount(cluster, energy, n_clusters),
        **{f"position.{name}": mean[:, i] for i, name in enumerate("xyz")},
        "iTheta": np.arccos(np.clip(axis[:, 2], -1.0, 1.0)),
        "iPhi": np.arctan2(axis[:, 1], axis[:, 0]),
        **ranges("subdetectorEnergies", np.full(n_clusters, n_calorimeters), counts),
        **ranges("hits", np.bincount(cluster, minlength=n_clusters), counts),
    }
    if origins is None:
        to_hits = references(collection_id(names.hits), hits.source, hits.counts)
    else:
        origin = hits.flat_source(origins.counts.sum(axis=0))
        to_hits = references(origins.collection_id[origin], origins.index[origin], hits.counts)
    return {
        names.clusters: Filled(counts=counts, columns=columns),
        f"_{names.clusters}_hits": to_hits,
        f"_{names.clusters}_subdetectorEnergies": Filled(counts=counts * n_calorimeters, columns={"": by_calorimeter}),
        names.hit_weights: Filled(counts=hits.counts, columns={"": hits.weight}),
    }


def _mc_links(
    events: Events, n_particles: Index, hits: Links, tracks: Links, mc_id: int, names: RecoNames
) -> dict[str, Filled]:
    """Links from particles to Monte Carlo particles: through hits, and through tracks where a particle has no hits."""
    n_true = np.zeros(len(events), np.int64) if events.truth is None else jagged.count(events.truth)
    energy = jagged.flat(events.hits.energy, np.float64)
    tracks = tracks.take(~np.isin(tracks.flat_particle(n_particles), hits.flat_particle(n_particles)))
    # Empty columns first, as there may be no links of either kind to concatenate.
    pieces = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for links, true_links, sources in (
        (hits, events.hit_links, events.hits),
        (tracks, events.track_links, events.tracks),
    ):
        if sources is None or true_links is None:
            continue
        counts = jagged.count(sources)
        size = energy if links is hits else np.ones(int(counts.sum()))
        true, source, of_link = Links.of(true_links), links.flat_source(counts), links.flat_particle(n_particles)
        a, b = with_same_source(source, true.flat_source(counts))
        deposit = size[source] * links.weight
        particle, true_particle, shared = sum_by_pair(
            of_link[a], true.flat_particle(n_true)[b], deposit[a] * true.weight[b]
        )
        total = np.bincount(of_link, deposit, int(n_particles.sum()))[particle]
        fraction = np.divide(shared, total, out=np.zeros(len(shared)), where=total > 0)
        pieces.append((particle, true_particle, fraction))
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    # Event by event, as podio stores them; of a particle the largest last, which FCCAnalyses takes for its truth.
    order = np.lexsort((columns[2], columns[0]))
    particle, true_particle, weight = (column[order] for column in columns)
    counts = np.bincount(jagged.event_index(n_particles)[particle], minlength=len(events))
    name, particle = names.mc_links, jagged.local_index(n_particles)[particle]
    return {
        name: Filled(counts=counts, columns={"weight": weight}),
        f"_{name}_from": references(collection_id(names.particles), particle, counts),
        f"_{name}_to": references(mc_id, jagged.local_index(n_true)[true_particle], counts),
    }


def ranges(name: str, n_members: npt.NDArray[Any], counts: Index) -> dict[str, Index]:
    """Columns ``X_begin`` and ``X_end`` of objects, `counts` [event]: where `n_members` of each are in their list."""
    end = np.cumsum(n_members) - np.repeat(jagged.offsets(n_members)[jagged.offsets(counts)[:-1]], counts)
    return {f"{name}_begin": end - n_members, f"{name}_end": end}


def references(ids: Any, index: npt.NDArray[Any], counts: Index) -> Filled:
    """References to objects, `counts` in each event; `ids` of their collections, one or int [reference]."""
    numbers = np.broadcast_to(np.asarray(ids, dtype=np.uint32), index.shape)
    return Filled(counts=counts, columns={"index": index, "collectionID": numbers})


class Edm4hepRecoReader:
    """Reads the collection `name` of edm4hep::ReconstructedParticle; another program's without links and probabilities.

    `parts`: what the file holds of links, ``existence``, ``scores`` and ``covariance``.
    """

    def __init__(self, file: PodioFile, name: str, *, hit_links: bool) -> None:
        columns = file.columns
        if not columns.has(name, "energy", "momentum.x", "charge"):
            known = [collection for collection in columns.collections if columns.has(collection, "goodnessOfPID")]
            held = f"; the file holds {', '.join(known)}" if known else ""
            message = f"no such collection of reconstructed particles{held}"
            raise InputError(message, file=file.path, field=name, suggestions=nearest(name, known))
        self.tree = columns.tree
        self._file = file
        self._names = RecoNames(name)
        # Parameters are signed, ids are not.
        self._hit_ids = np.array(file.parameters.get(f"{name}__HitCollectionIDs", ()), dtype=np.int64) & ID_BITS
        parts = set(file.parameters.get(f"{name}__Parts", ()))
        self.parts = frozenset(parts if hit_links else parts - {"hit_links"})

    def read(self, start: int, stop: int) -> Reconstruction:
        """Entries `start` to `stop` (exclusive)."""
        span, frames = range(start, stop), self._file.frame_parameters("events", start, stop)
        get = functools.partial(self._file.get, span)

        def parameter(name: str) -> list[list[int]]:
            """A whole-number parameter of each frame, empty where it has none."""
            return [frame.get("Int", {}).get(f"{self._names.particles}_{name}", []) for frame in frames]

        def check(field: str, lengths: Index, expected: Any, what: str) -> None:
            text = f"{{}} numbers, expected {{}}: the {what}"
            check_counts(lengths, expected, text, file=self._file.path, start=start, field=field)

        def links(source: Any, particle: Index, weight: Any, event: Index) -> ak.Array:
            local = particle - jagged.offsets(counts)[event]
            return Links.by_event(event, source, local, weight, len(counts)).records()

        def particles(name: str, particle_id: str) -> ak.Array:
            columns = particle_columns(self._file, name, span)
            counts = jagged.count(columns["energy"])
            if "covariance" in parts:
                columns["covariance"] = get(name, "covMatrix.values", "covMatrix.values[10]")  # RNTuple, TTree
            if "scores" in parts:
                field = f"_{particle_id}_parameters"
                values = get(field, "")
                length = len(CLASSES) + ("existence" in parts)
                check(field, jagged.count(values), counts * length, "probabilities of the particles")
                probabilities = jagged.flat(values).reshape(-1, length)
                columns["scores"] = ak.unflatten(probabilities[:, : len(CLASSES)], counts)
                if "existence" in parts:
                    columns["existence"] = jagged.unflatten(probabilities[:, -1], counts)
            return make_particles(**columns)

        names, parts = self._names, self.parts
        name, listed = names.particles, particles(names.particles, names.particle_id)
        counts, links_read = jagged.count(listed), {}
        if "hit_links" in parts:
            n_links, ids, index = self._file.references(f"_{names.clusters}_hits", span)
            n_clusters, weight = jagged.count(get(names.clusters, "energy")), get(names.hit_weights, "")
            check(names.hit_weights, jagged.count(weight), n_links, "weights of the hits")
            particle_of = np.zeros(int(n_clusters.sum()), dtype=np.int64)
            particle, cluster = expand(get(name, "clusters_begin"), get(name, "clusters_end"), n_clusters)
            particle_of[cluster] = particle
            cluster, link = expand(get(names.clusters, "hits_begin"), get(names.clusters, "hits_end"), n_links)
            event, source = jagged.event_index(n_links)[link], index[link]
            if len(self._hit_ids) and len(link):
                # The file's indices count within each collection, the links' in the list of all hits.
                rows = parameter("hitOffsets")
                expected = np.full(len(rows), len(self._hit_ids))
                check("hitOffsets", np.array([len(row) for row in rows]), expected, "offsets of the hits")
                from_it = ids[link, None] == self._hit_ids  # [link, collection]
                source = source + (np.array(rows, dtype=np.int64)[event] * from_it).sum(axis=1)
            links_read["hit_links"] = links(source, particle_of[cluster], jagged.flat(weight)[link], event)
        if "track_links" in parts:
            n_links, _, index = self._file.references(f"_{name}_tracks", span)
            weight = get(names.track_weights, "")
            check(names.track_weights, jagged.count(weight), n_links, "weights of the tracks")
            particle, link = expand(get(name, "tracks_begin"), get(name, "tracks_end"), n_links)
            event, source = jagged.event_index(n_links)[link], index[link]
            for number, unused in enumerate(parameter("unusedTracks")):  # events count the tracks without them
                source[event == number] -= np.searchsorted(unused, source[event == number])
            links_read["track_links"] = links(source, particle, jagged.flat(weight)[link], event)
        # podio has no unsigned parameters, so flags are stored as int32.
        return Reconstruction(
            particles=listed,
            candidates=particles(names.candidates, names.candidate_id) if "candidates" in parts else None,
            event=self._file.event_numbers(span),
            flags=np.array([row[0] if row else 0 for row in parameter("flags")], dtype=np.int32).astype(np.uint32),
            name=name,
            **links_read,
        )
