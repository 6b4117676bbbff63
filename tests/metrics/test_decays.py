import awkward as ak
import numpy as np
import pytest

import pflow
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.event.schema import make_hits, make_links, make_particles, make_truth
from pflow.metrics.decays import RECO_MODES, TRUE_MODES, find_taus
from pflow.physics.detector import load_detector
from pflow.physics.pdg import charge_of

# Two taus: the first one decays to a rho and so to a pion and a pi0 of two photons, one of which converts to electrons;
# the second one, of which the generator makes a copy, decays to a muon. A pion is from no tau.
PDG = [15, 16, -213, -211, 111, 22, 22, 11, -11, -15, -15, -13, 211]
PARENT = [-1, 0, 0, 2, 2, 4, 4, 6, 6, -1, 9, 10, -1]
PHI = [0, 0, 0, 0.02, 0, -0.02, -0.04, -0.04, -0.04, 2, 2, 2, 3]


@pytest.fixture
def events():
    pdg, phi = np.array(PDG), np.array(PHI)
    energy = np.full(len(pdg), 10.0)
    momentum = {"px": energy * np.cos(phi), "py": energy * np.sin(phi), "pz": 0 * energy}
    seen = np.isin(np.arange(len(pdg)), (3, 5, 6, 11, 12))
    position = {axis: 1900 * momentum[f"p{axis}"][seen] / 10 for axis in "xyz"}
    return Events(
        detector=load_detector("ild_g4"),
        hits=make_hits(energy=[energy[seen]], **{axis: [values] for axis, values in position.items()}),
        truth=make_truth(
            pdg=[pdg],
            charge=[np.array([charge_of(int(code)) for code in pdg])],
            mass=[0 * energy],
            parent=[np.array(PARENT)],
            status=[np.where(seen, 1, 2)],
            **{name: [values] for name, values in momentum.items()},
        ),
        hit_links=make_links(source=[np.arange(seen.sum())], particle=[np.flatnonzero(seen)]),
    )


def test_true_modes_count_decay_products_alone(events):
    taus = find_taus(events, pflow.select_targets(events))
    assert [TRUE_MODES[mode] for mode in taus.kind] == ["h pi0", "mu"]
    assert taus.of_target.tolist() == [0, 0, 0, 1, -1]
    assert np.arctan2(taus.momentum[:, 1], taus.momentum[:, 0]) == pytest.approx([-0.04 / 3, 2], abs=1e-3)


def reconstruction(*particles) -> Reconstruction:
    """One event of particles (pdg, phi) of 10 GeV."""
    pdg, phi = (np.array(column) for column in zip(*particles, strict=True))
    values = {
        "pdg": pdg,
        "charge": np.array([charge_of(int(code)) for code in pdg]),
        "energy": np.full(len(pdg), 10.0),
        "px": 10.0 * np.cos(phi),
        "py": 10.0 * np.sin(phi),
        "pz": np.zeros(len(pdg)),
    }
    particles = make_particles(**{name: ak.unflatten(column, len(column)) for name, column in values.items()})
    return Reconstruction(particles=particles, event=np.array([0]), flags=np.zeros(1, np.uint32))


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
def test_reconstructed_modes(events, particles, modes, right):
    result = pflow.evaluate(reconstruction(*particles), events, oracle=False).algorithms["PFlow"]["taus"]
    counts = np.zeros((len(TRUE_MODES), len(RECO_MODES)), dtype=int)
    for true, found in zip(("h pi0", "mu"), modes, strict=True):
        counts[TRUE_MODES.index(true), RECO_MODES.index(found)] += 1
    assert np.array_equal(result["modes"]["counts"], counts)
    assert (result["n_taus"], result["mode_right"].value) == (2, right)


def test_events_without_taus_have_no_modes(sample_dir):
    events = pflow.read_events(sample_dir / "multi_test_small.root", entry_stop=3)
    reco = Reconstruction(particles=events.reference, event=events.event, flags=events.flags)
    assert "taus" not in pflow.evaluate(reco, events, oracle=False).algorithms["PFlow"]
