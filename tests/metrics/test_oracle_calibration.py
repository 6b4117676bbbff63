"""Calibration of showers: applied by hand, fitted to what was put in, read back."""

import dataclasses

import numpy as np
import pytest

from pflow.config import from_plain, to_plain
from pflow.errors import ConfigError
from pflow.metrics.oracle_calibration import KINDS, ShowerCalibration, load_calibration
from pflow.physics.detector import load_detector

DETECTOR = load_detector("ild_g4")
NAMES = [calorimeter.name for calorimeter in DETECTOR.calorimeters]
BY_HAND = {
    "origin": "hand",
    "factors": {
        kind: dict(zip(NAMES, factors, strict=True))
        for kind, factors in zip(KINDS, [(2.0, 1.0, 1.0, 1.0), (3.0, 1.0, 0.5, 1.0)], strict=True)
    },
    "cos_edges": (0.0, 0.5, 1.0),
    "angular": {"electromagnetic": (1.0, 1.0), "hadronic": (1.0, 2.0)},
}


def test_energy_by_hand():
    # electromagnetic 2 x 10 + 4; hadronic (3 x 10 + 0.5 x 4) x 1.5, half way between the middles 0.25 and 0.75
    energy = np.array([[10.0, 0.0, 0.0, 4.0], [10.0, 0.0, 4.0, 0.0], [10.0, 0.0, 0.0, 0.0], [10.0, 0.0, 0.0, 0.0]])
    found = ShowerCalibration(**BY_HAND).energy(
        kind=np.array([0, 1, 1, 1]), energy=energy, abs_cos_theta=np.array([0.5, 0.5, 0, 1])
    )
    # Beyond the outer middles, their corrections.
    assert found == pytest.approx([24.0, 48.0, 30.0, 60.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factors": {"hadronic": {}}}, "mine.yaml: electromagnetic showers need factors"),
        ({"cos_edges": [0.0, 1.0]}, "a correction for each bin of cos_edges"),
        ({"angular": {}}, "a correction for each bin of cos_edges"),
        ({"origin": 3}, "'origin' must be text"),
    ],
)
def test_what_is_no_calibration_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        from_plain(ShowerCalibration, to_plain(ShowerCalibration(**BY_HAND)) | change, "mine.yaml")


def test_other_calorimeters_are_refused():
    fewer = dataclasses.replace(DETECTOR, calorimeters=DETECTOR.calorimeters[1:])
    with pytest.raises(ConfigError, match="factors for the calorimeters of ild_g4: ecal_endcap, "):
        load_calibration(fewer)


def test_builtin_calibration_by_the_name_of_the_detector():
    assert "gamma1_train" in load_calibration(DETECTOR).origin


def test_detector_without_calibration_has_the_unit_one():
    assert load_calibration(load_detector("clic")).origin.startswith("none")
