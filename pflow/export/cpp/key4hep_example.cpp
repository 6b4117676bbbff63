/// The library in a podio program that decodes cell ids itself, with DD4hep's decoder for example: event.h reads layers
/// by the encoding in a file's metadata, which not every job has at hand.
///
/// Include this file and compile pflow.cpp beside it. Make the pflow::Reconstructor once; threads share it.

#include "event.cpp"

#include <functional>
#include <map>

using HitCollections = std::map<std::string, const edm4hep::CalorimeterHitCollection*>;  // by the model's calorimeters
using LayerOf = std::function<int(std::uint64_t cell_id)>;

/// Particles of an event, and their clusters.
/// @throws pflow::Error  a calorimeter that the model does not have, or an event that cannot be used
std::pair<edm4hep::ReconstructedParticleCollection, edm4hep::ClusterCollection> reconstruct_event(
    const pflow::Reconstructor& reconstructor, const HitCollections& collections, const LayerOf& layer_of,
    const edm4hep::TrackCollection& tracks) {
  std::vector<pflow::HitSource> sources;
  std::vector<const edm4hep::CalorimeterHitCollection*> hits;
  for (const auto& [subdetector, collection] : collections) {
    sources.emplace_back(reconstructor, subdetector, "");
    hits.push_back(collection);
  }
  pflow::Event event = pflow::make_event(reconstructor, sources, hits, {&tracks});
  for (std::size_t i = 0; i < event.hits.size(); ++i) event.hits[i].layer = layer_of(event.hit_objects[i].getCellID());
  const pflow::Reconstruction reconstruction = reconstructor.reconstruct(event.hits, event.tracks);
  auto [particles, clusters, particle_ids, hit_weights, track_weights] =
      pflow::make_collections(reconstructor, reconstruction, event, 0);
  return {std::move(particles), std::move(clusters)};
}
