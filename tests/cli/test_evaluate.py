"""`pflow evaluate`: from files to table, metrics.json and plots; what cannot work says why and leaves nothing."""

from __future__ import annotations

import dataclasses
import json
from unittest.mock import patch

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.cli.main import main
from pflow.event.build import make_links, make_particles
from pflow.event.particles import Reconstruction
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.events_root import write_events
from pflow.io.open import open_events, read_events
from pflow.io.particles_root import RecoWriter
from pflow.plots.evaluation import figures

N_EVENTS = 5
SHOWN = ("response", "efficiency_vs_energy_photon", "efficiency_vs_energy_muon")
"""Figures that are drawn here; `tests/plots` draws all of them."""


def reconstruction(numbers, n_particles=1) -> Reconstruction:
    """Photons of 1 GeV along x."""
    counts = np.full(len(numbers), n_particles)
    ones = ak.unflatten(np.ones(counts.sum()), counts)
    return Reconstruction(
        particles=make_particles(pdg=22 * ones, charge=0 * ones, energy=ones, px=ones, py=0 * ones, pz=0 * ones),
        event=np.asarray(numbers, dtype=np.int64),
        flags=np.zeros(len(numbers), np.uint32),
    )


@pytest.fixture(scope="module")
def truth_file(tmp_path_factory):
    """A flat file of single photons of 1 GeV along x, each with one hit; event numbers 10, 11, ..."""
    path = tmp_path_factory.mktemp("truth") / "truth.root"
    one = ak.unflatten(np.ones(N_EVENTS), np.ones(N_EVENTS, dtype=np.int64))
    zero = 0 * one
    integer = ak.values_astype(zero, np.int32)
    with uproot.recreate(path) as file:
        hits = {"energy": one, "x": 1900 * one, "y": zero, "z": zero, "time": zero}
        particles = dict.fromkeys(("mass", "py", "pz", "charge", "vx", "vy", "vz"), zero)
        file["events"] = {
            "event": np.arange(10, 10 + N_EVENTS, dtype=np.int32),
            "calo_hit": ak.zip({**hits, "system": integer, "layer": integer, "particle": integer}),
            "calo_link": ak.zip({"hit": integer, "particle": integer, "weight": one}),
            "particle": ak.zip(
                {**particles, "px": one, "pdg": integer + 22, "status": integer + 1, "parent": integer - 1}
            ),
        }
    return path


@pytest.fixture(scope="module")
def reco_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("reco") / "reco.root"
    with RecoWriter(path, provenance={"checkpoint": "abc"}) as writer:
        writer.extend(reconstruction(range(10, 10 + N_EVENTS)))
    return path


def evaluate(*arguments) -> int:
    return main(["evaluate", *map(str, arguments)])


@pytest.fixture(scope="module")
def written(truth_file, reco_file, tmp_path_factory):
    """The folder of a whole evaluation: numbers, report, and some of the figures."""
    out = tmp_path_factory.mktemp("whole") / "deep" / "er"
    options = ["--detector", "ild_g4", "--classes", "photon", "-q"]

    def some(*arguments):
        return {name: figure for name, figure in figures(*arguments).items() if name in SHOWN}

    with patch("pflow.plots.evaluation.figures", some):
        assert evaluate(reco_file, "--truth", truth_file, "-o", out, *options) == 0
    return out


def test_metrics_are_written(written):
    content = json.loads((written / "metrics.json").read_text())
    assert content["count"]["exact_fraction"] == 1.0
    assert content["energy"]["response_median"] == 1.0
    assert content["n_events_read"] == N_EVENTS
    assert content["inputs"]["provenance"] == {"PFlow": {"checkpoint": "abc"}}


