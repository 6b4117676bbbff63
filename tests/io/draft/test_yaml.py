from __future__ import annotations

import pytest

from pflow.errors import ConfigError
from pflow.io.draft.draft import draft_detector
from pflow.io.draft.yaml import draft_to_yaml, write_draft
from pflow.physics.detector import load_detector


@pytest.mark.parametrize(
    "name", ["cld_rec.edm4hep", "cld_sim.edm4hep", "cld_zuds100_sim.edm4hep", "ild_g4_zqq_rntuple"]
)
def test_what_is_written_is_loaded_again(data_dir, tmp_path, name):
    draft = draft_detector(data_dir / "edm4hep" / f"{name}.root")
    write_draft(draft, tmp_path / "mine.yaml")
    assert load_detector(tmp_path / "mine.yaml") == draft.detector


def test_every_note_stands_behind_its_value(data_dir):
    draft = draft_detector(data_dir / "edm4hep" / "cld_rec.edm4hep.root")
    lines = draft_to_yaml(draft).splitlines()
    for note in draft.notes.values():
        mark = "FILL IN" if note.how == "fill in" else note.how
        assert any(line.endswith(f"  # {mark}: {note.text}") for line in lines)
    (field,) = [line for line in lines if line.startswith("b_field")]
    assert field.startswith("b_field: 1.999  # measured: 1.999 +- 0.002 from 24 tracks")


def test_what_was_left_out_stands_at_the_end(data_dir):
    text = draft_to_yaml(draft_detector(data_dir / "edm4hep" / "cld_rec.edm4hep.root"))
    assert text.splitlines()[-3:] == [
        "# Left out:",
        "#   LumiCalCollection: hits of a luminosity or other very forward calorimeter",
        "#   LumiCalHits: hits of a luminosity or other very forward calorimeter",
    ]


def test_the_input_is_not_overwritten(made_up, write_made_up):
    path = write_made_up(made_up())
    draft = draft_detector(path)
    with pytest.raises(ConfigError, match="it is the input"):
        write_draft(draft, path)
