#pragma once
#include <array>

#include "ClusterCollection.h"
#include "TrackCollection.h"

namespace edm4hep {

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

}  // namespace edm4hep
