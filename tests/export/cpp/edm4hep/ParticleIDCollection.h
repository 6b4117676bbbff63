#pragma once
#include "ReconstructedParticleCollection.h"

namespace edm4hep {

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

}  // namespace edm4hep
