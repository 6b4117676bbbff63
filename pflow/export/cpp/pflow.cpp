/// Hits and tracks to the encoder's inputs, the loop over decoder steps, and the refinement's outputs to particles.
///
/// All arithmetic is in the three graphs; tensors go from one to the next by their names, as 'how_to' in the model's
/// tokens.json says.

#include "pflow.h"

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <locale>
#include <map>
#include <sstream>
#include <utility>

namespace pflow {
namespace {

// --------------------------------------------------------------------------------------------------------- graphs

/// A graph, with the names of its inputs and outputs.
class Graph {
 public:
  Graph(const Ort::Env& env, const std::filesystem::path& path, int threads) : path_(path.string()) {
    if (!std::filesystem::exists(path)) throw Error(path_, "there is no such file");
    try {
      Ort::SessionOptions options;
      options.SetIntraOpNumThreads(threads);
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
    asked_ = outputs_;
  }

  const std::string& path() const { return path_; }
  const std::vector<std::string>& inputs() const { return inputs_; }

  /// Names of the outputs that `run` gives: all, or those asked for.
  const std::vector<std::string>& outputs() const { return asked_; }
  void ask(std::vector<std::string> names) { asked_ = std::move(names); }

  bool has_output(const std::string& name) const {
    return std::find(outputs_.begin(), outputs_.end(), name) != outputs_.end();
  }

  /// Outputs, in the order of `outputs`, for inputs in the order of `inputs`.
  std::vector<Ort::Value> run(const std::vector<const OrtValue*>& inputs) const {
    std::vector<const char*> input_names, output_names;
    for (const std::string& name : inputs_) input_names.push_back(name.c_str());
    for (const std::string& name : asked_) output_names.push_back(name.c_str());
    std::vector<OrtValue*> raw(asked_.size(), nullptr);
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
    const Ort::AllocatedStringPtr found =
        session_.GetModelMetadata().LookupCustomMetadataMapAllocated(key, allocator_);
    if (!found && !otherwise) throw Error(path_, std::string("expected metadata '") + key + "'");
    return found ? found.get() : otherwise;
  }

  double number(const char* key) const {
    std::istringstream text(metadata(key));
    text.imbue(std::locale::classic());
    double number = 0.0;
    if (!(text >> number)) throw Error(path_, std::string("expected a number as metadata '") + key + "'");
    return number;
  }

 private:
  std::string path_;
  Ort::Session session_{nullptr};
  Ort::AllocatorWithDefaultOptions allocator_;
  std::vector<std::string> inputs_, outputs_, asked_;
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

constexpr float max_energy = 1e7f;   // GeV; the limits are those of pflow/event/validate.py
constexpr float max_length = 1e7f;   // mm
constexpr float max_charge = 1e3f;   // e
constexpr float max_layer = 65535.f;

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
  values.reserve(std::max<std::size_t>(1, objects.size() * members.size()));  // not a null pointer if there are none
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

// --------------------------------------------------------------------------------------------------- rows, outputs

std::size_t size_of(ONNXTensorElementDataType type, const std::string& where) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: return 1;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return 4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return 4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return 8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: return 8;
    default: throw Error(where, "a tensor has a type that this library does not know");
  }
}

/// What the steps give of each particle, one row after the other.
class Rows {
 public:
  void append(const Ort::Value& row, const std::string& where) {
    const auto info = row.GetTensorTypeAndShapeInfo();
    std::vector<std::int64_t> shape = info.GetShape();
    const std::size_t bytes = info.GetElementCount() * size_of(info.GetElementType(), where);
    if (n_ == 0) {
      type_ = info.GetElementType();
      shape_ = shape;
      bytes_ = bytes;
    }
    if (shape != shape_ || info.GetElementType() != type_ || shape.empty() || shape[0] != 1)
      throw Error(where, "a row has another shape than the first");
    const auto* begin = static_cast<const char*>(row.GetTensorRawData());
    data_.insert(data_.end(), begin, begin + bytes);
    ++n_;
  }

  /// All rows as one tensor, which refers to their memory.
  Ort::Value tensor(const Ort::MemoryInfo& memory) {
    data_.reserve(1);
    shape_[0] = std::int64_t(n_);
    return Ort::Value::CreateTensor(memory, data_.data(), n_ * bytes_, shape_.data(), shape_.size(), type_);
  }

