// Stand-in for EDM4hep: what event.cpp uses, with EDM4hep's names and types.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

namespace edm4hep {

struct Vector3f {
  float x, y, z;
};

/// Copies of an object are the same object.
struct Identity {
  std::shared_ptr<int> of = std::make_shared<int>();
  bool operator==(const Identity& other) const { return of == other.of; }
};

struct CalorimeterHit : Identity {
  float energy = 0;
  Vector3f position{};
  std::uint64_t cell_id = 0;
  float time = 0;

  float getEnergy() const { return energy; }
  Vector3f getPosition() const { return position; }
  std::uint64_t getCellID() const { return cell_id; }
  float getTime() const { return time; }
};

using CalorimeterHitCollection = std::vector<CalorimeterHit>;

/// A podio collection makes its members.
template <class Object>
struct Created : std::vector<Object> {
  Object create() { return this->emplace_back(); }
};

struct ObjectID {
  int index;
};

struct MCParticle : Identity {
  int index = 0;
  ObjectID getObjectID() const { return {index}; }
};

template <class From>
struct LinkToMC {
  struct Data {
    From from;
    MCParticle to;
    float weight = 0;
  };
  std::shared_ptr<Data> data = std::make_shared<Data>();

  From getFrom() const { return data->from; }
  MCParticle getTo() const { return data->to; }
  float getWeight() const { return data->weight; }
  void setFrom(const From& value) { data->from = value; }
  void setTo(const MCParticle& value) { data->to = value; }
  void setWeight(float value) { data->weight = value; }
};

}  // namespace edm4hep

template <class Object>
  requires std::is_base_of_v<edm4hep::Identity, Object>
struct std::hash<Object> {
  std::size_t operator()(const Object& object) const { return std::hash<std::shared_ptr<int>>{}(object.of); }
};
