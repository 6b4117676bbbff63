/// Reconstructs the events of a text file: an example of how the library is called, and what measures it.
///
///     reconstruct MODEL EVENTS [REPETITIONS [MAX_HITS]]
///
/// MODEL is the folder that `pflow export` wrote. EVENTS has one line for each event, hit and track; "nan" is unknown:
///
///     event
///     hit ENERGY X Y Z SUBDETECTOR LAYER TIME
///     track PX PY PZ CHARGE CALO_X CALO_Y CALO_Z CALO_PX CALO_PY CALO_PZ D0 Z0 OMEGA
///
/// in GeV, mm, ns, e and 1/mm; the subdetector counts the model's calorimeters. Written are lines of JSON: one with the
/// names of the calorimeters and the time until the model was ready, one with the particles of each event, and one with
/// the peak memory. Links are [index, weight]; times are [CPU, wall] in ms, the shortest of REPETITIONS (1) runs. An event
/// with more than MAX_HITS (32768) hits, or a 16th as many tracks, is an error.

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <utility>

#include "pflow.h"

namespace {

struct Event {
  std::vector<pflow::Hit> hits;
  std::vector<pflow::Track> tracks;
  pflow::Time reading;
};

class Clock {
 public:
  pflow::Time elapsed() const {
    return {1e3 * double(std::clock() - cpu_) / CLOCKS_PER_SEC,
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - wall_).count()};
  }

 private:
  std::clock_t cpu_ = std::clock();
  std::chrono::steady_clock::time_point wall_ = std::chrono::steady_clock::now();
};

/// The numbers of a line from a character on.
class Numbers {
 public:
  Numbers(const std::string& text, std::size_t begin, std::size_t line)
      : text_(text.data() + begin), end_(text.data() + text.size()), line_(line) {}

  float next() {
    while (text_ != end_ && *text_ == ' ') ++text_;
    float number = 0.0f;
#ifdef __cpp_lib_to_chars  // takes a third of the time
    const std::from_chars_result result = std::from_chars(text_, end_, number);
    const char* stop = result.ec == std::errc() ? result.ptr : text_;
#else
    char* stop = nullptr;
    number = std::strtof(text_, &stop);
#endif
    if (stop == text_) throw pflow::Error("line " + std::to_string(line_), "expected a number");
    text_ = stop;
    return number;
  }

 private:
  const char *text_, *end_;
  std::size_t line_;
};

/// The next event of a file; false at its end. `line` begins with the line before it.
bool read_event(std::istream& file, std::string& line, std::size_t& n_lines, Event& event) {
  if (!file) return false;
  const Clock clock;
  event = {};
  while (++n_lines, std::getline(file, line)) {
    if (line.rfind("hit ", 0) == 0) {
      Numbers numbers(line, 4, n_lines);
      pflow::Hit hit;
      for (float* value : {&hit.energy, &hit.x, &hit.y, &hit.z}) *value = numbers.next();
      hit.subdetector = int(numbers.next());
      hit.layer = int(numbers.next());
      hit.time = numbers.next();
      event.hits.push_back(hit);
    } else if (line.rfind("track ", 0) == 0) {
      Numbers numbers(line, 6, n_lines);
      pflow::Track t;
      for (float* value : {&t.px, &t.py, &t.pz, &t.charge, &t.calo_x, &t.calo_y, &t.calo_z, &t.calo_px, &t.calo_py,
                           &t.calo_pz, &t.d0, &t.z0, &t.omega})
        *value = numbers.next();
      event.tracks.push_back(t);
    } else if (line == "event") {
      break;
    } else {
      throw pflow::Error("line " + std::to_string(n_lines), "expected event, hit or track, found '" + line + "'");
    }
  }
  event.reading = clock.elapsed();
  return true;
}

/// A JSON list behind other members, with a function that prints one of its values.
template <class Values, class Print>
void print_list(const char* name, const Values& values, const Print& print_value) {
  std::printf(",\"%s\":[", name);
  const char* separator = "";
  for (const auto& value : values) {
    std::printf("%s", std::exchange(separator, ","));
    print_value(value);
  }
  std::printf("]");
}

void print_number(float value) { std::printf("%.9g", double(value)); }
void print_link(const pflow::Link& link) { std::printf("[%d,%.9g]", link.index, double(link.weight)); }
void print(const char* name, const pflow::Time& time) { std::printf("\"%s\":[%.4f,%.4f]", name, time.cpu, time.wall); }

void print_particle(const pflow::Particle& p) {
  std::printf("{\"pdg\":%d,\"charge\":%.9g,\"energy\":%.9g,\"mass\":%.9g,\"score\":%.9g", p.pdg, double(p.charge),
              double(p.energy), double(p.mass), double(p.score));
  if (!std::isnan(p.existence)) std::printf(",\"existence\":%.9g", double(p.existence));
  print_list("momentum", std::array{p.px, p.py, p.pz}, print_number);
  print_list("class_probability", p.class_probability, print_number);
  print_list("covariance", p.covariance, print_number);
  print_list("hits", p.hits, print_link);
  print_list("tracks", p.tracks, print_link);
  std::printf("}");
}

pflow::Time shorter(const pflow::Time& a, const pflow::Time& b) {
  return {std::min(a.cpu, b.cpu), std::min(a.wall, b.wall)};
}

constexpr std::array stages = {&pflow::Reconstruction::encoder, &pflow::Reconstruction::decoder,
                               &pflow::Reconstruction::refinement};

/// From Linux's /proc: getrusage also counts the process that started this one, which shares its memory until then.
long peak_memory_kb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::strtol(line.c_str() + 6, nullptr, 10);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

void run(const std::string& model, const std::string& path, int repetitions, const pflow::Options& options) {
  const Clock clock;
  const pflow::Reconstructor reconstructor(model, options);
  const pflow::Time ready = clock.elapsed();
  std::printf("{");
  print("ready", ready);
  print_list("subdetectors", reconstructor.subdetectors(),
             [](const std::string& name) { std::printf("\"%s\"", name.c_str()); });
  std::printf("}\n");

  std::ifstream file(path);
  std::string line;
  std::size_t n_lines = 1;
  if (!std::getline(file, line) || line != "event")
    throw pflow::Error(path, "expected a file that begins with 'event'");
  for (Event event; read_event(file, line, n_lines, event);) {
    pflow::Reconstruction reco = reconstructor.reconstruct(event.hits, event.tracks);
    for (int i = 1; i < repetitions; ++i) {
      const pflow::Reconstruction again = reconstructor.reconstruct(event.hits, event.tracks);
      for (auto stage : stages) reco.*stage = shorter(reco.*stage, again.*stage);
    }
    std::printf("{\"truncated\":%s,\"times\":{", reco.truncated ? "true" : "false");
    print("reading", event.reading);
    std::printf(",");
    print("encoder", reco.encoder);
    std::printf(",");
    print("decoder", reco.decoder);
    std::printf(",");
    print("refinement", reco.refinement);
    std::printf("}");
    print_list("particles", reco.particles, print_particle);
    std::printf("}\n");
  }
  std::printf("{\"peak_memory_kb\":%ld}\n", peak_memory_kb());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 5) {
    std::fprintf(stderr, "usage: %s MODEL EVENTS [REPETITIONS [MAX_HITS]]\n", argv[0]);
    return 2;
  }
  pflow::Options options;
  if (argc > 4) options.max_hits = std::strtoul(argv[4], nullptr, 10);
  try {
    run(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 1, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
