from pathlib import Path

import pytest

from pflow.cli.main import main
from pflow.errors import ConfigError, InputError
from pflow.event.events import ImplausibleWarning
from pflow.io.open import open_events
from pflow.physics.detector import load_detector


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
    assert "7,122" in capsys.readouterr().out


def test_a_flat_file_is_refused_and_a_draft_that_is_there_is_kept(sample_dir, cld_path, tmp_path, call):
    mine = tmp_path / "mine.yaml"
    with pytest.raises(InputError, match=r"zqq_test_small.root: a flat ntuple .* does not say which they are"):
        call(sample_dir / "zqq_test_small.root", "-o", mine)
    assert not mine.exists()
    mine.write_text("filled: in\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a file is there; .*--force"):
        call(cld_path, "-o", mine)
    assert mine.read_text(encoding="utf-8") == "filled: in\n"
    assert call(cld_path, "-o", mine, "--force", "--entries", 2) == 0
    assert load_detector(mine).b_field == pytest.approx(2.0, rel=0.01)


def test_answers_make_a_description_that_the_model_reads(cld_path, tmp_path, call, capsys):
    mine, output = tmp_path / "mine.yaml", tmp_path / "reco.root"
    reconstruct = ["reconstruct", str(cld_path), "--detector", str(mine), "-o", str(output), "-q", "--device", "cpu"]
    absorbers = ("--absorber", "ecal=tungsten:1.9", "--absorber", "hcal=steel:19")
    assert call(cld_path, "-o", mine) == 0
    lacking = capsys.readouterr().out
    assert "layers of ecal_barrel, ecal_endcap, hcal_barrel, hcal_endcap, hcal_other (--absorber ecal=" in lacking
    assert main(reconstruct) == 1
    said = "does not say radiation and interaction lengths of layers of ecal_barrel, ecal_endcap, hcal_barrel"
    assert said in capsys.readouterr().err
    assert call(cld_path, "-o", mine, "--force", *absorbers) == 0
    assert main(reconstruct) == 1
    assert "does not say hadron_scale of hcal_barrel, hcal_endcap, hcal_other: complete" in capsys.readouterr().err
    mine.write_text(mine.read_text("utf-8").replace("hadron_scale: null", "hadron_scale: 0.79"), encoding="utf-8")
    assert main(reconstruct) == 0
    assert "names no calorimeter for the hits of MUON (7 hits, 0.00172 GeV)" in capsys.readouterr().err
    for wrong in ("ecal", "=lead:4", "ecal="):
        with pytest.raises(SystemExit):
            call(cld_path, "-o", mine, "--force", "--absorber", wrong)
    assert "expected NAME=VALUE, found 'ecal='" in capsys.readouterr().err


def test_name_and_field_can_be_given(cld_path, tmp_path, call):
    mine = tmp_path / "mine.yaml"
    assert call(cld_path, "-o", mine, "--name", "mine", "--b-field", 3.25, "--entries", 5) == 0
    drafted = load_detector(mine)
    assert (drafted.name, drafted.b_field) == ("mine", 3.25)
    with open_events(cld_path, detector=mine) as file, pytest.warns(ImplausibleWarning, match=r" 2 T would fit"):
        assert len(file.read(0, 3)) == 3
