/// Hits and tracks to the encoder's inputs, and the refinement's outputs to particles.
///
/// All arithmetic is in the three graphs, encoder, decoder and refinement; tensors go from graph to graph by name, as
/// README.md says.

#include "pflow.h"

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <locale>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

namespace pflow {
namespace {

// --------------------------------------------------------------------------------------------------------- graphs

/// A graph, with the names of its inputs and outputs.
class Graph {
 public:
  Graph(const Ort::Env& env, const std::filesystem::path& path, int threads) : path_(path.string()) {
    if (!std::filesystem::exists(path)) throw Error(path_, "there is no such file; expected the folder of pflow export");
    try {
      Ort::SessionOptions options;
      options.SetIntraOpNumThreads(std::max(threads, 0));  // it takes memory without end for -5
      options.SetInterOpNumThreads(1);
      options.SetGraphOptimizationLevel(ORT_ENABLE_ALL);
      options.DisableMemPattern();  // it would keep one for each number of hits, tracks and particles ever seen
      session_ = Ort::Session(env, path.c_str(), options);
      for (std::size_t i = 0; i < session_.GetInputCount(); ++i)
        inputs_.emplace_back(session_.GetInputNameAllocated(i, allocator_).get());
      for (std::size_t i = 0; i < session_.GetOutputCount(); ++i)
        outputs_.emplace_back(session_.GetOutputNameAllocated(i, allocator_).get());
    } catch (const Ort::Exception& error) {
      throw Error(path_, error.what());
    }
  }

  const std::string& path() const { return path_; }
  const std::vector<std::string>& inputs() const { return inputs_; }

  /// Names of the outputs that `run` gives: all, or those asked for.
  const std::vector<std::string>& outputs() const { return outputs_; }
  void ask(std::vector<std::string> names) { outputs_ = std::move(names); }

  bool has_output(const std::string& name) const {
    return std::find(outputs_.begin(), outputs_.end(), name) != outputs_.end();
  }

  /// Outputs, in the order of `outputs`, for inputs in the order of `inputs`.
  std::vector<Ort::Value> run(const std::vector<const OrtValue*>& inputs) const {
    std::vector<const char*> input_names, output_names;
    for (const std::string& name : inputs_) input_names.push_back(name.c_str());
    for (const std::string& name : outputs_) output_names.push_back(name.c_str());
    std::vector<OrtValue*> raw(outputs_.size(), nullptr);
    OrtStatus* status = Ort::GetApi().Run(const_cast<OrtSession*>(static_cast<const OrtSession*>(session_)), nullptr,
                                          input_names.data(), inputs.data(), inputs.size(), output_names.data(),
                                          output_names.size(), raw.data());
    std::vector<Ort::Value> outputs;
    outputs.reserve(raw.size());
    for (OrtValue* value : raw) outputs.emplace_back(value);
    if (status) throw Error(path_, Ort::Status(status).GetErrorMessage());
    return outputs;
  }

  /// A text in the file's metadata; throws Error where there is none and no default.
  std::string metadata(const char* key, const char* otherwise = nullptr) const {
    const Ort::AllocatedStringPtr text =
        session_.GetModelMetadata().LookupCustomMetadataMapAllocated(key, allocator_);
    if (!text && !otherwise) throw Error(path_, std::string("expected metadata '") + key + "'");
    return text ? text.get() : otherwise;
  }

  /// Numbers in the file's metadata, separated by spaces.
  template <class... Number>
  void read(const char* key, Number&... numbers) const {
    std::istringstream text(metadata(key));
    text.imbue(std::locale::classic());
    if (!(text >> ... >> numbers)) throw Error(path_, std::string("expected a number as metadata '") + key + "'");
  }

