// Stand-in for Gaudi and k4FWCore: an algorithm from collections to collections, whose event is a frame of podio.
#pragma once
#include <podio/Frame.h>

#include <any>
#include <iostream>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "GaudiKernel/GaudiException.h"
#include "k4Interface/IGeoSvc.h"

#define DECLARE_COMPONENT(Algorithm)
inline constexpr char endmsg = '\n';

struct EventContext {
  std::size_t number;
  std::size_t evt() const { return number; }
};

struct ISvcLocator {
  podio::Frame metadata;
  IGeoSvc* geometry = nullptr;
};

namespace k4FWCore {

template <class Signature>
class MultiTransformer;

template <class... Out, class... In>
class MultiTransformer<std::tuple<Out...>(const EventContext&, const In&...)> {
 public:
  using Names = std::vector<std::string>;
  using KeyValues = std::pair<std::string, Names>;

  MultiTransformer(const std::string& name, ISvcLocator* services, const std::vector<KeyValues>& inputs,
                   const std::vector<KeyValues>& outputs)
      : locator(services), name_(name), inputs_(inputs), outputs_(outputs) {
    for (auto* locations : {&inputs_, &outputs_})
      for (auto& [key, names] : *locations) properties[key] = &names;
  }
  virtual ~MultiTransformer() = default;

  template <class Value>
  void set(const std::string& key, const Value& value) {
    *std::any_cast<Value*>(properties.at(key)) = value;
  }

  virtual StatusCode initialize() = 0;
  virtual StatusCode finalize() { return StatusCode::SUCCESS; }
  virtual std::tuple<Out...> operator()(const EventContext&, const In&...) const = 0;

  void execute(const EventContext& context, podio::Frame& event) const {
    execute(context, event, std::index_sequence_for<In...>(), std::index_sequence_for<Out...>());
  }

  const std::string& name() const { return name_; }
  const Names& inputLocations(const std::string& key) const { return *std::any_cast<Names*>(properties.at(key)); }
  const Names& outputLocations(const std::string& key) const { return *std::any_cast<Names*>(properties.at(key)); }
  std::ostream& warning() const { return std::cerr << name_ << ": "; }
  template <class Service>
  Service* service(const std::string& name, bool, bool quiet = false) const {
    if (!locator->geometry && !quiet) std::cerr << "ServiceManager ERROR Unable to locate service \"" << name << "\"\n";
    return locator->geometry;
  }

  ISvcLocator* locator;
  std::map<std::string, std::any> properties;

 private:
  template <class Collection>
  static std::vector<const Collection*> get(const podio::Frame& event, const Names& names, const std::vector<const Collection*>&) {
    std::vector<const Collection*> collections;
    for (const std::string& name : names) collections.push_back(&event.get<Collection>(name));
    return collections;
  }

  template <std::size_t... I, std::size_t... O>
  void execute(const EventContext& context, podio::Frame& event, std::index_sequence<I...>, std::index_sequence<O...>) const {
    auto outputs = (*this)(context, get(event, inputs_[I].second, In())...);
    (event.put(std::move(std::get<O>(outputs)), outputs_[O].second[0]), ...);
  }

  std::string name_;
  std::vector<KeyValues> inputs_, outputs_;
};

}  // namespace k4FWCore
