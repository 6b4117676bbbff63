/// The formulas are pflow's in io/edm4hep (reader.py, reco.py, podio.py), physics/kinematics.py and physics/geometry.py, in
/// double precision as there.

#include "event.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace pflow {
namespace {

using Vector = std::array<double, 3>;

constexpr double pi = 3.14159265358979323846;
constexpr double same_direction = 1e-3, same_momentum = 0.05;  // rad, and relative: of two tracks of one particle
constexpr double gev_per_tesla_mm = 0.299792458e-3;  // momentum of unit charge = this, field [T] and radius [mm]

constexpr double most_unused = 0.1;  // MOST_UNUSED of pflow/event/events.py
constexpr double min_behind = 2;  // GeV; MIN_BEHIND and MANY_BEHIND of pflow/io/edm4hep/reader.py
constexpr std::size_t many_behind = 5;
constexpr double at_axis = 10;           // mm; AT_AXIS of pflow/io/edm4hep/reader.py
constexpr double front = 0.98, far = 3;  // of the way to the front face: at_calorimeter of pflow/physics/kinematics.py

double dot(const Vector& a, const Vector& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

bool is_possible(std::initializer_list<double> numbers, double largest) {
  return std::all_of(numbers.begin(), numbers.end(), [=](double x) { return std::abs(x) <= largest; });
}

// -------------------------------------------------------------------------------------------------------- cell ids

struct BitField {
  unsigned offset, width;
  bool is_signed;
};

/// The bits of a field of an encoding, a list of name:offset:width or, packed, name:width.
std::optional<BitField> bit_field(const std::string& encoding, std::string_view wanted) {
  std::optional<BitField> field;
  int offset = 0;
  std::istringstream descriptions(encoding);
  for (std::string description; std::getline(descriptions, description, ',');) {
    description.erase(0, description.find_first_not_of(' '));
    description.erase(description.find_last_not_of(' ') + 1);
    std::vector<std::string> parts;
    std::istringstream stream(description);
    for (std::string part; std::getline(stream, part, ':');) parts.push_back(part);
    std::array<int, 2> numbers{offset, 0};  // offset and width, negative if signed
    bool is_field = parts.size() == 2 || parts.size() == 3;
    for (std::size_t i = 1; i < parts.size() && is_field; ++i) {
      const char* end = parts[i].data() + parts[i].size();
      const auto result = std::from_chars(parts[i].data(), end, numbers[i + 2 - parts.size()]);
      is_field = result.ec == std::errc() && result.ptr == end;
    }
    const int width = std::abs(std::clamp(numbers[1], -65, 65));
    if (!is_field || !width || numbers[0] < 0 || numbers[0] > 64 - width)
      throw Error("cell encoding", "'" + description + "' in '" + encoding +
                                       "' is not name:offset:width or name:width within 64 bits");
    if (parts[0] == wanted) field = {unsigned(numbers[0]), unsigned(width), numbers[1] < 0};
    offset = numbers[0] + width;
  }
  return field;
}

// ---------------------------------------------------------------------------------------------------------- tracks

/// Sets where a helix enters the calorimeter: the first crossing with a side of the barrel (a cylinder has none) or
/// with an endcap; unknown for one that starts outside or never arrives.
void follow(Track& track, const Vector& start, const Vector& momentum, double b_field, const Face& face) {
  const double p = std::sqrt(dot(momentum, momentum));
  const Vector n{momentum[0] / p, momentum[1] / p, momentum[2] / p};
  const double kappa = gev_per_tesla_mm * double(track.charge) * b_field / p;  // 1/mm; turns clockwise if positive
  const double nt = std::hypot(n[0], n[1]), infinity = std::numeric_limits<double>::infinity();
  double length = n[2] == 0 ? infinity : (std::copysign(face.half_length, n[2]) - start[2]) / n[2];
  bool inside = std::abs(start[2]) < face.half_length;
  if (face.sides == 0) {
    const double missing = face.radius * face.radius - start[0] * start[0] - start[1] * start[1];
    const double u = start[0] * n[0] + start[1] * n[1], v = start[0] * n[1] - start[1] * n[0];
    const double square = u * u + (nt * nt + v * kappa - missing * kappa * kappa / 4) * missing;
    const double curvature = std::max(std::abs(kappa), 1e-12);  // exact enough for straight paths
    double half_turn = std::atan(0.5 * curvature * missing / (u + std::sqrt(std::max(square, 0.0))));
    if (half_turn < 0) half_turn += pi;
    if (square >= 0) length = std::min(length, 2 * half_turn / curvature);
    inside &= missing > 0;
  }
  const double centre_x = -n[1] / kappa, centre_y = n[0] / kappa;  // seen from the start to it, with the sign turned
  for (int side = 0; side < face.sides; ++side) {
    const double phi = 2 * pi / face.sides * side, x = std::cos(phi), y = std::sin(phi);
    inside &= start[0] * x + start[1] * y < face.radius;
    const double cosine =
        (face.radius - (start[0] - centre_x) * x - (start[1] - centre_y) * y) * std::abs(kappa) / nt;
    if (!(std::abs(cosine) <= 1)) continue;
    for (const double angle : {std::acos(cosine), -std::acos(cosine)}) {
      double turned = std::fmod(std::copysign(1.0, kappa) * (std::atan2(centre_y, centre_x) - phi + angle), 2 * pi);
      if (turned < 0) turned += 2 * pi;
      length = std::min(length, turned / std::abs(kappa));
    }
  }
  if (!inside || !std::isfinite(length) || !(length > 0)) return;
  const double half_turn = 0.5 * kappa * length, phi = std::atan2(n[1], n[0]);
  const double chord = nt * length * (half_turn == 0 ? 1 : std::sin(half_turn) / half_turn);
  track.calo_x = float(start[0] + chord * std::cos(phi - half_turn));
  track.calo_y = float(start[1] + chord * std::sin(phi - half_turn));
  track.calo_z = float(start[2] + n[2] * length);
  track.calo_px = float(p * nt * std::cos(phi - 2 * half_turn));
  track.calo_py = float(p * nt * std::sin(phi - 2 * half_turn));
  track.calo_pz = float(momentum[2]);
}

/// Position, mm, and momentum, GeV, of a state of a track of unit charge in a field along z, T.
std::pair<Vector, Vector> place_and_momentum(const edm4hep::TrackState& state, double b_field) {
  const double phi = state.phi, pt = gev_per_tesla_mm * std::abs(b_field) / std::abs(double(state.omega));
  return {{state.referencePoint.x - state.D0 * std::sin(phi), state.referencePoint.y + state.D0 * std::cos(phi),
           double(state.referencePoint.z) + state.Z0},
          {pt * std::cos(phi), pt * std::sin(phi), pt * state.tanLambda}};
}

bool is_usable(const edm4hep::TrackState& state) {
  const auto& r = state.referencePoint;
  return state.omega != 0 && is_possible({state.D0, state.Z0, state.phi, state.omega, state.tanLambda, r.x, r.y, r.z},
                                         std::numeric_limits<float>::max());
}

/// Behind which share of the way to the front face a point is behind the ECAL.
double behind_ecal(const Face& face) { return face.outer_radius / face.radius / front; }

/// Whether a point is not near the front of the calorimeter: well inside of it, `most` of the way to it and more, or NaN.
bool is_elsewhere(const Vector& r, const Face& face, double most) {
  const double radius = std::hypot(r[0], r[1]), z = std::abs(r[2]);
  const bool inside = radius < front * face.radius && z < front * face.half_length;
  return face.outer_radius > 0 && (inside || !(radius <= most * face.radius && z <= most * face.half_length));
}

/// Moves a place and momentum on a helix back to where it is closest to the z axis; its signed D0 and its Z0, mm.
std::pair<double, double> to_perigee(Vector& r, Vector& p, double charge, double b_field) {
  const double pt = std::hypot(p[0], p[1]), sense = std::copysign(1.0, charge * b_field);
  const double radius = pt / (gev_per_tesla_mm * std::abs(b_field));
  const double centre_x = r[0] + sense * radius * p[1] / pt, centre_y = r[1] - sense * radius * p[0] / pt;
  const double distance = std::hypot(centre_x, centre_y), d0 = -sense * (distance - radius);
  const double turned = std::atan2(r[1] - centre_y, r[0] - centre_x) - std::atan2(-centre_y, -centre_x);
  const double z0 = r[2] - p[2] / pt * radius * std::abs(std::remainder(turned, 2 * pi));
  if (distance > 0) p[0] = -sense * pt * centre_y / distance, p[1] = sense * pt * centre_x / distance;
  const double phi = std::atan2(p[1], p[0]);
  r = {-d0 * std::sin(phi), d0 * std::cos(phi), z0};
  return {d0, z0};
}

/// A track; and one whose state at the calorimeter is on the other side of the IP with the place its helix leads to.
std::pair<Track, std::optional<Track>> make_track(const edm4hep::Track& object, double b_field, const Face& face,
                                                  bool states_elsewhere) {
  using State = edm4hep::TrackState;
  const std::array places{State::AtIP, State::AtFirstHit, State::AtLastHit, State::AtCalorimeter};  // best first
  std::optional<State> vertex, calorimeter;
  auto best = places.end() - places.begin() + 1;
  for (const State& state : object.getTrackStates()) {
    if (!is_usable(state)) continue;
    const auto rank = std::find(places.begin(), places.end(), state.location) - places.begin();
    if (rank < best) best = rank, vertex = state;
    if (state.location == State::AtCalorimeter && !calorimeter &&
        !is_elsewhere(place_and_momentum(state, b_field).first, face, states_elsewhere ? std::min(far, behind_ecal(face)) : far))
      calorimeter = state;
  }
  Track track;
  if (!vertex) return {track, {}};
  auto [start, momentum] = place_and_momentum(*vertex, b_field);
  track.charge = vertex->omega > 0 ? 1.f : -1.f;
  track.d0 = vertex->D0, track.z0 = vertex->Z0, track.omega = vertex->omega;
  if (vertex->location != State::AtIP || std::hypot(vertex->referencePoint.x, vertex->referencePoint.y) > at_axis) {
    const auto [d0, z0] = to_perigee(start, momentum, track.charge, b_field);
    track.d0 = float(d0), track.z0 = float(z0);
  }
  track.px = float(momentum[0]), track.py = float(momentum[1]), track.pz = float(momentum[2]);
  if (!calorimeter) {
    follow(track, start, momentum, b_field, face);
    return {track, {}};
  }
  const auto [r, p] = place_and_momentum(*calorimeter, b_field);
  std::optional<Track> along;
  if (dot(momentum, r) < 0) {
    along = track;
    follow(*along, start, momentum, b_field, face);
  }
  track.calo_x = float(r[0]), track.calo_y = float(r[1]), track.calo_z = float(r[2]);
  track.calo_px = float(p[0]), track.calo_py = float(p[1]), track.calo_pz = float(p[2]);
  return {track, along};
}

/// Whether two tracks are of one particle: a clone of the track finder's, or another fit. As `_is_clone` of pflow/event/schema.py.
bool is_clone(const Track& a, const Track& b) {
  const Vector p{a.px, a.py, a.pz}, q{b.px, b.py, b.pz};
  const Vector across{p[1] * q[2] - p[2] * q[1], p[2] * q[0] - p[0] * q[2], p[0] * q[1] - p[1] * q[0]};
  const double along = dot(p, q), size = std::sqrt(dot(p, p)), other = std::sqrt(dot(q, q));
  return a.charge == b.charge && std::max(size, other) < (1 + same_momentum) * std::min(size, other) && along > 0 &&
         std::sqrt(dot(across, across)) < same_direction * along;
}

// --------------------------------------------------------------------------------------------------------- clusters

/// A part of a hit.
struct Deposit {
  double energy;  // GeV
  Vector position;  // mm
};

/// Largest eigenvalue of a symmetric matrix, and its eigenvector, by Jacobi's rotations.
std::pair<double, Vector> principal_axis(std::array<Vector, 3> a) {
  std::array<Vector, 3> axes{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};  // rows
  for (int sweep = 0; sweep < 16; ++sweep) {
    for (const auto& [p, q] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
      if (a[p][q] == 0) continue;
      const double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
      const double t = std::copysign(1 / (std::abs(theta) + std::hypot(theta, 1)), theta);
      const double c = 1 / std::hypot(t, 1), s = t * c;
      for (int k = 0; k < 3; ++k) {
        const double x = a[p][k], y = a[q][k], u = axes[p][k], v = axes[q][k];
        a[p][k] = c * x - s * y, a[q][k] = s * x + c * y;
        axes[p][k] = c * u - s * v, axes[q][k] = s * u + c * v;
      }
      for (int k = 0; k < 3; ++k) {
        const double x = a[k][p], y = a[k][q];
        a[k][p] = c * x - s * y, a[k][q] = s * x + c * y;
      }
      a[p][q] = a[q][p] = 0;
    }
  }
  const int last = a[0][0] > std::max(a[1][1], a[2][2]) ? 0 : a[1][1] > a[2][2] ? 1 : 2;
  return {a[last][last], axes[last]};
}

/// Energy-weighted mean position, and the axis along which the deposits spread most, turned away from the origin; the
/// direction of the position where they have no spread.
std::pair<Vector, Vector> cluster_shape(std::vector<Deposit> deposits) {
  const auto sum = [](double total, const Deposit& deposit) { return total + deposit.energy; };
  if (!(std::accumulate(deposits.begin(), deposits.end(), 0.0, sum) > 0))
    for (Deposit& deposit : deposits) deposit.energy = 1;  // the plain mean
  const double total = std::accumulate(deposits.begin(), deposits.end(), 0.0, sum);
  Vector mean{};
  for (const Deposit& deposit : deposits)
    for (int i = 0; i < 3; ++i) mean[i] += deposit.energy * deposit.position[i];
  for (double& x : mean) x /= total;
  std::array<Vector, 3> covariance{};
  for (const Deposit& deposit : deposits)
    for (int i = 0; i < 3; ++i)
      for (int k = 0; k < 3; ++k)
        covariance[i][k] +=
            deposit.energy * (deposit.position[i] - mean[i]) * (deposit.position[k] - mean[k]) / total;
  auto [spread, axis] = principal_axis(covariance);
  const double size2 = dot(mean, mean), size = std::sqrt(size2);
  if (spread <= std::numeric_limits<double>::epsilon() * size2)  // rounding of positions
    axis = size > 0 ? Vector{mean[0] / size, mean[1] / size, mean[2] / size} : Vector{0, 0, 1};
  else if (dot(axis, mean) < 0)
    for (double& x : axis) x = -x;
  return {mean, axis};
}

/// Index into `classes`.
std::int32_t class_index(const Particle& particle) {
  switch (std::abs(particle.pdg)) {
    case 22: return 2;
    case 11: return 3;
    case 13: return 4;
    default: return particle.charge == 0 ? 1 : 0;
  }
}

// --------------------------------------------------------------------------------------------- Monte Carlo particles

/// Fractions of an object that are of Monte Carlo particles.
using Shares = std::vector<std::pair<edm4hep::MCParticle, double>>;

/// Of each of the event's objects, by the weights of links; equal ones where they sum to 0.
template <class Object, class Collection>
std::vector<Shares> shares_of(const std::vector<Object>& objects, const std::vector<const Collection*>& collections) {
  std::unordered_map<Object, std::size_t> index;
  for (std::size_t i = 0; i < objects.size(); ++i) index.emplace(objects[i], i);
  std::vector<Shares> shares(objects.size());
  for (const Collection* links : collections)
    for (const auto& link : *links)
      if (const auto found = index.find(link.getFrom()); found != index.end())
        shares[found->second].emplace_back(link.getTo(), link.getWeight());
  for (Shares& of_object : shares) {
    // Of an object with a negative weight, or one that is no number, no share is known.
    if (!std::all_of(of_object.begin(), of_object.end(), [](const auto& share) { return share.second >= 0; }))
      of_object.clear();
    double total = 0;
    for (const auto& share : of_object) total += share.second;
    for (auto& share : of_object) share.second = total == 0 ? 1.0 / double(of_object.size()) : share.second / total;
  }
  return shares;
}

}  // namespace

HitSource::HitSource(const Reconstructor& reconstructor, const std::string& subdetector, const std::string& encoding) {
  const auto& names = reconstructor.subdetectors();
  const auto place = std::find(names.begin(), names.end(), subdetector);
  if (place == names.end()) {
    std::string text = "the model has no such calorimeter; expected one of";
    for (const std::string& name : names) text += " " + name;
    throw Error(subdetector, text);
  }
  subdetector_ = std::int32_t(place - names.begin());
  auto field = bit_field(encoding, "layer");
  if (!field) field = bit_field(encoding, "K-1");  // of older ILD encodings
  if (field) offset_ = field->offset, width_ = field->width, is_signed_ = field->is_signed;
}

std::int32_t HitSource::layer(std::uint64_t cell_id) const {
  if (width_ == 0) return -1;
  const std::uint64_t highest = cell_id << (64 - offset_ - width_);  // the field's bits are the highest ones
  return std::int32_t(is_signed_ ? std::int64_t(highest) >> (64 - width_) : std::int64_t(highest >> (64 - width_)));
}

std::vector<std::string> without_collection(const Reconstructor& reconstructor, const std::vector<HitSource>& sources) {
  const auto& names = reconstructor.subdetectors();
  std::vector<std::string> lines = names;
  for (const HitSource& source : sources) std::erase(lines, names[std::size_t(source.subdetector())]);
  for (std::string& line : lines) line += ": no collection is named for it, none of its hits are read";
  return lines;
}

Event make_event(const Reconstructor& reconstructor, const std::vector<HitSource>& sources,
                 const std::vector<const edm4hep::CalorimeterHitCollection*>& hits,
                 const std::vector<const edm4hep::TrackCollection*>& tracks, bool states_elsewhere) {
  Event event;
  event.hit_offsets.resize(hits.size());
  for (std::size_t subdetector = 0; subdetector < reconstructor.subdetectors().size(); ++subdetector) {
    for (std::size_t i = 0; i < hits.size(); ++i) {
      const HitSource& source = sources.at(i);
      if (source.subdetector() != std::int32_t(subdetector)) continue;
      event.hit_offsets[i] = std::int32_t(event.hits.size());
      for (const edm4hep::CalorimeterHit& hit : *hits[i]) {
        const auto r = hit.getPosition();
        event.hits.push_back(
            {hit.getEnergy(), r.x, r.y, r.z, source.subdetector(), source.layer(hit.getCellID()), hit.getTime()});
        event.hit_objects.push_back(hit);
      }
    }
  }
  std::vector<Hit*> impossible;
  for (Hit& hit : event.hits) {
    const bool at_origin = hit.energy > 0 && hit.x == 0 && hit.y == 0 && hit.z == 0;  // it has no direction
    if (at_origin || !is_possible({hit.energy}, max_energy) || hit.energy < 0 ||
        !is_possible({hit.x, hit.y, hit.z}, max_length))
      impossible.push_back(&hit);
  }
  if (!impossible.empty() && 2 * impossible.size() <= event.hits.size()) {
    for (Hit* hit : impossible) hit->energy = hit->x = hit->y = hit->z = hit->time = 0;
    event.flags |= UNUSABLE_HITS;
  }
  std::int32_t index = 0;
  std::vector<Track> earlier;
  std::vector<std::pair<std::size_t, Track>> behind;  // places of tracks with a state behind the IP; as followed
  std::size_t n_behind = 0, n_hard = 0;
  for (const auto* collection : tracks) {
    for (const edm4hep::Track& object : *collection) {
      const auto [track, along] =
          make_track(object, reconstructor.b_field(), reconstructor.face(), states_elsewhere);
      const bool is_hard = std::hypot(track.px, track.py, track.pz) > min_behind;
      n_hard += is_hard, n_behind += is_hard && along;
      const auto is_unknown_or_below = [](std::initializer_list<float> numbers, double largest) {
        return std::none_of(numbers.begin(), numbers.end(), [=](float x) { return std::abs(x) > largest; });
      };
      if (is_possible({track.px, track.py, track.pz}, max_energy) &&
          is_unknown_or_below({track.calo_x, track.calo_y, track.calo_z}, max_length) &&
          is_unknown_or_below({track.calo_px, track.calo_py, track.calo_pz}, max_energy) &&
          std::none_of(earlier.begin(), earlier.end(), [&](const Track& other) { return is_clone(track, other); })) {
        if (is_hard && along) behind.emplace_back(event.tracks.size(), *along);
        event.tracks.push_back(track);
        event.track_objects.push_back(object);
      } else {
        event.unused_tracks.push_back(index);
        event.flags |= UNUSABLE_TRACKS;
      }
      earlier.push_back(track);
      ++index;
    }
  }
  if (many_behind * n_behind <= n_hard)  // else something else is wrong
    for (const auto& [place, along] : behind) event.tracks[place] = along;
  return event;
}

void StatesAtCalorimeter::add(const Reconstructor& reconstructor, const edm4hep::TrackCollection& tracks) {
  for (const edm4hep::Track& track : tracks)
    for (const edm4hep::TrackState& state : track.getTrackStates()) {
      if (state.location != edm4hep::TrackState::AtCalorimeter) continue;
      ++n_;
      const Face& face = reconstructor.face();
      n_elsewhere_ += is_elsewhere(place_and_momentum(state, reconstructor.b_field()).first, face, behind_ecal(face));
    }
}

std::int32_t flags_of(const Event& event, const Reconstruction& reconstruction) {
  if (reconstruction.truncated) return event.flags | MAX_PARTICLES;
  std::vector<double> momentum;  // GeV
  for (const Track& t : event.tracks) momentum.push_back(std::sqrt(dot({t.px, t.py, t.pz}, {t.px, t.py, t.pz})));
  const double total = std::accumulate(momentum.begin(), momentum.end(), 0.0);
  double neutral = 0, lost = total;
  for (const Particle& particle : reconstruction.particles)
    for (const Link& link : particle.tracks) {
      const double share = link.weight * momentum[std::size_t(link.index)];
      lost -= share;
      if (particle.charge == 0) neutral += share;
    }
  return event.flags | (lost > most_unused * total ? LOST_TRACKS : 0) |
         (neutral > most_unused * total ? NEUTRAL_TRACKS : 0);
}

Collections make_collections(const Reconstructor& reconstructor, const Reconstruction& reconstruction,
                             const Event& event, std::int32_t algorithm_type) {
  Collections collections;
  auto& [particles, clusters, particle_ids, hit_weights, track_weights] = collections;
  for (const Particle& from : reconstruction.particles) {
    auto particle = particles.create();
    particle.setPDG(from.pdg);
    particle.setCharge(from.charge);
    particle.setEnergy(from.energy);
    particle.setMass(from.mass);
    particle.setMomentum({from.px, from.py, from.pz});
    particle.setGoodnessOfPID(from.score);
    particle.setCovMatrix(edm4hep::CovMatrix4f(from.covariance));
    std::vector<Link> links = from.tracks;
    std::stable_sort(links.begin(), links.end(), [](const Link& a, const Link& b) { return a.weight > b.weight; });
    for (const Link& link : links) {
      particle.addToTracks(event.track_objects[std::size_t(link.index)]);
      track_weights.push_back(link.weight);
    }
    auto particle_id = particle_ids.create();
    particle_id.setType(class_index(from));
    particle_id.setPDG(from.pdg);
    particle_id.setAlgorithmType(algorithm_type);
    particle_id.setLikelihood(from.score);
    for (const float probability : from.class_probability) particle_id.addToParameters(probability);
    if (!std::isnan(from.existence)) particle_id.addToParameters(from.existence);
    particle_id.setParticle(particle);
    if (from.hits.empty()) continue;
    auto cluster = clusters.create();
    std::vector<Deposit> deposits;
    std::vector<double> energies(reconstructor.subdetectors().size());  // by calorimeter
    for (const Link& link : from.hits) {
      const Hit& hit = event.hits[std::size_t(link.index)];
      cluster.addToHits(event.hit_objects[std::size_t(link.index)]);
      hit_weights.push_back(link.weight);
      deposits.push_back({double(hit.energy) * link.weight, {hit.x, hit.y, hit.z}});
      energies[std::size_t(hit.subdetector)] += deposits.back().energy;
    }
    const auto [mean, axis] = cluster_shape(deposits);
    cluster.setEnergy(float(std::accumulate(energies.begin(), energies.end(), 0.0)));
    cluster.setPosition({float(mean[0]), float(mean[1]), float(mean[2])});
    cluster.setITheta(float(std::acos(std::clamp(axis[2], -1.0, 1.0))));
    cluster.setIPhi(float(std::atan2(axis[1], axis[0])));
    for (const double energy : energies) cluster.addToSubdetectorEnergies(float(energy));
    particle.addToClusters(cluster);
  }
  return collections;
}

edm4hep::RecoMCParticleLinkCollection make_mc_links(
    const Reconstruction& reconstruction, const Event& event,
    const edm4hep::ReconstructedParticleCollection& particles,
    const std::vector<const edm4hep::CaloHitMCParticleLinkCollection*>& hit_links,
    const std::vector<const edm4hep::TrackMCParticleLinkCollection*>& track_links) {
  const auto of_hits = shares_of(event.hit_objects, hit_links);
  const auto of_tracks = shares_of(event.track_objects, track_links);
  edm4hep::RecoMCParticleLinkCollection links;
  for (std::size_t i = 0; i < reconstruction.particles.size(); ++i) {
    const Particle& particle = reconstruction.particles[i];
    const bool has_hits = !particle.hits.empty();
    Shares sums;
    double total = 0;
    for (const Link& link : has_hits ? particle.hits : particle.tracks) {
      const auto source = std::size_t(link.index);
      const double deposit = link.weight * (has_hits ? double(event.hits[source].energy) : 1.0);
      total += deposit;
      for (const auto& [mc, fraction] : (has_hits ? of_hits : of_tracks)[source]) {
        const auto place = std::find_if(sums.begin(), sums.end(), [&mc](const auto& sum) { return sum.first == mc; });
        if (place == sums.end())
          sums.emplace_back(mc, deposit * fraction);
        else
          place->second += deposit * fraction;
      }
    }
    std::sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second, a.first.getObjectID().index) < std::pair(b.second, b.first.getObjectID().index);
    });
    for (const auto& [mc, deposit] : sums) {
      auto link = links.create();
      link.setFrom(particles[i]);
      link.setTo(mc);
      link.setWeight(total > 0 ? float(deposit / total) : 0.f);
    }
  }
  return links;
}

}  // namespace pflow
