from __future__ import annotations

import math

import pytest
import torch

from pflow.model.pointing.geometry import make_tokens_and_items
from pflow.model.pointing.pairs import PairList
from pflow.model.pointing.refiner import PairwiseMessages
from pflow.model.pointing.shower_directions import CORE_ANGLE, ConversionDirectionCorrection, shower_slopes
from pflow.model.pointing.showers import Showers

R = 1900.0
"""Where showers begin, mm from the vertex, in the plane of the beam's origin."""


def hits_of(arc, inclination, *, n=12, energy=1.0):
    """Rows energy, x, y, z of a shower that begins at an azimuth and goes on inclined in it, rad."""
    rows = []
    for i in range(n):
        depth = 10.0 * i
        x, y = R + depth * math.cos(inclination), depth * math.sin(inclination)
        rows.append(
            [energy, x * math.cos(arc) - y * math.sin(arc), x * math.sin(arc) + y * math.cos(arc), 0.0],
        )
    return rows


def scene_of(by_hand, *showers, stray=()):
    """What is summed of showers and stray hits, and the shares of their particles; all strays are the first's."""
    rows = [row for shower in showers for row in shower] + list(stray)
    owner = [i for i, shower in enumerate(showers) for _ in shower] + [0] * len(stray)
    batch = by_hand(energy=[row[0] for row in rows], position=[row[1:] for row in rows], token=list(range(len(rows))))
    scene = make_tokens_and_items(batch, n_subdetectors=2)[1].sums.flatten(0, 1)
    share = torch.zeros(1, len(showers), len(rows))
    share[0, torch.tensor(owner), torch.arange(len(rows))] = 1.0
    return scene, share


def slopes_of(scene, share):
    """The slopes of particles, of shares [B, T, M]."""
    pairs = PairList.where(share > 0)
    showers = Showers.of(pairs.values(share), pairs, scene)
    return shower_slopes(showers, pairs).view(*share.shape[:2], 2)


def test_a_shower_that_points_to_the_vertex_has_no_slope(by_hand):
    slopes = slopes_of(*scene_of(by_hand, hits_of(0.4, 0.0)))
    torch.testing.assert_close(slopes, torch.zeros(1, 1, 2), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("inclination", [0.06, -0.1])
def test_the_slope_is_the_angle_by_which_a_shower_is_inclined(by_hand, inclination):
    scene, share = scene_of(by_hand, hits_of(0.4, inclination, n=20))
    theta, phi = slopes_of(scene, share)[0, 0].tolist()
    assert theta == pytest.approx(0.0, abs=1e-4)
    assert phi == pytest.approx(inclination, rel=0.1)


def test_in_polar_angle_too(by_hand):
    rows = [[1.0, R + 10.0 * i, 0.0, -0.5 * i] for i in range(20)]  # 50 mrad towards larger polar angles
    theta, phi = slopes_of(*scene_of(by_hand, rows))[0, 0].tolist()
    assert theta == pytest.approx(0.05, rel=0.1)
    assert phi == pytest.approx(0.0, abs=1e-4)


def test_hits_far_from_the_core_and_behind_the_vertex_do_not_count(by_hand):
    shower = hits_of(0.4, 0.08)
    scene, share = scene_of(by_hand, shower)
    alone = slopes_of(scene, share)
    stray = [[0.01, *hits_of(0.4 + 3 * CORE_ANGLE, 0.0)[5][1:]], [0.01, -2500.0, 300.0, 100.0]]
    scene, share = scene_of(by_hand, shower, stray=stray)
    torch.testing.assert_close(slopes_of(scene, share), alone, atol=1e-3, rtol=0.0)


def test_of_each_particle_by_its_shares(by_hand):
    """Side by side as the electrons of a converted photon; half of every hit says the same as all of it."""
    left, right = hits_of(0.42, 0.03), hits_of(0.38, -0.03)
    scene, share = scene_of(by_hand, left, right)
    slopes = slopes_of(scene, share)
    torch.testing.assert_close(slopes[0, 0, 1], -slopes[0, 1, 1], atol=1e-4, rtol=0.0)
    assert slopes[0, 0, 1] == pytest.approx(0.03, rel=0.15)
    torch.testing.assert_close(slopes_of(scene, 0.5 * share), slopes)
    torch.testing.assert_close(slopes_of(scene, share.flip(1)), slopes.flip(1))


def test_without_hits_and_with_one_there_is_no_slope(by_hand):
    scene, share = scene_of(by_hand, hits_of(0.4, 0.08))
    share[0, 0, 1:] = 0.0
    assert torch.equal(slopes_of(scene, share), torch.zeros(1, 1, 2))
    assert torch.equal(slopes_of(scene, torch.zeros_like(share)), torch.zeros(1, 1, 2))


@pytest.mark.parametrize("energy", [1e-4, 50.0])
def test_a_shower_of_many_small_hits_has_one_too(by_hand, energy):
    """None is more than exp(-4) of the sum: the log-weighted barycentre has no weights."""
    scene, share = scene_of(by_hand, hits_of(0.4, 0.08, n=80, energy=energy))
    assert slopes_of(scene, share)[0, 0, 1] == pytest.approx(0.08, rel=0.3)


def test_messagess_of_one_bend_tell_electrons_of_a_conversion_from_photons(by_hand):
    """The same places, energies and words: only the inclination of the showers differs."""
    torch.manual_seed(3)
    messages = PairwiseMessages(width=8)
    x, log_energy, mask = torch.randn(1, 1, 8).expand(1, 2, 8), torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)

    def said(inclination, *, turned=0.0):
        arcs = torch.tensor([0.42, 0.38]) + turned
        direction = torch.stack([arcs.cos(), arcs.sin(), torch.zeros(2)], dim=-1)[None]
        scene, share = scene_of(by_hand, hits_of(0.42 + turned, inclination), hits_of(0.38 + turned, -inclination))
        with torch.no_grad():
            return messages(x, log_energy, direction, mask, share, scene)

    photons, electrons = said(0.0), said(0.03)
    assert (photons - electrons).abs().max() > 0.01
    torch.testing.assert_close(said(0.03, turned=2.0), electrons, atol=2e-3, rtol=1e-2)


