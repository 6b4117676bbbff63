import math

import pytest
import torch
from torch.nn.functional import normalize

from pflow.model.pointing.decoder import PairList, ramp
from pflow.model.pointing.head import (
    CORE_ANGLE,
    LOG_WEIGHT,
    ConversionDirectionCorrection,
    Showers,
    front_direction,
    make_proxies,
    n_proxy_features,
    shower_slopes,
)
from pflow.model.pointing.network import DecodedParticles, PairwiseMessages

R = 1900.0
"""Where showers begin, mm from the vertex."""
DEPTH = 12.0


@pytest.fixture
def showers_of(by_hand, source_of):
    """Showers of lists of hits (energy, x, y, z), their pairs, fractions [1, T, M] and `Items.sums`."""

    def made(*showers, fraction=None):
        rows = [row for shower in showers for row in shower]
        owner = torch.tensor([i for i, shower in enumerate(showers) for _ in shower])
        batch = by_hand(energy=[row[0] for row in rows], position=[row[1:] for row in rows])
        sums = source_of(batch).tables().items.sums
        if fraction is None:
            fraction = (owner == torch.arange(len(showers))[:, None])[None].double()
        pairs = PairList.where(torch.ones_like(fraction, dtype=torch.bool))
        return Showers.of(pairs.values(fraction), pairs, sums), pairs, fraction, sums

    return made


def test_energies_weights_and_barycentres_by_hand(showers_of):
    """Two particles share the second of three hits."""
    hits = [[3.0, 1900.0, 0.0, 0.0], [2.0, 1900.0, 10.0, 0.0], [1.0, 0.0, 1900.0, 30.0]]
    fraction = torch.tensor([[[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]]], dtype=torch.float64)
    showers, *_ = showers_of(hits, fraction=fraction)
    assert showers.position.dtype == torch.float64
    assert showers.sums.energy.tolist() == [[4.0], [2.0]]
    assert showers.fraction.tolist() == [[0.75, 0.25, 0.0, 0.0, 0.5, 0.5]]
    weight = [LOG_WEIGHT + math.log(value) for value in (0.75, 0.25, 0.5)]
    assert showers.weight[0].tolist() == pytest.approx([*weight[:2], 0.0, 0.0, weight[2], weight[2]])
    assert showers.linear_centre.tolist() == [[1900.0, 2.5, 0.0], [950.0, 955.0, 15.0]]
    assert showers.centre[0].tolist() == pytest.approx([1900 * (weight[0] + weight[1]), 10 * weight[1], 0.0])
    assert ramp(torch.tensor([0.0, 1.0, 1.5, 2.0, 3.0]), 2.0, -1.0).tolist() == [1.0, 1.0, 0.5, 0.0, 0.0]


def scattered(*, energy=0.4, off=6.0):
    """Hits along x; the second half is scattered away in y by `off`, mm."""
    return [[energy / 10, R + 8.0 * i, off * (i >= 5), 0.0] for i in range(10)]


@pytest.mark.parametrize("energy", [0.25, 1.0, 4.0])
def test_weights_fall_by_e_over_the_depth(showers_of, energy):
    """Of two hits at depths of 0 and 10 mm, 4 mm apart: the direction says the ratio of their weights."""
    showers, pairs, *_ = showers_of([[energy / 2, R, 0.0, 0.0], [energy / 2, R + 10.0, 4.0, 0.0]])
    front = front_direction(showers, pairs, depth=DEPTH)
    weight = math.exp(-10.0 / (DEPTH * math.sqrt(energy)))
    expected = weight * 4.0 / (R + weight * (R + 10.0))
    assert float(front[0, 1] / front[0, 0]) == pytest.approx(expected, rel=1e-3)


def test_each_shower_has_its_own_front_without_stray_hits(showers_of):
    turned = [[energy, y, x, z] for energy, x, y, z in [*scattered(), [0.012, R, 60.0, 0.0]]]
    showers, pairs, *_ = showers_of(scattered(), turned, [])
    front = front_direction(showers, pairs, depth=DEPTH)
    torch.testing.assert_close(front[1], front[0][[1, 0, 2]], atol=2e-4, rtol=0.0)
    assert not front[2].any()
    showers, pairs, *_ = showers_of([*scattered(), [1e-4, 100.0, 0.0, 0.0]])  # far ahead
    assert torch.isfinite(front_direction(showers, pairs, depth=0.1)).all()


def inclined(arc, inclination, *, n=20, energy=1.0):
    """Hits of a shower that begins at an azimuth and is inclined in it, rad."""
    begin, along = ([math.cos(angle), math.sin(angle), 0.0] for angle in (arc, arc + inclination))
    return [[energy, *(R * b + 10.0 * i * a for b, a in zip(begin, along, strict=True))] for i in range(n)]


def slopes_of(showers_of, *hits, **options):
    showers, pairs, *_ = showers_of(*hits, **options)
    return shower_slopes(showers, pairs)


