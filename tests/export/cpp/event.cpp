// event.cpp on an event that it reads, and one particle that has every second hit and all tracks:
//
//     event MODEL < TEXT
//
// Lines of TEXT, an event's collections in their order; a state belongs to the track before it:
//
//     collection SUBDETECTOR ENCODING
//     hit ENERGY X Y Z CELL
//     track
//     state LOCATION D0 PHI OMEGA Z0 TANLAMBDA X Y Z
//
// Written are lines of numbers: each hit and each track of the event, what was left out, and the particle.

#include "event.h"

#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>

namespace {

float next(std::istream& text) {
  std::string word;
  text >> word;
  return std::stof(word);  // takes nan
}

void print(const char* name, const std::vector<double>& values) {
  std::printf("%s", name);
  for (const double value : values) std::printf(" %.10g", value);
  std::printf("\n");
}

}  // namespace

int main(int, char** argv) try {
  const pflow::Reconstructor reconstructor(argv[1]);
  std::vector<pflow::HitSource> sources;
  std::vector<edm4hep::CalorimeterHitCollection> hits;
  edm4hep::TrackCollection tracks;
  for (std::string line, word; std::getline(std::cin, line);) {
    std::istringstream text(line);
    text >> word;
    if (word == "collection") {
      std::string subdetector, encoding;
      text >> subdetector >> encoding;
      sources.emplace_back(reconstructor, subdetector, encoding);
      hits.emplace_back();
    } else if (word == "hit") {
      edm4hep::CalorimeterHit hit{};
      for (float* value : {&hit.energy, &hit.position.x, &hit.position.y, &hit.position.z}) *value = next(text);
      text >> hit.cell_id;
      hits.back().push_back(hit);
    } else if (word == "track") {
      tracks.emplace_back();
    } else {
      edm4hep::TrackState state{};
      text >> state.location;
      auto& r = state.referencePoint;
      for (float* value :
           {&state.D0, &state.phi, &state.omega, &state.Z0, &state.tanLambda, &r.x, &r.y, &r.z})
        *value = next(text);
      tracks.back().states.push_back(state);
    }
  }
  std::vector<const edm4hep::CalorimeterHitCollection*> pointers;
  for (const auto& collection : hits) pointers.push_back(&collection);
  const pflow::Event event = pflow::make_event(reconstructor, sources, pointers, {&tracks});
  for (const pflow::Hit& h : event.hits) print("hit", {h.energy, h.x, h.y, h.z, double(h.subdetector), double(h.layer)});
  for (const pflow::Track& t : event.tracks)
    print("track", {t.px, t.py, t.pz, t.charge, t.calo_x, t.calo_y, t.calo_z, t.calo_px, t.calo_py, t.calo_pz});
  print("offsets", {event.hit_offsets.begin(), event.hit_offsets.end()});
  print("unused", {event.unused_tracks.begin(), event.unused_tracks.end()});
  print("flags", {double(event.flags)});

  pflow::Particle particle{};
  particle.pdg = 13;
  particle.class_probability = {0.1f, 0.2f, 0.3f, 0.15f, 0.25f};
  for (int i = 0; i < int(event.hits.size()); i += 2) particle.hits.push_back({i, 1.0f / float(1 + i % 3)});
  for (int i = 0; i < int(event.tracks.size()); ++i) particle.tracks.push_back({i, 0.25f * float(1 + i % 2)});
  pflow::Reconstruction reconstruction;
  reconstruction.particles.push_back(particle);
  const auto [particles, clusters, particle_ids, hit_weights, track_weights] =
      pflow::make_collections(reconstructor, reconstruction, event, 7);
  for (const edm4hep::Cluster& cluster : clusters) {
    const auto& c = *cluster.data;
    print("cluster", {c.energy, c.position.x, c.position.y, c.position.z, c.theta, c.phi});
    print("subdetectors", {c.subdetector_energies.begin(), c.subdetector_energies.end()});
    std::vector<double> energies;
    for (const auto& hit : c.hits) energies.push_back(hit.energy);
    print("hits", energies);
  }
  print("hit_weights", {hit_weights.begin(), hit_weights.end()});
  print("track_weights", {track_weights.begin(), track_weights.end()});
  std::vector<double> curvatures;
  for (const auto& track : particles[0].data->tracks) curvatures.push_back(track.states[0].omega);
  print("tracks", curvatures);
  const auto& id = *particle_ids[0].data;
  print("particle_id", {double(id.type), double(id.algorithm_type), id.parameters[0], id.parameters[4]});
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
