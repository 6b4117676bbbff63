// Stand-in for EDM4hep: what event.cpp uses, with EDM4hep's names and types.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace edm4hep {

struct Vector3f {
  float x, y, z;
};

struct CalorimeterHit {
  float energy;
  Vector3f position;
  std::uint64_t cell_id;
  float time;

  float getEnergy() const { return energy; }
  Vector3f getPosition() const { return position; }
  std::uint64_t getCellID() const { return cell_id; }
  float getTime() const { return time; }
};

using CalorimeterHitCollection = std::vector<CalorimeterHit>;

/// A podio collection makes its members; copies of a member are the same object.
template <class Object>
struct Created : std::vector<Object> {
  Object create() { return this->emplace_back(); }
};

}  // namespace edm4hep
