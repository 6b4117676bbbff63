import math

import numpy as np
import pytest

import pflow
from pflow.metrics.event import RECO_MODES, TRUE_MODES, find_taus
from pflow.metrics.report import EvaluationSettings

pytestmark = pytest.mark.usefixtures("few_resamples")

# Two taus: the first one decays to a rho and so to a pion and a pi0 of two photons, one of which converts to electrons;
# the second one, of which the generator makes a copy, decays to a muon. A pion is from no tau. The first tau's pion
# makes an eta' in matter, which decays to two pions.
PDG = [15, 16, -213, -211, 111, 22, 22, 11, -11, -15, -15, -13, 211, 331, 211, -211]
PARENT = [-1, 0, 0, 2, 2, 4, 4, 6, 6, -1, 9, 10, -1, 3, 13, 13]
PHI = [0, 0, 0, 0.02, 0, -0.02, -0.04, -0.04, -0.04, 2, 2, 2, 3, 0.02, 0.02, 0.02]
SEEN = [3, 5, 6, 11, 12]


def particles_of(*particles):
    """One event of particles (pdg, phi [rad]) of 10 GeV."""
    return [[(code, 10.0, 90, math.degrees(phi)) for code, phi in particles]]


@pytest.fixture
def events(make_events):
    status = [1 if k in SEEN else 0 if k > 12 else 2 for k in range(len(PDG))]
    return make_events(particles_of(*zip(PDG, PHI, strict=True)), status=[status], parent=[PARENT], seen=[SEEN])


def test_true_modes_count_decay_products_alone(events):
    taus = find_taus(events, pflow.select_targets(events))
    assert [TRUE_MODES[mode] for mode in taus.kind] == ["h pi0", "mu"]
    assert taus.of_target.tolist() == [0, 0, 0, 1, -1]
    assert np.arctan2(taus.momentum[:, 1], taus.momentum[:, 0]) == pytest.approx([-0.04 / 3, 2], abs=1e-3)


ALL = [(-211, 0.02), (22, -0.02), (22, -0.04), (-13, 2.0), (211, 3.0)]


@pytest.mark.parametrize(
    ("particles", "modes", "right"),
    [
        (ALL, ["h 1-2 gamma", "mu"], 1.0),
        ([*ALL, (22, 0.35)], ["h 3+ gamma", "mu"], 0.5),  # a false photon beside the first tau
        (ALL[:1] + ALL[3:], ["h", "mu"], 0.5),
        (ALL[:3], ["h 1-2 gamma", "other"], 0.5),
        ([(-211, 0.02), (22, -0.02), (22, -0.04), (211, 2.0), (211, 3.0)], ["h 1-2 gamma", "h"], 0.5),
    ],
)
def test_reconstructed_modes(events, make_reco, particles, modes, right):
    result = pflow.evaluate(make_reco(particles_of(*particles)), events, oracle=False).algorithms["PFlow"]["taus"]
    counts = np.zeros((len(TRUE_MODES), len(RECO_MODES)), dtype=int)
    for true, found in zip(("h pi0", "mu"), modes, strict=True):
        counts[TRUE_MODES.index(true), RECO_MODES.index(found)] += 1
    assert np.array_equal(result["modes"]["counts"], counts)
    assert (result["n_taus"], result["mode_right"].value) == (2, right)


def test_masses_of_hadronic_bosons(make_events, make_reco):
    """ZH: the jets of the Z (60 and 40 GeV) and of the H, and a photon of no boson; W to two jets, and a muon's W."""
    z, h = [(211, 60.0, 90, 0), (-211, 40.0, 90, 80)], [(211, 50.0, 90, 180), (-211, 70.0, 90, 290)]
    partons = [(1, 60.0, 90, 0), (-1, 40.0, 90, 80), (21, 50.0, 90, 180), (21, 70.0, 90, 290)]
    zh = [(23, 100.0, 90, 40), (25, 120.0, 90, 240), *partons, *z, *h, (22, 100.0, 0, 0)]
    ww = [(24, 90.0, 90, 0), (-24, 90.0, 90, 180), *partons[:2], *z, (13, 80.0, 90, 180)]
    parents = [[-1, -1, 0, 0, 1, 1, 2, 3, 4, 5, -1], [-1, -1, 0, 0, 2, 3, 1]]
    # Bosons and partons have no hits.
    seen = [[k for k, (code, *_) in enumerate(event) if abs(code) in (22, 13, 211)] for event in (zh, ww)]
    events = make_events([zh, ww], parent=parents, seen=seen)
    reco = make_reco([[*z, *h[:1], (-211, 63.0, 90, 290), zh[-1]], [(211, 66.0, 90, 0), (-211, 44.0, 90, 80), ww[-1]]])
    settings = EvaluationSettings(rule="calo")
    result = pflow.evaluate(reco, events, oracle=False, settings=settings).algorithms["PFlow"]
    assert "taus" not in result
    result = result["hadronic_mass"]
    assert {name: tree["n_bosons"] for name, tree in result.items()} == {"Z": 1, "W": 1, "H": 1}
    expected = {"Z": 1.0, "W": 1.1, "H": math.sqrt(0.9)}
    responses = {name: tree["response_median"].value for name, tree in result.items()}
    assert responses == pytest.approx(expected, rel=1e-4)
    assert result["Z"]["median_gev"].value == pytest.approx(
        2 * math.sqrt(60 * 40) * math.sin(math.radians(40)), rel=1e-4
    )
    # What an algorithm loses counts, or the numbers of the rest would flatter it.
    lost = make_reco([[(22, 1.0, 0, 0)], [ww[-1]]])
    result = pflow.evaluate(lost, events, oracle=False, settings=settings).algorithms["PFlow"]["hadronic_mass"]
    assert {name: (tree["n_bosons"], tree["response_median"].value) for name, tree in result.items()} == dict.fromkeys(
        ("Z", "W", "H"), (1, 0.0)
    )
