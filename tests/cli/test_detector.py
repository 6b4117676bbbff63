import pytest

from pflow.cli.main import main
from pflow.errors import ConfigError, InputError
from pflow.event.events import ImplausibleWarning
from pflow.io.open import open_events
from pflow.physics.detector import load_detector


def test_the_drafted_file_is_taken_by_inspect(cld_sim_path, tmp_path, capsys):
    path, mine = str(cld_sim_path), str(tmp_path / "mine.yaml")
    assert main(["detector", path, "-o", mine, "--b-field", "2"]) == 0
    text = capsys.readouterr().out
    for expected in ("ecal_barrel", "built-in cld, with nominal values", "to fill in", f"--detector {mine}"):
        assert expected in text
    assert main(["inspect", path, "--detector", mine]) == 0
    assert "7,122" in capsys.readouterr().out


def test_a_flat_file_is_refused_and_a_draft_that_is_there_is_kept(sample_dir, cld_path, tmp_path, call):
    mine = tmp_path / "mine.yaml"
    with pytest.raises(InputError, match=r"zqq_test_small.root: a flat ntuple .* describe it by hand"):
        call(sample_dir / "zqq_test_small.root", "-o", mine)
    assert not mine.exists()
    mine.write_text("filled: in\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a file is there; .*--force"):
        call(cld_path, "-o", mine)
    assert mine.read_text(encoding="utf-8") == "filled: in\n"
    assert call(cld_path, "-o", mine, "--force", "--entries", 2) == 0
    assert load_detector(mine).b_field == pytest.approx(2.0, rel=0.01)


def test_name_and_field_can_be_given(cld_path, tmp_path, call):
    mine = tmp_path / "mine.yaml"
    assert call(cld_path, "-o", mine, "--name", "mine", "--b-field", 3.25, "--entries", 5) == 0
    drafted = load_detector(mine)
    assert (drafted.name, drafted.b_field) == ("mine", 3.25)
    with open_events(cld_path, detector=mine) as file, pytest.warns(ImplausibleWarning, match=r" 2 T would fit"):
        assert len(file.read(0, 3)) == 3
