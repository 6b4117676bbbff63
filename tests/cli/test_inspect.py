import dataclasses
import json

import awkward as ak
import numpy as np
import pytest
import yaml

from pflow.checkpoint import load_model
from pflow.cli import inspect
from pflow.cli.main import main
from pflow.io.edm4hep.podio import Collection
from pflow.io.flat import write_events
from pflow.io.inspect import inspect_file


@pytest.fixture(scope="module")
def content(cld_path):
    """With a collection that only refers to objects of another."""
    content = inspect_file(cld_path)
    subset = Collection(
        name="TightSelectedPandoraPFOs", type="edm4hep::ReconstructedParticle", subset=True, count=5, mean=1.0
    )
    return dataclasses.replace(content, collections=(*content.collections, subset))


@pytest.fixture
def cld(content, monkeypatch) -> str:
    """The file, which is read once."""
    monkeypatch.setattr("pflow.io.inspect.inspect_file", lambda *_, **__: content)
    return content.path


@pytest.mark.parametrize("terminal", [True, False])
def test_the_tables_of_the_cld_file(cld, content, capsys, monkeypatch, terminal, call):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert call(cld) == 0
    text = capsys.readouterr().out
    assert text.isascii()
    for expected in ("12,440", "SiTracks_Refitted", "cld: fits", "31.791", "PandoraPFOs", "86.596"):
        assert expected in text
    hits = {collection.name for collection in content.collections if collection.kind in inspect.HITS}
    assert hits <= set(text.replace(",", " ").split())
    long = [line for line in text.splitlines() if len(line) > 80]
    if terminal:
        assert all(line.startswith("cell encoding") and len(line.split()) == 3 for line in long)
        return
    lines = [line.split() for line in text.splitlines()]
    assert long
    assert ["1,439.0", "31.791", "edm4hep::CalorimeterHit", "ECALBarrel"] in lines
    remarks = {
        "SiTracksMCTruthLink": "SiTracks_Refitted -> MCParticles",
        "TightSelectedPandoraPFOs": "refers to others",
    }
    for name, remark in remarks.items():
        number = max(number for number, line in enumerate(lines) if line[-1:] == [name])
        assert lines[number + 1] == remark.split()
    assert any(line[:2] == ["cell", "encoding"] and line[2].startswith("system:0:5") for line in lines)
    assert any(line[:3] == ["others", "1", "edm4hep::EventHeader"] for line in lines)


def test_a_file_of_an_unknown_detector_says_what_is_missing(cld_path, capsys, monkeypatch, call):
    monkeypatch.setattr("pflow.io.open.builtin_names", lambda kind: ["clic", "ild", "ild_g4"])
    assert call(str(cld_path)) == 0
    text = capsys.readouterr().out
    assert "read as    nothing: no detector fits" in text
    assert "detector (for everything): no built-in detector fits; `pflow detector FILE" in text
    assert "edm4hep::CalorimeterHit" in text


def test_a_detector_that_is_not_built_in_has_no_models(make_photons, tmp_path, capsys, call):
    events = make_photons(1)
    mine = dataclasses.replace(events.detector, name="mine", ecal_inner_radius=900.0)
    write_events(tmp_path / "mine.root", dataclasses.replace(events, detector=mine))
    assert call(tmp_path / "mine.root") == 0
    assert "none comes with pflow for this detector" in capsys.readouterr().out


def test_json_is_all_there_is(sample_dir, capsys, call):
    assert call(sample_dir / "gamma1_val_small.root", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "flat"


def test_bad_entries_are_shown_and_nan_is_null_in_json(make_photons, tmp_path, capsys, call):
    events = make_photons(3)
    hits = ak.with_field(events.hits, events.hits.energy * np.nan, "energy")
    write_events(tmp_path / "bad.root", dataclasses.replace(events, hits=hits))
    call(str(tmp_path / "bad.root"))
    assert "3 bad entries" in capsys.readouterr().out
    assert call(str(tmp_path / "bad.root"), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["bad_entries"]) == 3


@pytest.fixture(scope="module")
def output(sample_dir, tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("provenance") / "reco.root")
    source = str(sample_dir / "gammasep_test_small.root")
    assert main(["reconstruct", source, "--checkpoint=ild-g4-photon", "-o", path, "-q", "--device=cpu"]) == 0
    return path


def test_an_output_shows_what_it_was_made_from(output, sample_dir, capsys):
    assert main(["inspect", output]) == 0
    shown = yaml.safe_load(capsys.readouterr().out.rpartition("\n\n")[2])
    assert shown["checkpoint"] == {"path": "ild-g4-photon", "sha256": load_model("ild-g4-photon").digest}
    assert "torch" in shown["versions"]
    assert shown["inputs"][0]["path"].endswith("gammasep_test_small.root")
    assert shown["options"]["max_hits"] == 32768
    assert main(["inspect", output, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["provenance"]
    assert made["kind"] == "reconstruction"
    assert made["configuration"]["model"]["class_path"]


def test_an_evaluation_shows_its_inputs_and_a_model_its_training(output, sample_dir, tmp_path, capsys):
    truth = str(sample_dir / "gammasep_test_small.root")
    assert main(["evaluate", output, "--truth", truth, "-o", str(tmp_path / "e"), "--no-plots", "-q"]) == 0
    assert main(["inspect", str(tmp_path / "e" / "metrics.json")]) == 0
    shown = capsys.readouterr().out
    assert "truth" in shown
    assert "ild-g4-photon" in shown
    assert main(["inspect", "ild-g4-photon"]) == 0
    shown = capsys.readouterr().out
    assert load_model("ild-g4-photon").digest in shown
    assert "seed" in shown


@pytest.mark.parametrize(
    ("name", "text"), [("a.root", b"no"), ("a.json", b"{}"), ("a.json", b"["), ("a.ckpt", b"no"), ("none.root", None)]
)
def test_what_is_no_output_is_an_error_that_names_it(name, text, tmp_path, capsys):
    if text is not None:
        (tmp_path / name).write_bytes(text)
    assert main(["inspect", str(tmp_path / name)]) == 1
    assert name in capsys.readouterr().err
