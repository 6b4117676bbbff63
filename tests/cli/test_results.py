import csv
import json
import shutil
from types import SimpleNamespace
from unittest.mock import patch

import awkward as ak
import numpy as np
import pytest
import uproot

import pflow
from pflow.cli.main import main, warn_of_training
from pflow.errors import ConfigError, InputError
from pflow.event.events import ImplausibleWarning, Reconstruction
from pflow.event.schema import make_links, make_particles
from pflow.inference.files import describe_input
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.flat import write_events
from pflow.io.open import open_events, read_events
from pflow.io.particles_root import RecoWriter
from pflow.io.root import file_uuid
from pflow.plots.evaluation import figures
from pflow.plots.report import plot_scan

pytestmark = pytest.mark.usefixtures("few_resamples")

N_EVENTS = 5
SHOWN = ("response", "efficiency_vs_energy_by_class")
"""Figures that are drawn here; `tests/plots` draws all of them."""


def reconstruction(events, *, share: float | None = None) -> Reconstruction:
    """The true photons. With `share`, another one of half their energy follows, and has the rest of each hit."""
    scale = [1.0] if share is None else [1.0, 0.5]
    energy, px, py, pz = (getattr(events.truth, name).to_numpy() * scale for name in ("energy", "px", "py", "pz"))
    links, first = None, 0 * ak.local_index(events.hits.energy)
    if share is not None:
        columns = {"particle": [first, first + 1], "weight": [first + share, first + 1 - share]}
        columns["source"] = 2 * [ak.local_index(first)]
        links = make_links(**{name: ak.concatenate(parts, axis=1) for name, parts in columns.items()})
    return Reconstruction(
        particles=make_particles(pdg=22 + 0 * energy, charge=0 * energy, energy=energy, px=px, py=py, pz=pz),
        event=events.event,
        flags=np.zeros(len(events), np.uint32),
        hit_links=links,
    )


def write_reco(path, reco, **provenance):
    with RecoWriter(path, provenance=provenance, force=True) as writer:
        writer.extend(reco)


@pytest.fixture(scope="module")
def folder(make_photons, tmp_path_factory):
    """Single photons, event numbers 10, 11, ..., and two reconstructions of them, the second with links."""
    folder, photons = tmp_path_factory.mktemp("files"), make_photons(N_EVENTS, 10)
    write_events(folder / "truth.root", photons)
    write_reco(folder / "reco.root", reconstruction(photons), checkpoint={"sha256": "abc"})
    write_reco(folder / "linked.root", reconstruction(photons, share=0.2))
    return folder


def evaluate(*arguments) -> int:
    return main(["evaluate", *map(str, arguments)])


@pytest.fixture
def evaluated(folder, tmp_path):
    """Evaluates reco.root, or another file, with more options into tmp_path / "out"; returns the exit code."""

    def run(*options, reco="reco.root") -> int:
        return evaluate(folder / reco, "--truth", folder / "truth.root", "-o", tmp_path / "out", *options)

    return run


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    """The folder of a whole evaluation: numbers, report, and some of the figures."""
    out = tmp_path_factory.mktemp("whole") / "deep" / "er"

    def some(*arguments):
        return {name: figure for name, figure in figures(*arguments).items() if name in SHOWN}

    with patch("pflow.plots.evaluation.figures", some):
        truth = ["--truth", folder / "truth.root", "--detector", "ild_g4"]
        assert evaluate(folder / "reco.root", *truth, "-o", out, "-q") == 0
    return out