def azimuth(correction, scene, share, arc):
    direction = torch.tensor([[math.cos(arc), math.sin(arc), 0.0]])
    pairs = PairList.where(share > 0)
    with torch.no_grad():
        showers = Showers.of(pairs.values(share), pairs, scene)
        turned = correction(torch.zeros(1, 5), direction, showers, pairs)
    torch.testing.assert_close(turned.norm(dim=-1), torch.ones(1))
    return math.atan2(float(turned[0, 1]), float(turned[0, 0]))


@pytest.mark.parametrize("missed", [0.06, -0.03])
def test_an_electron_that_is_turned_back_lies_where_its_photon_went(by_hand, missed):
    """Made at the vertex, it misses the place by the angle by which it comes in inclined."""
    torch.manual_seed(0)
    correction = ConversionDirectionCorrection(features=5, hidden_width=8)
    scene, share = scene_of(by_hand, hits_of(0.4 + missed, missed, n=20))
    with torch.no_grad():
        correction.fraction[-1].weight.zero_()
        correction.fraction[-1].bias.fill_(20.0)
    assert azimuth(correction, scene, share, 0.4 + missed) == pytest.approx(0.4, abs=0.15 * abs(missed))


def test_initially_next_to_nothing_is_turned(by_hand):
    correction = ConversionDirectionCorrection(features=5, hidden_width=8)
    correction.initialise()
    scene, share = scene_of(by_hand, hits_of(0.46, 0.06, n=20))
    assert azimuth(correction, scene, share, 0.46) == pytest.approx(0.46, abs=0.03 * 0.06)


def test_the_refinement_turns_directions_of_its_particles(make_model, batch):
    torch.manual_seed(0)
    model = make_model(refine_layers=1, eos_threshold=0.9, existence_threshold=0.0)
    before = model.decode(batch, max_particles=4)
    with torch.no_grad():
        model.network.refiner.direction_correction.fraction[-1].bias.fill_(20.0)
    after = model.decode(batch, max_particles=4)
    for name in ("pdg", "energy", "hit_fraction"):
        torch.testing.assert_close(getattr(before, name), getattr(after, name))
    assert (before.direction - after.direction).abs().max() > 1e-3
