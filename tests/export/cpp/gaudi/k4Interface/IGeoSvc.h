// Stand-in for k4FWCore's interface of the geometry.
#pragma once
#include "DD4hep/Detector.h"

struct IGeoSvc {
  dd4hep::Detector detector;
  dd4hep::Detector* getDetector() { return &detector; }
};
