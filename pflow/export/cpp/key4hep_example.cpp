/// How an algorithm of key4hep calls the library: EDM4hep collections in, EDM4hep collections out.
///
/// A Gaudi algorithm makes the pflow::Reconstructor once, in initialize(), and calls reconstruct_event for each event;
/// its operator() is const, and so is the call: threads share the model. For a model of pflow's, the names of the
/// calorimeters are pflow::Reconstructor::subdetectors(), and `layer_of` is the decoder of the hits' cell ids.

#include <edm4hep/CalorimeterHitCollection.h>
#include <edm4hep/ClusterCollection.h>
#include <edm4hep/ReconstructedParticleCollection.h>
#include <edm4hep/TrackCollection.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pflow.h"

using HitCollections = std::map<std::string, const edm4hep::CalorimeterHitCollection*>;  // by calorimeter
using LayerOf = std::function<int(std::uint64_t cell_id)>;

namespace {

/// Momentum [GeV] of a state of a track of unit charge in a field along z [T].
std::array<float, 3> momentum_of(const edm4hep::TrackState& state, double b_field) {
  const double pt = 0.299792458e-3 * std::abs(b_field / state.omega);
  return {float(pt * std::cos(state.phi)), float(pt * std::sin(state.phi)), float(pt * state.tanLambda)};
}

pflow::Track track_of(const edm4hep::Track& from, double b_field) {
  pflow::Track track;
  for (const edm4hep::TrackState& state : from.getTrackStates()) {
    const auto [px, py, pz] = momentum_of(state, b_field);
    if (state.location == edm4hep::TrackState::AtIP) {
      track.px = px, track.py = py, track.pz = pz;
      track.charge = state.omega > 0 ? 1.f : -1.f;
      track.d0 = state.D0, track.z0 = state.Z0, track.omega = state.omega;
    } else if (state.location == edm4hep::TrackState::AtCalorimeter) {
      track.calo_x = state.referencePoint.x - state.D0 * std::sin(state.phi);
      track.calo_y = state.referencePoint.y + state.D0 * std::cos(state.phi);
      track.calo_z = state.referencePoint.z + state.Z0;
      track.calo_px = px, track.calo_py = py, track.calo_pz = pz;
    }
  }
  return track;
}

}  // namespace

std::pair<edm4hep::ReconstructedParticleCollection, edm4hep::ClusterCollection> reconstruct_event(
    const pflow::Reconstructor& reconstructor, const HitCollections& collections, const LayerOf& layer_of,
    const edm4hep::TrackCollection& track_collection) {
  std::vector<pflow::Hit> hits;
  std::vector<edm4hep::CalorimeterHit> sources;
  for (std::size_t i = 0; i < reconstructor.subdetectors().size(); ++i) {
    const auto found = collections.find(reconstructor.subdetectors()[i]);
    if (found == collections.end()) continue;
    for (const edm4hep::CalorimeterHit& hit : *found->second) {
      const auto r = hit.getPosition();
      hits.push_back({hit.getEnergy(), r.x, r.y, r.z, std::int32_t(i), layer_of(hit.getCellID()), hit.getTime()});
      sources.push_back(hit);
    }
  }
  std::vector<pflow::Track> tracks;
  for (const edm4hep::Track& track : track_collection) tracks.push_back(track_of(track, reconstructor.b_field()));

  const pflow::Reconstruction reco = reconstructor.reconstruct(hits, tracks);  // throws pflow::Error

  std::pair<edm4hep::ReconstructedParticleCollection, edm4hep::ClusterCollection> result;
  for (const pflow::Particle& from : reco.particles) {
    auto particle = result.first.create();
    particle.setPDG(from.pdg);
    particle.setCharge(from.charge);
    particle.setEnergy(from.energy);
    particle.setMass(from.mass);
    particle.setMomentum({from.px, from.py, from.pz});
    particle.setGoodnessOfPID(from.score);
    particle.setCovMatrix(edm4hep::CovMatrix4f(from.covariance));
    for (const pflow::Link& link : from.tracks) particle.addToTracks(track_collection[std::size_t(link.index)]);
    if (from.hits.empty()) continue;
    auto cluster = result.second.create();
    float energy = 0.f;
    for (const pflow::Link& link : from.hits) {
      cluster.addToHits(sources[std::size_t(link.index)]);
      energy += link.weight * hits[std::size_t(link.index)].energy;
    }
    cluster.setEnergy(energy);
    particle.addToClusters(cluster);
  }
  return result;
}