def test_metrics_figures_and_a_report_are_written(written):
    content = metrics(written)
    assert content["count"]["exact_fraction"] == 1.0
    assert content["energy"]["response_median"] == pytest.approx(1.0)
    assert content["n_events_read"] == N_EVENTS
    assert content["inputs"]["provenance"] == {"PFlow": {"checkpoint": {"sha256": "abc"}}}
    names = sorted(path.stem for path in written.glob("*.png"))
    assert names == ["efficiency_vs_energy_by_class", "response"]
    assert sorted(path.stem for path in written.glob("*.pdf")) == names
    assert (written / "response.png").read_bytes().startswith(b"\x89PNG")
    assert (written / "response.pdf").read_bytes().startswith(b"%PDF")
    text = (written / "report.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert text.count("<img ") == len(names)
    assert not list(written.glob("*.tmp-*"))


@pytest.mark.parametrize(
    ("train", "uuids", "seen"), [("truth", None, True), ("truth", ["another's"], False), ("other", ["its"], True)]
)
def test_events_that_the_model_was_trained_on_are_said(evaluated, folder, tmp_path, capsys, train, uuids, seen):
    made = {"train": [f"{train}.root"]}
    if uuids is not None:
        made["uuids"] = [file_uuid(folder / "truth.root") if uuids == ["its"] else "1"]
    write_reco(
        tmp_path / "r.root", reconstruction(read_events(folder / "truth.root")), configuration={"provenance": made}
    )
    for name, *compare in (("PFlow",), ("other", "--compare", f"other={tmp_path / 'r.root'}")):
        with patch("pflow.metrics.evaluation.evaluate", side_effect=KeyboardInterrupt):
            evaluated(*compare, reco="reco.root" if compare else tmp_path / "r.root")
        text = f"truth.root: the model of {name} was trained on this file, or one of its name"
        assert (text in capsys.readouterr().err) is seen


def test_events_that_the_model_was_calibrated_on_are_said(folder):
    file = str(folder / "truth.root")
    calibrated = {"calibrated_on": [{"files": [], "uuids": ["1"]}, {"files": [], "uuids": [file_uuid(file)]}]}
    configuration = {"provenance": calibrated}
    with pytest.warns(ImplausibleWarning, match=r"truth\.root: the model was calibrated on this file"):
        warn_of_training(configuration, [file])
    warn_of_training(configuration, [file], calibration=False)
    warn_of_training({"provenance": {"began_with": calibrated}}, [file])


def test_no_report_or_figure_of_other_numbers_stays(written, evaluated, tmp_path):
    out = shutil.copytree(written, tmp_path / "out")
    (out / "mine.png").write_bytes(b"")
    assert evaluated("-q", "--no-oracle", "--no-plots", "--force") == 0
    assert {path.name for path in out.iterdir()} == {"metrics.json", "mine.png"}


def test_a_picture_in_the_folder_is_said_before_the_evaluation(evaluated, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "response.png").write_bytes(b"")
    with patch("pflow.metrics.evaluation.evaluate", side_effect=KeyboardInterrupt) as run:
        assert evaluated("-q") == 2
        assert "out holds response.png, and a figure may have the same name: choose" in capsys.readouterr().err
        assert not run.called
        assert evaluated("-q", "--no-plots") == 130


def test_numbers_are_written_before_the_figures(evaluated, tmp_path):
    with patch("pflow.plots.evaluation.figures", side_effect=KeyboardInterrupt):
        assert evaluated("-q", "--no-oracle") == 130
    assert metrics(tmp_path / "out")["n_events_read"] == N_EVENTS
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["metrics.json"]


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


@pytest.mark.parametrize(
    ("options", "matching", "response"),
    [
        (["--cut", "0.2"], ("angle_energy", 0.2), 1.0),
        (["--match", "hits", "--chunk-size", "2"], ("hits", 0.75), 0.5),  # not the true energy, but the softer photon
        (["--match", "rank"], ("rank", 0.5), 1.0),
    ],
)
def test_options_reach_the_results(evaluated, tmp_path, options, matching, response):
    e_min = "--min-energy" if "--cut" in options else "--e-min"
    options += ["--rule", "calo", e_min, "0.5", "--ignore-tracks", "--no-plots", "-q"]
    assert evaluated(*options, reco="linked.root") == 0
    content = metrics(tmp_path / "out")
    settings = content["settings"]
    assert (settings["truth_rule"], settings["e_min_gev"], settings["use_tracks"]) == ("calo", 0.5, False)
    assert (settings["matching"]["cost"], settings["matching"]["cut"]) == matching
    definition = content["definitions"]["energy_weighted_efficiency"]["definition"]
    assert f"cost <= {min(0.5, matching[1])} /" in definition
    assert content["energy"]["response_median"] == pytest.approx(response)
    assert content["class"]["photon"]["fake_rate"] == 0.5


@pytest.fixture(scope="module")
def lists(sample_dir, tmp_path_factory):
    """A file of 10 events and a reconstruction of it (the reference of its events), whole and in two parts."""
    folder = tmp_path_factory.mktemp("lists")
    events = read_events(sample_dir / "gammasep_test_small.root", entry_stop=10)
    parts = {"all": events, "a": events[:4], "b": events[4:]}
    paths = [folder / f"{name}.root" for name in parts]
    for path, part in zip(paths, parts.values(), strict=True):
        write_events(path, part)
        reco = Reconstruction(particles=part.reference, event=part.event, flags=part.flags)
        inputs = [{"path": str(path), "uuid": str(uproot.open(path).file.uuid)}]
        write_reco(path.with_suffix(".reco.root"), reco, inputs=inputs)
    return paths


def numbers_of(folder):
    return metrics(folder) | {"inputs": None, "sample": None}


def reco_of(*paths):
    return [path.with_suffix(".reco.root") for path in paths]


def test_lists_of_files_have_the_numbers_of_one_file(lists, tmp_path):
    all_events, a, b = lists
    options = ["--no-plots", "--no-oracle", "-q", "-o"]
    assert evaluate(*reco_of(all_events), "--truth", all_events, *options, tmp_path / "one") == 0
    pattern = ["--compare", f"Same={a.parent}/[ab].reco.root"]
    assert evaluate(*reco_of(a, b), "--truth", a, b, *pattern, *options, tmp_path / "two") == 0
    expected, numbers = numbers_of(tmp_path / "one"), numbers_of(tmp_path / "two")
    assert {key for key in expected if numbers[key] != expected[key]} == {"titles", "differences"}
    assert all(numbers["compare"]["Same"][key] == expected[key] for key in ("count", "class", "energy"))


def test_a_file_of_a_list_is_left_out_or_said_to_be_there_twice(lists, tmp_path, capsys):
    (_, a, b), no_root = lists, tmp_path / "bad.root"
    options = ["--no-plots", "--no-oracle", "-q", "-o"]
    assert evaluate(*reco_of(a, a), "--truth", a, a, *options, tmp_path / "twice") == 0
    assert f"{a}: given more than once, and its events count as often" in capsys.readouterr().err
    no_root.write_text("nothing")
    call = [*reco_of(a), no_root, "--truth", a, b, *options, tmp_path / "out"]
    assert evaluate(*call) == 1
    assert evaluate(*call, "--on-error", "skip") == 3
    assert "1 of 2 files were left out" in capsys.readouterr().err
    assert evaluate(*reco_of(a), "--truth", a, *options, tmp_path / "alone") == 0
    assert numbers_of(tmp_path / "out") == numbers_of(tmp_path / "alone")
    no_root.write_bytes(b.read_bytes()[:2000])  # an interrupted copy of the truth
    call = [*reco_of(a, b), "--truth", a, no_root, *options, tmp_path / "cut", "--on-error", "skip"]
    assert evaluate(*call) == 3
    assert "1 of 2 files were left out" in capsys.readouterr().err
    assert numbers_of(tmp_path / "cut") == numbers_of(tmp_path / "alone")


@pytest.mark.parametrize(
    ("n_events", "message"), [(3, "other.root, entry 3: ends here"), (6, "other.root, entry 5: has more events")]
)
def test_files_that_do_not_belong_together(evaluated, make_photons, tmp_path, capsys, n_events, message):
    write_reco(tmp_path / "other.root", reconstruction(make_photons(n_events, 10)))
    assert evaluated("-q", reco=tmp_path / "other.root") == 1
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--collection", "PFlo"], "PFlow"),
        (["--cut", "three"], "--cut: expected a number above 0, found 'three'"),
        (["--cut", "0"], "--cut: expected a number above 0, found '0'"),
        (["--match", "rank", "--cut", "0.5"], "--cut is for --match angle_energy, found --match rank"),
        (["--compare", "Twice"], "--compare: expected NAME=FILE"),
        (["--compare", "PFlow=x.root"], "compare: the name 'PFlow' is taken"),
        (["--compare", "oracle=x.root"], "compare: the name 'oracle' is taken"),
        (["--compare", "two words=x.root"], "--compare: expected NAME=FILE with a plain word as name"),
    ],
)
def test_impossible_options_are_refused(evaluated, capsys, options, message):
    assert evaluated("-q", *options) == (1 if "--collection" in options else 2)
    assert message in capsys.readouterr().err


