#pragma once
#include "CalorimeterHitCollection.h"

namespace edm4hep {

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

}  // namespace edm4hep
