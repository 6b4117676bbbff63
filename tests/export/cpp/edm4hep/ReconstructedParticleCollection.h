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
    float energy = 0;
    std::vector<Cluster> clusters;
    std::vector<Track> tracks;
  };
  std::shared_ptr<Data> data = std::make_shared<Data>();

  void setPDG(std::int32_t) {}
  void setCharge(float) {}
  void setEnergy(float value) { data->energy = value; }
  void setMass(float) {}
  void setMomentum(const Vector3f&) {}
  void setGoodnessOfPID(float) {}
  void setCovMatrix(const CovMatrix4f&) {}
  void addToTracks(const Track& track) { data->tracks.push_back(track); }
  void addToClusters(const Cluster& cluster) { data->clusters.push_back(cluster); }
};

using ReconstructedParticleCollection = Created<ReconstructedParticle>;

}  // namespace edm4hep
