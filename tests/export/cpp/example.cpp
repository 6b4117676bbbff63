// key4hep_example.cpp in a program of podio:  example MODEL IN.root OUT.root (COLLECTION CALORIMETER)...

#include <podio/Reader.h>
#include <podio/Writer.h>

#include "key4hep_example.cpp"

int main(int, char** argv) {
  const pflow::Reconstructor reconstructor(argv[1]);
  auto reader = podio::makeReader(std::string(argv[2]));
  auto writer = podio::makeWriter(argv[3], "rntuple");
  for (std::size_t i = 0; i < reader.getEntries(podio::Category::Event); ++i) {
    auto frame = reader.readEvent(i);
    HitCollections hits;
    for (int k = 4; argv[k]; k += 2) hits[argv[k + 1]] = &frame.get<edm4hep::CalorimeterHitCollection>(argv[k]);
    auto [particles, clusters] = reconstruct_event(
        reconstructor, hits, [](std::uint64_t cell_id) { return int(cell_id >> 19 & 0x1ff); },
        frame.get<edm4hep::TrackCollection>("SiTracks_Refitted"));
    frame.put(std::move(particles), "PFlow");
    frame.put(std::move(clusters), "PFlowClusters");
    writer.writeFrame(frame, podio::Category::Event);
  }
  writer.finish();
}
