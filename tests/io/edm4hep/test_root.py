"""Our EDM4hep files in ROOT itself, as FCCAnalyses reads them, and merged; `test_with_podio` has podio read all.

Needs ROOT, else skipped: pip install root==0.1a12 (Python 3.11).
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import awkward as ak
import numpy as np
import pytest

from pflow.event.events import concatenate_reconstructions
from pflow.io.particles_root import read_reco

if importlib.util.find_spec("ROOT") is None:
    pytest.skip("ROOT is not installed", allow_module_level=True)
pytestmark = pytest.mark.slow


def test_hadd_merges_outputs(cld_rntuple_path, reconstruct, same_reco):
    out, *_ = reconstruct(cld_rntuple_path, detector=None, chunk=5, mc_links=True)
    both = out.with_name("both.root")
    root = Path(importlib.util.find_spec("ROOT").origin).parent
    subprocess.run([root / "bin" / "hadd", both, out, out], capture_output=True, check=True)
    single = read_reco(out)
    assert same_reco(read_reco(both), concatenate_reconstructions([single, single]))


ANALYSIS = """
import json, sys, ROOT
ROOT.gInterpreter.Declare('''
#include <array>
namespace edm4hep {
struct Vector3f { float x, y, z; };
struct CovMatrix4f { std::array<float, 10> values; };
struct ReconstructedParticleData {
  int PDG;
  float energy;
  Vector3f momentum, referencePoint;
  float charge, mass, goodnessOfPID;
  CovMatrix4f covMatrix;
  unsigned clusters_begin, clusters_end, tracks_begin, tracks_end, particles_begin, particles_end;
};
}
using Particles = ROOT::VecOps::RVec<edm4hep::ReconstructedParticleData>;
double sum_pz(const Particles& particles) {
  double sum = 0;
  for (const auto& particle : particles) sum += particle.momentum.z;
  return sum;
}
double sum_variance(const Particles& particles) {
  double sum = 0;
  for (const auto& particle : particles) sum += particle.covMatrix.values[9];
  return sum;
}
double sum_tracks(const Particles& particles, const ROOT::VecOps::RVec<int>& tracks) {
  double sum = 0;
  for (const auto& particle : particles)
    for (unsigned i = particle.tracks_begin; i < particle.tracks_end; ++i) sum += tracks[i];
  return sum;
}
''')
file = ROOT.TFile.Open(sys.argv[1])
n_entries = file.Get("events").GetEntries()
frame = ROOT.RDataFrame("events", sys.argv[1]).Alias("Tracks", "_PFlow_tracks.index")
frame = frame.Define("pz", "sum_pz(PFlow)").Define("variance", "sum_variance(PFlow)")
frame = frame.Define("track", "sum_tracks(PFlow, Tracks)").Define("energy", "Sum(PFlow.energy)")
sums = [frame.Sum(name) for name in ("pz", "variance", "energy", "PFlow.energy", "track")]
print(json.dumps([n_entries, frame.GetColumnType("PFlow"), [one.GetValue() for one in sums]]))
"""


def test_rdataframe_has_the_particles_as_fccanalyses_wants_them(cld_rntuple_path, reconstruct):
    out, *_ = reconstruct(cld_rntuple_path, detector=None, chunk=5)
    done = subprocess.run([sys.executable, "-c", ANALYSIS, out], capture_output=True, text=True, check=True)
    n_entries, kind, sums = json.loads(done.stdout.splitlines()[-1])
    assert (n_entries, kind) == (5, "ROOT::VecOps::RVec<edm4hep::ReconstructedParticleData>")
    reco = read_reco(out)
    energy = reco.particles.energy
    values = (reco.particles.pz, reco.particles.covariance[:, :, 9], energy, energy, reco.track_links.source)
    np.testing.assert_allclose(sums, [ak.sum(one) for one in values], rtol=1e-5)
