"""The first paper's metrics on a hand-made sample.

Event 0: truth 10 (photon) and 4 (pi+), answer 12 (photon) and 5 (pi-, 90 degrees off) and 1, in another order.
Event 1: truth 3, no answer. Event 2: nothing true, one answer.
"""

from __future__ import annotations

import math

import pytest

from pflow.metrics.indexed import IndexedMetrics

TRUTH = [[(211, 4.0, 90, 0), (22, 10.0, 90, 0)], [(22, 3.0, 90, 0)], []]
RECO = [[(22, 1.0, 90, 0), (22, 12.0, 90, 0), (-211, 5.0, 90, 90)], [], [(22, 7.0, 90, 0)]]


@pytest.fixture
def result(make_table):
    metrics = IndexedMetrics()
    metrics.update(make_table(TRUTH), make_table(RECO))
    return metrics.result()


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("count_difference", 1 / 3),  # 3 - 2, 0 - 1, 1 - 0
        ("mean_abs_rel_error", 0.225),  # (12 - 10) / 10 and (5 - 4) / 4
        ("mean_rel_error", 0.225),
        ("charge_accuracy", 0.5),
        ("pdg_accuracy", 1.0),
        ("angle_mean_deg", 45),
        ("angle_median_deg", 45),
    ],
)
def test_numbers(result, key, wanted):
    assert result["n_pairs"] == 2
    assert result[key].value == pytest.approx(wanted)


def test_sign_of_the_energy_error(make_table):
    metrics = IndexedMetrics()
    metrics.update(make_table([[(22, 10.0, 90, 0)]]), make_table([[(22, 8.0, 90, 0)]]))
    assert metrics.result()["mean_rel_error"].value == pytest.approx(-0.2)
    assert metrics.result()["mean_abs_rel_error"].value == pytest.approx(0.2)


def test_nothing_is_undefined():
    result = IndexedMetrics().result()
    assert all(math.isnan(number.value) for name, number in result.items() if name != "n_pairs")