def test_figures_and_report_are_written(written):
    names = sorted(path.stem for path in written.glob("*.png"))
    assert names == ["efficiency_vs_energy_photon", "response"]
    assert sorted(path.stem for path in written.glob("*.pdf")) == names
    assert (written / "response.png").read_bytes().startswith(b"\x89PNG")
    assert (written / "response.pdf").read_bytes().startswith(b"%PDF")
    text = (written / "report.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert text.count("<img ") == len(names)
    assert not list(written.glob("*.tmp-*"))


def test_chunk_size_does_not_change_the_numbers(truth_file, reco_file, tmp_path):
    contents = []
    for step in (1, 2, 500):
        out = tmp_path / str(step)
        assert evaluate(reco_file, "--truth", truth_file, "-o", out, "--chunk-size", step, "--no-plots", "-q") == 0
        contents.append((out / "metrics.json").read_text())
    assert contents[0] == contents[1] == contents[2]


def test_an_edm4hep_file_has_the_same_numbers(truth_file, tmp_path):
    made = dataclasses.replace(
        reconstruction(range(10, 10 + N_EVENTS)),
        hit_links=make_links(source=[[0]] * N_EVENTS, particle=[[0]] * N_EVENTS),
    )
    with RecoWriter(tmp_path / "ttree.root", provenance={}) as writer:
        writer.extend(made)
    with (
        open_events(truth_file) as file,
        Edm4hepRecoWriter(tmp_path / "edm4hep.root", file, provenance={}) as writer,
    ):
        writer.extend(made)
    contents = []
    for name in ("ttree", "edm4hep"):
        options = ["--match", "hits", "--no-plots", "-q", "-o", tmp_path / name]
        assert evaluate(tmp_path / f"{name}.root", "--truth", truth_file, *options) == 0
        contents.append(json.loads((tmp_path / name / "metrics.json").read_text()) | {"inputs": None})
    assert contents[0] == contents[1]


def test_options_reach_the_results(truth_file, reco_file, tmp_path):
    out = tmp_path / "out"
    options = ["--rule", "calo", "--min-energy", "0.5", "--match", "angle_energy", "--cut", "none", "--ignore-tracks"]
    assert evaluate(reco_file, "--truth", truth_file, "-o", out, "--no-plots", "-q", *options) == 0
    settings = json.loads((out / "metrics.json").read_text())["settings"]
    assert settings["truth_rule"] == "calo"
    assert settings["e_min_gev"] == 0.5
    assert settings["use_tracks"] is False
    assert settings["matching"]["cut"] is None


def test_several_truth_files_in_order(truth_file, tmp_path):
    reco, out = tmp_path / "both.root", tmp_path / "out"
    with RecoWriter(reco, provenance={}) as writer:
        writer.extend(reconstruction([*range(10, 15), *range(10, 15)]))
    assert evaluate(reco, "--truth", truth_file, truth_file, "-o", out, "--no-plots", "-q") == 0
    assert json.loads((out / "metrics.json").read_text())["n_events_read"] == 2 * N_EVENTS


@pytest.fixture(scope="module")
def lists(sample_dir, tmp_path_factory):
    """A file of 10 events and a reconstruction of it (the reference of its events), whole and in two parts."""
    folder = tmp_path_factory.mktemp("lists")
    events = read_events(sample_dir / "gammasep_test_small.root", entry_stop=10)
    whole, parts = folder / "whole.root", [folder / "a.root", folder / "b.root"]
    for path, some in ((whole, events), (parts[0], events[:4]), (parts[1], events[4:])):
        write_events(path, some)
        reco = Reconstruction(particles=some.reference, event=some.event, flags=some.flags)
        inputs = [{"path": str(path), "uuid": str(uproot.open(path).file.uuid)}]
        with RecoWriter(path.with_suffix(".reco.root"), provenance={"inputs": inputs}) as writer:
            writer.extend(reco)
    return whole, *parts


def numbers_of(folder):
    return json.loads((folder / "metrics.json").read_text()) | {"inputs": None}


def reco_of(*paths):
    return [path.with_suffix(".reco.root") for path in paths]


def test_lists_of_files_have_the_numbers_of_one_file(lists, tmp_path):
    whole, a, b = lists
    options = ["--no-plots", "--no-oracle", "-q", "-o"]
    assert evaluate(*reco_of(whole), "--truth", whole, *options, tmp_path / "one") == 0
    assert evaluate(*reco_of(a, b), "--truth", a, b, *options, tmp_path / "two") == 0
    pattern = ["--compare", f"Same={a.parent}/[ab].reco.root"]
    assert evaluate(*reco_of(a, b), "--truth", a, b, *pattern, *options, tmp_path / "three") == 0
    expected = numbers_of(tmp_path / "one")
    assert numbers_of(tmp_path / "two") == expected
    found = numbers_of(tmp_path / "three")
    assert {key: found[key] for key in ("count", "class", "energy")} == {
        key: expected[key] for key in ("count", "class", "energy")
    }


def test_lists_in_another_order_are_refused(lists, tmp_path, capsys):
    _, a, b = lists
    assert evaluate(*reco_of(a, b), "--truth", b, a, "-o", tmp_path / "out", "-q") == 1
    assert f"{a.with_suffix('.reco.root')}: was made from {a}, and in its place in the truth is {b}" in (
        capsys.readouterr().err
    )


def test_a_file_of_a_list_that_cannot_be_used_can_be_left_out(lists, tmp_path, capsys):
    _, a, b = lists
    bad = tmp_path / "bad.root"
    bad.write_text("nothing")
    options = ["--no-plots", "--no-oracle", "-q", "-o"]
    call = [*reco_of(a), bad, "--truth", a, b, *options, tmp_path / "out"]
    assert evaluate(*call) == 1
    assert evaluate(*call, "--on-error", "skip") == 3
    assert "1 of 2 files were left out" in capsys.readouterr().err
    assert evaluate(*reco_of(a), "--truth", a, *options, tmp_path / "alone") == 0
    assert numbers_of(tmp_path / "out") == numbers_of(tmp_path / "alone")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([10, 11, 12, 99, 14], "entry 3: event number 13 in the truth, 99 in reconstruction"),
        ([10, 11, 12], "reco.root, entry 3: ends here"),
        ([10, 11, 12, 13, 14, 15], "reco.root, entry 5: has more events"),
    ],
)
def test_files_that_do_not_belong_together(truth_file, tmp_path, capsys, numbers, message):
    reco, out = tmp_path / "reco.root", tmp_path / "out"
    with RecoWriter(reco, provenance={}) as writer:
        writer.extend(reconstruction(numbers))
    assert evaluate(reco, "--truth", truth_file, "-o", out, "-q") == 1
    assert message in capsys.readouterr().err
    assert not list(out.iterdir())


