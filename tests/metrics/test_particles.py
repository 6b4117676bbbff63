"""Matched metrics on a hand-made sample.

Event 0 (truth | answer):  photon 10 GeV | photon 11 GeV, 1 degree off; pi+ 20 GeV | pi+ 19 GeV; K0L 5 GeV | missed.
Event 1: electron 8 GeV | a photon of 8 GeV; nothing true | a fake K0L of 2 GeV.
Event 2: photon 40 GeV | found twice: 40 GeV and 40 GeV (one of them is a fake).
Event 3: nothing | nothing.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from pflow.metrics.match import Matching, match
from pflow.metrics.particles import ParticleMetrics
from pflow.metrics.stats import Axis, clopper_pearson

TRUTH = [
    [(22, 10.0, 90, 0), (211, 20.0, 45, 90), (130, 5.0, 135, 180)],
    [(11, 8.0, 90, 0)],
    [(22, 40.0, 30, 0)],
    [],
]
RECO = [
    [(22, 11.0, 90, 1), (211, 19.0, 45, 90)],
    [(22, 8.0, 90, 0), (130, 2.0, 20, 180)],
    [(22, 40.0, 30, 0), (22, 40.0, 30, 0)],
    [],
]
ENERGY = Axis(name="energy", label="True energy", unit="GeV", edges=np.array([1.0, 10.0, 30.0]))
THETA = Axis(name="theta", label="True polar angle", unit="deg", edges=np.array([0.0, 60.0, 180.0]))


def metrics_of(make_table, truth, reco):
    metrics = ParticleMetrics(axes=(ENERGY, THETA))
    t, r = make_table(truth), make_table(reco)
    metrics.update(t, r, match(t, r, Matching()))
    return metrics


@pytest.fixture
def result(make_table):
    return metrics_of(make_table, TRUTH, RECO).result()


def test_totals(result):
    assert (result["n_truth"], result["n_reco"], result["n_matched"]) == (5, 6, 4)


def test_efficiency_is_by_true_class(result):
    by_class = {name: tree["efficiency"].value for name, tree in result["class"].items()}
    assert by_class["all"] == pytest.approx(4 / 5)
    assert by_class["photon"] == 1
    assert by_class["charged_hadron"] == 1
    assert by_class["neutral_hadron"] == 0
    assert by_class["electron"] == 1
    assert math.isnan(by_class["muon"])


def test_fake_rate_is_by_reconstructed_class(result):
    by_class = {name: tree["fake_rate"].value for name, tree in result["class"].items()}
    assert by_class["all"] == pytest.approx(2 / 6)
    assert by_class["photon"] == pytest.approx(1 / 4)
    assert by_class["neutral_hadron"] == 1
    assert by_class["charged_hadron"] == 0


def test_purity_counts_fakes_and_wrong_classes(result):
    # four photons: two right, one is the electron, one is the duplicate
    assert result["class"]["photon"]["purity"].value == pytest.approx(2 / 4)
    assert result["class"]["all"]["purity"].value == pytest.approx(3 / 6)
    assert result["class"]["neutral_hadron"]["purity"].value == 0


def test_identified_is_of_matched(result):
    assert result["class"]["photon"]["identified"].value == 1
    assert result["class"]["electron"]["identified"].value == 0
    assert result["class"]["all"]["identified"].value == pytest.approx(3 / 4)


def test_fractions_have_clopper_pearson_intervals(result):
    number = result["class"]["photon"]["fake_rate"]
    assert (number.low, number.high) == clopper_pearson(1, 4)


def test_energy_weighted_fractions(result):
    # fakes: 2 + 40 of 11 + 19 + 8 + 2 + 40 + 40 = 120; matched truth: 78 of 83
    assert result["fake_energy_fraction"].value == pytest.approx(42 / 120)
    assert result["energy_weighted_efficiency"].value == pytest.approx(78 / 83)


def test_energy_errors(result):
    # 0.1, -0.05, 0, 0
    assert result["energy"]["mean_abs_rel_error"].value == pytest.approx(0.15 / 4)
    assert result["energy"]["mean_rel_error"].value == pytest.approx(0.05 / 4)


def test_response(result):
    # 0.95, 1, 1, 1.1: three of four in 0.05
    assert result["energy"]["response_median"].value == pytest.approx(1)
    assert result["energy"]["resolution_68"].value == pytest.approx(0.025)
    assert result["class"]["photon"]["response_median"].value == pytest.approx(1.05)


def test_angles(result):
    assert result["angle"]["mean_deg"].value == pytest.approx(0.25, rel=1e-4)
    assert result["angle"]["median_deg"].value == pytest.approx(0, abs=1e-4)
    # rank 0.68 * 3 = 2.04 of 0, 0, 0, 1
    assert result["angle"]["q68_deg"].value == pytest.approx(0.04, rel=1e-3)


def test_charge_and_identity(result):
    # the electron was called a photon
    assert result["charge"]["accuracy"].value == pytest.approx(3 / 4)
    assert result["pdg"]["accuracy"].value == pytest.approx(3 / 4)
    assert result["pdg"]["class_accuracy"].value == pytest.approx(3 / 4)


def test_kaon_called_pion_has_the_right_class_and_the_wrong_identity(make_table):
    tree = metrics_of(make_table, [[(321, 5.0, 90, 0)]], [[(211, 5.0, 90, 0)]]).result()
    assert tree["pdg"]["accuracy"].value == 0
    assert tree["pdg"]["class_accuracy"].value == 1


def test_antiparticle_has_the_right_identity_and_the_wrong_charge(make_table):
    tree = metrics_of(make_table, [[(211, 5.0, 90, 0)]], [[(-211, 5.0, 90, 0)]]).result()
    assert tree["pdg"]["accuracy"].value == 1
    assert tree["charge"]["accuracy"].value == 0


def test_confusion_with_missed_and_fakes(result):
    # order: charged hadron, neutral hadron, photon, electron, muon, and missed (columns) or fake (rows)
    wanted = np.zeros((6, 6), dtype=int)
    wanted[0, 0] = 1
    wanted[1, 5] = 1
    wanted[2, 2] = 2
    wanted[3, 2] = 1
    wanted[5, 1] = 1
    wanted[5, 2] = 1
    assert result["confusion"]["counts"] == wanted.tolist()
    assert result["confusion"]["true_classes"][-1] == "fake"
    assert result["confusion"]["reco_classes"][-1] == "missed"


def test_bins_of_true_energy(result):
    # [1, 10): K0L 5 (missed), electron 8; [10, 30]: photon 10, pion 20; photon 40 in none
    binned = result["binned"]["energy"]["all"]
    assert binned["n_truth"] == [2, 2]
    assert binned["efficiency"].value.tolist() == [0.5, 1.0]
    assert binned["response_median"].value == pytest.approx([1.0, 1.025])


def test_fake_rate_is_in_bins_of_the_reconstructed_energy(result):
    # 8, 2 (fake) | 11, 19
    binned = result["binned"]["energy"]["all"]
    assert binned["n_reco"] == [2, 2]
    assert binned["fake_rate"].value.tolist() == [0.5, 0.0]


def test_bins_of_polar_angle(result):
    # below 60 degrees: pion and photon 40
    assert result["binned"]["theta"]["all"]["n_truth"] == [2, 3]
    assert result["binned"]["theta"]["photon"]["n_truth"] == [1, 1]


def test_no_match_at_all(make_table):
    tree = metrics_of(make_table, [[(22, 10.0, 90, 0)]], [[(22, 10.0, 90, 180)]]).result()
    assert tree["class"]["all"]["efficiency"].value == 0
    assert tree["class"]["all"]["fake_rate"].value == 1
    assert tree["fake_energy_fraction"].value == 1
    assert math.isnan(tree["energy"]["response_median"].value)
    assert math.isnan(tree["charge"]["accuracy"].value)


def test_no_events_is_undefined_and_does_not_fail():
    tree = ParticleMetrics().result()
    assert tree["n_truth"] == 0
    assert math.isnan(tree["class"]["all"]["efficiency"].value)