def test_another_reconstruction_is_evaluated_beside_the_first(evaluated, folder, tmp_path, capsys):
    assert evaluated("--compare", f"Twice={folder / 'linked.root'}", "--no-plots") == 0
    content = metrics(tmp_path / "out")
    assert content["count"]["exact_fraction"] == 1.0
    assert content["compare"]["Twice"]["count"]["exact_fraction"] == 0.0
    assert content["compare"]["Twice"]["class"]["photon"]["fake_rate"] == 0.5
    assert content["oracle"]["count"]["exact_fraction"] == 1.0
    assert content["inputs"]["provenance"] == {"PFlow": {"checkpoint": {"sha256": "abc"}}, "Twice": {}}
    assert "Twice" in capsys.readouterr().out


def test_oracle_plots_and_table_can_be_left_out(evaluated, tmp_path, capsys):
    assert evaluated("--no-plots", "--no-oracle") == 0
    shown = capsys.readouterr().out
    assert "exact count" in shown
    assert "photon: efficiency" in shown
    assert "oracle" not in metrics(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["metrics.json"]
    assert evaluated("--no-plots", "--no-oracle", "-q", "--force") == 0
    assert capsys.readouterr().out == ""


@pytest.fixture(scope="module")
def scanned(sample_dir, tmp_path_factory):
    """The folder of a scan of three hadronic Z decays, in a folder to be made, with one figure."""
    out, shown = tmp_path_factory.mktemp("scan") / "cells", "fake_energy_fraction"
    words = [sample_dir / "zqq_test_small.root", "--vary", "cells=1,2", "--entries", 3, "-o", out, "--no-oracle", "-q"]
    with patch("pflow.plots.report.scan_figures", lambda result: {shown: plot_scan(result, shown)}):
        assert main(["scan", *map(str, words)]) == 0
    return out


def test_a_scan_is_a_table_figures_and_a_report(scanned):
    names = {path.name for path in scanned.iterdir()}
    assert {"scan.csv", "scan.json", "report.html", "points", "fake_energy_fraction.png"} <= names
    assert {path.name for path in (scanned / "points").iterdir()} == {"nominal.json", "cells_2.json", "null_test.json"}
    rows = list(csv.DictReader((scanned / "scan.csv").read_text(encoding="utf-8").splitlines()))
    (row,) = (
        row
        for row in rows
        if (row["point"], row["algorithm"], row["quantity"]) == ("cells=2", "PFlow", "fake_energy_fraction")
    )
    assert row["cells"] == "2"
    assert float(row["change_low"]) < float(row["change"]) < float(row["change_high"])
    assert row["paired"] == "1"
    assert "merged" in row["limits"].split("; ")
    report = (scanned / "report.html").read_text(encoding="utf-8")
    assert "Null test" in report and "merged to 5 mm" in report  # noqa: PT018
    document = json.loads((scanned / "scan.json").read_text(encoding="utf-8"))
    assert document["provenance"]["scan"]["vary"] == {"cells": ["1", "2"]}
    assert [point["name"] for point in document["points"]] == ["nominal", "cells=2", "null test"]
    assert main(["inspect", str(scanned / "scan.json")]) == 0


@pytest.mark.parametrize("tuned", [False, True])
def test_a_scan_of_events_that_a_model_was_trained_on_says_so(folder, tmp_path, capsys, tuned):
    known = {"provenance": {"train": ["truth.root"]}}
    made = {"inputs": [{"path": str(folder / "truth.root")}], "configuration": {} if tuned else known}
    done = SimpleNamespace(provenance=made, tables=lambda width: [], sentences=[])
    header = SimpleNamespace(to_dict=lambda: known)
    with (
        patch("pflow.inference.scan.scan", return_value=done),
        patch("pflow.checkpoint.read_checkpoint", return_value=SimpleNamespace(header=header)),
    ):
        options = ["--tuned", "mine"] if tuned else []
        assert main(["scan", str(folder / "truth.root"), "--vary", "cells=2", "-o", str(tmp_path), *options]) == 0
    assert f"truth.root: the {'tuned ' * tuned}model was trained on this file" in capsys.readouterr().err


@pytest.fixture
def sample(sample_dir):
    return sample_dir / "multi_test_small.root"


@pytest.fixture
def reco(make_reco, tmp_path):
    """A reconstruction of three events, numbers 0, 1 and 7, of one photon each."""
    path = tmp_path / "reco.root"
    with RecoWriter(path, provenance={}) as writer:
        writer.extend(make_reco([0, 1, 7]))
    return path


def test_an_event_is_drawn_in_each_format_by_default_in_two(sample, tmp_path, capsys, call, monkeypatch):
    with pytest.raises(ConfigError, match=r"ends in \.png, \.pdf, \.html"):
        call("display", "absent.root", "-o", tmp_path / "event.svg")
    starts = {tmp_path / "a.png": b"\x89PNG", tmp_path / "a.pdf": b"%PDF", tmp_path / "a.html": b"<!DOCTYPE html>"}
    assert call("display", sample, "--entry", 1, "-o", *starts) == 0
    assert all(path.read_bytes().startswith(start) for path, start in starts.items())
    assert capsys.readouterr().out == "".join(f"wrote {path}\n" for path in starts)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pflow.plots.rendered", lambda *_: b"")  # is slow
    call("display", sample, "--entry", 2)
    assert {path.name for path in tmp_path.iterdir()} == {"display_2.html", "display_2.png", "a.png", "a.pdf", "a.html"}


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--colour", "subdetector"], "<p>hits coloured by subdetector."),
        (["--color", "subdetector"], "<p>hits coloured by subdetector."),
        ([], "true particles (2)"),  # a photon and a pi+
        (["--invisible", "22"], "true particles (1)"),
        (["--entry", 1, "--reco", "reco.root", "--colour", "reco"], "nearest PFlow particle in angle"),
        (["--entry", 7, "--reco", "reco.root", "--reco-entry", 2], "PFlow particles (1)"),  # of joined inputs
    ],
)
def test_the_page_shows_what_the_options_ask_for(sample, reco, tmp_path, monkeypatch, options, shown, call):
    monkeypatch.chdir(tmp_path)
    call("display", sample, *options, "-o", "event.html")
    assert shown in (tmp_path / "event.html").read_text()


