from __future__ import annotations

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError
from pflow.event.build import make_truth
from pflow.tokens.order import ORDERS, sort_particles


def particles(pdg, px, py, pz) -> ak.Array:
    zero = ak.zeros_like(ak.Array(px))
    return make_truth(pdg=pdg, mass=zero, charge=zero, px=px, py=py, pz=pz)


@pytest.fixture
def three() -> ak.Array:
    """Directions: forward with 9 GeV, in the plane with 4 GeV, backward with 5 GeV; and an event with none."""
    return particles([[1, 2, 3], []], [[0.1, 4.0, 0.0], []], [[0.0, 0.0, 0.2], []], [[9.0, 0.0, -5.0], []])


@pytest.mark.parametrize(("order", "expected"), [("energy", [1, 3, 2]), ("pt", [2, 3, 1]), ("angle", [1, 2, 3])])
def test_orders(three, order, expected):
    assert sort_particles(three, order).pdg.to_list() == [expected, []]


def test_tracks_first_is_charged_particles_with_a_track_then_all_others_by_energy():
    px = [[1.0, 2.0, 3.0, 4.0, 5.0]]
    none = [[0.0] * 5]
    charge = [[-1.0, 1.0, 0.0, 1.0, 0.0]]
    records = make_truth(pdg=[[1, 2, 3, 4, 5]], mass=none, charge=charge, px=px, py=none, pz=none)
    assert sort_particles(records, "tracks_first").pdg.to_list() == [[4, 2, 1, 5, 3]]
    with_tracks = ak.with_field(records, ak.Array([[1, 2, 0, 0, 1]]), "n_tracks")
    assert sort_particles(with_tracks, "tracks_first").pdg.to_list() == [[2, 1, 5, 4, 3]]


@pytest.mark.parametrize("order", ORDERS)
def test_the_result_does_not_depend_on_how_the_file_lists_them(order):
    rng = np.random.default_rng(5)
    p = rng.choice([-1.0, 0.0, 1.0], size=(3, 30))
    pdg = rng.choice([11, 22, 211], size=30)
    one = particles([pdg], *([c] for c in p))
    shuffle = rng.permutation(30)
    other = particles([pdg[shuffle]], *([c[shuffle]] for c in p))
    for field in ("pdg", "energy", "momentum"):
        assert sort_particles(one, order)[field].to_list() == sort_particles(other, order)[field].to_list()


def test_particles_stay_in_their_events(three):
    swapped = sort_particles(three[::-1], "energy")
    assert swapped.pdg.to_list() == [[], [1, 3, 2]]


def test_an_unknown_order_is_an_error_with_the_nearest_match(three):
    with pytest.raises(ConfigError, match=r"'energies'.*nearest matches: energy"):
        sort_particles(three, "energies")
