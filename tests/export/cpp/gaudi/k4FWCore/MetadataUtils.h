// Stand-in for k4FWCore: metadata of the job, which its locator of services holds.
#pragma once
#include <edm4hep/Constants.h>
#include <edm4hep/utils/ParticleIDUtils.h>
#include <podio/Frame.h>

namespace k4FWCore {

template <class Value, class Component>
void putParameter(const std::string& name, const Value& value, const Component* component) {
  component->locator->metadata.putParameter(name, value);
}

template <class Component>
void putParameter(const std::string& name, const edm4hep::utils::ParticleIDMeta& value, const Component* component) {
  edm4hep::utils::PIDHandler::setAlgoInfo(component->locator->metadata, name, value);
}

template <class Value, class Component>
void putCollectionParameter(const std::string& collection, const std::string& name, const Value& value,
                            const Component* component) {
  putParameter(podio::collMetadataParamName(collection, name), value, component);
}

template <class Component>
std::optional<std::string> getCellIDEncoding(const std::string& collection, const Component* component) {
  const auto name = podio::collMetadataParamName(collection, edm4hep::labels::CellIDEncoding);
  return component->locator->metadata.template getParameter<std::string>(name);
}

}  // namespace k4FWCore
