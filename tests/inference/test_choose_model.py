from __future__ import annotations

import dataclasses

import pytest

from pflow.errors import InputError
from pflow.inference.choose_model import shipped_model
from pflow.io.open import open_events
from pflow.physics.detector import load_detector


def test_the_model_of_the_detector_that_reads_tracks_is_chosen(sample_dir):
    with open_events(sample_dir / "gamma1_test_small.root") as file:
        assert shipped_model(file) == "ild-g4-general"


def test_without_a_model_of_the_detector_those_that_there_are_are_named(sample_dir):
    stronger = dataclasses.replace(load_detector("ild_g4"), name="stronger", b_field=4.0)
    with (
        open_events(sample_dir / "gamma1_test_small.root", detector=stronger) as file,
        pytest.raises(InputError, match=r"for detector 'stronger', those are .*ild-g4-general \(ild_g4\)") as raised,
    ):
        shipped_model(file)
    assert "gamma1_test_small.root" in str(raised.value)
