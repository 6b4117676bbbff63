// Stand-in for EDM4hep: what event.cpp uses, with EDM4hep's names and types.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

namespace edm4hep {

struct Vector3f {
  float x, y, z;
};

/// Copies of an object are the same object.
struct Identity {
  std::shared_ptr<int> of = std::make_shared<int>();
  bool operator==(const Identity& other) const { return of == other.of; }
};

struct CalorimeterHit : Identity {
  float energy = 0;
  Vector3f position{};
  std::uint64_t cell_id = 0;
  float time = 0;

  float getEnergy() const { return energy; }
  Vector3f getPosition() const { return position; }
  std::uint64_t getCellID() const { return cell_id; }
  float getTime() const { return time; }
};

using CalorimeterHitCollection = std::vector<CalorimeterHit>;

/// A podio collection makes its members.
template <class Object>
struct Created : std::vector<Object> {
  Object create() { return this->emplace_back(); }
};

struct ObjectID {
  int index;
};

struct MCParticle : Identity {
  int index = 0;
  ObjectID getObjectID() const { return {index}; }
};

template <class From>
struct LinkToMC {
  struct Data {
    From from;
    MCParticle to;
    float weight = 0;
  };
  std::shared_ptr<Data> data = std::make_shared<Data>();

  From getFrom() const { return data->from; }
  MCParticle getTo() const { return data->to; }
  float getWeight() const { return data->weight; }
  void setFrom(const From& value) { data->from = value; }
  void setTo(const MCParticle& value) { data->to = value; }
  void setWeight(float value) { data->weight = value; }
};

struct TrackState {
  static constexpr std::int32_t AtIP = 1, AtFirstHit = 2, AtLastHit = 3, AtCalorimeter = 4;
  std::int32_t location;
  float D0, phi, omega, Z0, tanLambda;
  Vector3f referencePoint;
};

struct Track : Identity {
  std::vector<TrackState> states;

  const std::vector<TrackState>& getTrackStates() const { return states; }
};

using TrackCollection = std::vector<Track>;

struct Cluster {
  struct Data {
    float energy = 0, theta = 0, phi = 0;
    Vector3f position{};
    std::vector<float> subdetector_energies;
    std::vector<CalorimeterHit> hits;
  };
  std::shared_ptr<Data> data = std::make_shared<Data>();

  void setEnergy(float value) { data->energy = value; }
  void setPosition(const Vector3f& value) { data->position = value; }
  void setITheta(float value) { data->theta = value; }
  void setIPhi(float value) { data->phi = value; }
  void addToSubdetectorEnergies(float value) { data->subdetector_energies.push_back(value); }
  void addToHits(const CalorimeterHit& hit) { data->hits.push_back(hit); }
};

using ClusterCollection = Created<Cluster>;

struct CovMatrix4f {
  std::array<float, 10> values;
  explicit CovMatrix4f(const std::array<float, 10>& given) : values(given) {}
};

struct ReconstructedParticle {
  struct Data {
    std::int32_t pdg = 0;
    float energy = 0, charge = 0, mass = 0, goodness = 0;
    Vector3f momentum{};
    std::array<float, 10> covariance{};
    std::vector<Cluster> clusters;
    std::vector<Track> tracks;
  };
  std::shared_ptr<Data> data = std::make_shared<Data>();

  void setPDG(std::int32_t value) { data->pdg = value; }
  void setCharge(float value) { data->charge = value; }
  void setEnergy(float value) { data->energy = value; }
  void setMass(float value) { data->mass = value; }
  void setMomentum(const Vector3f& value) { data->momentum = value; }
  void setGoodnessOfPID(float value) { data->goodness = value; }
  void setCovMatrix(const CovMatrix4f& value) { data->covariance = value.values; }
  void addToTracks(const Track& track) { data->tracks.push_back(track); }
  void addToClusters(const Cluster& cluster) { data->clusters.push_back(cluster); }
};

using ReconstructedParticleCollection = Created<ReconstructedParticle>;

struct ParticleID {
  struct Data {
    std::int32_t type = 0, algorithm_type = 0, pdg = 0;
    float likelihood = 0;
    std::vector<float> parameters;
    ReconstructedParticle particle;
  };
  std::shared_ptr<Data> data = std::make_shared<Data>();

  void setType(std::int32_t value) { data->type = value; }
  void setPDG(std::int32_t value) { data->pdg = value; }
  void setAlgorithmType(std::int32_t value) { data->algorithm_type = value; }
  void setLikelihood(float value) { data->likelihood = value; }
  void addToParameters(float value) { data->parameters.push_back(value); }
  void setParticle(const ReconstructedParticle& value) { data->particle = value; }
};

using ParticleIDCollection = Created<ParticleID>;

using CaloHitMCParticleLinkCollection = Created<LinkToMC<CalorimeterHit>>;
using TrackMCParticleLinkCollection = Created<LinkToMC<Track>>;
using RecoMCParticleLinkCollection = Created<LinkToMC<ReconstructedParticle>>;

}  // namespace edm4hep

template <class Object>
  requires std::is_base_of_v<edm4hep::Identity, Object>
struct std::hash<Object> {
  std::size_t operator()(const Object& object) const { return std::hash<std::shared_ptr<int>>{}(object.of); }
};
