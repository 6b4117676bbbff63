"""Counting, and one photon against two."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pflow.metrics.counting import CountMetrics
from pflow.metrics.stats import Axis

AXIS = Axis(name="opening_angle", label="Opening angle", unit="mrad", edges=np.array([10.0, 50.0, 100.0]))


def photons(*azimuths_mrad):
    return [(22, 10.0, 90, math.degrees(1e-3 * phi)) for phi in azimuths_mrad]


TRUTH = [
    photons(0, 20),  # found as two
    photons(0, 20),  # found as one
    photons(0, 80),  # found as three
    photons(0, 300),  # found as two, outside the bins
    photons(0),  # found as one
    photons(0),  # found as none
    photons(0),  # found as two
    [(211, 5.0, 90, 0)],  # no photon: does not count as one against two
    photons(0, 1, 2),  # three: neither
    [],  # nothing, rightly found as nothing
]
RECO = [photons(*range(n)) for n in (2, 1, 3, 2, 1, 0, 2, 1, 3, 0)]


@pytest.fixture
def result(make_table):
    metrics = CountMetrics(axis=AXIS)
    metrics.update(make_table(TRUTH), make_table(RECO))
    return metrics.result()


def test_numbers(result):
    # right: 0, 3, 4, 7, 8, 9
    assert result["exact_fraction"].value == pytest.approx(0.6)
    assert result["difference"] == {"-1": 2, "0": 6, "1": 2}
    # pairs: found, not, found, found; singles: right, none, two
    assert result["one_vs_two_accuracy"].value == pytest.approx(4 / 7)
    # of these the singles and the pair of 80 mrad
    assert result["one_vs_two_accuracy_above_30_mrad"].value == 2 / 4


def test_two_photons_by_opening_angle(result):
    found = result["two_photons_found"]
    assert found["n_events"] == [2, 1]
    assert found["efficiency"].value.tolist() == [0.5, 1.0]


def test_no_events_is_undefined():
    result = CountMetrics().result()
    assert math.isnan(result["exact_fraction"].value)
    assert math.isnan(result["one_vs_two_accuracy"].value)
    assert result["difference"] == {}
