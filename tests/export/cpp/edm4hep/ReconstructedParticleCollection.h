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
    std::size_t n_clusters = 0;
  };
  std::shared_ptr<Data> data = std::make_shared<Data>();

  void setPDG(std::int32_t) {}
  void setCharge(float) {}
  void setEnergy(float value) { data->energy = value; }
  void setMass(float) {}
  void setMomentum(const Vector3f&) {}
  void setGoodnessOfPID(float) {}
  void setCovMatrix(const CovMatrix4f&) {}
  void addToTracks(const Track&) {}
  void addToClusters(const Cluster&) { ++data->n_clusters; }
};

using ReconstructedParticleCollection = Created<ReconstructedParticle>;

}  // namespace edm4hep
