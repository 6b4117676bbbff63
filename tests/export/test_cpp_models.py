"""The C++ library with the shipped models, against Python, particle by particle."""

from __future__ import annotations

import awkward as ak
import numpy as np
import pytest

from benchmarks.cpp import compile_library, compile_program, missing_for_cpp, run_program, write_events
from pflow.checkpoint.load import load_model
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.export.folder import export_model
from pflow.inference.events import reconstruct
from pflow.io.open import read_events

pytest.importorskip("onnx", reason="onnx is not installed")

if missing := missing_for_cpp():
    pytest.skip(missing, allow_module_level=True)

SMALL = {
    "gamma1_test_small.root": "ild-g4-photon",
    "gammasep_test_small.root": "ild-g4-photon",
    "multi_test_small.root": "ild-g4-general",
    "zqq_test_small.root": "ild-g4-general",
    "cld_multi_test_small.root": "cld-general",
}
"""Samples of the repository, and the model that reads them."""

REAL = {
    **{f"g4/{name}_test.root": "ild-g4-general" for name in ("single", "multi", "gammasep", "tau10", "zh", "zqq")},
    "g4/gamma1_test.root": "ild-g4-photon",
    **{f"cld_g4/{name}_test.root": "cld-general" for name in ("single", "multi", "gammasep", "zh", "zqq")},
}
"""Real samples, and the model that reads them."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Folder of a shipped model, exported once."""
    folders = {}

    def exported(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("exported") / name
            export_model(load_model(name), folders[name])
        return folders[name]

    return exported


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compile_program(compile_library(tmp_path_factory.mktemp("cpp"), flags="-O1"), flags="-O1")


@pytest.fixture
def particles_of(program, exported, tmp_path):
    """The particles of each event, from C++."""

    def particles_of(events: Events, name: str) -> list[list[dict]]:
        text = write_events(events, tmp_path / "events.txt")
        return [event["particles"] for event in run_program(program, exported(name), text)[1:-1]]

    return particles_of


def differences(found: list[list[dict]], expected: Reconstruction) -> tuple[int, int]:
    """Number of particles in Python, and of those that C++ does not have in the same place of the event.

    The same: code, charge, energy to 1e-3, direction to 1e-3 rad, class probabilities to 1e-3, covariance to 1%, and
    hits and tracks with fractions to 0.01.
    """
    different = 0
    for index, particles in enumerate(found):
        theirs = expected.particles[index]
        links = [expected.hit_links[index], None if expected.track_links is None else expected.track_links[index]]
        same = 0
        for i, (ours, particle) in enumerate(zip(particles, theirs, strict=False)):
            momentum = [particle.momentum[axis] for axis in ("px", "py", "pz")]
            close = (
                ours["pdg"] == particle.pdg
                and ours["charge"] == particle.charge
                and np.allclose(ours["energy"], particle.energy, rtol=1e-3)
                and np.allclose(ours["momentum"], momentum, rtol=0, atol=2e-3 * particle.energy)
                and np.allclose(ours["class_probability"], particle.scores, rtol=0, atol=1e-3)
                and np.allclose(
                    ours["covariance"], particle.covariance, rtol=0.01, atol=0.01 * abs(particle.covariance[-1])
                )
            )
            same += bool(close) and all(
                linked(ours[name], part, i) for name, part in zip(("hits", "tracks"), links, strict=True)
            )
        different += max(len(particles), len(theirs)) - same
    return int(ak.count(expected.particles.pdg)), different


def linked(ours: list[list[float]], theirs: ak.Array | None, particle: int) -> bool:
    """Whether the links of a particle are the same, but for weights that differ by less than 0.01."""
    expected = {}
    if theirs is not None:
        mine = theirs[theirs.particle == particle]
        expected = dict(zip(mine.source.tolist(), mine.weight.tolist(), strict=True))
    found = {int(index): weight for index, weight in ours}
    return all(abs(found.get(i, 0.0) - expected.get(i, 0.0)) < 0.02 for i in found.keys() | expected.keys())


def compare(events: Events, name: str, particles_of) -> tuple[int, int]:
    expected = reconstruct(events, load_model(name), batch_size=1, device="cpu")
    return differences(particles_of(events, name), expected)


@pytest.mark.parametrize("sample", SMALL)
def test_particles_are_those_of_python(sample, sample_dir, particles_of):
    events = read_events(sample_dir / sample, entry_stop=4)
    n_particles, different = compare(events, SMALL[sample], particles_of)
    assert n_particles >= 4
    assert different == 0


@pytest.mark.slow
def test_particles_of_real_samples_are_those_of_python(data_dir, particles_of):
    totals = {}
    for sample, name in REAL.items():
        totals[sample] = compare(read_events(data_dir / sample, entry_stop=20), name, particles_of)
    print(totals)
    n_particles, different = np.sum(list(totals.values()), axis=0)
    assert n_particles > 2000
    assert different <= 0.001 * n_particles, totals
