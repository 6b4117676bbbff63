"""Metrics of matched particles in four events.

Event 0 (truth | answer):  photon 10 GeV | photon 11 GeV, 1 degree off; pi+ 20 GeV | pi+ 19 GeV; K0L 5 GeV | missed.
Event 1: electron 8 GeV | photon 8 GeV; nothing | fake K0L 2 GeV.
Event 2: photon 40 GeV | two photons of 40 GeV, one of them a fake.
Event 3: nothing | nothing.
"""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from pflow.metrics.match import AXES, DISTANCE, Matching, ParticleMetrics, match_tables
from pflow.metrics.stats import Axis, leaves

TRUTH = [[(22, 10.0, 90, 0), (211, 20.0, 45, 90), (130, 5.0, 135, 180)], [(11, 8.0, 90, 0)], [(22, 40.0, 30, 0)], []]
RECO = [
    [(22, 11.0, 90, 1), (211, 19.0, 45, 90)],
    [(22, 8.0, 90, 0), (130, 2.0, 20, 180)],
    [(22, 40.0, 30, 0), (22, 40.0, 30, 0)],
    [],
]
ENERGY = Axis(name="energy", label="True energy", unit="GeV", edges=np.array([1.0, 10.0, 30.0]))
THETA = Axis(name="theta", label="True polar angle", unit="deg", edges=np.array([0.0, 60.0, 180.0]))


def metrics_of(make_table, truth, reco, axes=(ENERGY, THETA)):
    metrics, rule = ParticleMetrics(axes=axes), Matching()
    t, r = make_table(truth), make_table(reco)
    metrics.update(t, r, match_tables(t, r, rule), match_tables(t, r, rule.close))
    return metrics


SMEARED = {
    "energies times exp(N(0, 1))": ("energy", lambda rng, n: np.exp(rng.normal(size=n)), 0.413, 0.917),
    "70 mrad on each axis": ("angle", lambda rng, n: rng.normal(0, np.degrees(0.07), (2, n)), 0.225, 0.9999),
}


@pytest.mark.parametrize(("kind", "smear", "headline", "loose"), SMEARED.values(), ids=SMEARED)
def test_smeared_truth_does_badly_in_the_headline(make_table, kind, smear, headline, loose):
    """By hand: exp(N(0, 1)) is within 0.5 of 1 in 41.3%, below 4 in 91.7%; 1 - exp(-25 / 98) are within 50 mrad."""
    rng, n = np.random.default_rng(2), 4000
    particles = np.stack([np.full(n, 22.0), rng.uniform(1, 20, n), np.full(n, 90.0), np.linspace(0, 300, n)], axis=1)
    smeared, factors = particles.copy(), smear(rng, n)
    if kind == "energy":
        smeared[:, 1] *= factors
    else:
        smeared[:, 2:] += factors.T
    # One particle an event: nothing is taken for something else.
    tree = metrics_of(make_table, particles[:, None].tolist(), smeared[:, None].tolist()).result()
    assert tree["class"]["all"]["efficiency"].value == pytest.approx(headline, abs=0.02)
    assert tree["energy_weighted_efficiency"].value == pytest.approx(headline, abs=0.02)
    assert tree["class"]["all"]["efficiency_loose"].value == pytest.approx(loose, abs=0.02)


def test_pulls_are_1_wide_if_the_stated_errors_are_right(make_table):
    """Of particles of the right class, whose errors they are; without errors there is no width."""
    rng, n = np.random.default_rng(3), 4000
    true = [[(22, 10.0, 90, 0)]] * n
    reco = [[(22 if k % 4 else 130, 10 * np.exp(x), 90, 0)] for k, x in enumerate(rng.normal(0, 0.1, n))]
    truth, measured = make_table(true), make_table(reco)
    sigma = np.where(measured.pdg == 22, 0.1 * measured.energy, 1e-3)
    for factor in (1.0, 3.0, None):
        metrics, pairs = (
            ParticleMetrics(axes=()),
            [match_tables(truth, measured, Matching(cut=cut)) for cut in (3.0, 0.5)],
        )
        metrics.update(truth, measured, *pairs, sigma=None if factor is None else factor * sigma)
        width = metrics.result()["class"]["photon"]["pull_width"].value
        assert np.isnan(width) if factor is None else width == pytest.approx(1 / factor, rel=0.03)


@pytest.fixture
def result(make_table):
    return metrics_of(make_table, TRUTH, RECO).result()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # by true class
        ("class.all.efficiency", 4 / 5),
        ("class.all.efficiency_loose", 4 / 5),
        ("class.photon.efficiency", 1),
        ("class.neutral_hadron.efficiency", 0),
        ("class.muon.efficiency", math.nan),
        # by reconstructed class
        ("class.all.fake_rate", 2 / 6),
        ("class.photon.fake_rate", 1 / 4),
        # four photons: two right, one is the electron, one is the duplicate
        ("class.all.purity", 3 / 6),
        ("class.photon.purity", 2 / 4),
        # of matched targets
        ("class.all.identified", 3 / 4),
        ("class.electron.identified", 0),
        # fakes: 2 + 40 of 11 + 19 + 8 + 2 + 40 + 40 = 120 GeV; matched truth: 78 of 83 GeV
        ("fake_energy_fraction", 42 / 120),
        ("energy_weighted_efficiency", 78 / 83),
        ("energy_weighted_efficiency_loose", 78 / 83),
        # 0.1, -0.05, 0, 0
        ("energy.mean_abs_rel_error", 0.15 / 4),
        ("energy.mean_rel_error", 0.05 / 4),
        # 0.95, 1, 1, 1.1: three of four in 0.05
        ("energy.response_median", 1),
        ("energy.resolution_68", 0.025),
        ("class.photon.response_median", 1.05),
        # 0, 0, 0, 1 degree: the rank of the 68% quantile is 0.68 * 3 = 2.04
        ("angle.mean_deg", 0.25),
        ("angle.median_deg", 0),
        ("angle.q68_deg", 0.04),
        # the electron was called a photon
        ("charge.accuracy", 3 / 4),
        ("pdg.accuracy", 3 / 4),
        ("pdg.class_accuracy", 3 / 4),
    ],
)
def test_numbers(result, key, value):
    tolerance = {"rel": 1e-3, "abs": 1e-4} if key.startswith("angle") else {}  # momenta are float32
    assert dict(leaves(result))[key].value == pytest.approx(value, nan_ok=True, **tolerance)


