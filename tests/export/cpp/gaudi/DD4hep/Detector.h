// Stand-in for DD4hep: a detector with a uniform field.
#pragma once
#include "DD4hepUnits.h"

namespace dd4hep {

struct Position {
  double x_, y_, z_;
  double z() const { return z_; }
};

struct OverlayedField {
  double along_z;
  Position magneticField(const Position&) const { return {0, 0, along_z}; }
};

struct Detector {
  OverlayedField overlayed;
  OverlayedField field() const { return overlayed; }
};

}  // namespace dd4hep
