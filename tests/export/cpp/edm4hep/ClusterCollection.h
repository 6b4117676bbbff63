#pragma once
#include <memory>

#include "CalorimeterHitCollection.h"

namespace edm4hep {

struct Cluster {
  struct Data {
    float energy = 0;
    std::vector<CalorimeterHit> hits;
  };
  std::shared_ptr<Data> data = std::make_shared<Data>();

  void setEnergy(float value) { data->energy = value; }
  void addToHits(const CalorimeterHit& hit) { data->hits.push_back(hit); }
};

using ClusterCollection = Created<Cluster>;

}  // namespace edm4hep
