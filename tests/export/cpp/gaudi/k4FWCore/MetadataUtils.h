// Stand-in for k4FWCore: metadata of the job, which its locator of services holds.
#pragma once
#include <edm4hep/Constants.h>
#include <edm4hep/utils/ParticleIDUtils.h>
#include <podio/Frame.h>

#include <optional>
#include <string>
#include <type_traits>

#include "GaudiKernel/GaudiException.h"

namespace k4FWCore {

template <class Value, class Component>
std::optional<Value> getParameter(const std::string& name, const Component* component) {
  if constexpr (std::is_same_v<Value, edm4hep::utils::ParticleIDMeta>)
    return edm4hep::utils::PIDHandler::getAlgoInfo(component->locator->metadata, name);
  else
    return component->locator->metadata.template getParameter<Value>(name);
}

template <class Value, class Component>
void putParameter(const std::string& name, const Value& value, const Component* component) {
  if (getParameter<Value>(name, component))  // MetadataSvc.ThrowIfDuplicate, true unless a job sets it
    throw GaudiException("Metadata parameter '" + name + "' is already set", component->name(), StatusCode::FAILURE);
  if constexpr (std::is_same_v<Value, edm4hep::utils::ParticleIDMeta>)
    edm4hep::utils::PIDHandler::setAlgoInfo(component->locator->metadata, name, value);
  else
    component->locator->metadata.putParameter(name, value);
}

template <class Component>
std::optional<std::string> getCellIDEncoding(const std::string& collection, const Component* component) {
  return getParameter<std::string>(podio::collMetadataParamName(collection, edm4hep::labels::CellIDEncoding), component);
}

}  // namespace k4FWCore
