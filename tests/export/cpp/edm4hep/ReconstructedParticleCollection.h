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
  std::int32_t pdg = 0;
  float energy = 0, charge = 0;
  std::size_t n_tracks = 0, n_clusters = 0;

  void setPDG(std::int32_t value) { pdg = value; }
  void setCharge(float value) { charge = value; }
  void setEnergy(float value) { energy = value; }
  void setMass(float) {}
  void setMomentum(const Vector3f&) {}
  void setGoodnessOfPID(float) {}
  void setCovMatrix(const CovMatrix4f&) {}
  void addToTracks(const Track&) { ++n_tracks; }
  void addToClusters(const Cluster&) { ++n_clusters; }
};

using ReconstructedParticleCollection = Created<ReconstructedParticle>;

}  // namespace edm4hep