 private:
  std::size_t n_ = 0, bytes_ = 0;
  ONNXTensorElementDataType type_ = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> shape_;
  std::vector<char> data_;
};

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
  const Number& operator()(std::size_t row, std::size_t at = 0) const { return data_[row * columns_ + at]; }

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

}  // namespace

// -------------------------------------------------------------------------------------------------- Reconstructor

class Reconstructor::Implementation {
 public:
  Implementation(const std::filesystem::path& folder, const Options& options)
      : options_(options),
        encoder_(env_, folder / "encoder.onnx", options.threads),
        step_(env_, folder / "decoder_step.onnx", options.threads),
        refinement_(env_, folder / "refinement.onnx", options.threads) {
    if (encoder_.metadata("format") != "2" || encoder_.metadata("architecture") != "pointing")
      throw Error(encoder_.path(), "expected an export of a pointing network in format 2");
    energy_above_ = float(encoder_.number("energy_above"));
    b_field_ = encoder_.number("b_field");
    subdetectors_ = split(encoder_.metadata("subdetectors"));
    reads_tracks_ = encoder_.metadata("tracks") == "1";
    if (split(encoder_.metadata("classes")) != std::vector<std::string>(classes.begin(), classes.end()))
      throw Error(encoder_.path(), "its classes of particles are not those of this library");
    connect();
  }

  Reconstruction reconstruct(const std::vector<Hit>& hits, const std::vector<Track>& tracks) const {
    Reconstruction reco;
    if (hits.size() > options_.max_hits)
      throw Error("hits", std::to_string(hits.size()) + ", expected at most " + std::to_string(options_.max_hits) +
                              " (Options::max_hits)");
    Clock clock;
    std::vector<Ort::Value> values = encode(hits, tracks);
    reco.encoder = clock.lap();
    if (values.empty()) return reco;
    std::vector<Rows> rows(n_rows_);
    const std::size_t n_particles = decode(values, rows, reco.truncated);
    reco.decoder = clock.lap();
    if (n_particles) reco.particles = refine(values, rows, hits.size(), tracks.size());
    reco.refinement = clock.lap();
    return reco;
  }

  const std::vector<std::string>& subdetectors() const { return subdetectors_; }
  double b_field() const { return b_field_; }

 private:
  /// What an output of a step is: the end, a value of the next step, or a row.
  enum class Role { stop, next, row };

  struct Output {
    Role role;
    std::size_t at;  // which value or row
  };

  struct Input {
    bool is_row;
    std::size_t at;
  };

  /// Finds out which tensor goes where.
  void connect() {
    for (const std::string& name : encoder_.inputs())
      if (!hit_numbers.count(name) && !hit_integers.count(name) && !track_numbers.count(name))
        throw Error(encoder_.path(), "this library has no input '" + name + "'");
    const std::vector<std::string> known = split(encoder_.metadata("known"));
    for (const std::string& name : encoder_.inputs()) all_known_.push_back(index_of(known, name) < known.size());
    std::vector<std::string> values, rows;
    const auto value = [&](const Graph& graph, const std::string& name) {
      if (!encoder_.has_output(name)) throw Error(graph.path(), "'" + name + "' is not an output of the encoder");
      if (index_of(values, name) == values.size()) values.push_back(name);
      return index_of(values, name);
    };
    for (const std::string& name : step_.inputs()) step_inputs_.push_back(value(step_, name));
    for (const std::string& name : step_.outputs()) {
      if (name == "stop") {
        step_outputs_.push_back({Role::stop, 0});
      } else if (name.rfind("next_", 0) == 0) {
        step_outputs_.push_back({Role::next, value(step_, name.substr(5))});
      } else if (name.rfind("row_", 0) == 0) {
        step_outputs_.push_back({Role::row, rows.size()});
        rows.push_back(name.substr(4));
      } else {
        throw Error(step_.path(), "expected stop, next_* and row_*, found the output '" + name + "'");
      }
    }
    stop_ = index_of(step_.outputs(), "stop");
    if (stop_ == step_outputs_.size()) throw Error(step_.path(), "expected the output 'stop'");
    for (const std::string& name : refinement_.inputs()) {
      const std::size_t row = index_of(rows, name);
      if (row < rows.size())
        refinement_inputs_.push_back({true, row});
      else
        refinement_inputs_.push_back({false, value(refinement_, name)});
    }
    limit_ = value(encoder_, "limit");
    n_rows_ = rows.size();
    encoder_.ask(values);
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
        numbers.push_back(column("tracks", tracks, members, all_known));
        inputs.push_back(tensor(numbers.back(), tracks.size(), members.size()));
      }
    }
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

  /// Largest number of particles of an event.
  std::size_t limit_of(const Ort::Value& value) const {
    const Table<std::int64_t> limit("limit", value, 1, encoder_.path());
    if (limit.size() != 1 || limit(0) < 0) throw Error(encoder_.path(), "expected one number as output 'limit'");
    return std::size_t(limit(0));
  }

