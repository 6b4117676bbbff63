// Several threads that share a model give what one gives.

#include <cstdio>
#include <thread>

#include "pflow.h"

namespace {

std::vector<pflow::Hit> hits_of(int event) {
  std::vector<pflow::Hit> hits;
  for (int i = 0; i < 20 + event % 7; ++i)
    hits.push_back({0.1f * float(1 + (7 * event + 3 * i) % 11), 2200.f, 10.f * float(i % 5), 20.f * float(event % 3), 0,
                    i % 10});
  return hits;
}

bool equal(const pflow::Reconstruction& a, const pflow::Reconstruction& b) {
  if (a.particles.size() != b.particles.size()) return false;
  for (std::size_t i = 0; i < a.particles.size(); ++i) {
    const pflow::Particle &p = a.particles[i], &q = b.particles[i];
    if (p.pdg != q.pdg || p.energy != q.energy || p.covariance != q.covariance || p.hits.size() != q.hits.size())
      return false;
  }
  return true;
}

}  // namespace

int main(int, char** argv) {
  constexpr int n_events = 40, n_threads = 4;
  const pflow::Reconstructor reconstructor(argv[1]);
  std::vector<pflow::Reconstruction> expected(n_events), found(n_events);
  for (int i = 0; i < n_events; ++i) expected[i] = reconstructor.reconstruct(hits_of(i), {});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < n_threads; ++thread)
    threads.emplace_back([&, thread] {
      for (int i = thread; i < n_events; i += n_threads) found[i] = reconstructor.reconstruct(hits_of(i), {});
    });
  for (std::thread& thread : threads) thread.join();
  int different = 0, particles = 0;
  for (int i = 0; i < n_events; ++i) {
    different += !equal(expected[i], found[i]);
    particles += int(found[i].particles.size());
  }
  std::printf("%d %d\n", particles, different);
}