 private:
  std::string path_;
  Ort::Session session_{nullptr};
  Ort::AllocatorWithDefaultOptions allocator_;
  std::vector<std::string> inputs_, outputs_;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

std::size_t index_of(const std::vector<std::string>& names, const std::string& name) {
  return std::size_t(std::find(names.begin(), names.end(), name) - names.begin());
}

// --------------------------------------------------------------------------------------------------------- inputs

constexpr float max_charge = 1.01f;  // e
constexpr float max_layer = 65535.f;
constexpr std::size_t hits_per_track = 16;  // by memory; also in pflow/inference/events.py

/// A member of hits or tracks, and its range.
template <class Object, class Number>
struct Member {
  const char* name;
  Number Object::* at;
  float smallest, largest;
};

/// The members that an input of the encoder is made of, by its name.
template <class Object, class Number>
using Inputs = std::map<std::string, std::vector<Member<Object, Number>>>;

const Inputs<Hit, float> hit_numbers = {
    {"hit_energy", {{"energy", &Hit::energy, 0.0f, max_energy}}},
    {"hit_position",
     {{"x", &Hit::x, -max_length, max_length},
      {"y", &Hit::y, -max_length, max_length},
      {"z", &Hit::z, -max_length, max_length}}},
    {"hit_time", {{"time", &Hit::time, -3e38f, 3e38f}}},
};

const Inputs<Hit, std::int32_t> hit_integers = {
    {"hit_subdetector", {{"subdetector", &Hit::subdetector, 0.0f, 0.0f}}},  // the range depends on the model
    {"hit_layer", {{"layer", &Hit::layer, 0.0f, max_layer}}},
};

const Inputs<Track, float> track_numbers = {
    {"track_momentum",
     {{"px", &Track::px, -max_energy, max_energy},
      {"py", &Track::py, -max_energy, max_energy},
      {"pz", &Track::pz, -max_energy, max_energy}}},
    {"track_charge", {{"charge", &Track::charge, -max_charge, max_charge}}},
    {"track_calo_position",
     {{"calo_x", &Track::calo_x, -max_length, max_length},
      {"calo_y", &Track::calo_y, -max_length, max_length},
      {"calo_z", &Track::calo_z, -max_length, max_length}}},
    {"track_calo_momentum",
     {{"calo_px", &Track::calo_px, -max_energy, max_energy},
      {"calo_py", &Track::calo_py, -max_energy, max_energy},
      {"calo_pz", &Track::calo_pz, -max_energy, max_energy}}},
    {"track_d0", {{"d0", &Track::d0, -3e38f, 3e38f}}},
    {"track_z0", {{"z0", &Track::z0, -3e38f, 3e38f}}},
    {"track_omega", {{"omega", &Track::omega, -3e38f, 3e38f}}},
};

std::string shown(double value) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << value;
  return text.str();
}

bool is_known(float value) { return !std::isnan(value); }
bool is_known(std::int32_t value) { return value >= 0; }

/// Values of members of all objects, [object, member].
template <class Object, class Number>
std::vector<Number> column(const char* part, const std::vector<Object>& objects,
                           const std::vector<Member<Object, Number>>& members, bool all_known) {
  std::vector<Number> values;
  values.reserve(std::max<std::size_t>(1, objects.size() * members.size()));  // no null pointer without objects
  for (std::size_t i = 0; i < objects.size(); ++i) {
    for (const auto& member : members) {
      const Number value = objects[i].*member.at;
      const bool known = is_known(value);
      if (known ? !(float(value) >= member.smallest && float(value) <= member.largest) : all_known)
        throw Error(std::string(part) + "[" + std::to_string(i) + "]." + member.name,
                    known ? "expected " + shown(member.smallest) + " to " + shown(member.largest) + ", found " +
                                shown(double(value))
                          : "the model reads it, and it is not known");
      values.push_back(value);
    }
  }
  return values;
}

// -------------------------------------------------------------------------------------------------------- outputs

/// Elements of a tensor [rows, columns].
template <class Number>
class Table {
 public:
  Table(const std::string& name, const Ort::Value& value, std::size_t columns, const std::string& path) {
    const auto info = value.GetTensorTypeAndShapeInfo();
    const std::size_t count = info.GetElementCount();
    if (info.GetElementType() != Ort::TypeToTensorType<Number>::type || count % columns != 0)
      throw Error(path, "output '" + name + "' has another type or shape than expected");
    columns_ = columns;
    size_ = count / columns;
    data_ = value.GetTensorData<Number>();
  }

  std::size_t size() const { return size_; }
  const Number& operator()(std::size_t row, std::size_t column = 0) const { return data_[row * columns_ + column]; }

  bool finite() const {
    return std::all_of(data_, data_ + size_ * columns_, [](Number x) { return std::isfinite(double(x)); });
  }

 private:
  const Number* data_;
  std::size_t size_, columns_;
};

class Clock {
 public:
  /// Time since the last call, or since it was made.
  Time lap() {
    const Clock now;
    const Time passed{now.cpu_ - cpu_, std::chrono::duration<double, std::milli>(now.wall_ - wall_).count()};
    *this = now;
    return passed;
  }

 private:
  static double thread_time() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e3 * double(now.tv_sec) + 1e-6 * double(now.tv_nsec);
  }