def test_a_particle_far_off_is_found_loosely_alone_or_not_at_all(make_table):
    tree = metrics_of(make_table, [[(22, 10.0, 90, 0)]], [[(22, 15.1, 90, 0)]]).result()
    assert (tree["class"]["all"]["efficiency"].value, tree["class"]["all"]["efficiency_loose"].value) == (0, 1)
    assert tree["binned"]["energy"]["all"]["efficiency"].value[1] == 0
    assert tree["class"]["all"]["fake_rate"].value == 0
    tree = metrics_of(make_table, [[(22, 10.0, 90, 0)]], [[(22, 10.0, 90, 180)]]).result()
    assert tree["class"]["all"]["efficiency"].value == 0
    assert tree["class"]["all"]["fake_rate"].value == 1
    assert tree["fake_energy_fraction"].value == 1
    assert math.isnan(tree["energy"]["response_median"].value)
    assert math.isnan(tree["charge"]["accuracy"].value)


def test_distance_is_to_another_charged_particle(make_table):
    pions = [(211, 5.0, 90, 0), (211, 5.0, 90, 90), (22, 5.0, 90, 1)]
    table = make_table([pions, [(211, 5.0, 90, 0)], []])
    assert np.degrees(table.distance) == pytest.approx([90, 90, 1, math.nan], nan_ok=True, abs=1e-4)
    binned = metrics_of(make_table, [pions], [pions[:2]], axes=AXES).result()["binned"]["distance"]
    near, wide = (int(DISTANCE.index(np.array([x]))[0]) for x in (17.5, 1571.0))  # mrad
    assert binned["all"]["n_truth"][near] == binned["photon"]["n_truth"][near] == 1
    assert binned["all"]["n_truth"][wide] == 2
    assert (binned["all"]["efficiency"].value[near], binned["all"]["efficiency"].value[wide]) == (0, 1)


@pytest.mark.parametrize(
    ("codes", "values"), [((321, 211), (0, 1, 1)), ((211, -211), (1, 1, 0))], ids=["kaon as pion", "antiparticle"]
)
def test_identity_class_and_charge_are_counted_separately(make_table, codes, values):
    truth, reco = ([[(code, 5.0, 90, 0)]] for code in codes)
    tree = metrics_of(make_table, truth, reco).result()
    numbers = (tree["pdg"]["accuracy"], tree["pdg"]["class_accuracy"], tree["charge"]["accuracy"])
    assert tuple(number.value for number in numbers) == values


def test_confusion_with_missed_and_fakes(result):
    confusion = result["confusion"]
    charged, neutral, photon, electron, _, fake = confusion["true_classes"]
    pairs = [(charged, charged), (photon, photon), (electron, photon), (fake, neutral), (fake, photon)]
    expected = Counter({**dict.fromkeys([*pairs, (neutral, "missed")], 1), (photon, photon): 2})
    rows = zip(confusion["true_classes"], confusion["counts"], strict=True)
    counts = {(t, r): n for t, row in rows for r, n in zip(confusion["reco_classes"], row, strict=True) if n}
    assert (fake, counts) == ("fake", expected)


def test_bins_of_energy_and_polar_angle(result):
    # [1, 10): K0L 5 (missed), electron 8; [10, 30]: photon 10, pion 20; photon 40 is outside
    binned = result["binned"]["energy"]["all"]
    assert binned["n_truth"] == [2, 2]
    assert binned["efficiency"].value.tolist() == [0.5, 1.0]
    assert binned["response_median"].value == pytest.approx([1.0, 1.025])
    assert binned["resolution_68_over_median"].value[1] == pytest.approx(binned["resolution_68"].value[1] / 1.025)
    # In bins of the reconstructed energy: 8, 2 (fake) | 11, 19
    assert binned["n_reco"] == [2, 2]
    assert binned["fake_rate"].value.tolist() == [0.5, 0.0]
    # below 60 degrees: pion and photon 40
    assert result["binned"]["theta"]["all"]["n_truth"] == [2, 3]
    assert result["binned"]["theta"]["photon"]["n_truth"] == [1, 1]


def test_particles_without_energy_are_matched_and_have_no_relative_width(make_table):
    metrics, photons = ParticleMetrics(axes=(ENERGY, THETA)), make_table([[(22, 10.0, 90, 0)]] * 4)
    of_none = dataclasses.replace(photons, energy=0 * photons.energy)
    metrics.update(
        photons, of_none, match_tables(photons, of_none, Matching()), match_tables(photons, of_none, Matching().close)
    )
    tree = metrics.result()
    (median, *_), (width, *_) = (
        tree["binned"]["theta"]["all"][key].value[1:] for key in ("response_median", "resolution_68_over_median")
    )
    assert (tree["n_matched"], median, math.isnan(width)) == (4, 0, True)
