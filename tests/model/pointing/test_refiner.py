from __future__ import annotations

import math

import pytest
import torch

from pflow.model.common.decode import Sampler
from pflow.model.pointing.decode import write
from pflow.model.pointing.generate import generate_pointing
from pflow.model.pointing.geometry import make_scene
from pflow.model.pointing.refiner import MIN_SHARE, Relation, _least_probability


def awake(network):
    """As after training: at birth the second reading repeats the first."""
    torch.manual_seed(7)
    with torch.no_grad():
        for part in (network.revision.change, network.revision.incidence.out, network.revision.real):
            part[-1].weight.add_(0.5 * torch.randn_like(part[-1].weight))
        network.revision.nobody.weight.add_(0.3 * torch.randn_like(network.revision.nobody.weight))
        network.revision.real[-1].bias.fill_(0.5)
    return network


@pytest.fixture
def network(make_network):
    return awake(make_network(revise_layers=1))


def first_reading(network, batch, n=3):
    """The first n particles of each event, as the revision wants them; and their source."""
    network.end = 1.0
    with torch.no_grad():
        source = network.encode(batch)
        choice = Sampler(temperature=None, generator=None, batch=len(batch))
        kept = source.kept()
        columns = write(network, source, max_particles=n, choice=choice).columns
    assert columns["written"].all()
    return [columns[name] for name in ("read", "query", "seed", "taken")], kept


def revise(network, first, source, *, mask=None, **options):
    mask = torch.ones(first[2].shape, dtype=torch.bool) if mask is None else mask
    with torch.no_grad():
        return network.revision(*first, mask, source.scene, source.states, **options)


def test_at_birth_shares_are_those_of_the_first_reading(make_network, batch):
    network = make_network(revise_layers=1)
    first, source = first_reading(network, batch)
    revised = revise(network, first, source)
    torch.testing.assert_close(revised.query, first[1])
    torch.testing.assert_close(revised.real, torch.full((4, 3), 3.0))
    pairs, share = revised.pairs, first[3]
    e, i = int(pairs.event[0]), int(pairs.item[0])
    mine = (pairs.event == e) & (pairs.item == i)
    strength = (share[e, pairs.particle[mine], i] + MIN_SHARE) / (1.0 + math.exp(-3.0))
    rest = 1.0 - share[e, :, i].sum() + MIN_SHARE
    expected = strength / (strength.sum() + rest)
    torch.testing.assert_close(revised.log_share[mine].exp(), expected)
    torch.testing.assert_close(revised.log_nobody[e, i].exp(), rest / (strength.sum() + rest))


def test_every_item_is_divided_without_rest(network, batch):
    first, source = first_reading(network, batch)
    revised = revise(network, first, source)
    shape = (*first[2].shape, source.scene.item_mask.shape[1])
    total = revised.pairs.dense(revised.log_share.exp(), shape).sum(1) + revised.log_nobody.exp()
    torch.testing.assert_close(total, torch.ones_like(total))


def test_all_particles_are_seen_together_in_no_order(network, batch):
    first, source = first_reading(network, batch)
    order = torch.tensor([2, 0, 1])
    one, other = revise(network, first, source), revise(network, [part[:, order] for part in first], source)
    torch.testing.assert_close(one.real[:, order], other.real)
    shape = (*first[2].shape, source.scene.item_mask.shape[1])
    before, after = (made.pairs.dense(made.log_share.exp(), shape) for made in (one, other))
    torch.testing.assert_close(before[:, order], after)
    changed = [part.clone() for part in first]
    changed[0][:, 2] = changed[0][:, 2].flip(-1)
    assert (revise(network, changed, source).real[:, 0] - one.real[:, 0]).abs().min() > 1e-5


def test_what_is_not_written_has_no_part(network, batch):
    """Padding behind the particles of an event: as if it were not there."""
    first, source = first_reading(network, batch)
    two = revise(network, [part[:, :2] for part in first], source)
    first[3][:, 2] = 0.0
    mask = torch.tensor([[True, True, False]] * 4)
    padded = revise(network, first, source, mask=mask)
    assert (padded.pairs.particle < 2).all()
    torch.testing.assert_close(padded.real[:, :2], two.real)
    torch.testing.assert_close(padded.log_share, two.log_share)


def test_what_is_improbable_gives_back_what_it_took(network, batch):
    first, source = first_reading(network, batch)
    free = revise(network, first, source)
    keep = float(free.real.sigmoid().median())
    gone = ~revise(network, first, source, keep=keep).kept
    assert free.kept.all()
    assert gone[free.real.sigmoid() < keep].all()
    assert 0 < gone.sum() < gone.numel()
    shape = (*first[2].shape, source.scene.item_mask.shape[1])
    before, after = (
        made.pairs.dense(made.log_share.exp(), shape) for made in (free, revise(network, first, source, keep=keep))
    )
    assert before[gone].sum() > 1e-3
    assert after[gone].sum() == 0.0
    assert (after[~gone] >= before[~gone] - 1e-6).all()


