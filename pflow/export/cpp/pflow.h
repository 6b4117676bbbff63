/// Particle-flow reconstruction with a model that `pflow export` wrote, from C++17.
///
///     const pflow::Reconstructor reconstructor("model");  // once: the folder that `pflow export` wrote
///     const pflow::Reconstruction reco = reconstructor.reconstruct(hits, tracks);  // each event, from any thread
///
/// Units: GeV, mm, ns, T, e. Compile pflow.cpp with your program and link ONNX Runtime (1.19 or newer), or use the
/// CMakeLists.txt beside this file. This header includes the standard library only.

#ifndef PFLOW_H
#define PFLOW_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace pflow {

/// A model's folder or an event cannot be used.
class Error : public std::runtime_error {
 public:
  Error(const std::string& field, const std::string& message)
      : std::runtime_error(field + ": " + message), field_(field) {}

  /// The file, or the member of a hit or track ("hits[3].energy"), that the message is about.
  const std::string& field() const noexcept { return field_; }

 private:
  std::string field_;
};

/// A value that is not known.
inline constexpr float unknown = std::numeric_limits<float>::quiet_NaN();

/// Largest energy or momentum, GeV, and coordinate, mm, that the library takes (pflow/event/schema.py).
inline constexpr float max_energy = 1e5f, max_length = 1e7f;

/// A calorimeter hit.
struct Hit {
  float energy = unknown;                       ///< GeV
  float x = unknown, y = unknown, z = unknown;  ///< mm
  std::int32_t subdetector = -1;                ///< index into Reconstructor::subdetectors()
  std::int32_t layer = -1;                      ///< from 0; -1 if unknown
  float time = unknown;                         ///< ns; mostly not read
};

/// A track: at the vertex, and where it enters the calorimeter.
struct Track {
  float px = unknown, py = unknown, pz = unknown;                 ///< momentum at the vertex, GeV
  float charge = unknown;                                         ///< e
  float calo_x = unknown, calo_y = unknown, calo_z = unknown;     ///< where it enters the calorimeter, mm
  float calo_px = unknown, calo_py = unknown, calo_pz = unknown;  ///< momentum there, GeV
  float d0 = unknown, z0 = unknown;                               ///< impact parameters, mm; mostly not read
  float omega = unknown;                                          ///< signed curvature, 1/mm; mostly not read
};

/// A part of a hit or of a track.
struct Link {
  std::int32_t index;  ///< into the event's hits or tracks
  float weight;        ///< fraction of it that is the particle's, from 0.01 to 1
};

/// Classes of particles, in the order of Particle::class_probability.
inline constexpr std::array<const char*, 5> classes = {"charged_hadron", "neutral_hadron", "photon", "electron",
                                                       "muon"};

/// A reconstructed particle; the members mean what they mean in edm4hep::ReconstructedParticle.
struct Particle {
  std::int32_t pdg;
  float charge;                                       ///< e
  float energy;                                       ///< GeV
  float mass;                                         ///< GeV
  float px, py, pz;                                   ///< GeV
  float score;                                        ///< probability of its |PDG| (edm4hep's goodnessOfPID)
  /// Probability that it exists, at least 0.5 in models as they come; sums take particles as they are. NaN: not given.
  float existence = std::numeric_limits<float>::quiet_NaN();
  std::array<float, classes.size()> class_probability;
  std::array<float, 10> covariance;                   ///< of (px, py, pz, E), lower triangle row by row, GeV^2
  std::vector<Link> hits;                             ///< by increasing index
  std::vector<Link> tracks;                           ///< by increasing index
};

/// CPU time of the calling thread, and wall time, ms.
struct Time {
  double cpu = 0.0;
  double wall = 0.0;
};

/// The particles of an event.
struct Reconstruction {
  std::vector<Particle> particles;
  bool truncated = false;  ///< whether decoding stopped at the model's largest number of particles
  Time encoder;            ///< checks, cells and their encoding
  Time decoder;            ///< one step for each particle
  Time refinement;         ///< of all particles at once, and their output
};

struct Options {
  /// Threads within one event; below 1: all cores. One is best where as many events run at a time as there are cores.
  int threads = 1;
  /// Largest number of hits of an event, and 16 times that of its tracks: time grows with the squares of their numbers.
  std::size_t max_hits = 32768;
};

/// Where the calorimeter of a detector begins.
struct Face {
  double radius = 0.0;       ///< inscribed, of the barrel, mm
  double half_length = 0.0;  ///< |z| of the endcap, mm
  int sides = 0;             ///< of the barrel, whose normals point to multiples of 2 pi / sides; 0: a cylinder
  double outer_radius = 0.0;  ///< of the barrel's ECAL, mm; 0: not known (exports of pflow 0.3)
};

/// A model. Its members may be called from several threads at a time, which share its ONNX Runtime sessions.
class Reconstructor {
 public:
  /// @param folder  that `pflow export` wrote
  /// @throws Error  names the file that is missing or cannot be used
  explicit Reconstructor(const std::string& folder, const Options& options = {});
  ~Reconstructor();
  Reconstructor(Reconstructor&&) noexcept;
  Reconstructor& operator=(Reconstructor&&) noexcept;

  /// Particles of an event; none if it has neither hits nor tracks. A model without tracks does not look at them. A track
  /// that is given twice counts twice: leave clones out.
  /// @throws Error  names the member of a hit or track that is impossible, or that the model reads and is not known
  Reconstruction reconstruct(const std::vector<Hit>& hits, const std::vector<Track>& tracks) const;

  /// Names of the probabilities of a particle: `classes`, and of some models "existence".
  const std::vector<std::string>& probabilities() const noexcept;

  /// Names of the calorimeters that Hit::subdetector counts.
  const std::vector<std::string>& subdetectors() const noexcept;

  /// Field of the model's detector along z, T.
  double b_field() const noexcept;

  /// Where the calorimeter of the model's detector begins.
  const Face& face() const noexcept;

 private:
  class Implementation;
  std::unique_ptr<const Implementation> implementation_;
};

}  // namespace pflow

#endif
