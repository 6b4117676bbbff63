/// Reconstructs the events of an EDM4hep file: its frames, with the collections `PFlow...` beside those of the input.
///
///     pflow_podio [--threads N] [--on-error raise|skip] [--max-hits N] [--mc-links] [--ttree] [--force]
///                 MODEL IN.root OUT.root COLLECTION=SUBDETECTOR... [TRACKS]
///
/// MODEL is the folder that `pflow export` wrote. Each collection of calorimeter hits is named with the calorimeter of
/// the model that it belongs to (ECALBarrel=ecal_barrel), and the collection of tracks alone. N threads (1) reconstruct
/// as many events at a time; the output is the same. `--on-error skip` leaves events that cannot be used empty and
/// flagged, and the program exits with 3. `--mc-links` links particles to Monte Carlo particles, by the file's links of
/// hits and tracks. OUT.root, an RNTuple or with `--ttree` a TTree, appears when it is whole; one that exists is replaced
/// only with `--force`, and the input never.

#include <edm4hep/Constants.h>
#include <edm4hep/utils/ParticleIDUtils.h>
#include <podio/Frame.h>
#include <podio/Reader.h>
#include <podio/Writer.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <set>

#include "event.h"

namespace {

constexpr auto usage =
    "pflow_podio [--threads N] [--on-error raise|skip] [--max-hits N] [--mc-links] [--ttree] [--force] "
    "MODEL IN.root OUT.root COLLECTION=SUBDETECTOR... [TRACKS]";

struct Arguments {
  unsigned threads = 1;
  bool skip = false, mc_links = false, force = false;
  std::string type = "rntuple";
  pflow::Options options;
  std::vector<std::string> files;                         // model, input and output
  std::vector<std::pair<std::string, std::string>> hits;  // collection and calorimeter
  std::vector<std::string> tracks;
};

Arguments parse(const std::vector<std::string>& words) {
  Arguments arguments;
  std::set<std::string> names;  // of collections
  for (auto word = words.begin(); word != words.end(); ++word) {
    const auto value = [&word, &words] {
      if (std::next(word) == words.end()) throw pflow::Error(*word, "expected a value");
      return *++word;
    };
    const auto number = [&value, name = *word] {
      const std::string text = value();
      if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") < text.size() || std::stoul(text) < 1)
        throw pflow::Error(name, "expected a whole number from 1, found '" + text + "'");
      return std::stoul(text);
    };
    if (*word == "--threads") {
      arguments.threads = unsigned(number());
    } else if (*word == "--max-hits") {
      arguments.options.max_hits = number();
    } else if (*word == "--on-error") {
      const std::string choice = value();
      arguments.skip = choice == "skip";
      if (!arguments.skip && choice != "raise")
        throw pflow::Error("--on-error", "expected raise or skip, found '" + choice + "'");
    } else if (*word == "--ttree") {
      arguments.type = "root";
    } else if (*word == "--mc-links") {
      arguments.mc_links = true;
    } else if (*word == "--force") {
      arguments.force = true;
    } else if (word->rfind("--", 0) == 0) {
      throw pflow::Error(*word, "no such option; usage: " + std::string(usage));
    } else if (arguments.files.size() < 3) {
      arguments.files.push_back(*word);
    } else if (const std::string name = word->substr(0, word->find('=')); !names.insert(name).second) {
      throw pflow::Error(name, "expected each collection once, found it twice");
    } else if (name.size() < word->size()) {
      arguments.hits.emplace_back(name, word->substr(name.size() + 1));
    } else {
      arguments.tracks.push_back(name);
    }
  }
  if (arguments.hits.empty()) throw pflow::Error("usage", usage);
  const std::string &input = arguments.files[1], &output = arguments.files[2];
  if (std::error_code none; std::filesystem::exists(output)) {
    if (std::filesystem::equivalent(input, output, none)) throw pflow::Error(output, "it is the input");
    if (std::filesystem::is_directory(output)) throw pflow::Error(output, "it is a folder; name a file");
    if (!arguments.force) throw pflow::Error(output, "it exists; choose another name, or replace it with --force");
  }
  return arguments;
}

template <class Collection>
const Collection* collection(const podio::Frame& frame, const std::string& name) {
  if (const auto* typed = dynamic_cast<const Collection*>(frame.get(name))) return typed;
  std::string text = "no such " + std::string(Collection::typeName) + "; the file has";
  for (const std::string& available : frame.getAvailableCollections())
    if (dynamic_cast<const Collection*>(frame.get(available))) text += " " + available;
  throw pflow::Error(name, text);
}

/// All collections of a type; links, which are empty in some events, among them.
template <class Collection>
std::vector<const Collection*> collections(const podio::Frame& frame) {
  std::vector<const Collection*> found;
  for (const std::string& name : frame.getAvailableCollections())
    if (const auto* typed = dynamic_cast<const Collection*>(frame.get(name))) found.push_back(typed);
  return found;
}

/// Path of an output while this process writes it, with the names of machine and process, as `pflow` makes it; what
/// processes that were killed have left of the same output is removed.
std::string partial_path(const std::string& output) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string begin = output + ".tmp-" + host.data() + "-", end = ".root";
  std::error_code none;
  const auto folder = std::filesystem::absolute(output, none).parent_path();
  const std::string name = std::filesystem::path(begin).filename();
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string left = entry.path().filename();
    if (left.rfind(name, 0) != 0 || left.size() < name.size() + end.size()) continue;
    const std::string process = left.substr(name.size(), left.size() - name.size() - end.size());
    const bool is_number = process.find_first_not_of("0123456789") > process.size() && process.size() - 1 < 9;
    if (is_number && kill(std::stoi(process), 0) != 0 && errno == ESRCH) std::filesystem::remove(entry.path(), none);
  }
  return begin + std::to_string(getpid()) + end;
}

