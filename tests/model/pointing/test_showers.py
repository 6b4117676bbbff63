import pytest
import torch
from torch.nn.functional import normalize

from pflow.model.pointing.pairs import PairList, PairsOfOne
from pflow.model.pointing.showers import make_proxies, n_proxy_features

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


@pytest.fixture(params=["list", "one"])
def proxies(request, source_of):
    """The proxies of a particle with shares of items, in each layout of pairs."""

    def made(batch, shares, *, seed=0):
        source = source_of(batch)
        selected = torch.ones(1, 1, 4, dtype=torch.bool)
        pairs = PairList.where(selected) if request.param == "list" else PairsOfOne(torch.arange(4))
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
def test_the_direction_is_that_of_a_single_hit_of_the_tracks_or_of_the_seed(proxies, readout, shares, seed, towards):
    made = proxies(readout, shares, seed=seed)
    torch.testing.assert_close(made.direction[0], normalize(torch.tensor(towards), dim=0))


@pytest.mark.parametrize("shares", [SHARES, {3: 1.0}, {}])
def test_there_are_as_many_features_as_said_and_all_are_of_order_one(proxies, readout, shares):
    features = proxies(readout, shares).features
    assert features.shape == (1, n_proxy_features(2))
    assert features.abs().max() < 10.0
    assert features.isfinite().all()


def test_what_others_left_of_hits_makes_no_shower(proxies, readout):
    """It is known to few digits only: deposits of 1 keV."""
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


def test_a_particle_without_pairs_has_finite_proxies(readout, source_of):
    source = source_of(readout)
    pairs = PairList.where(torch.tensor([[[True] * 4, [False] * 4]]))
    made = make_proxies(torch.ones(4), pairs, source.tables().items.sums, source.tokens.unit[0, [0, 0]])
    assert made.energy[1] == 0.0
    assert made.features.isfinite().all()