  double cpu_ = thread_time();
  std::chrono::steady_clock::time_point wall_ = std::chrono::steady_clock::now();
};

/// An environment that sends no usage data, as Microsoft's builds do since 1.29, also of jobs on a farm. The call leaves
/// their thread and the events of the start; the variable stops these too, if it is set before the first environment.
Ort::Env make_environment() {
  setenv("ORT_DISABLE_TELEMETRY", "1", 0);
  Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "pflow");
  environment.DisableTelemetryEvents();
  return environment;
}

}  // namespace

// -------------------------------------------------------------------------------------------------- Reconstructor

class Reconstructor::Implementation {
 public:
  Implementation(const std::filesystem::path& folder, const Options& options)
      : options_(options),
        encoder_(env_, folder / "encoder.onnx", options.threads),
        decoder_(env_, folder / "decoder.onnx", options.threads),
        refinement_(env_, folder / "refinement.onnx", options.threads) {
    if (encoder_.metadata("format") != "4" || encoder_.metadata("architecture") != "pointing")
      throw Error(encoder_.path(), "expected an export of a pointing network in format 4");
    for (const Graph* other : {&decoder_, &refinement_})  // exports of before have no such text
      if (other->metadata("export", "") != encoder_.metadata("export", ""))
        throw Error(other->path(), "is of another export than encoder.onnx");
    encoder_.read("energy_above", energy_above_);
    encoder_.read("b_field", b_field_);
    if (!encoder_.metadata("calorimeter_face", "").empty())  // exports of pflow 0.3 do not have it
      encoder_.read("calorimeter_face", face_.radius, face_.half_length, face_.sides);
    if (!encoder_.metadata("ecal_outer_radius", "").empty()) encoder_.read("ecal_outer_radius", face_.outer_radius);
    subdetectors_ = split(encoder_.metadata("subdetectors"));
    reads_tracks_ = encoder_.metadata("tracks") == "1";
    if (split(encoder_.metadata("classes")) != std::vector<std::string>(classes.begin(), classes.end()))
      throw Error(encoder_.path(), "its classes of particles differ from this library's");
    connect();
  }

  Reconstruction reconstruct(const std::vector<Hit>& hits, const std::vector<Track>& tracks) const {
    Reconstruction reco;
    check_number("hits", hits.size(), options_.max_hits, "");
    if (reads_tracks_)
      check_number("tracks", tracks.size(), options_.max_hits / hits_per_track, " / " + std::to_string(hits_per_track));
    Clock clock;
    std::vector<Ort::Value> values = encode(hits, tracks);
    reco.encoder = clock.lap();
    if (values.empty()) return reco;
    const bool any = decode(values, reco.truncated);
    reco.decoder = clock.lap();
    if (any) reco.particles = refine(values, hits.size(), tracks.size());
    reco.refinement = clock.lap();
    return reco;
  }

  const std::vector<std::string>& probabilities() const { return probabilities_; }
  const std::vector<std::string>& subdetectors() const { return subdetectors_; }
  double b_field() const { return b_field_; }
  const Face& face() const { return face_; }

 private:
  static void check_number(const char* of, std::size_t number, std::size_t limit, const std::string& divided) {
    if (number > limit)
      throw Error(of, std::to_string(number) + ", expected at most " + std::to_string(limit) + " (Options::max_hits" +
                          divided + ")");
  }

  /// Finds out which tensor goes where.
  void connect() {
    for (const std::string& name : encoder_.inputs())
      if (!hit_numbers.count(name) && !hit_integers.count(name) && !track_numbers.count(name))
        throw Error(encoder_.path(), "this library has no input '" + name + "'");
    const std::vector<std::string> known = split(encoder_.metadata("known"));
    for (const std::string& name : encoder_.inputs()) all_known_.push_back(index_of(known, name) < known.size());
    names_ = decoder_.inputs();
    for (const std::string& name : refinement_.inputs())
      if (!decoder_.has_output(name) && index_of(names_, name) == names_.size()) names_.push_back(name);
    for (const std::string& name : names_)
      if (!encoder_.has_output(name))
        throw Error((index_of(decoder_.inputs(), name) < decoder_.inputs().size() ? decoder_ : refinement_).path(),
                    "'" + name + "' is not an output of the encoder");
    encoder_.ask(names_);
    if (refinement_.has_output("existence")) probabilities_.push_back("existence");
    names_.insert(names_.end(), decoder_.outputs().begin(), decoder_.outputs().end());
  }