def test_hits_of_an_edm4hep_file_are_coloured_by_the_particles_in_it(cld_sim_path, make_reco, tmp_path, call):
    """Input and output are one file: the events with our particles beside its own."""
    both = tmp_path / "both.root"
    with open_events(cld_sim_path, detector="cld") as file:
        made = make_reco(file.read().event, hit_links=make_links(source=[[0, 1]] * 3, particle=[[0, 0]] * 3))
        with Edm4hepRecoWriter(both, file, provenance={}) as writer:
            writer.extend(made)
    call("display", both, "--detector", "cld", "--reco", both, "--colour", "reco", "-o", tmp_path / "event.html")
    assert "the PFlow particle with the largest weight" in (tmp_path / "event.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--entry", 2, "--reco", "reco.root"], r"entry 2: is event number 2, in reconstruction 'PFlow' 7"),
        (
            ["--entry", 3, "--reco", "reco.root", "--reco-entry", 3],
            r"reco\.root, entry 3: there is no such entry; .* has 3",
        ),
        (["--reco-entry", 2], r"--reco-entry: an entry of the file of --reco, which is not given"),
        (["--entry", 25], r"multi_test_small\.root, entry 25: there is no such entry; .* has 25"),
    ],
)
def test_an_entry_that_is_another_event_or_not_there_is_refused(
    sample, reco, tmp_path, monkeypatch, options, message, call
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, InputError), match=message):
        call("display", sample, *options, "-o", "event.png")


