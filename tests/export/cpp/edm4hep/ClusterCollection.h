#pragma once
#include "CalorimeterHitCollection.h"

namespace edm4hep {

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

}  // namespace edm4hep