  /// The encoder's outputs; none for an event without hits and tracks.
  std::vector<Ort::Value> encode(const std::vector<Hit>& hits, const std::vector<Track>& tracks) const {
    std::vector<std::vector<float>> numbers;  // these two are the tensors' memory
    std::vector<std::vector<std::int32_t>> integers;
    std::vector<Ort::Value> inputs;
    numbers.reserve(encoder_.inputs().size());
    integers.reserve(encoder_.inputs().size());
    for (const std::string& name : encoder_.inputs()) {
      const bool all_known = all_known_[inputs.size()];
      if (const auto hit = hit_numbers.find(name); hit != hit_numbers.end()) {
        numbers.push_back(column("hits", hits, hit->second, all_known));
        inputs.push_back(tensor(numbers.back(), hits.size(), hit->second.size()));
      } else if (const auto integer = hit_integers.find(name); integer != hit_integers.end()) {
        auto members = integer->second;
        if (name == "hit_subdetector") members[0].largest = float(subdetectors_.size()) - 1.0f;
        integers.push_back(column("hits", hits, members, all_known || name == "hit_subdetector"));
        inputs.push_back(tensor(integers.back(), hits.size(), members.size()));
      } else {
        const auto& members = track_numbers.at(name);
        const auto n_unknown = std::count_if(tracks.begin(), tracks.end(), [&](const Track& track) {
          return std::any_of(members.begin(), members.end(), [&](const auto& m) { return !is_known(track.*m.at); });
        });
        // Up to half of the tracks may enter the calorimeter nowhere: the encoder lets them go straight on.
        const bool few = name.rfind("track_calo_", 0) == 0 && 2 * std::size_t(n_unknown) <= tracks.size();
        numbers.push_back(column("tracks", tracks, members, all_known && !few));
        inputs.push_back(tensor(numbers.back(), tracks.size(), members.size()));
      }
    }
    for (std::size_t i = 0; i < hits.size(); ++i)
      if (hits[i].energy > 0 && hits[i].x == 0 && hits[i].y == 0 && hits[i].z == 0)
        throw Error("hits[" + std::to_string(i) + "].energy", "expected 0 at the origin, (0, 0, 0) mm, found " +
                                                                  shown(hits[i].energy));
    for (std::size_t i = 0; i < tracks.size() && reads_tracks_; ++i)
      if (tracks[i].px == 0 && tracks[i].py == 0 && tracks[i].pz == 0)
        throw Error("tracks[" + std::to_string(i) + "].px", "expected a momentum, found (0, 0, 0) GeV");
    const bool has_hit =
        std::any_of(hits.begin(), hits.end(), [this](const Hit& hit) { return hit.energy > energy_above_; });
    if (!has_hit && (tracks.empty() || !reads_tracks_)) return {};
    std::vector<const OrtValue*> pointers;
    for (const Ort::Value& input : inputs) pointers.push_back(input);
    return encoder_.run(pointers);
  }

  template <class Number>
  Ort::Value tensor(std::vector<Number>& values, std::size_t rows, std::size_t columns) const {
    const std::array<std::int64_t, 2> shape = {std::int64_t(rows), std::int64_t(columns)};
    return Ort::Value::CreateTensor<Number>(memory_, values.data(), values.size(), shape.data(), columns > 1 ? 2 : 1);
  }

  /// Appends the decoder's outputs to the encoder's, and returns whether there are particles.
  bool decode(std::vector<Ort::Value>& values, bool& truncated) const {
    const std::vector<const OrtValue*> inputs(values.begin(), values.begin() + std::ptrdiff_t(decoder_.inputs().size()));
    std::vector<Ort::Value> outputs = decoder_.run(inputs);
    const auto cut = table<bool>(decoder_, outputs, "truncated");
    if (cut.size() != 1) throw Error(decoder_.path(), "expected one value as output 'truncated'");
    truncated = cut(0);
    const bool any = table<std::int64_t>(decoder_, outputs, "seed").size() > 0;
    std::move(outputs.begin(), outputs.end(), std::back_inserter(values));
    return any;
  }