/// A file being reconstructed by several threads, while the main one reads and writes.
class Job {
 public:
  explicit Job(const Arguments& arguments)
      : arguments_(arguments),
        reconstructor_(arguments.files[0], arguments.options),
        reader_(podio::makeReader(arguments.files[1])) {
    if (reader_.getEntries(podio::Category::Event) == 0) throw pflow::Error(arguments.files[1], "it has no events");
    if (reader_.getEntries(podio::Category::Metadata) > 0)
      metadata_ = reader_.readFrame(podio::Category::Metadata, 0);
    for (const auto& [name, subdetector] : arguments_.hits) {
      const auto key = podio::collMetadataParamName(name, edm4hep::labels::CellIDEncoding);
      const auto encoding = metadata_.getParameter<std::string>(key);
      if (!encoding) std::fprintf(stderr, "%s: no CellIDEncoding in the metadata, its layers are unknown\n", name.c_str());
      sources_.emplace_back(reconstructor_, subdetector, encoding.value_or(""));
    }
    for (const std::string& line : pflow::without_collection(reconstructor_, sources_))
      std::fprintf(stderr, "%s\n", line.c_str());
    const podio::Frame first = reader_.readEvent(0);
    if (first.get("PFlow"))
      throw pflow::Error(arguments.files[1],
                         "it holds a collection 'PFlow' already; reconstruct the file that it was made from");
    if (arguments.mc_links && collections<edm4hep::CaloHitMCParticleLinkCollection>(first).empty())
      throw pflow::Error("--mc-links", "the file has no edm4hep::CaloHitMCParticleLinkCollection");
    look_at_events();
  }
  ~Job() {
    std::error_code none;
    std::filesystem::remove(partial_, none);
  }

