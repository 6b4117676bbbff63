import dataclasses
import json
import re
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import yaml

from pflow.checkpoint import load_model
from pflow.cli import files
from pflow.cli.main import main
from pflow.errors import ConfigError, InputError
from pflow.event.checks import UNCHECKED
from pflow.event.events import Events, Flag, ImplausibleWarning
from pflow.event.jagged import assigned_particle
from pflow.event.schema import make_hits
from pflow.io.edm4hep.podio import Collection
from pflow.io.flat import write_events
from pflow.io.inspect import inspect_file
from pflow.io.open import read_events
from pflow.physics.detector import load_detector


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
    assert (content.schema, content.num_entries, content.calorimeter_hits, content.missing) == ("edm4hep", 5, 12440, ())
    assert content.has_truth
    assert [name for name, reason in content.detectors.items() if not reason] == [content.detector] == ["cld"]
    assert {part.name: part.count for part in content.parts}["tracks"] == 74
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert call("inspect", cld) == 0
    text = capsys.readouterr().out
    assert text.isascii()
    for expected in (
        "12,440",
        "SiTracks_Refitted",
        "cld: fits",
        "31.791",
        "PandoraPFOs",
        "86.596",
        "not known, closure",
    ):
        assert expected in text
    hits = {collection.name for collection in content.collections if collection.kind in files.HITS}
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


def test_checks_that_pass_are_counted_or_listed(cld, content, capsys, call):
    passed = [check for check in content.checks if check.good and check.name != UNCHECKED]
    assert call("inspect", cld) == 0
    assert f"ok, {len(passed)} of {len(content.checks)}: --checks shows" in capsys.readouterr().out
    assert call("inspect", cld, "--checks") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"ok, {check.name}: {check.text}" in text for check in passed)


def test_a_file_of_an_unknown_detector_says_what_is_missing(cld_path, capsys, monkeypatch, call):
    monkeypatch.setattr("pflow.io.open.builtin_names", lambda kind: ["clic", "ild", "ild_g4"])
    assert call("inspect", str(cld_path)) == 0
    text = capsys.readouterr().out
    assert "read as    nothing (see missing)" in text
    assert (
        f"detector (for everything): no built-in detector fits; pflow detector {cld_path} -o mine.yaml drafts" in text
    )
    assert "edm4hep::CalorimeterHit" in text


def test_a_detector_that_is_not_built_in_has_no_models(make_photons, tmp_path, capsys, call):
    events = make_photons(1)
    without_faces = tuple(dataclasses.replace(part, inner_z=None) for part in events.detector.calorimeters)
    mine = dataclasses.replace(events.detector, name="mine", ecal_inner_z=900.0, calorimeters=without_faces)
    write_events(tmp_path / "mine.root", dataclasses.replace(events, detector=mine))
    assert call("inspect", tmp_path / "mine.root") == 0
    assert "none comes with pflow for this detector" in capsys.readouterr().out


