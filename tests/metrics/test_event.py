import math

import numpy as np
import pytest

from pflow.metrics.event import CountMetrics, EventMetrics, PhotonPairMetrics, TrackMetrics
from pflow.metrics.match import Matching, match_tables
from pflow.metrics.stats import Axis

AXIS = Axis(name="opening_angle", label="Opening angle", unit="mrad", edges=np.array([10.0, 50.0, 100.0]))


@pytest.fixture(autouse=True)
def two_bins(monkeypatch):
    monkeypatch.setattr("pflow.metrics.event.OPENING_ANGLE", AXIS)


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
    metrics = CountMetrics()
    metrics.update(make_table([true for true, _ in EVENTS]), make_table([photons(*range(n)) for _, n in EVENTS]))
    counts = metrics.result()
    assert counts["exact_fraction"].value == pytest.approx(0.6)
    assert counts["difference"] == {"-1": 2, "0": 6, "1": 2}
    # Two pairs and a single of seven; three particles are wrong for the pair of 80 mrad.
    assert counts["one_vs_two_accuracy"].value == pytest.approx(3 / 7)
    assert counts["one_vs_two_accuracy_above_30_mrad"].value == 2 / 5  # the pair of 300 mrad and a single
    assert counts["two_photons_found"]["n_events"] == [2, 1]
    assert counts["two_photons_found"]["efficiency"].value.tolist() == [0.5, 0.0]


def pair_metrics(make_table, truth, reco):
    metrics, true, found = PhotonPairMetrics(), make_table(truth), make_table(reco)
    metrics.update(true, found, match_tables(true, found, Matching()))
    return metrics.result()


def test_pairs_at_their_barycentre_show(make_table):
    """Both photons of 80 mrad in the middle, one of 20 mrad turned out to 30 on each side, a pair with one found."""
    softer = (22, 9.9, 90, 0)
    truth = [[softer, *photons(80)], photons(0, 20), photons(0, 80), photons(0), [(22, 20.0, 90, 0), *photons(80)]]
    reco = [photons(40, 41), photons(-5, 25), photons(0), photons(0, 20), [*photons(80), (22, 10.0, 90, 0)]]
    result = pair_metrics(make_table, truth, reco)
    assert (result["n_pairs"], result["n_found"]) == (4, 3)
    assert result["binned"]["n_found"] == [1, 2]
    assert result["binned"]["opening_response"].value == pytest.approx([1.5, (1 / 80 + 1) / 2], rel=1e-3)
    assert result["binned"]["mass_response"].value == pytest.approx([1.5, (1 / 80 + 0.5**0.5) / 2], rel=1e-3)
    # of equal photons the first one counts as the harder: 39, 5, 0 mrad; the others 40, 5, 0
    assert result["angle_1_mean_deg"].value == pytest.approx(math.degrees(0.044 / 3), rel=1e-3)
    assert result["angle_2_mean_deg"].value == pytest.approx(math.degrees(0.045 / 3), rel=1e-3)


def test_photons_of_one_direction_have_no_ratio_of_angles(make_table):
    result = pair_metrics(make_table, [photons(0, 0), photons(0, 80)], [photons(0, 1), photons(0, 80)])
    assert (result["n_pairs"], result["n_found"]) == (2, 1)
    assert result["opening_response"].value == pytest.approx(1)


def back_to_back(energy):
    return [(22, energy / 2, 90, 0), (22, energy / 2, 90, 180)]


@pytest.mark.parametrize(
    ("visible", "reco", "n_events", "responses"),
    [
        # 3 + 3 GeV at right angles: mass sqrt(36 - 18); 4 + 4 GeV back to back: mass 8
        ([(22, 3.0, 90, 0), (22, 3.0, 90, 90)], back_to_back(8.0), [1, 1], [8 / 6, 8 / math.sqrt(18)]),
        ([(22, 3.0, 90, 0)], [(22, 3.0, 90, 0)], [1, 0], [1.0, math.nan]),  # one particle has no mass
        (2 * [(22, 3.0, 90, 0), (22, 3.0, 90, 10)], [(22, 3.0, 90, 0), (22, 3.0, 90, 10)], [1, 1], [0.5, 0.5]),
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
    """10 GeV of tracks, an event without tracks, two with little in none, rounding or not, and 30 GeV without links."""
    metrics = TrackMetrics()
    metrics.update(np.array([[10.0, 2.0, 1.0], [0.0, 0.0, 0.0], [10.0, 0.0, 0.05], [10.0, 0.0, 5e-5]]))
    metrics.update(np.array([[30.0, np.nan, 5.0]]))
    result = metrics.result()
    assert (result["in_neutral"].value, result["in_none"].value) == pytest.approx((2 / 30, 6.05 / 60), rel=1e-9)