def test_a_reconstruction_of_another_file_is_refused(sample, make_reco, tmp_path, call):
    with open_events(sample.with_name("gamma1_test_small.root")) as file:
        made = {"inputs": [describe_input(file) | {"entries": 3}]}
    links = make_links(source=[[9999]] * 3, particle=[[0]] * 3)
    for provenance, more, message in (
        (made, {}, r"was made from .*gamma1_test_small\.root and not from .*multi_test_small\.root"),
        ({}, {"hit_links": links}, r"found 9999 at index 0; made from another file, or cut after the rec"),
    ):
        with RecoWriter(tmp_path / "other.root", provenance=provenance, force=True) as writer:
            writer.extend(make_reco([0, 1, 2], **more))
        with pytest.raises(InputError, match=message):
            call("display", sample, "--reco", tmp_path / "other.root", "--colour", "reco", "-o", tmp_path / "event.png")


def test_particles_of_another_event_are_said_beside_their_picture(sample_dir, tmp_path, call):
    path = sample_dir / "zqq_test_small.root"
    events = pflow.read_events(path, entry_stop=2)
    made = Reconstruction(particles=events.reference[[1]], event=events.event[[0]], flags=events.flags[[0]])
    with RecoWriter(tmp_path / "reco.root", provenance={}) as writer:
        writer.extend(made)
    with pytest.warns(ImplausibleWarning, match="in 1 of 1 events most charged particles have no track"):
        call("display", path, "--reco", tmp_path / "reco.root", "-o", tmp_path / "event.png")