@pytest.mark.parametrize("inclination", [0.0, 0.06, -0.1])
def test_the_slope_is_the_angle_by_which_a_shower_is_inclined(showers_of, inclination):
    theta, phi = slopes_of(showers_of, inclined(0.4, inclination))[0].tolist()
    assert theta == pytest.approx(0.0, abs=1e-4)
    assert phi == pytest.approx(inclination, rel=0.1, abs=1e-5)
    lower = [[1.0, R + 10.0 * i, 0.0, -0.5 * i] for i in range(20)]  # 50 mrad towards larger polar angles
    assert slopes_of(showers_of, lower)[0].tolist() == pytest.approx([0.05, 0.0], rel=0.1, abs=1e-4)


def test_hits_far_from_the_core_and_behind_the_vertex_do_not_count(showers_of):
    shower = inclined(0.4, 0.08)
    stray = [[0.01, *inclined(0.4 + 3 * CORE_ANGLE, 0.0)[5][1:]], [0.01, -2500.0, 300.0, 100.0]]
    with_stray, alone = (slopes_of(showers_of, hits) for hits in ([*shower, *stray], shower))
    torch.testing.assert_close(with_stray, alone, atol=1e-3, rtol=0.0)


def test_slopes_of_each_particle_by_its_fractions(showers_of):
    """Side by side as the electrons of a converted photon; half of every hit says the same as all of it."""
    hits = inclined(0.42, 0.03), inclined(0.38, -0.03)
    fraction = showers_of(*hits)[2]
    slopes = slopes_of(showers_of, *hits)
    torch.testing.assert_close(slopes[0, 1], -slopes[1, 1], atol=1e-4, rtol=0.0)
    assert float(slopes[0, 1]) == pytest.approx(0.03, rel=0.15)
    torch.testing.assert_close(slopes_of(showers_of, *hits, fraction=0.5 * fraction), slopes)
    first = (torch.arange(fraction.shape[2]) < 1) * fraction[:, :1]  # one hit, and none
    assert not slopes_of(showers_of, *hits, fraction=torch.cat([first, 0.0 * first], dim=1)).any()


@pytest.mark.parametrize("energy", [1e-4, 50.0])
def test_a_shower_of_many_small_hits_has_a_slope_too(showers_of, energy):
    """None is more than exp(-4) of the sum: the log-weighted barycentre has no weights."""
    assert slopes_of(showers_of, inclined(0.4, 0.08, n=80, energy=energy))[0, 1] == pytest.approx(0.08, rel=0.3)


