from __future__ import annotations

import dataclasses
import json

import awkward as ak
import numpy as np
import pytest

from pflow.calibration.uncertainty import Curve, UncertaintyCalibration
from pflow.errors import ConfigError
from pflow.io.open import read_events
from pflow.physics.pdg import CLASSES
from pflow.tokens.recipe import Recipe
from pflow.tokens.tokeniser import Tokeniser

PHOTON = CLASSES.index("photon")
DOUBLED = Curve((np.log(0.1),), (np.log(2.0),))


def test_a_factor_is_linear_in_the_logarithms_and_constant_beyond():
    curve = Curve((np.log(0.01), np.log(0.1)), (np.log(1.0), np.log(4.0)))
    found = curve(np.array([0.001, 0.01, np.sqrt(0.001), 0.1, 1.0, 0.0]))
    np.testing.assert_allclose(found, [0.001, 0.01, 2.0 * np.sqrt(0.001), 0.4, 4.0, 0.0])


def test_each_class_and_quantity_has_its_own_curve():
    widths = UncertaintyCalibration(curves={"energy": {"photon": DOUBLED}})
    sigma, classes = np.array([0.1, 0.1]), np.array([PHOTON, PHOTON + 1])
    np.testing.assert_allclose(widths.apply("energy", sigma, classes), [0.2, 0.1])
    np.testing.assert_allclose(widths.apply("direction", sigma, classes), sigma)
    np.testing.assert_allclose(sigma, 0.1)


def test_widths_come_back_from_plain_data():
    widths = UncertaintyCalibration(
        curves={"energy": {"photon": DOUBLED}, "direction": {"muon": Curve((-3.0, 0.5), (0.25, -1.0))}}
    )
    assert UncertaintyCalibration.from_dict(json.loads(json.dumps(widths.to_dict()))) == widths


@pytest.mark.parametrize(
    "content",
    [
        {"energy": {"photn": [[0.0], [0.0]]}},
        {"mass": {"photon": [[0.0], [0.0]]}},
        {"energy": {"photon": [[0.0, 0.0], [0.0, 0.0]]}},
        {"energy": {"photon": [[0.0], [0.0, 1.0]]}},
        {"energy": {"photon": [[], []]}},
        {"energy": {"photon": [[0.0], [float("nan")]]}},
        {"energy": {"photon": 3.0}},
        {"energy": 3.0},
    ],
)
def test_what_makes_no_widths_is_an_error(content):
    with pytest.raises(ConfigError, match="widths"):
        UncertaintyCalibration.from_dict(content)


def test_a_tokeniser_states_calibrated_covariances_and_keeps_them(sample_dir):
    plain = Tokeniser.fit([read_events(sample_dir / "gamma1_val_small.root", entry_stop=5)], Recipe())
    widths = UncertaintyCalibration(curves={"energy": {"photon": DOUBLED}, "direction": {"photon": DOUBLED}})
    calibrated = Tokeniser.from_dict(dataclasses.replace(plain, widths=widths).to_dict())
    assert calibrated.widths == widths
    assert Tokeniser.from_dict(plain.to_dict()).widths is None
    columns = {
        "charge": [[1]],
        "pdg": [[0]],
        "energy": [[0.0]],
        "direction": [[[1.0, 0.0, 0.0]]],
        "mask": [[True]],
        "energy_sigma": [[0.1]],
        "direction_sigma": [[0.01]],
    }
    before, after = (ak.to_numpy(one.decode(**columns).particles.covariance[0, 0]) for one in (plain, calibrated))
    np.testing.assert_allclose(after, 4.0 * before, rtol=1e-5)