  /// Appends the rows of the particles, and returns how many there are.
  std::size_t decode(std::vector<Ort::Value>& values, std::vector<Rows>& rows, bool& truncated) const {
    const std::size_t limit = limit_of(values[limit_]);
    std::vector<const OrtValue*> inputs(step_inputs_.size());
    for (std::size_t n_particles = 0;; ++n_particles) {
      for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = values[step_inputs_[i]];
      std::vector<Ort::Value> outputs = step_.run(inputs);
      if (*outputs[stop_].GetTensorData<bool>()) return n_particles;
      if (n_particles == limit) {
        truncated = true;
        return n_particles;
      }
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (step_outputs_[i].role == Role::next)
          values[step_outputs_[i].at] = std::move(outputs[i]);
        else if (step_outputs_[i].role == Role::row)
          rows[step_outputs_[i].at].append(outputs[i], step_.path());
      }
    }
  }

  std::vector<Particle> refine(const std::vector<Ort::Value>& values, std::vector<Rows>& rows, std::size_t n_hits,
                               std::size_t n_tracks) const {
    std::vector<Ort::Value> tensors;
    tensors.reserve(rows.size());
    for (Rows& row : rows) tensors.push_back(row.tensor(memory_));
    std::vector<const OrtValue*> inputs;
    for (const Input& input : refinement_inputs_)
      inputs.push_back(input.is_row ? tensors[input.at] : values[input.at]);
    const std::vector<Ort::Value> outputs = refinement_.run(inputs);
    const auto pdg = table<std::int64_t>(outputs, "pdg");
    const auto charge = table<float>(outputs, "charge"), score = table<float>(outputs, "score");
    const auto probability = table<float>(outputs, "class_probability", classes.size());
    const auto energy = table<double>(outputs, "energy"), mass = table<double>(outputs, "mass");
    const auto momentum = table<double>(outputs, "momentum", 3), covariance = table<double>(outputs, "covariance", 10);
    for (const std::size_t size : {charge.size(), score.size(), probability.size(), energy.size(), mass.size(),
                                   momentum.size(), covariance.size()})
      if (size != pdg.size()) throw Error(refinement_.path(), "its outputs have different numbers of particles");
    if (!energy.finite() || !momentum.finite() || !covariance.finite() || !probability.finite())
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
      for (std::size_t k = 0; k < classes.size(); ++k) particle.class_probability[k] = probability(i, k);
      for (std::size_t k = 0; k < particle.covariance.size(); ++k) particle.covariance[k] = float(covariance(i, k));
    }
    add_links(outputs, "hit", n_hits, particles, &Particle::hits);
    add_links(outputs, "track", n_tracks, particles, &Particle::tracks);
    return particles;
  }

  void add_links(const std::vector<Ort::Value>& outputs, const std::string& what, std::size_t n_sources,
                 std::vector<Particle>& particles, std::vector<Link> Particle::* links) const {
    const auto source = table<std::int64_t>(outputs, what + "_link_" + what);
    const auto particle = table<std::int64_t>(outputs, what + "_link_particle");
    const auto weight = table<float>(outputs, what + "_link_weight");
    if (particle.size() != source.size() || weight.size() != source.size())
      throw Error(refinement_.path(), "its outputs have different numbers of links");
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (std::size_t(source(i)) >= n_sources || std::size_t(particle(i)) >= particles.size())
        throw Error(refinement_.path(), "a link leads to no " + what + " or no particle");
      (particles[std::size_t(particle(i))].*links).push_back({std::int32_t(source(i)), weight(i)});
    }
  }

  template <class Number>
  Table<Number> table(const std::vector<Ort::Value>& outputs, const std::string& name, std::size_t columns = 1) const {
    const std::size_t at = index_of(refinement_.outputs(), name);
    if (at == outputs.size()) throw Error(refinement_.path(), "expected the output '" + name + "'");
    return Table<Number>(name, outputs[at], columns, refinement_.path());
  }

  Options options_;
  Ort::Env env_{ORT_LOGGING_LEVEL_WARNING, "pflow"};
  Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  Graph encoder_, step_, refinement_;
  float energy_above_ = 0.0f;  // GeV
  double b_field_ = 0.0;       // T
  bool reads_tracks_ = false;
  std::vector<std::string> subdetectors_;
  std::vector<bool> all_known_;  // of the encoder's inputs
  std::vector<std::size_t> step_inputs_;
  std::vector<Output> step_outputs_;
  std::vector<Input> refinement_inputs_;
  std::size_t stop_ = 0, limit_ = 0, n_rows_ = 0;
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

const std::vector<std::string>& Reconstructor::subdetectors() const noexcept { return implementation_->subdetectors(); }
double Reconstructor::b_field() const noexcept { return implementation_->b_field(); }

}  // namespace pflow
