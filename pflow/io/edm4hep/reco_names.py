"""Collections of EDM4hep that hold a reconstruction, and their names.

For a collection ``PFlow`` of particles (`RecoNames`):

====================== ========================================= ===================================================
collection             type                                      content
====================== ========================================= ===================================================
``PFlow``              edm4hep::ReconstructedParticle            one for each particle; the fourth coordinate of
                                                                 ``covMatrix`` is the energy
``PFlowClusters``      edm4hep::Cluster                          one for each particle that has hits: energy (of its
                                                                 parts of the hits), position and direction
                                                                 (`pflow.physics.showers`), hits, and the energy
                                                                 in each calorimeter of the detector
``PFlowHitWeights``    podio::UserDataCollection<float>          fraction of the hit's energy, for each entry of
                                                                 ``_PFlowClusters_hits`` (the hits of all clusters,
                                                                 one cluster after the other)
``PFlowTrackWeights``  podio::UserDataCollection<float>          the same for ``_PFlow_tracks``; a particle's tracks are
                                                                 sorted by it, the largest first
``PFlowParticleID``    edm4hep::ParticleID                       one for each particle, if the model gives probabilities
                                                                 of the classes: they are its parameters
``PFlowMCParticleLinks`` link to edm4hep::MCParticle             (if asked for) weight: fraction of the energy of the
                                                                 particle's hits that the Monte Carlo particle left;
                                                                 of its tracks if it has no hits
``PFlowCaloHits``      edm4hep::CalorimeterHit                   (if the input has none) the hits that were
                                                                 reconstructed, with calibrated energy
``PFlowCaloHitSimLinks`` link to edm4hep::SimCalorimeterHit      (if the input has simulated hits) where they come from
``PFlowTracks``        edm4hep::Track                            (if the input has none) the tracks that were used, with
                                                                 states at the interaction point and the calorimeter
====================== ========================================= ===================================================

Weights are user data because podio reads only links between types that EDM4hep declares, and a link between particles
and calorimeter hits is not among them: a file with one cannot be opened.

Parameters of a frame: ``PFlow_flags`` (`pflow.event.events.Flag`), ``PFlow_hitOffsets`` (where the hits of each input
collection begin in the list of all hits). Parameters of the file: names of the parameters of ``PFlowParticleID``, of
the subdetectors of ``PFlowClusters`` and of the collections of the hits.
"""

from __future__ import annotations

import dataclasses

from pflow.io.edm4hep.podio import CollectionInfo

__all__ = ["RecoNames"]


@dataclasses.dataclass(frozen=True)
class RecoNames:
    """Names of the collections of a reconstruction.

    Parameters
    ----------
    particles
        Name of that of the particles; the others are made from it.
    """

    particles: str

    @property
    def clusters(self) -> str:
        """Clusters."""
        return f"{self.particles}Clusters"

    @property
    def hit_weights(self) -> str:
        """Fractions of the hits that the clusters have."""
        return f"{self.particles}HitWeights"

    @property
    def track_weights(self) -> str:
        """Fractions of the tracks that the particles have."""
        return f"{self.particles}TrackWeights"

    @property
    def particle_id(self) -> str:
        """Probabilities of the classes."""
        return f"{self.particles}ParticleID"

    @property
    def mc_links(self) -> str:
        """Links to Monte Carlo particles."""
        return f"{self.particles}MCParticleLinks"

    @property
    def hits(self) -> str:
        """Hits, where the input has no digitised ones."""
        return f"{self.particles}CaloHits"

    @property
    def sim_links(self) -> str:
        """Links from these to the input's simulated hits."""
        return f"{self.particles}CaloHitSimLinks"

    @property
    def tracks(self) -> str:
        """Tracks, where the input has none."""
        return f"{self.particles}Tracks"

    def collections(
        self, *, mc_links: bool, own_hits: bool, sim_links: bool, own_tracks: bool
    ) -> tuple[CollectionInfo, ...]:
        """The collections of a file, with or without the optional ones."""
        floats, link = "podio::UserDataCollection<float>", "podio::LinkCollection<edm4hep::{},edm4hep::{}>"
        found = [
            CollectionInfo(name=self.particles, data_type="edm4hep::ReconstructedParticleCollection"),
            CollectionInfo(name=self.clusters, data_type="edm4hep::ClusterCollection"),
            CollectionInfo(name=self.particle_id, data_type="edm4hep::ParticleIDCollection"),
            CollectionInfo(name=self.hit_weights, data_type=floats, schema_version=1),
            CollectionInfo(name=self.track_weights, data_type=floats, schema_version=1),
        ]
        if mc_links:
            data_type = link.format("ReconstructedParticle", "MCParticle")
            found.append(CollectionInfo(name=self.mc_links, data_type=data_type, schema_version=1))
        if own_hits:
            found.append(CollectionInfo(name=self.hits, data_type="edm4hep::CalorimeterHitCollection"))
        if sim_links:
            data_type = link.format("CalorimeterHit", "SimCalorimeterHit")
            found.append(CollectionInfo(name=self.sim_links, data_type=data_type, schema_version=1))
        if own_tracks:
            found.append(CollectionInfo(name=self.tracks, data_type="edm4hep::TrackCollection"))
        return tuple(found)