  /// Number of events that could not be used.
  std::size_t run() {
    if (!std::ofstream(partial_))  // a writer that cannot begin aborts when it is destroyed
      throw pflow::Error(partial_, "it cannot be written: is there such a folder, and may you write there?");
    writer_.emplace(podio::makeWriter(partial_, arguments_.type));
    struct Task {
      podio::Frame frame;
      std::future<std::string> refused;
    };
    std::deque<Task> tasks;  // in the order of the events
    const std::size_t n_events = reader_.getEntries(podio::Category::Event);
    std::size_t n_refused = 0;
    for (std::size_t n_read = 0, n_written = 0; n_written < n_events; ++n_written) {
      for (; n_read < n_events && tasks.size() < arguments_.threads; ++n_read) {
        Task& task = tasks.emplace_back(Task{reader_.readEvent(n_read), {}});
        task.refused = std::async(std::launch::async, [this, &task] { return reconstruct(task.frame); });
      }
      try {
        const std::string refused = tasks.front().refused.get();
        if (!refused.empty()) std::fprintf(stderr, "entry %zu: %s\n", n_written, refused.c_str());
        n_refused += !refused.empty();
        writer_->writeFrame(tasks.front().frame, podio::Category::Event);
      } catch (const std::exception& error) {
        throw pflow::Error("entry " + std::to_string(n_written), error.what());
      }
      tasks.pop_front();
    }
    finish();
    return n_refused;
  }

 private:
  /// Compares where the hits of the ECAL's barrel begin with the model's detector, by the radius below which 2% of them
  /// are, and finds out whether states of tracks at the calorimeter can be used; as many events as the command line's.
  void look_at_events() {
    const pflow::Face& face = reconstructor_.face();
    std::vector<double> radii;  // mm
    pflow::StatesAtCalorimeter states;
    for (std::size_t entry = 0; entry < std::min<std::size_t>(10, reader_.getEntries(podio::Category::Event)); ++entry) {
      const podio::Frame frame = reader_.readEvent(entry);
      for (const auto& [name, subdetector] : arguments_.hits) {
        if (subdetector.rfind("ecal", 0) != 0) continue;  // neutrons may leave nothing there
        for (const auto& hit : *collection<edm4hep::CalorimeterHitCollection>(frame, name)) {
          const auto [x, y, z] = hit.getPosition();
          const double radius = std::hypot(x, y);
          if (radius > 0 && std::abs(z) < 0.8 * face.half_length) radii.push_back(radius);
        }
      }
      if (!arguments_.tracks.empty())
        states.add(reconstructor_, *collection<edm4hep::TrackCollection>(frame, arguments_.tracks.front()));
    }
    const auto first = radii.begin() + std::ptrdiff_t(radii.size() / 50);
    std::nth_element(radii.begin(), first, radii.end());
    if (radii.size() >= 100 && face.radius > 0 &&  // exports of pflow 0.3 have no face
        (*first < 0.97 * face.radius || *first > 1.1 * face.radius))  // corners of polygons are up to 1.04 away
      std::fprintf(stderr, "%s: hits of the ECAL's barrel begin at %.0f mm, expected %.0f mm by the model: was it exported "
                   "for another detector (pflow export --detector)?\n", arguments_.files[1].c_str(), *first, face.radius);
    states_elsewhere_ = states.elsewhere();
    if (states_elsewhere_)
      std::fprintf(stderr, "%s: many states at the calorimeter are elsewhere; their tracks are followed along the helix\n",
                   arguments_.tracks.front().c_str());
  }

