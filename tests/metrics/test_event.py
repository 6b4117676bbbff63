"""Visible energy and mass."""

from __future__ import annotations

import math

import pytest

from pflow.metrics.event import EventMetrics


def back_to_back(energy):
    return [(22, energy / 2, 90, 0), (22, energy / 2, 90, 180)]


def result_of(make_table, visible, reco):
    metrics = EventMetrics()
    metrics.update(make_table(visible), make_table(reco))
    return metrics.result()


def test_energy_response(make_table):
    result = result_of(make_table, [back_to_back(90.0)], [back_to_back(81.0)])
    assert result["visible_energy"]["response_median"].value == pytest.approx(0.9)


def test_mass_response(make_table):
    # 3 + 3 GeV at right angles: mass sqrt(36 - 18); 4 + 4 GeV back to back: mass 8
    result = result_of(make_table, [[(22, 3.0, 90, 0), (22, 3.0, 90, 90)]], [back_to_back(8.0)])
    assert result["visible_mass"]["response_median"].value == pytest.approx(8 / math.sqrt(18))


@pytest.mark.parametrize(
    ("visible", "reco", "n_events", "response"),
    [
        ([(22, 3.0, 90, 0)], [(22, 3.0, 90, 0)], (1, 0), 1.0),  # one particle has no mass
        (back_to_back(10.0), [], (1, 1), 0.0),
        ([], back_to_back(10.0), (0, 0), math.nan),
    ],
)
def test_events_without_mass_reconstruction_or_truth(make_table, visible, reco, n_events, response):
    result = result_of(make_table, [visible], [reco])
    assert (result["visible_energy"]["n_events"], result["visible_mass"]["n_events"]) == n_events
    assert result["visible_energy"]["response_median"].value == pytest.approx(response, nan_ok=True)


def test_resolutions_by_hand(make_table):
    # Responses 0 ... 8 / 10 and 100: seven of ten lie within 0.6, nine have variance 0.6 / 9
    answers = [back_to_back(energy) for energy in (*range(9), 1000)]
    result = result_of(make_table, [back_to_back(10.0)] * 10, answers)["visible_energy"]
    assert result["resolution_68"].value == pytest.approx(0.3)
    assert result["rms90"].value == pytest.approx(math.sqrt(0.6 / 9))
