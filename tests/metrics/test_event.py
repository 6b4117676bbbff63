import math

import numpy as np
import pytest

from pflow.metrics.event import CountMetrics, EventMetrics, TrackMetrics
from pflow.metrics.stats import Axis

AXIS = Axis(name="opening_angle", label="Opening angle", unit="mrad", edges=np.array([10.0, 50.0, 100.0]))


def photons(*azimuths_mrad):
    return [(22, 10.0, 90, math.degrees(1e-3 * phi)) for phi in azimuths_mrad]


EVENTS = [  # true particles, number of reconstructed ones
    (photons(0, 20), 2),
    (photons(0, 20), 1),
    (photons(0, 80), 3),
    (photons(0, 300), 2),  # opening angle outside the bins
    (photons(0), 1),
    (photons(0), 0),
    (photons(0), 2),
    ([(211, 5.0, 90, 0)], 1),  # does not count for one photon against two, nor do the next two
    (photons(0, 1, 2), 3),
    ([], 0),
]


def test_numbers_of_particles(make_table):
    metrics = CountMetrics(axis=AXIS)
    metrics.update(make_table([true for true, _ in EVENTS]), make_table([photons(*range(n)) for _, n in EVENTS]))
    counts = metrics.result()
    assert counts["exact_fraction"].value == pytest.approx(0.6)
    assert counts["difference"] == {"-1": 2, "0": 6, "1": 2}
    assert counts["one_vs_two_accuracy"].value == pytest.approx(4 / 7)  # three pairs and a single of seven
    assert counts["one_vs_two_accuracy_above_30_mrad"].value == 2 / 4  # the pair of 80 mrad and a single of four
    assert counts["two_photons_found"]["n_events"] == [2, 1]
    assert counts["two_photons_found"]["efficiency"].value.tolist() == [0.5, 1.0]


def back_to_back(energy):
    return [(22, energy / 2, 90, 0), (22, energy / 2, 90, 180)]


@pytest.mark.parametrize(
    ("visible", "reco", "n_events", "responses"),
    [
        # 3 + 3 GeV at right angles: mass sqrt(36 - 18); 4 + 4 GeV back to back: mass 8
        ([(22, 3.0, 90, 0), (22, 3.0, 90, 90)], back_to_back(8.0), [1, 1], [8 / 6, 8 / math.sqrt(18)]),
        ([(22, 3.0, 90, 0)], [(22, 3.0, 90, 0)], [1, 0], [1.0, math.nan]),  # one particle has no mass
        (back_to_back(10.0), [], [1, 1], [0.0, 0.0]),
        ([], back_to_back(10.0), [0, 0], [math.nan, math.nan]),
    ],
)
def test_response_of_energy_and_mass(make_table, visible, reco, n_events, responses):
    metrics = EventMetrics()
    metrics.update(make_table([visible]), make_table([reco]))
    results = [metrics.result()[key] for key in ("visible_energy", "visible_mass")]
    assert [result["n_events"] for result in results] == n_events
    assert [result["response_median"].value for result in results] == pytest.approx(responses, nan_ok=True)


def test_fractions_of_the_track_momentum():
    """10 GeV of tracks, an event without tracks, and 30 GeV of tracks without links."""
    metrics = TrackMetrics()
    metrics.update(np.array([[10.0, 2.0, 1.0], [0.0, 0.0, 0.0]]))
    metrics.update(np.array([[30.0, np.nan, 5.0]]))
    result = metrics.result()
    assert (result["in_neutral"].value, result["in_none"].value) == (0.2, 0.15)
