// event.cpp on an event that it reads, and the particles that the event is to have:
//
//     event MODEL < TEXT
//
// Lines of TEXT, an event's collections in their order; a state belongs to the track before it, links to the particle:
//
//     collection SUBDETECTOR ENCODING
//     hit ENERGY X Y Z CELL
//     track
//     state LOCATION D0 PHI OMEGA Z0 TANLAMBDA X Y Z
//     elsewhere                               (states at the calorimeter are asked whether they are elsewhere)
//     truncated
//     hit_mc HIT MC WEIGHT, track_mc TRACK MC WEIGHT     (of all hits, collection by collection; of all tracks)
//     particle PDG CHARGE ENERGY MASS PX PY PZ SCORE EXISTENCE
//     hit_link HIT WEIGHT, track_link TRACK WEIGHT       (of the event's hits and tracks)
//
// Written are lines of numbers: each hit and each track of the event, what was left out, and all members of what
// event.cpp makes of the particles.

#include "event.h"

#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <sstream>

namespace {

float next(std::istream& text) {
  std::string word;
  text >> word;
  return std::stof(word);  // takes nan
}

pflow::Link next_link(std::istream& text) {
  int index = 0;
  text >> index;
  return {index, next(text)};
}

template <class Numbers>
void print(const char* name, const Numbers& values) {
  std::printf("%s", name);
  for (const auto value : values) std::printf(" %.10g", double(value));
  std::printf("\n");
}

void print(const char* name, std::initializer_list<double> values) { print(name, std::vector<double>(values)); }

}  // namespace

int main(int, char** argv) try {
  const pflow::Reconstructor reconstructor(argv[1]);
  std::vector<pflow::HitSource> sources;
  std::vector<edm4hep::CalorimeterHitCollection> hits;
  edm4hep::TrackCollection tracks;
  edm4hep::CaloHitMCParticleLinkCollection hit_links;
  edm4hep::TrackMCParticleLinkCollection track_links;
  std::map<int, edm4hep::MCParticle> mc_particles;
  pflow::Reconstruction reconstruction;
  bool look_at_states = false;
  const auto link = [&mc_particles](auto& links, const auto& from, std::istream& text) {
    const auto [index, weight] = next_link(text);
    auto made = links.create();
    mc_particles[index].index = index;
    made.setFrom(from), made.setTo(mc_particles[index]), made.setWeight(weight);
  };
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
    } else if (word == "state") {
      edm4hep::TrackState state{};
      text >> state.location;
      auto& r = state.referencePoint;
      for (float* value : {&state.D0, &state.phi, &state.omega, &state.Z0, &state.tanLambda, &r.x, &r.y, &r.z})
        *value = next(text);
      tracks.back().states.push_back(state);
    } else if (word == "elsewhere") {
      look_at_states = true;
    } else if (word == "truncated") {
      reconstruction.truncated = true;
    } else if (word == "hit_mc") {
      std::size_t index = 0, collection = 0;
      for (text >> index; index >= hits.at(collection).size(); ++collection) index -= hits[collection].size();
      link(hit_links, hits[collection][index], text);
    } else if (word == "track_mc") {
      std::size_t index = 0;
      text >> index;
      link(track_links, tracks.at(index), text);
    } else if (word == "particle") {
      auto& p = reconstruction.particles.emplace_back();
      text >> p.pdg;
      for (float* value : {&p.charge, &p.energy, &p.mass, &p.px, &p.py, &p.pz, &p.score, &p.existence}) *value = next(text);
      p.class_probability = {0.1f, 0.2f, 0.3f, 0.15f, 0.25f};
      for (std::size_t i = 0; i < p.covariance.size(); ++i) p.covariance[i] = float(i + 1);
    } else if (word == "hit_link") {
      reconstruction.particles.back().hits.push_back(next_link(text));
    } else if (word == "track_link") {
      reconstruction.particles.back().tracks.push_back(next_link(text));
    } else {
      throw std::invalid_argument(line);
    }
  }
  std::vector<const edm4hep::CalorimeterHitCollection*> pointers;
  for (const auto& collection : hits) pointers.push_back(&collection);
  pflow::StatesAtCalorimeter states;
  if (look_at_states) states.add(reconstructor, tracks);
  const pflow::Event event = pflow::make_event(reconstructor, sources, pointers, {&tracks}, states.elsewhere());
  for (const pflow::Hit& h : event.hits)
    print("hit", {h.energy, h.x, h.y, h.z, double(h.subdetector), double(h.layer), h.time});
  for (const pflow::Track& t : event.tracks)
    print("track", {t.px, t.py, t.pz, t.charge, t.calo_x, t.calo_y, t.calo_z, t.calo_px, t.calo_py, t.calo_pz, t.d0, t.z0,
                    t.omega});
  print("offsets", event.hit_offsets);
  print("unused", event.unused_tracks);
  print("flags", {double(event.flags)});
  print("flags_of", {double(pflow::flags_of(event, reconstruction))});

  const auto [particles, clusters, particle_ids, hit_weights, track_weights] =
      pflow::make_collections(reconstructor, reconstruction, event, 7);
  for (const edm4hep::ReconstructedParticle& particle : particles) {
    const auto& p = *particle.data;
    print("particle", {double(p.pdg), p.charge, p.energy, p.mass, p.momentum.x, p.momentum.y, p.momentum.z, p.goodness,
                       double(p.clusters.size())});
    print("covariance", p.covariance);
    std::vector<double> curvatures;
    for (const auto& track : p.tracks) curvatures.push_back(track.states[0].omega);
    print("tracks", curvatures);
  }
  for (const edm4hep::Cluster& cluster : clusters) {
    const auto& c = *cluster.data;
    print("cluster", {c.energy, c.position.x, c.position.y, c.position.z, c.theta, c.phi});
    print("subdetectors", c.subdetector_energies);
    std::vector<double> energies;
    for (const auto& hit : c.hits) energies.push_back(hit.energy);
    print("hits", energies);
  }
  print("hit_weights", hit_weights);
  print("track_weights", track_weights);
  for (const edm4hep::ParticleID& particle_id : particle_ids) {
    const auto& id = *particle_id.data;
    print("particle_id", {double(id.type), double(id.algorithm_type), double(id.pdg), id.likelihood,
                          double(id.particle.data->energy)});
    print("parameters", id.parameters);
  }
  for (const auto& made : pflow::make_mc_links(reconstruction, event, particles, {&hit_links}, {&track_links}))
    print("mc_link", {double(made.getFrom().data->energy), double(made.getTo().index), made.getWeight()});
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
