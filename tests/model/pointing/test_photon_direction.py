from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from pflow.model.pointing.geometry import make_tokens_and_items
from pflow.model.pointing.pairs import PairList
from pflow.model.pointing.proxies import make_proxies
from pflow.model.pointing.shower_directions import FULL_ENERGY, MAX_CHANGE, front_direction, with_front_direction
from pflow.model.pointing.showers import Showers

R = 1900.0
"""Where showers begin, mm from the vertex."""
LINE = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
DEPTH = 12.0


def shower(*, energy=0.4, off=6.0):
    """Rows energy, x, y, z of hits along x, those of the second half scattered away in y by `off`, mm."""
    return [[energy / 10, R + 8.0 * i, off * (i >= 5), 0.0] for i in range(10)]


def scene_of(by_hand, *showers):
    """What is summed of the hits, and the fraction of each that its own shower's particle has."""
    rows = [row for one in showers for row in one]
    batch = by_hand(energy=[row[0] for row in rows], position=[row[1:] for row in rows], token=list(range(len(rows))))
    share = torch.zeros(1, len(showers), len(rows), dtype=torch.float64)
    owner = [i for i, one in enumerate(showers) for _ in one]
    share[0, owner, torch.arange(len(rows))] = 1.0
    return make_tokens_and_items(batch, n_subdetectors=2)[1].sums.flatten(0, 1), share


def front_of(scene, share, *, depth=DEPTH):
    """Directions to the fronts, and the showers' energies."""
    pairs = PairList.where(torch.ones_like(share, dtype=torch.bool))
    showers = Showers.of(pairs.values(share), pairs, scene)
    return front_direction(showers, pairs, depth=depth), showers.energy


def angles(direction):
    return (direction - LINE).norm(dim=-1)


def test_the_front_is_nearer_to_the_line_than_the_barycentre(by_hand):
    scene, share = scene_of(by_hand, shower())
    pairs = PairList.where(share > 0)
    barycentre = make_proxies(pairs.values(share), pairs, scene, LINE[None]).direction
    front, energy = front_of(scene, share)
    assert float(energy) == pytest.approx(0.4)
    assert float(angles(front)) < 0.05 * float(angles(barycentre))


def test_the_weights_fall_by_e_over_the_depth_and_later_for_more_energy(by_hand):
    """Of two hits at depths of 0 and 10 mm, 4 mm apart: the direction says the ratio of their weights."""
    for energy in (0.25, 1.0, 4.0):
        rows = [[energy / 2, R, 0.0, 0.0], [energy / 2, R + 10.0, 4.0, 0.0]]
        front, _ = front_of(*scene_of(by_hand, rows))
        weight = math.exp(-10.0 / (DEPTH * math.sqrt(energy)))
        y, x = weight * 4.0, R + weight * (R + 10.0)
        assert float(front[0, 1] / front[0, 0]) == pytest.approx(y / x, rel=1e-3)


def test_hits_far_from_the_core_do_not_count(by_hand):
    scene, share = scene_of(by_hand, shower())
    alone, _ = front_of(scene, share)
    scene, share = scene_of(by_hand, [*shower(), [0.012, R, 60.0, 0.0]])
    torch.testing.assert_close(front_of(scene, share)[0], alone, atol=2e-4, rtol=0.0)


def test_each_shower_has_its_own_front_and_none_without_hits(by_hand):
    turned = [[row[0], row[2], row[1], row[3]] for row in shower()]
    scene, share = scene_of(by_hand, shower(), turned)
    share = torch.cat([share, torch.zeros_like(share[:, :1])], dim=1)
    front, energy = front_of(scene, share)
    torch.testing.assert_close(front[1], front[0][[1, 0, 2]])
    assert energy[2] == 0.0
    assert not front[2].any()


def test_a_stray_hit_far_ahead_gives_finite_numbers(by_hand):
    scene, share = scene_of(by_hand, [*shower(), [1e-4, 100.0, 0.0, 0.0]])
    assert torch.isfinite(front_of(scene, share, depth=0.1)[0]).all()


@pytest.mark.parametrize(
    ("energy", "off", "is_photon", "expected"),
    [
        (0.4, 0.5, True, 1.0),
        (0.4, 0.5, False, 0.0),
        (0.4, 2.0, True, 0.0),  # far from it
        (FULL_ENERGY, 0.5, True, 0.5),
        (10 * FULL_ENERGY, 0.5, True, 0.0),
    ],
)
def test_the_front_replaces_the_directions_of_soft_photons_nearby(by_hand, energy, off, is_photon, expected):
    scene, share = scene_of(by_hand, shower(energy=energy))
    pairs = PairList.where(share > 0)
    front, _ = front_of(scene, share)
    before = normalize(front + torch.tensor([0.0, 0.0, off * MAX_CHANGE]), dim=-1)
    showers = Showers.of(pairs.values(share), pairs, scene)
    found = with_front_direction(before, torch.tensor([is_photon]), showers, pairs, depth=DEPTH)
    moved = (found - before).norm() / (front - before).norm()
    assert float(moved) == pytest.approx(expected, abs=0.01)
    assert float(found.norm()) == pytest.approx(1.0)
