import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.jagged import Links
from pflow.event.schema import make_truth
from pflow.event.truth import Targets
from pflow.tokens.tokens import ORDERS, sort_targets


def targets(pdg, px, *, py=None, pz=None, charge=None, n_tracks=None) -> Targets:
    zero = ak.zeros_like(ak.Array(px))
    py, pz, charge, n_tracks = (zero if values is None else ak.Array(values) for values in (py, pz, charge, n_tracks))
    truth = make_truth(pdg=pdg, mass=zero, charge=charge, px=px, py=py, pz=pz)
    return Targets(
        rule="stable",
        counts=jagged.count(truth),
        chosen=np.arange(ak.count(truth.pdg)),
        final=np.ones(ak.count(truth.pdg), dtype=bool),
        truth=truth,
        added={"n_tracks": jagged.flat(n_tracks)},
        hits=Links.of(None, len(truth)),
        tracks=None,
        list_dropped=lambda: truth,
    )


def test_by_energy_within_each_event():
    ordered = sort_targets(targets([[1, 2, 3], [], [4, 5]], [[5.0, 4.0, 9.0], [], [1.0, 2.0]]), "energy")
    assert ordered.particles.pdg.to_list() == [[3, 1, 2], [], [5, 4]]


def test_tracks_first_is_charged_particles_with_a_track_then_all_others_by_energy():
    charge, n_tracks = [[-1.0, 1.0, 0.0, 1.0, 0.0]], [[1, 2, 0, 0, 1]]
    made = targets([[1, 2, 3, 4, 5]], [[1.0, 2.0, 3.0, 4.0, 5.0]], charge=charge, n_tracks=n_tracks)
    assert sort_targets(made, "tracks_first").particles.pdg.to_list() == [[2, 1, 5, 4, 3]]


@pytest.mark.parametrize("order", ORDERS)
def test_the_result_does_not_depend_on_the_order_of_the_file(order):
    rng = np.random.default_rng(5)
    p = rng.choice([-1.0, 0.0, 1.0], size=(3, 30))
    pdg = rng.choice([11, 22, 211], size=30)
    shuffle = rng.permutation(30)
    in_order, shuffled = (
        sort_targets(targets([pdg[i]], [p[0, i]], py=[p[1, i]], pz=[p[2, i]]), order).particles
        for i in (np.arange(30), shuffle)
    )
    for field in ("pdg", "energy", "px"):
        assert in_order[field].to_list() == shuffled[field].to_list()
