from __future__ import annotations

import dataclasses

import pytest

from pflow.errors import InputError
from pflow.inference.choose_model import shipped_model
from pflow.io.open import open_events
from pflow.physics.detector import load_detector


@pytest.mark.parametrize(
    ("name", "model"), [("gamma1_test_small", "ild-g4-general"), ("cld_multi_test_small", "cld-general")]
)
def test_the_model_of_the_detector_that_reads_tracks_is_chosen(sample_dir, name, model):
    with open_events(sample_dir / f"{name}.root") as file:
        assert shipped_model(file) == model


def test_a_real_event_of_cld_has_its_model(data_dir):
    with open_events(data_dir / "edm4hep" / "cld_rec.edm4hep.root") as file:
        assert shipped_model(file) == "cld-general"


def test_without_a_model_of_the_detector_those_that_there_are_are_named(sample_dir):
    stronger = dataclasses.replace(load_detector("ild_g4"), name="stronger", b_field=4.0)
    with (
        open_events(sample_dir / "gamma1_test_small.root", detector=stronger) as file,
        pytest.raises(InputError, match=r"for detector 'stronger', those are .*ild-g4-general \(ild_g4\)") as raised,
    ):
        shipped_model(file)
    assert "gamma1_test_small.root" in str(raised.value)
