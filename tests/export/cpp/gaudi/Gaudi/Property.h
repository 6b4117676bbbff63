// Stand-in for Gaudi: what PFlowReconstruction uses of it, with Gaudi's names. Properties are set through their owner.
#pragma once
#include <any>
#include <map>
#include <string>

namespace Gaudi {

template <class Value>
class Property {
 public:
  template <class Owner>
  Property(Owner* owner, const std::string& name, const Value& value, const std::string&) : value_(value) {
    owner->properties[name] = &value_;
  }
  const Value& value() const { return value_; }
  operator const Value&() const { return value_; }

 private:
  Value value_;
};

}  // namespace Gaudi
