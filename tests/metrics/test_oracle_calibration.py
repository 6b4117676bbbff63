"""Calibration of showers: applied by hand, fitted to what was put in, read back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pflow.config import from_plain, to_plain
from pflow.errors import ConfigError
from pflow.metrics.oracle_calibration import (
    KINDS,
    ShowerCalibration,
    ShowerCalibrationFit,
    load_calibration,
    shower_kind,
)
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


def test_kinds():
    assert [KINDS[k][:2] for k in shower_kind([22, -11, 211, 130, 13])] == ["el", "el", "ha", "ha", "ha"]


def test_energy_by_hand():
    # electromagnetic 2 x 10 + 4; hadronic (3 x 10 + 0.5 x 4) x 1.5, half way between the middles 0.25 and 0.75
    energy = np.array([[10.0, 0.0, 0.0, 4.0], [10.0, 0.0, 4.0, 0.0], [10.0, 0.0, 0.0, 0.0], [10.0, 0.0, 0.0, 0.0]])
    found = ShowerCalibration(**BY_HAND).energy(
        kind=np.array([0, 1, 1, 1]), energy=energy, abs_cos_theta=np.array([0.5, 0.5, 0, 1])
    )
    # Beyond the outer middles, their corrections.
    assert found == pytest.approx([24.0, 48.0, 30.0, 60.0])


def test_unit_calibration_is_the_sum():
    unit = ShowerCalibration.unit(DETECTOR)
    energy = np.array([[1.0, 2.0, 3.0, 4.0]])
    assert unit.energy(kind=np.array([1]), energy=energy, abs_cos_theta=np.array([0.3])) == pytest.approx([10.0])


def test_fit_finds_what_was_put_in():
    rng = np.random.default_rng(0)
    factors = np.array([[1.1, 0.9, 1.3, 1.2], [1.3, 1.2, 1.0, 0.8]])
    kind = rng.integers(0, 2, 20_000)
    energy = rng.uniform(1.0, 10.0, (20_000, 4))
    cos = rng.uniform(0, 1, 20_000)
    fit = ShowerCalibrationFit(DETECTOR)
    for part in np.array_split(np.arange(20_000), 3):
        fit.update(
            kind=kind[part],
            energy=energy[part],
            abs_cos_theta=cos[part],
            true_energy=np.sum(factors[kind] * energy, axis=1)[part],
        )
    found = fit.result(origin="toy")
    for k, kind in enumerate(KINDS):
        assert list(found.factors[kind].values()) == pytest.approx(factors[k], rel=1e-2)
        assert found.angular[kind] == pytest.approx([1.0] * 25, rel=1e-3)


def test_fit_finds_the_dependence_on_the_angle():
    rng = np.random.default_rng(1)
    n = 50_000
    energy = np.zeros((n, 4))
    energy[:, 0] = rng.uniform(1, 10, n)
    cos = rng.uniform(0, 1, n)
    fit = ShowerCalibrationFit(DETECTOR)
    fit.update(
        kind=np.zeros(n, dtype=np.int64), energy=energy, abs_cos_theta=cos, true_energy=energy[:, 0] * (1 + 0.2 * cos)
    )
    found = fit.result(origin="toy").energy(kind=np.zeros(n, dtype=np.int64), energy=energy, abs_cos_theta=cos)
    middle = (cos > 0.03) & (cos < 0.97)
    assert found[middle] / energy[middle, 0] == pytest.approx(1 + 0.2 * cos[middle], rel=2e-3)


def test_spread_leaves_no_bias_in_the_sum():
    rng = np.random.default_rng(2)
    true = rng.uniform(1, 5, 50_000)
    energy = np.zeros((50_000, 4))
    energy[:, 2] = np.maximum(0, rng.normal(true, 0.6 * np.sqrt(true)))
    cos = rng.uniform(0, 1, 50_000)
    kind = np.ones(50_000, dtype=np.int64)
    fit = ShowerCalibrationFit(DETECTOR)
    fit.update(kind=kind, energy=energy, abs_cos_theta=cos, true_energy=true)
    found = fit.result(origin="toy").energy(kind=kind, energy=energy, abs_cos_theta=cos)
    assert found.sum() == pytest.approx(true.sum(), rel=2e-3)


def test_fit_of_nothing_is_the_unit_calibration():
    found = ShowerCalibrationFit(DETECTOR).result(origin="nothing")
    assert found.factors == ShowerCalibration.unit(DETECTOR).factors
    assert found.angular == dict.fromkeys(KINDS, (1.0,) * 25)


def test_plain_data_and_back():
    calibration = ShowerCalibration(**BY_HAND)
    assert from_plain(ShowerCalibration, to_plain(calibration), "mine.yaml") == calibration


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