  std::vector<Particle> refine(const std::vector<Ort::Value>& values, std::size_t n_hits, std::size_t n_tracks) const {
    std::vector<const OrtValue*> inputs;
    for (const std::string& name : refinement_.inputs()) inputs.push_back(values[index_of(names_, name)]);
    const std::vector<Ort::Value> outputs = refinement_.run(inputs);
    const auto pdg = table<std::int64_t>(refinement_, outputs, "pdg");
    const auto charge = table<float>(refinement_, outputs, "charge"), score = table<float>(refinement_, outputs, "score");
    const auto probability = table<float>(refinement_, outputs, "class_probability", classes.size());
    const auto energy = table<double>(refinement_, outputs, "energy"), mass = table<double>(refinement_, outputs, "mass");
    const auto momentum = table<double>(refinement_, outputs, "momentum", 3), covariance = table<double>(refinement_, outputs, "covariance", 10);
    std::optional<Table<float>> existence;
    if (probabilities_.size() > classes.size()) existence = table<float>(refinement_, outputs, "existence");
    for (const std::size_t size : {charge.size(), score.size(), probability.size(), energy.size(), mass.size(),
                                   momentum.size(), covariance.size(), existence ? existence->size() : pdg.size()})
      if (size != pdg.size()) throw Error(refinement_.path(), "its outputs have different numbers of particles");
    if (!energy.finite() || !momentum.finite() || !covariance.finite() || !probability.finite() ||
        (existence && !existence->finite()))
      throw Error(refinement_.path(), "the model gives numbers that are not finite for this event");

    std::vector<Particle> particles(pdg.size());
    for (std::size_t i = 0; i < particles.size(); ++i) {
      Particle& particle = particles[i];
      particle.pdg = std::int32_t(pdg(i));
      particle.charge = charge(i);
      particle.energy = float(energy(i));
      particle.mass = float(mass(i));
      particle.px = float(momentum(i, 0));
      particle.py = float(momentum(i, 1));
      particle.pz = float(momentum(i, 2));
      particle.score = score(i);
      if (existence) particle.existence = (*existence)(i);
      for (std::size_t k = 0; k < classes.size(); ++k) particle.class_probability[k] = probability(i, k);
      for (std::size_t k = 0; k < particle.covariance.size(); ++k) particle.covariance[k] = float(covariance(i, k));
    }
    add_links(outputs, "hit", n_hits, particles, &Particle::hits);
    add_links(outputs, "track", n_tracks, particles, &Particle::tracks);
    return particles;
  }

  void add_links(const std::vector<Ort::Value>& outputs, const std::string& what, std::size_t n_sources,
                 std::vector<Particle>& particles, std::vector<Link> Particle::* links) const {
    const auto source = table<std::int64_t>(refinement_, outputs, what + "_link_" + what);
    const auto particle = table<std::int64_t>(refinement_, outputs, what + "_link_particle");
    const auto weight = table<float>(refinement_, outputs, what + "_link_weight");
    if (particle.size() != source.size() || weight.size() != source.size())
      throw Error(refinement_.path(), "its outputs have different numbers of links");
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (std::size_t(source(i)) >= n_sources || std::size_t(particle(i)) >= particles.size())
        throw Error(refinement_.path(), "a link leads to no " + what + " or no particle");
      (particles[std::size_t(particle(i))].*links).push_back({std::int32_t(source(i)), weight(i)});
    }
  }

  template <class Number>
  static Table<Number> table(const Graph& graph, const std::vector<Ort::Value>& outputs, const std::string& name,
                             std::size_t columns = 1) {
    const std::size_t index = index_of(graph.outputs(), name);
    if (index == outputs.size()) throw Error(graph.path(), "expected the output '" + name + "'");
    return Table<Number>(name, outputs[index], columns, graph.path());
  }

  Options options_;
  Ort::Env env_ = make_environment();
  Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  Graph encoder_, decoder_, refinement_;
  std::vector<std::string> probabilities_{classes.begin(), classes.end()};
  float energy_above_ = 0.0f;  // GeV
  double b_field_ = 0.0;       // T
  Face face_;
  bool reads_tracks_ = false;
  std::vector<std::string> subdetectors_;
  std::vector<bool> all_known_;  // of the encoder's inputs
  std::vector<std::string> names_;  // of values: the encoder's that are read, the decoder's inputs first, and the decoder's
};

Reconstructor::Reconstructor(const std::string& folder, const Options& options)
    : implementation_(std::make_unique<const Implementation>(folder, options)) {}
Reconstructor::~Reconstructor() = default;
Reconstructor::Reconstructor(Reconstructor&&) noexcept = default;
Reconstructor& Reconstructor::operator=(Reconstructor&&) noexcept = default;

Reconstruction Reconstructor::reconstruct(const std::vector<Hit>& hits, const std::vector<Track>& tracks) const {
  try {
    return implementation_->reconstruct(hits, tracks);
  } catch (const Ort::Exception& error) {
    throw Error("model", error.what());
  }
}

const std::vector<std::string>& Reconstructor::probabilities() const noexcept {
  return implementation_->probabilities();
}
const std::vector<std::string>& Reconstructor::subdetectors() const noexcept { return implementation_->subdetectors(); }
double Reconstructor::b_field() const noexcept { return implementation_->b_field(); }
const Face& Reconstructor::face() const noexcept { return implementation_->face(); }

}  // namespace pflow
