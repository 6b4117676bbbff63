// The algorithm of Gaudi on a file of CLD, in an event loop of several threads:
//     job MODEL IN.root OUT.root THREADS [OnError] [MaxHits] [Field, T] [geometry's field, T; none: no GeoSvc] [links|barrel]
// "links": to Monte Carlo particles, too; "barrel": without the hits of other calorimeters than the ECAL's barrel.

#include "../../../../pflow/export/cpp/PFlowReconstruction.cpp"

#include <podio/Reader.h>
#include <podio/Writer.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <thread>

int main(int argc, char** argv) try {
  auto reader = podio::makeReader(std::string(argv[2]));
  ISvcLocator services{reader.readFrame(podio::Category::Metadata, 0)};
  PFlowReconstruction algorithm("PFlow", &services);
  algorithm.set("Model", std::string(argv[1]));
  if (argc > 5) algorithm.set("OnError", std::string(argv[5]));
  if (argc > 6) algorithm.set("MaxHits", unsigned(std::stoul(argv[6])));
  if (argc > 7) algorithm.set("Field", std::stod(argv[7]));
  const std::string field = argc > 8 ? argv[8] : "none";
  IGeoSvc geometry{{{field == "none" ? 0.0 : std::stod(field) * dd4hep::tesla}}};
  if (field != "none") services.geometry = &geometry;
  const std::string last = argc > 9 ? argv[9] : "";
  if (last == "barrel") algorithm.set("CaloHits", std::vector<std::string>{"ECALBarrel"});
  if (last == "links") {
    algorithm.set("HitLinks", std::vector<std::string>{"CalohitMCTruthLink"});
    algorithm.set("TrackLinks", std::vector<std::string>{"SiTracksMCTruthLink"});
  }
  algorithm.initialize();
  algorithm.initialize();  // a second pass over a file finds the metadata of the first

  std::vector<podio::Frame> events;
  for (std::size_t i = 0; i < reader.getEntries(podio::Category::Event); ++i) events.push_back(reader.readEvent(i));
  std::vector<std::exception_ptr> errors(events.size());
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < std::stoi(argv[4]); ++thread)
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < events.size(); i = next++) try {
          algorithm.execute({i}, events[i]);
        } catch (...) {
          errors[i] = std::current_exception();
        }
    });
  for (std::thread& thread : threads) thread.join();
  algorithm.finalize();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  auto writer = podio::makeWriter(argv[3], "rntuple");  // jobs that write a TTree may end with "double free" (podio 1.7)
  for (const podio::Frame& event : events) writer.writeFrame(event, podio::Category::Event);
  writer.writeFrame(services.metadata, podio::Category::Metadata);
  writer.finish();
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
