/// Particle flow as an algorithm of Gaudi, for `k4run`: pflow_cld.py is an example of its options.
///
/// The algorithm is re-entrant: its model is made in initialize() and not changed by events, so that all threads of the
/// scheduler share it.

#include <DD4hep/DD4hepUnits.h>
#include <DD4hep/Detector.h>
#include <Gaudi/Property.h>
#include <GaudiKernel/GaudiException.h>
#include <edm4hep/utils/ParticleIDUtils.h>
#include <k4FWCore/MetadataUtils.h>
#include <k4FWCore/Transformer.h>
#include <k4Interface/IGeoSvc.h>

#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "event.h"

using HitCollections = std::vector<const edm4hep::CalorimeterHitCollection*>;
using TrackCollections = std::vector<const edm4hep::TrackCollection*>;
using HitLinks = std::vector<const edm4hep::CaloHitMCParticleLinkCollection*>;
using TrackLinks = std::vector<const edm4hep::TrackMCParticleLinkCollection*>;
using Outputs = decltype(std::tuple_cat(std::declval<pflow::Collections>(),
                                        std::declval<std::tuple<edm4hep::RecoMCParticleLinkCollection>>()));

struct PFlowReconstruction final
    : k4FWCore::MultiTransformer<Outputs(const EventContext&, const HitCollections&, const TrackCollections&,
                                         const HitLinks&, const TrackLinks&)> {
  PFlowReconstruction(const std::string& name, ISvcLocator* locator)
      : MultiTransformer(name, locator,
                         {KeyValues("CaloHits", {"ECALBarrel", "ECALEndcap", "HCALBarrel", "HCALEndcap", "HCALOther", "MUON"}),
                          KeyValues("Tracks", {"SiTracks_Refitted"}), KeyValues("HitLinks", std::vector<std::string>{}),
                          KeyValues("TrackLinks", std::vector<std::string>{})},
                         {KeyValues("Particles", {"PFlow"}), KeyValues("Clusters", {"PFlowClusters"}),
                          KeyValues("ParticleID", {"PFlowParticleID"}), KeyValues("HitWeights", {"PFlowHitWeights"}),
                          KeyValues("TrackWeights", {"PFlowTrackWeights"}),
                          KeyValues("MCParticleLinks", {"PFlowMCParticleLinks"})}) {}

  StatusCode initialize() override {
    if (m_on_error.value() != "raise" && m_on_error.value() != "skip")
      throw pflow::Error("OnError", "expected raise or skip, found '" + m_on_error.value() + "'");
    pflow::Options options;
    options.threads = m_threads;
    options.max_hits = m_max_hits;
    m_model = std::make_unique<const pflow::Reconstructor>(m_folder.value(), options);
    check_field();

    m_sources.clear();
    for (const std::string& collection : inputLocations("CaloHits")) {
      const auto subdetector = m_subdetectors.value().find(collection);
      if (subdetector == m_subdetectors.value().end())
        throw pflow::Error("Subdetectors", "no calorimeter of the model is named for the collection " + collection);
      const auto encoding = k4FWCore::getCellIDEncoding(collection, this);
      if (!encoding) warning() << collection << ": no CellIDEncoding in the metadata, its layers are unknown" << endmsg;
      m_sources.emplace_back(*m_model, subdetector->second, encoding.value_or(""));
    }
    for (const std::string& line : pflow::without_collection(*m_model, m_sources)) warning() << line << endmsg;

    // Not in finalize(): algorithms that come after this one look it up when they are initialised.
    m_algorithm = {outputLocations("Particles")[0], m_model->probabilities()};
    put_metadata(outputLocations("ParticleID")[0], m_algorithm);
    put_metadata(podio::collMetadataParamName(outputLocations("Clusters")[0], "SubdetectorNames"),
                 m_model->subdetectors());
    return StatusCode::SUCCESS;
  }

  Outputs operator()(const EventContext& context, const HitCollections& hits, const TrackCollections& tracks,
                     const HitLinks& hit_links, const TrackLinks& track_links) const override {
    const std::string where = "event " + std::to_string(context.evt()) + ": ";
    const pflow::Event event = pflow::make_event(*m_model, m_sources, hits, tracks, m_states_elsewhere);
    pflow::Reconstruction reconstruction;
    try {
      reconstruction = m_model->reconstruct(event.hits, event.tracks);
    } catch (const pflow::Error& error) {
      if (m_on_error.value() == "raise") throw GaudiException(where + error.what(), name(), StatusCode::FAILURE);
      warning() << where << "it cannot be used and has no particles: " << error.what() << endmsg;
      ++m_n_skipped;
    }
    if (event.flags & pflow::UNUSABLE_HITS) warning() << where << "hits with impossible numbers count with energy 0" << endmsg;
    if (!event.unused_tracks.empty()) warning() << where << event.unused_tracks.size() << " tracks cannot be used" << endmsg;
    if (reconstruction.truncated) warning() << where << "decoding stopped at the largest number of particles" << endmsg;
    auto collections = pflow::make_collections(*m_model, reconstruction, event, m_algorithm.algoType());
    auto links = pflow::make_mc_links(reconstruction, event, std::get<0>(collections), hit_links, track_links);
    return std::tuple_cat(std::move(collections), std::make_tuple(std::move(links)));
  }

  StatusCode finalize() override {
    if (m_n_skipped > 0) warning() << m_n_skipped << " events could not be used and have no particles" << endmsg;
    return MultiTransformer::finalize();
  }

 private:
  /// Metadata of the job; a file that was reconstructed before has them, and k4FWCore refuses to set them again.
  template <class Value>
  void put_metadata(const std::string& parameter, const Value& value) {
    if (k4FWCore::getParameter<Value>(parameter, this) != value) k4FWCore::putParameter(parameter, value, this);
  }

  /// Compares the model's field with the property or, without one, the geometry's.
  void check_field() {
    double field = m_field;
    if (field == 0)
      if (const auto geometry = service<IGeoSvc>("GeoSvc", false, true))  // quiet: a job need not have one
        field = geometry->getDetector()->field().magneticField({0, 0, 0}).z() / dd4hep::tesla;
    if (field != 0 && std::abs(field - m_model->b_field()) > 0.01 * std::abs(m_model->b_field()))
      throw pflow::Error("Field", "the detector's is " + std::to_string(field) + " T, and the model was trained for " +
                                      std::to_string(m_model->b_field()) + " T");
  }

  Gaudi::Property<std::string> m_folder{this, "Model", "", "folder that `pflow export` wrote"};
  Gaudi::Property<std::map<std::string, std::string>> m_subdetectors{
      this,
      "Subdetectors",
      {{"ECALBarrel", "ecal_barrel"}, {"ECALEndcap", "ecal_endcap"}, {"HCALBarrel", "hcal_barrel"},
       {"HCALEndcap", "hcal_endcap"}, {"HCALOther", "hcal_other"}, {"MUON", "muon"}},
      "calorimeter of the model for each collection of CaloHits"};
  Gaudi::Property<int> m_threads{this, "Threads", 1, "threads within one event"};
  Gaudi::Property<unsigned> m_max_hits{this, "MaxHits", 32768,
                                       "largest number of hits of an event, and 16 times that of its tracks"};
  Gaudi::Property<std::string> m_on_error{
      this, "OnError", "raise", "an event that cannot be used: raise (the job fails) or skip (it has no particles)"};
  Gaudi::Property<bool> m_states_elsewhere{
      this, "StatesElsewhere", false,
      "whether states of tracks at the calorimeter that are not near its front are replaced by following the helix"};
  Gaudi::Property<double> m_field{this, "Field", 0.0, "field along z, T, to compare; 0: the GeoSvc's, if there is one"};

  std::unique_ptr<const pflow::Reconstructor> m_model;
  std::vector<pflow::HitSource> m_sources;  // of each collection of CaloHits
  edm4hep::utils::ParticleIDMeta m_algorithm;
  mutable std::atomic<std::size_t> m_n_skipped = 0;
};

DECLARE_COMPONENT(PFlowReconstruction)
