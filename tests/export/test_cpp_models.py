"""The C++ library with the shipped models, against Python, particle by particle; and where it could break."""

import dataclasses
import subprocess
from pathlib import Path

import awkward as ak
import numpy as np
import pytest

from benchmarks.cpp import compile_library, compile_program, missing_for_cpp, run_program, write_events
from benchmarks.latency import compare, particles_of
from pflow.checkpoint import load_model
from pflow.event.events import ImplausibleWarning, concatenate
from pflow.event.merge import overlay
from pflow.inference.events import HITS_PER_TRACK, reconstruct
from pflow.io.open import read_events

if missing := missing_for_cpp():
    pytest.skip(missing, allow_module_level=True)

HERE = Path(__file__).resolve().parent

SLOW = pytest.mark.slow  # `general` is exported for it, which takes most of two minutes
SMALL = (
    "gamma1_test_small.root",
    *(pytest.param(name, marks=SLOW) for name in ("cld_multi_test_small.root", "cld_zqq_small.edm4hep.root")),
)
"""Samples of the repository, of the ILD, for a model without tracks, and of CLD."""

REAL = (
    *("cld_g4/zh_test.root", "cld_g4/uds500_test.root"),
    *("edm4hep/cld_rec.edm4hep.root", "edm4hep/cld_zuds100_sim.edm4hep.root"),
)


@pytest.fixture
def from_cpp(program, exported, tmp_path):
    """The particles of each event, from C++."""

    def from_cpp(events, source):
        text, folder = write_events(events, tmp_path / "events.txt"), exported(source, events.detector.name)
        return [event["particles"] for event in run_program(program, folder, text)[1:-1]]

    return from_cpp


@pytest.fixture(scope="module")
def edge_cases(cld_rec, spoil):
    """Events of 0, 1 and many hits, with and without tracks, one of which enters nowhere; without truth."""
    event = spoil(cld_rec[:1].without_truth(), 0, "tracks.calo_position.x", np.nan)
    sizes = [(0, 0), (1, 0), (0, 2), (1, 2), (None, 0), (0, None), (None, None)]
    parts = [(event.hits[:, :hits], event.tracks[:, :tracks]) for hits, tracks in sizes]
    return concatenate([dataclasses.replace(event, hits=hits, tracks=tracks) for hits, tracks in parts])


def assert_same(found, expected, *, allowed=0.0):
    result = compare(found, expected)
    for name in ("same_identity", "same_momentum", "same_covariance", "same_links"):
        assert result["particles"] - result[name] <= allowed * result["particles"], result
    return result["particles"]


@pytest.mark.parametrize("sample", SMALL)
def test_particles_are_those_of_python(sample, sample_dir, from_cpp, no_tracks):
    events = read_events(sample_dir / sample, entry_stop=4)
    source = "general" if events.detector.name == "cld" else no_tracks
    expected = particles_of(reconstruct(events, load_model(source), batch_size=1, device="cpu"))
    assert assert_same(from_cpp(events, source), expected) >= 4


@SLOW
def test_events_of_few_hits_or_tracks(edge_cases, from_cpp):
    with pytest.warns(ImplausibleWarning, match="2 events begin with the hits of another one"):  # they are parts of one
        expected = reconstruct(edge_cases, load_model("general"), batch_size=1, device="cpu")
    assert ak.num(expected.particles)[0] == 0
    assert assert_same(from_cpp(edge_cases, "general"), particles_of(expected)) > 20


@SLOW
def test_threads_share_a_model(library, exported_general):
    program = compile_program(library, HERE / "cpp" / "threads.cpp", flags="-O0")
    done = subprocess.run([str(program), str(exported_general)], check=True, capture_output=True, text=True)
    particles, different = map(int, done.stdout.split())
    assert particles >= 40
    assert different == 0


def test_too_many_hits_are_an_error(program, exported, no_tracks, tmp_path):
    (tmp_path / "events.txt").write_text("event\n" + 2001 * "hit 1 1900 0 0 0 0 nan\n")
    with pytest.raises(subprocess.CalledProcessError) as error:
        run_program(program, exported(no_tracks, "ild_g4"), tmp_path / "events.txt", max_hits=2000)
    assert error.value.stderr == "error: hits: 2001, expected at most 2000 (Options::max_hits)\n"


@SLOW
def test_too_many_tracks_are_an_error(program, exported_general, tmp_path):
    (tmp_path / "events.txt").write_text("event\n" + (32000 // HITS_PER_TRACK + 1) * f"track 1 0 0 1{9 * ' nan'}\n")
    with pytest.raises(subprocess.CalledProcessError) as error:
        run_program(program, exported_general, tmp_path / "events.txt", max_hits=32000)
    assert error.value.stderr == "error: tracks: 2001, expected at most 2000 (Options::max_hits / 16)\n"


@SLOW
def test_an_event_of_20_000_hits(data_dir, program, exported_general, tmp_path):
    events = overlay(read_events(data_dir / "cld_g4" / "zqq_test.root", entry_stop=12), [12])
    assert ak.num(events.hits)[0] > 20_000
    text = write_events(events, tmp_path / "events.txt")
    _, event, last = run_program(program, exported_general, text, max_hits=100_000)
    energy = np.array([particle["energy"] for particle in event["particles"]])
    assert not event["truncated"]
    assert len(energy) > 150
    assert energy.sum() == pytest.approx(ak.sum(events.hits.energy), rel=0.5)
    assert last["peak_memory_kb"] < 2e6  # what the tests' own process holds does not count


@SLOW
def test_no_access_outside_of_memory_and_no_leak(edge_cases, exported_general, tmp_path):
    flags = "-O0 -g -fsanitize=address -fno-omit-frame-pointer"
    try:
        program = compile_program(compile_library(tmp_path, flags=flags), flags=flags)
    except subprocess.CalledProcessError:
        pytest.skip("the compiler has no AddressSanitizer")
    text = write_events(edge_cases, tmp_path / "events.txt")
    done = subprocess.run([program, exported_general, text], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert len(done.stdout.splitlines()) == len(edge_cases) + 2


@SLOW
def test_particles_of_real_samples_are_those_of_python(data_dir, from_cpp):
    found, expected, model = [], [], load_model("general")
    for path in REAL:
        made = "_sim" in path
        events = read_events(data_dir / path, entry_stop=1, truth=made, truth_tracks=made)
        expected += particles_of(reconstruct(events, model, batch_size=1, device="cpu"))
        found += from_cpp(events, "general")
    assert assert_same(found, expected, allowed=0.01) > 200