def test_messages_tell_electrons_of_a_conversion_from_photons(showers_of):
    """The same places and energies: only the inclination of the showers differs."""
    torch.manual_seed(3)
    messages = PairwiseMessages(width=8)
    x, log_energy, mask = torch.randn(1, 1, 8).expand(1, 2, 8), torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)

    def said(inclination, *, turned=0.0):
        arcs = torch.tensor([0.42, 0.38]) + turned
        direction = torch.stack([arcs.cos(), arcs.sin(), torch.zeros(2)], dim=-1)[None]
        hits = inclined(0.42 + turned, inclination), inclined(0.38 + turned, -inclination)
        _, _, fraction, sums = showers_of(*hits)
        with torch.no_grad():
            particles = DecodedParticles(x, x, mask.long(), log_energy, direction, fraction.float(), mask)
            return messages(particles, sums, torch.float64)

    photons, electrons = said(0.0), said(0.03)
    assert (photons - electrons).abs().max() > 0.01
    torch.testing.assert_close(said(0.03, turned=2.0), electrons, atol=2e-3, rtol=1e-2)
    with torch.no_grad():
        messages.geometry.weight[:, :4] = 0.0  # of where the other one is
    # What is left, the slopes, is the same of both: each shower points away from the other one.
    to_one, to_other = said(0.03)[0]
    assert (to_one - said(0.0)[0, 0]).abs().max() > 0.01
    torch.testing.assert_close(to_one, to_other, atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize(("bias", "expected", "tolerance"), [(20.0, 0.4, 0.15 * 0.06), (None, 0.46, 0.03 * 0.06)])
def test_an_electron_is_turned_back_to_where_its_photon_went(showers_of, bias, expected, tolerance):
    """Made at the vertex, it misses the place by the angle by which it is inclined; initially nearly nothing turns."""
    torch.manual_seed(0)
    correction = ConversionDirectionCorrection(features=5, hidden_width=8)
    correction.fraction[-1].set_initial_values()
    showers, pairs, *_ = showers_of(inclined(0.46, 0.06))
    with torch.no_grad():
        if bias is not None:
            correction.fraction[-1].bias.fill_(bias)
        direction = torch.tensor([[math.cos(0.46), math.sin(0.46), 0.0]])
        turned = correction(torch.zeros(1, 5), direction, showers, pairs)
    torch.testing.assert_close(turned.norm(dim=-1), torch.ones(1))
    assert math.atan2(float(turned[0, 1]), float(turned[0, 0])) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("part", [lambda refiner: refiner.direction_correction.fraction[-1], lambda r: r.front_trust])
def test_the_refinement_learns_to_turn_the_directions_of_its_particles(make_model, batch, part):
    model = make_model(refine_layers=1, front=True, eos_threshold=0.9, existence_threshold=0.0)
    bias = part(model.network.refiner).bias
    model.train().training_step(batch)["direction"].backward()
    assert bias.grad.abs() > 0
    before = model.eval().decode(batch, max_particles=4)
    with torch.no_grad():
        bias.fill_(20.0)
    after = model.decode(batch, max_particles=4)
    for name in ("pdg", "hit_fraction"):
        torch.testing.assert_close(getattr(before, name), getattr(after, name))
    torch.testing.assert_close(before.energy, after.energy, rtol=0, atol=0.01)  # differences are shared by angle
    assert 1e-3 < (before.direction - after.direction).norm(dim=-1).max() < 0.15


SHARES = {0: 1.0, 1: 1.0, 2: 0.5, 3: 0.25}
"""Of three hits and a track."""


@pytest.fixture
def readout(by_hand):
    return by_hand(
        energy=[6.0, 1.0, 0.2],
        position=[[2000.0, 0.0, 0.0], [2000.0, 50.0, 10.0], [2100.0, -80.0, 0.0]],
        token=[0, 0, 1],
        momentum=[[3.0, 0.4, 0.0]],
        charge=[-1.0],
    )


@pytest.fixture
def proxies(source_of):
    """The proxies of a particle with shares of items."""

    def made(batch, shares, *, seed=0):
        source = source_of(batch)
        pairs = PairList.where(torch.ones(1, 1, 4, dtype=torch.bool))
        share = torch.tensor([shares.get(item, 0.0) for item in range(4)])
        return make_proxies(share, pairs, source.tables().items.sums, source.tokens.unit[0, seed][None])

    return made


def test_sums_and_directions_by_shares(proxies, readout):
    made, position = proxies(readout, SHARES), readout.readout.position[0]
    torch.testing.assert_close(made.energy, torch.tensor([[7.1]]))
    torch.testing.assert_close(made.track_momentum[0], torch.tensor([0.75, 0.1, 0.0]))
    torch.testing.assert_close(made.track_direction[0], normalize(torch.tensor([3.0, 0.4, 0.0]), dim=0))
    deposits = torch.tensor([6.0, 1.0, 0.1])
    torch.testing.assert_close(made.linear_direction[0], normalize(deposits @ position, dim=0))
    weights = (4.0 + (deposits / 7.1).log()).clamp(min=0.0)
    assert weights[2] == 0.0  # less than exp(-4) of the sum
    torch.testing.assert_close(made.direction[0], normalize(weights @ position, dim=0))


@pytest.mark.parametrize(
    ("shares", "seed", "towards"),
    [
        ({1: 0.3}, 0, (2000.0, 50.0, 10.0)),  # the hit
        ({3: 1.0}, 2, (3.0, 0.4, 0.0)),  # the track
        ({}, 1, (2100.0, -80.0, 0.0)),  # the seed
    ],
)
def test_the_direction_of_a_single_hit_of_tracks_or_of_the_seed(proxies, readout, shares, seed, towards):
    made = proxies(readout, shares, seed=seed)
    torch.testing.assert_close(made.direction[0], normalize(torch.tensor(towards), dim=0))


@pytest.mark.parametrize("shares", [SHARES, {3: 1.0}, {}])
def test_there_are_as_many_features_as_said_and_all_are_of_order_one(proxies, readout, shares):
    features = proxies(readout, shares).features
    assert features.shape == (1, n_proxy_features(2))
    assert features.abs().max() < 10.0
    assert features.isfinite().all()


def test_what_others_left_of_hits_makes_no_shower(proxies, readout):
    by_track = proxies(readout, {3: 1.0}, seed=2)
    for shares in ({0: 1e-7, 1: 4e-7, 3: 1.0}, {0: 2e-7, 1: 1e-7, 3: 1.0}):
        made = proxies(readout, shares, seed=2)
        torch.testing.assert_close(made.direction, by_track.direction)
        torch.testing.assert_close(made.features, by_track.features, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("item", "rest", "last"), [(0, 3, 6e-6), (3, 0, 0.03)])
def test_features_do_not_jump_where_hits_or_tracks_begin_to_count(readout, source_of, item, rest, last):
    source, shares = source_of(readout), torch.zeros(1, 600, 4)  # of one particle each
    shares[0, :, item], shares[0, :, rest] = torch.linspace(0.0, last, 600), 1.0
    pairs = PairList.where(torch.ones_like(shares, dtype=torch.bool))
    seed_unit = source.tokens.unit[0, [0] * 600]
    features = make_proxies(pairs.values(shares), pairs, source.tables().items.sums, seed_unit).features
    assert features.diff(dim=0).abs().max() < 0.3
    assert (features[-1] - features[0]).abs().max() > 1.0