def test_truth_file_without_truth(truth_file, reco_file, tmp_path, capsys):
    write_events(tmp_path / "bare.root", read_events(truth_file).without_truth())
    assert evaluate(reco_file, "--truth", tmp_path / "bare.root", "-o", tmp_path / "out", "-q") == 1
    message = capsys.readouterr().err
    assert "bare.root" in message
    assert "truth" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--collection", "PFlo"], "PFlow"),
        (["--cut", "three"], "--cut: expected a number above 0 or 'none', found 'three'"),
        (["--cut", "0"], "--cut: expected a number above 0 or 'none', found '0'"),
        (["--classes", "photons"], "no particle class 'photons'"),
        (["--compare", "Twice"], "--compare: expected NAME=FILE"),
        (["--compare", "=x.root"], "--compare: expected NAME=FILE"),
        (["--compare", "PFlow=x.root"], "compare: the name 'PFlow' is taken"),
        (["--compare", "oracle=x.root"], "compare: the name 'oracle' is taken"),
        (["--compare", "two words=x.root"], "--compare: expected NAME=FILE with a plain word as name"),
    ],
)
def test_impossible_options_are_refused(truth_file, reco_file, tmp_path, capsys, options, message):
    assert evaluate(reco_file, "--truth", truth_file, "-o", tmp_path / "out", "-q", *options) == 1
    assert message in capsys.readouterr().err


def test_folder_that_is_a_file(truth_file, reco_file, capsys):
    assert evaluate(reco_file, "--truth", truth_file, "-o", reco_file, "-q") == 1
    assert "expected a folder, found a file" in capsys.readouterr().err


