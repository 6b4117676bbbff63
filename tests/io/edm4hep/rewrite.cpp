// Reads all frames of a file with podio and writes them again: rewrite IN.root OUT.root. Prints how many tracks and hits
// the particles of PFlow and their clusters refer to; exits 1 if one of them is not there.

#include <edm4hep/ReconstructedParticleCollection.h>
#include <podio/Reader.h>
#include <podio/Writer.h>

#include <iostream>
#include <string>

int main(int, char** argv) {
  auto reader = podio::makeReader(std::string(argv[1]));
  auto writer = podio::makeWriter(argv[2], "root");
  std::size_t tracks = 0, hits = 0, absent = 0;
  for (const auto& name : reader.getAvailableCategories()) {
    const std::string category(name);
    for (std::size_t entry = 0; entry < reader.getEntries(category); ++entry) {
      const podio::Frame frame = reader.readFrame(category, entry);
      writer.writeFrame(frame, category);
      if (category != "events") continue;
      for (const auto& particle : frame.get<edm4hep::ReconstructedParticleCollection>("PFlow")) {
        for (const auto& track : particle.getTracks()) ++tracks, absent += !track.isAvailable();
        for (const auto& cluster : particle.getClusters())
          for (const auto& hit : cluster.getHits()) ++hits, absent += !hit.isAvailable();
      }
    }
  }
  writer.finish();
  std::cout << tracks << " " << hits << "\n";
  return absent ? 1 : 0;
}