  /// Puts the reconstruction into a frame; why it cannot, if events are skipped.
  std::string reconstruct(podio::Frame& frame) const {
    std::vector<const edm4hep::CalorimeterHitCollection*> hits;
    std::vector<const edm4hep::TrackCollection*> tracks;
    for (const auto& [name, subdetector] : arguments_.hits)
      hits.push_back(collection<edm4hep::CalorimeterHitCollection>(frame, name));
    for (const std::string& name : arguments_.tracks) tracks.push_back(collection<edm4hep::TrackCollection>(frame, name));
    const pflow::Event event = pflow::make_event(reconstructor_, sources_, hits, tracks, states_elsewhere_);
    pflow::Reconstruction reconstruction;
    std::int32_t flags = event.flags | pflow::BAD_INPUT;
    std::string refused;
    try {
      reconstruction = reconstructor_.reconstruct(event.hits, event.tracks);
      flags = pflow::flags_of(event, reconstruction);
    } catch (const pflow::Error& error) {
      if (!arguments_.skip) throw;
      refused = error.what();
    }
    auto [particles, clusters, particle_ids, hit_weights, track_weights] =
        pflow::make_collections(reconstructor_, reconstruction, event, algorithm_.algoType());
    edm4hep::RecoMCParticleLinkCollection links;
    if (arguments_.mc_links)
      links = pflow::make_mc_links(reconstruction, event, particles,
                                   collections<edm4hep::CaloHitMCParticleLinkCollection>(frame),
                                   collections<edm4hep::TrackMCParticleLinkCollection>(frame));
    frame.put(std::move(particles), "PFlow");
    frame.put(std::move(clusters), "PFlowClusters");
    frame.put(std::move(particle_ids), "PFlowParticleID");
    frame.put(std::move(hit_weights), "PFlowHitWeights");
    frame.put(std::move(track_weights), "PFlowTrackWeights");
    if (arguments_.mc_links) frame.put(std::move(links), "PFlowMCParticleLinks");
    frame.putParameter("PFlow_flags", flags);
    frame.putParameter("PFlow_hitOffsets", event.hit_offsets);
    frame.putParameter("PFlow_unusedTracks", event.unused_tracks);
    return refused;
  }

  /// Writes the frames that are not events, with what `pflow` needs to read the reconstruction, and renames the file.
  void finish() {
    const podio::Frame frame = reader_.readEvent(0);
    std::vector<std::string> names;
    std::vector<int> ids;
    for (const auto& [name, subdetector] : arguments_.hits) {
      names.push_back(name);
      ids.push_back(int(frame.get(name)->getID()));
    }
    edm4hep::utils::PIDHandler::setAlgoInfo(metadata_, "PFlowParticleID", algorithm_);
    metadata_.putParameter("PFlowClusters__SubdetectorNames", reconstructor_.subdetectors());
    metadata_.putParameter("PFlow__HitCollections", names);
    metadata_.putParameter("PFlow__HitCollectionIDs", ids);
    std::vector<std::string> parts = {"covariance", "hit_links", "scores", "track_links"};
    if (reconstructor_.probabilities().back() == "existence") parts.insert(parts.begin() + 1, "existence");
    metadata_.putParameter("PFlow__Parts", parts);
    writer_->writeFrame(metadata_, podio::Category::Metadata);
    for (const auto& name : reader_.getAvailableCategories()) {
      const std::string category(name);
      for (std::size_t entry = category == podio::Category::Metadata; entry < reader_.getEntries(category); ++entry)
        if (category != podio::Category::Event) writer_->writeFrame(reader_.readFrame(category, entry), category);
    }
    writer_->finish();
    std::size_t n_written = 0;
    try {  // ROOT says on stderr alone that it could not write
      n_written = podio::makeReader(partial_).getEntries(podio::Category::Event);
    } catch (const std::exception&) {
    }
    if (n_written != reader_.getEntries(podio::Category::Event))
      throw pflow::Error(arguments_.files[2], "it was not written whole: is the disk full, or the quota used up?");
    if (!arguments_.force && std::filesystem::exists(arguments_.files[2]))
      throw pflow::Error(arguments_.files[2], "another process has written it meanwhile; choose another name, or replace "
                         "it with --force");
    std::filesystem::rename(partial_, arguments_.files[2]);
  }

  const Arguments& arguments_;
  const std::string partial_ = partial_path(arguments_.files[2]);
  const pflow::Reconstructor reconstructor_;
  const edm4hep::utils::ParticleIDMeta algorithm_{"PFlow", reconstructor_.probabilities()};
  std::vector<pflow::HitSource> sources_;
  bool states_elsewhere_ = false;
  podio::Reader reader_;
  std::optional<podio::Writer> writer_;
  podio::Frame metadata_;
};

}  // namespace

int main(int argc, char** argv) try {
  const Arguments arguments = parse({argv + 1, argv + argc});
  return Job(arguments).run() == 0 ? 0 : 3;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