def test_failing_plot_leaves_no_metrics(truth_file, reco_file, tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("out of paper")

    monkeypatch.setattr("pflow.plots.style.rendered", fail)
    out = tmp_path / "out"
    assert evaluate(reco_file, "--truth", truth_file, "-o", out, "-q") == 1
    assert "out of paper" in capsys.readouterr().err
    assert not list(out.iterdir())


def test_another_reconstruction_is_evaluated_beside_the_first(truth_file, reco_file, tmp_path, capsys):
    other, out = tmp_path / "other.root", tmp_path / "out"
    with RecoWriter(other, provenance={"checkpoint": "def"}) as writer:
        writer.extend(reconstruction(range(10, 10 + N_EVENTS), n_particles=2))
    options = ["--compare", f"Twice={other}", "--no-plots"]
    assert evaluate(reco_file, "--truth", truth_file, "-o", out, *options) == 0
    content = json.loads((out / "metrics.json").read_text())
    assert content["count"]["exact_fraction"] == 1.0
    assert content["compare"]["Twice"]["count"]["exact_fraction"] == 0.0
    assert content["compare"]["Twice"]["class"]["photon"]["fake_rate"] == 0.5
    assert content["oracle"]["count"]["exact_fraction"] == 1.0
    assert content["inputs"]["provenance"]["Twice"] == {"checkpoint": "def"}
    assert "Twice" in capsys.readouterr().out


def test_oracle_plots_and_table_can_be_left_out(truth_file, reco_file, tmp_path, capsys):
    out, options = tmp_path / "out", ["--no-plots", "--no-oracle", "--classes", "photon"]
    assert evaluate(reco_file, "--truth", truth_file, "-o", out, *options) == 0
    shown = capsys.readouterr().out
    assert "exact count" in shown
    assert "photon: efficiency" in shown
    assert "oracle" not in json.loads((out / "metrics.json").read_text())
    assert [path.name for path in out.iterdir()] == ["metrics.json"]
    assert evaluate(reco_file, "--truth", truth_file, "-o", out, *options, "-q") == 0
    assert capsys.readouterr().out == ""


def test_matching_by_hits_says_what_it_needs(truth_file, reco_file, tmp_path, capsys):
    out = tmp_path / "out"
    assert evaluate(reco_file, "--truth", truth_file, "-o", out, "--match", "hits", "-q") == 1
    message = capsys.readouterr().err
    assert "'PFlow': holds no links" in message
    assert "which hits the particles are made of" in message
    assert not list(out.iterdir())


@pytest.fixture(scope="module")
def linked_file(tmp_path_factory):
    """Two photons an event; of the one hit, the first has a fifth and the second, the softer one, the rest."""
    path = tmp_path_factory.mktemp("linked") / "linked.root"
    numbers = range(10, 10 + N_EVENTS)
    two = ak.Array([[1.0, 0.5]] * N_EVENTS)
    with RecoWriter(path, provenance={}) as writer:
        writer.extend(
            Reconstruction(
                particles=make_particles(pdg=22 + 0 * two, charge=0 * two, energy=two, px=two, py=0 * two, pz=0 * two),
                event=np.array(numbers),
                flags=np.zeros(N_EVENTS, np.uint32),
                hit_links=make_links(
                    source=[[0, 0]] * N_EVENTS, particle=[[0, 1]] * N_EVENTS, weight=[[0.2, 0.8]] * N_EVENTS
                ),
            )
        )
    return path


@pytest.mark.parametrize("step", [2, 500])
def test_matching_by_hits(truth_file, linked_file, tmp_path, step):
    options = ["--match", "hits", "--chunk-size", step, "--no-plots", "-q"]
    assert evaluate(linked_file, "--truth", truth_file, "-o", tmp_path, *options) == 0
    content = json.loads((tmp_path / "metrics.json").read_text())
    # By energy the photon of 1 GeV would be the match; by hits it is the one of 0.5 GeV.
    assert content["energy"]["response_median"] == 0.5
    assert content["class"]["photon"]["efficiency"] == 1.0
    assert content["class"]["photon"]["fake_rate"] == 0.5
    assert content["oracle"]["class"]["photon"]["efficiency"] == 1.0
    matching = content["settings"]["matching"]
    assert (matching["cost"], matching["cut"], matching["algorithms_matched_otherwise"]) == ("hits", 0.75, {})
    assert "at least 0.25" in matching["definition"]


def test_matching_by_hits_beside_a_reconstruction_without_them(truth_file, linked_file, reco_file, tmp_path, capsys):
    options = ["--match", "hits", "--compare", f"Bare={reco_file}", "--compare", f"Same={linked_file}", "--no-plots"]
    assert evaluate(linked_file, "--truth", truth_file, "-o", tmp_path, *options) == 0
    content = json.loads((tmp_path / "metrics.json").read_text())
    assert list(content["settings"]["matching"]["algorithms_matched_otherwise"]) == ["Bare"]
    assert content["compare"]["Bare"]["energy"]["response_median"] == 1.0
    assert content["compare"]["Same"]["energy"]["response_median"] == 0.5
    assert "Bare assigns no hits" in " ".join(capsys.readouterr().out.split())