def test_bad_entries_are_shown_and_nan_is_null_in_json(make_photons, tmp_path, capsys, call):
    events = make_photons(3)
    hits = ak.with_field(events.hits, events.hits.energy * np.nan, "energy")
    write_events(tmp_path / "bad.root", dataclasses.replace(events, hits=hits))
    call("inspect", str(tmp_path / "bad.root"))
    assert "3 bad entries" in capsys.readouterr().out
    assert call("inspect", str(tmp_path / "bad.root"), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], len(report["bad_entries"])) == ("flat", 3)


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
    assert (shown["options"]["max_hits"], shown["options"]["read_as"]) == (32768, None)
    assert main(["inspect", output, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["provenance"]
    assert made["kind"] == "reconstruction"
    assert made["configuration"]["model"]["class_path"]


@pytest.mark.usefixtures("few_resamples")
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


def test_the_drafted_file_is_taken_by_inspect(cld_sim_path, tmp_path, capsys):
    path, mine = str(cld_sim_path), str(tmp_path / "mine.yaml")
    assert main(["detector", path, "-o", mine, "--b-field", "2", "--name", "mine"]) == 0
    text = capsys.readouterr().out
    for expected in ("ecal_barrel", "built-in cld, with nominal values", "to fill in", f"--detector {mine}"):
        assert expected in text
    assert main(["inspect", path, "--detector", mine]) == 0  # shows collections, and what the description lacks
    assert "'mine' does not say sim_scale of ecal_barrel, ecal_endcap, hcal_barrel" in capsys.readouterr().out
    text = Path(mine).read_text("utf-8").replace("sim_scale: null", "sim_scale: 40.0")
    Path(mine).write_text(text, encoding="utf-8")
    assert main(["inspect", path, "--detector", mine]) == 0
    assert "7,112" in capsys.readouterr().out  # as with the built-in description: 10 are below the thresholds


@pytest.mark.filterwarnings("ignore:.*names no calorimeter for the hits of MUON")  # too few hits for a draft
def test_a_flat_file_is_refused_and_a_draft_that_is_there_is_kept(sample_dir, cld_path, tmp_path, call):
    mine = tmp_path / "mine.yaml"
    with pytest.raises(InputError, match=r"zqq_test_small.root: a flat ntuple .* does not say which they are"):
        call("detector", sample_dir / "zqq_test_small.root", "-o", mine)
    assert not mine.exists()
    mine.write_text("filled: in\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a file is there; .*--force"):
        call("detector", cld_path, "-o", mine)
    assert mine.read_text(encoding="utf-8") == "filled: in\n"
    assert call("detector", cld_path, "-o", mine, "--force", "--entries", 2) == 0
    assert load_detector(mine).b_field == pytest.approx(2.0, rel=0.01)


@pytest.mark.filterwarnings("ignore:.*names no calorimeter for the hits of MUON")  # too few hits for a draft
def test_answers_make_a_description_that_the_model_reads(cld_path, tmp_path, call, capsys):
    mine, output = tmp_path / "mine.yaml", tmp_path / "reco.root"
    reconstruct = ["reconstruct", str(cld_path), "--detector", str(mine), "-o", str(output), "-q", "--device", "cpu"]
    absorbers = ("--absorber", "ecal=tungsten:1.9", "--absorber", "hcal=steel:19")
    with pytest.warns(ImplausibleWarning, match="names no calorimeter for the hits of MUON"):  # as reading says
        assert call("detector", cld_path, "-o", mine) == 0
    lacking = capsys.readouterr().out
    asked = "layers of ecal_barrel, ecal_endcap, hcal_barrel, hcal_endcap, hcal_other (--absorber ecal=MATERIAL:MM "
    assert f"{asked}--absorber hcal=MATERIAL:MM)" in lacking
    assert main(reconstruct) == 1
    said = "does not say radiation and interaction lengths of layers of ecal_barrel, ecal_endcap, hcal_barrel"
    assert said in (error := capsys.readouterr().err)
    assert "computes lengths with --absorber ecal=MATERIAL:MM" in error
    assert call("detector", cld_path, "-o", mine, "--force", *absorbers) == 0
    assert main(reconstruct) == 1
    assert "does not say hadron_scale of hcal_barrel, hcal_endcap, hcal_other: complete" in capsys.readouterr().err
    complete = mine.read_text("utf-8").replace("hadron_scale: null", "hadron_scale: 0.79")
    mine.write_text(re.sub(r"(?m)^b_field: [\d.]+", "b_field: 4.0", complete), encoding="utf-8")
    assert main(reconstruct) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "names no calorimeter for the hits of MUON (7 hits, 0.00172 GeV)" in said
    assert re.search(
        r"momenta of tracks are (1\.99|2\.00)\d times their \d+ particles' momenta in 4 T; 2 T would fit", said
    )
    for wrong in ("ecal", "=lead:4", "ecal="):
        with pytest.raises(SystemExit):
            call("detector", cld_path, "-o", mine, "--force", "--absorber", wrong)
    assert "expected NAME=VALUE, found 'ecal='" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"--absorber: ecal is given as tungsten:1\.9 and as lead:4: give it once"):
        call("detector", cld_path, "-o", mine, "--force", *absorbers, "--absorber", "ecal=lead:4")


def test_from_hdf5_to_root_alone(tmp_path, sample_dir, call):
    old = sample_dir / "gamma1_small.h5"
    assert call("convert", old, tmp_path / "new.root", "--chunk-size", "4") == 0
    legacy, converted = read_events(old), read_events(tmp_path / "new.root")
    for (name, before), (_, after) in zip(legacy.parts(), converted.parts(), strict=True):
        if not name.endswith("links"):
            assert str(before.to_list()) == str(after.to_list()), name  # as text, in which NaN equals NaN
    before, after = (assigned_particle(events.hit_links, events.hits) for events in (legacy, converted))
    assert before.to_list() == after.to_list()
    with pytest.raises(ConfigError, match=r"cannot write .*: expected a ROOT file"):
        call("convert", sample_dir / "multi_test_small.root", tmp_path / "new.h5")


def test_bad_entries_can_be_left_empty(tmp_path, call):
    ones = ak.Array([[1.0], [1.0], [1.0]])
    hits = make_hits(energy=ak.Array([[1.0], [-1.0], [3.0]]), x=ones, y=ones, z=ones)
    write_events(tmp_path / "in.root", Events(detector=load_detector("ild_g4"), hits=hits))
    with pytest.raises(InputError, match="entry 1"):
        call("convert", tmp_path / "in.root", tmp_path / "new.root")
    with pytest.warns(UserWarning, match="1 of 3 entries"):
        call("convert", tmp_path / "in.root", tmp_path / "new.root", "--on-error", "skip")
    assert read_events(tmp_path / "new.root").hits.energy.to_list() == [[1.0], [], [3.0]]


def test_tracks_from_monte_carlo_particles_stay_marked(tmp_path, cld_sim_path, capsys, call):
    made = tmp_path / "flat.root"
    assert call("convert", cld_sim_path, made, "--truth-tracks") == 0
    assert "with tracks made from Monte Carlo particles" in capsys.readouterr().out
    events = read_events(made).validate()
    assert (events.detector.name, events.flags.tolist()) == ("cld", 3 * [Flag.TRUTH_TRACKS])
