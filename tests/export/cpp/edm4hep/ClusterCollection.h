#pragma once
#include "CalorimeterHitCollection.h"

namespace edm4hep {

struct Cluster {
  float energy = 0;
  std::vector<CalorimeterHit> hits;

  void setEnergy(float value) { energy = value; }
  void addToHits(const CalorimeterHit& hit) { hits.push_back(hit); }
};

using ClusterCollection = Created<Cluster>;

}  // namespace edm4hep
