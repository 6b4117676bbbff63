// The example for key4hep on an event by hand: prints the momentum and position of its track, and what comes out.

#include "../../../pflow/export/cpp/key4hep_example.cpp"

#include <cstdio>

int main(int, char** argv) {
  const pflow::Reconstructor reconstructor(argv[1]);
  const edm4hep::CalorimeterHitCollection ecal = {{1.5f, {1900, 0, 0}, 3, 1}, {0.5f, {1900, 10, 0}, 4, 1}};
  const edm4hep::CalorimeterHitCollection hcal = {{2.5f, {2200, 0, 0}, 7, 1}};
  const edm4hep::TrackState at_vertex = {edm4hep::TrackState::AtIP, 0.01f, 0.3f, -0.001f, 0.02f, 0.5f, {0, 0, 0}};
  const edm4hep::TrackState at_face = {edm4hep::TrackState::AtCalorimeter, 2, 0.4f, -0.001f, 3, 0.5f, {1800, 40, 900}};
  const edm4hep::Track track{{at_vertex, at_face}};
  const pflow::Track t = track_of(track, reconstructor.b_field());
  std::printf("%.9g %.9g %.9g %g %.9g %.9g %.9g %.9g\n", double(t.px), double(t.py), double(t.pz), double(t.charge),
              double(t.calo_x), double(t.calo_y), double(t.calo_z), double(t.calo_px));
  const auto layer_of = [](std::uint64_t id) { return int(id); };
  const auto [particles, clusters] =
      reconstruct_event(reconstructor, {{"hcal", &hcal}, {"ecal", &ecal}}, layer_of, {track});
  for (const auto& particle : particles) std::printf("%g %zu ", double(particle.data->energy), particle.data->n_clusters);
  for (const auto& cluster : clusters) std::printf("%g %d ", double(cluster.data->energy), int(cluster.data->hits[0].cell_id));
}
