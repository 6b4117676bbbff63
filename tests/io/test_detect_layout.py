"""The layout of a flat ntuple is found by where its hits are."""

import pytest
import uproot

from pflow.event.events import Events
from pflow.io.detect_layout import best_layout
from pflow.io.events_root import write_events
from pflow.io.open import open_events
from pflow.physics.detector import load_detector


@pytest.mark.parametrize(
    ("name", "layout", "detector"),
    [("g4/zqq_val", "g4", "ild_g4"), ("g4/gamma1_val", "g4", "ild_g4")]
    + [(f"cld_g4/{sample}_val", "cld_g4", "cld") for sample in ("zqq", "single", "gammasep")],
)
def test_the_detector_whose_ecal_has_the_hits(data_dir, name, layout, detector):
    path = data_dir / f"{name}.root"
    assert best_layout(path) == layout
    with open_events(path) as file:
        assert file.detector.name == detector
        assert len(file.read(0, 5)) == 5


def test_a_known_detector_decides_alone(sample_dir):
    assert best_layout(sample_dir / "zqq_test_small.root", load_detector("cld")) == "cld_g4"
    assert best_layout("not_read.root", load_detector("clic")) == "g4"


def test_files_that_pflow_wrote_hold_their_detector(sample_dir, tmp_path):
    with open_events(sample_dir / "cld_multi_test_small.root") as file:
        events: Events = file.read(0, 3)
    write_events(tmp_path / "out.root", [events])
    assert best_layout(tmp_path / "out.root") == "g4"
    with open_events(tmp_path / "out.root") as file:
        assert file.detector.name == "cld"


def test_a_file_that_tells_nothing_has_the_default(tmp_path):
    path = tmp_path / "empty.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {f"calo_hit.{key}": "var * float32" for key in ("energy", "x", "y", "z")})
    assert best_layout(path) == "g4"
