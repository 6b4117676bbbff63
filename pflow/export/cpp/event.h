/// Events of EDM4hep in and out of the library: collections -> pflow::Event -> collections.
///
///     const std::vector<pflow::HitSource> sources{{reconstructor, "ecal_barrel", encoding}};  // once, for each collection
///     const pflow::Event event = pflow::make_event(reconstructor, sources, {&hits}, {&tracks});
///     auto collections = pflow::make_collections(reconstructor, reconstructor.reconstruct(event.hits, event.tracks),
///                                                event, algorithm_type);
///
/// A program that decodes cell ids itself, with DD4hep's decoder for example, gives sources the encoding "" and, between
/// make_event and reconstruct, sets event.hits[i].layer from event.hit_objects[i].getCellID() for each hit i.
///
/// The result is what `pflow reconstruct --format edm4hep` writes. C++20 and EDM4hep 1.0; neither Gaudi nor DD4hep.

#ifndef PFLOW_EVENT_H
#define PFLOW_EVENT_H

#include <edm4hep/CaloHitMCParticleLinkCollection.h>
#include <edm4hep/CalorimeterHitCollection.h>
#include <edm4hep/ClusterCollection.h>
#include <edm4hep/ParticleIDCollection.h>
#include <edm4hep/RecoMCParticleLinkCollection.h>
#include <edm4hep/ReconstructedParticleCollection.h>
#include <edm4hep/TrackCollection.h>
#include <edm4hep/TrackMCParticleLinkCollection.h>
#include <podio/UserDataCollection.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "pflow.h"

namespace pflow {

/// Bits of Event::flags and of the frame's parameter `PFlow_flags`, as in pflow/event/events.py.
enum Flag : std::int32_t {
  BAD_INPUT = 1,          ///< the event could not be used and has no particles
  MAX_PARTICLES = 2,      ///< decoding stopped at the model's largest number of particles
  UNUSABLE_HITS = 32,     ///< hits with impossible numbers count with energy 0
  UNUSABLE_TRACKS = 64,   ///< tracks with impossible numbers, and clones, were left out
  LOST_TRACKS = 512,      ///< no particle has more than a tenth of the momentum of the tracks
  NEUTRAL_TRACKS = 1024,  ///< neutral particles have more than a tenth of it
};

/// A collection of calorimeter hits: which calorimeter of the model they are in, and the layer in their cell ids.
class HitSource {
 public:
  /// @param encoding  of the cell ids, as in the metadata: "system:5,side:-2,layer:9" or "layer:19:9"; "" if unknown
  /// @throws Error    a calorimeter that the model does not have, or an encoding that is not such a list
  HitSource(const Reconstructor& reconstructor, const std::string& subdetector, const std::string& encoding);

  /// Index into Reconstructor::subdetectors().
  std::int32_t subdetector() const { return subdetector_; }

  /// Layer of a cell; -1 if the encoding has none.
  std::int32_t layer(std::uint64_t cell_id) const;

 private:
  std::int32_t subdetector_;
  unsigned offset_ = 0, width_ = 0;  // of the layer's bits; without any, width 0
  bool is_signed_ = false;
};

/// A line for each calorimeter of the model of which there is no collection.
std::vector<std::string> without_collection(const Reconstructor& reconstructor, const std::vector<HitSource>& sources);

/// An event as the library takes it, and the objects of EDM4hep behind it.
struct Event {
  std::vector<Hit> hits;      ///< calorimeter by calorimeter
  std::vector<Track> tracks;  ///< without those that were left out
  std::vector<edm4hep::CalorimeterHit> hit_objects;  ///< [hit]
  std::vector<edm4hep::Track> track_objects;         ///< [track]
  std::vector<std::int32_t> hit_offsets;             ///< [collection of hits]: where its hits begin in `hits`
  std::vector<std::int32_t> unused_tracks;           ///< of all tracks: those that were left out
  std::int32_t flags = 0;                            ///< Flag
};

/// Hits and tracks of an event.
///
/// The state of a track at its vertex is the one at the interaction point, else at the first hit, the last, the
/// calorimeter, or any, followed along its helix to where it is closest to the z axis; without one at the calorimeter,
/// the helix is followed there. The field is the model's. Objects with impossible numbers are left out and flagged,
/// unless they are more than half of the hits: then Reconstructor::reconstruct refuses the event.
///
/// @param sources  of each collection of `hits`
/// @param states_elsewhere  do not use states at the calorimeter that are not near its front: StatesAtCalorimeter
Event make_event(const Reconstructor& reconstructor, const std::vector<HitSource>& sources,
                 const std::vector<const edm4hep::CalorimeterHitCollection*>& hits,
                 const std::vector<const edm4hep::TrackCollection*>& tracks, bool states_elsewhere = false);

/// Whether more than a fifth of the track states at the calorimeter lie elsewhere, as in files of programs that give all
/// states the same place; `pflow reconstruct` looks at the first ten events of a file.
class StatesAtCalorimeter {
 public:
  void add(const Reconstructor& reconstructor, const edm4hep::TrackCollection& tracks);
  bool elsewhere() const { return double(n_elsewhere_) > (1 - 0.8) * double(n_); }  // MOSTLY

 private:
  std::size_t n_ = 0, n_elsewhere_ = 0;
};

/// Flags of an event that was reconstructed.
std::int32_t flags_of(const Event& event, const Reconstruction& reconstruction);

/// Particles, their clusters, the probabilities of their classes, and the weights of the clusters' hits (one cluster
/// after the other) and of the particles' tracks, which are sorted by weight: pflow/io/edm4hep/reco.py describes them.
using Collections = std::tuple<edm4hep::ReconstructedParticleCollection, edm4hep::ClusterCollection,
                               edm4hep::ParticleIDCollection, podio::UserDataCollection<float>,
                               podio::UserDataCollection<float>>;

/// @param algorithm_type  number by which edm4hep::ParticleID names the algorithm, its ParticleIDMeta's
Collections make_collections(const Reconstructor& reconstructor, const Reconstruction& reconstruction,
                             const Event& event, std::int32_t algorithm_type);

/// Links from the particles that make_collections made to Monte Carlo particles, sorted by particle, of each the largest
/// last. Weight: fraction of the energy of the particle's hits that the Monte Carlo particle left; of its tracks if it
/// has no hits.
edm4hep::RecoMCParticleLinkCollection make_mc_links(
    const Reconstruction& reconstruction, const Event& event,
    const edm4hep::ReconstructedParticleCollection& particles,
    const std::vector<const edm4hep::CaloHitMCParticleLinkCollection*>& hit_links,
    const std::vector<const edm4hep::TrackMCParticleLinkCollection*>& track_links);

}  // namespace pflow

#endif