@pytest.mark.parametrize(
    ("probabilities", "keep", "least"),
    [
        ([0.9, 0.4], 0.1, 0.5 / 1.3),
        ([0.3, 0.1], 0.1, 0.5),
        ([0.9, 0.9, 0.9, 0.3], 0.1, 0.5 / 3.0),
        ([0.9] * 10, 0.1, 0.1),
        ([0.9, 0.4], 0.7, 0.7),
        ([0.9, 0.4], 0.0, 0.0),
    ],
)
def test_where_few_particles_are_expected_each_must_be_more_probable(probabilities, keep, least):
    probability = torch.tensor([[*probabilities, 0.99]])
    mask = torch.tensor([[True] * len(probabilities) + [False]])
    assert float(_least_probability(probability, mask, keep)) == pytest.approx(least, rel=1e-5)


def test_what_is_written_is_the_second_reading(make_network, events, batch, collate):
    """In one batch and one by one; and with a threshold that no particle meets, nothing."""
    network = awake(make_network(revise_layers=2, end=0.4, keep=0.0))
    written = generate_pointing(network, batch, max_particles=6)
    assert len(written.mask.sum(1).unique()) > 1
    for i, event in enumerate(events):
        alone = generate_pointing(network, collate([event]), max_particles=6)
        n = alone.mask.shape[1]
        assert int(written.mask[i].sum()) == n
        torch.testing.assert_close(written.energy[i, :n], alone.energy[0], rtol=1e-3, atol=1e-3)
        hits = alone.hit_fraction.shape[-1]
        torch.testing.assert_close(written.hit_fraction[i, :n, :hits], alone.hit_fraction[0], rtol=1e-3, atol=1e-4)
    assert written.hit_fraction.sum(1).amax() <= 1.0 + 1e-5
    network.keep = 0.999
    assert generate_pointing(network, batch, max_particles=6).mask.shape == (4, 0)


def test_energies_that_no_track_measures_are_the_expected_ones(make_network, batch):
    network = awake(make_network(revise_layers=1, keep=0.0))
    first, source = first_reading(network, batch)
    columns = dict(zip(("read", "query", "seed", "taken"), first, strict=True))
    with torch.no_grad():
        revised = network.reread({**columns, "written": torch.ones_like(first[2], dtype=torch.bool)}, source)
        made = network.remake(revised, first[2], source)
    by_track = made.by_track
    assert by_track.any()
    assert not by_track.all()
    expected = made.log_energy.exp() * torch.where(by_track, 1.0, revised.real.sigmoid())
    written = generate_pointing(network, batch, max_particles=3)
    torch.testing.assert_close(network.log_energy_of(written.energy).exp(), expected)


@pytest.fixture
def relation():
    torch.manual_seed(3)
    return Relation(width=8)


@pytest.fixture
def no_hits(by_hand):
    return make_scene(by_hand(), n_subdetectors=2)


def four_particles():
    """Two 2 mrad apart in polar angle, one 2 mrad away in azimuth, one far off; and padding."""
    theta = torch.tensor([1.0, 1.002, 1.0, 2.0, 0.0])
    phi = torch.tensor([0.3, 0.3, 0.3 + 0.002 / math.sin(1.0), 2.5, 0.0])
    direction = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)[None]
    mask = torch.tensor([[True, True, True, True, False]])
    share = torch.zeros(1, 5, 0)  # of no hits: what is inclined is tested with the slopes
    return torch.randn(1, 5, 8), torch.tensor([[2.0, 1.0, 1.0, 3.0, 0.0]]), direction, mask, share


def test_near_particles_tell_each_other_how_they_lie(relation, no_hits):
    parts = four_particles()
    parts[0][:, 2] = parts[0][:, 1]  # the same but for where they are

    def said(*who):
        return relation(*(part[:, list(who)] for part in parts), no_hits)[0, 0]

    beside, across, alone, far = said(0, 1), said(0, 2), said(0), said(0, 3)
    assert (beside - across).abs().max() > 0.05
    torch.testing.assert_close(alone, relation.out.bias)
    assert (far - alone).abs().max() < 0.1 * (beside - alone).abs().max()


def test_relations_know_no_order_and_no_padding(relation, no_hits):
    parts = four_particles()
    one = relation(*parts, no_hits)
    order = torch.tensor([3, 1, 0, 2, 4])
    torch.testing.assert_close(relation(*(part[:, order] for part in parts), no_hits), one[:, order])
    torch.testing.assert_close(relation(*(part[:, :4] for part in parts), no_hits), one[:, :4])


def test_at_birth_relations_say_nothing(make_network, batch):
    related, plain = (awake(make_network(revise_layers=1, relate=relate)) for relate in (True, False))
    plain.load_state_dict({k: v for k, v in related.state_dict().items() if not k.startswith("relation")})
    one, other = (generate_pointing(network, batch, max_particles=6) for network in (related, plain))
    assert torch.equal(one.mask, other.mask)
    torch.testing.assert_close(one.energy, other.energy)
    with torch.no_grad():
        related.relation.out.weight.normal_()
    changed = generate_pointing(related, batch, max_particles=6)
    assert changed.energy.shape != one.energy.shape or (changed.energy - one.energy).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relate": True}, "relate: there is no second reading"),
        ({"revise_bend": True}, "revise_bend: there is no second reading"),
        ({"keep": 1.0}, "keep: 1.0"),
        ({"revise_layers": -1}, "revise_layers: -1"),
    ],
)
def test_options_that_make_no_sense_are_errors(make_network, options, message):
    with pytest.raises(ValueError, match=message):
        make_network(**options)
