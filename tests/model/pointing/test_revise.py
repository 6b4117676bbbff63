from __future__ import annotations

import math

import pytest
import torch

from pflow.model.pointing.generate import generate_pointing
from pflow.model.pointing.loss import PointingLoss
from pflow.model.pointing.network import Written
from pflow.model.pointing.point import Pairs
from pflow.model.pointing.revise import LEAST_SHARE, Relation
from pflow.model.pointing.teach import _break, _padded, _Pass, teach

PHOTON, NEUTRAL = 0, 1


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
    with torch.no_grad():
        source = network.encode(batch)
        size, n_items = source.scene.item_mask.shape
        x = network.begin.expand(size, 1, -1)
        covered = torch.zeros(size, 1, n_items)
        real = torch.ones(size, 1, dtype=torch.bool)
        read, queries, seeds, shares = [], [], [], []
        for _ in range(n):
            states, pointer = network.state(x, source, covered)
            seed = pointer[..., :-1].argmax(-1)
            query, pairs, logits = network.point(states, seed, source, covered, real)
            share = network.share(logits, pairs, covered)
            made = network.particles(query, seed, share, pairs, source)
            taken = pairs.dense(share, covered.shape)
            written = Written(
                pdg=made.pdg.argmax(-1),
                charge=made.charge.argmax(-1),
                log_energy=made.log_energy,
                direction=made.direction,
                seed=seed,
                deposit=made.proxies.energy,
                pooled=made.pooled,
            )
            x = network.read_back(written, source)
            covered = (covered + taken).clamp(max=1.0)
            for kept, value in zip((read, queries, seeds, shares), (x, query, seed, taken), strict=True):
                kept.append(value)
    return [torch.cat(parts, dim=1) for parts in (read, queries, seeds, shares)], source


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
    strength = (share[e, pairs.particle[mine], i] + LEAST_SHARE) / (1.0 + math.exp(-3.0))
    rest = 1.0 - share[e, :, i].sum() + LEAST_SHARE
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
    gone = free.real.sigmoid() < keep
    assert 0 < gone.sum() < gone.numel()
    shape = (*first[2].shape, source.scene.item_mask.shape[1])
    before, after = (
        made.pairs.dense(made.log_share.exp(), shape) for made in (free, revise(network, first, source, keep=keep))
    )
    assert before[gone].sum() > 1e-3
    assert after[gone].sum() == 0.0
    assert (after[~gone] >= before[~gone] - 1e-6).all()


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
        hits = alone.hit_share.shape[-1]
        torch.testing.assert_close(written.hit_share[i, :n, :hits], alone.hit_share[0], rtol=1e-3, atol=1e-4)
    assert written.hit_share.sum(1).amax() <= 1.0 + 1e-5
    network.keep = 0.999
    assert generate_pointing(network, batch, max_particles=6).mask.shape == (4, 0)


@pytest.fixture
def relation():
    torch.manual_seed(3)
    return Relation(width=8)


def four_particles():
    """Two 2 mrad apart in polar angle, one 2 mrad away in azimuth, one far off; and padding."""
    theta = torch.tensor([1.0, 1.002, 1.0, 2.0, 0.0])
    phi = torch.tensor([0.3, 0.3, 0.3 + 0.002 / math.sin(1.0), 2.5, 0.0])
    direction = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)[None]
    mask = torch.tensor([[True, True, True, True, False]])
    return torch.randn(1, 5, 8), torch.tensor([[2.0, 1.0, 1.0, 3.0, 0.0]]), direction, mask


def test_near_particles_tell_each_other_how_they_lie(relation):
    x, log_energy, direction, mask = four_particles()
    x[:, 2] = x[:, 1]  # the same but for where they are
    pairs = [[0, 1], [0, 2]]
    beside, across = (relation(x[:, p], log_energy[:, p], direction[:, p], mask[:, p])[0, 0] for p in pairs)
    assert (beside - across).abs().max() > 0.05
    alone = relation(x[:, :1], log_energy[:, :1], direction[:, :1], mask[:, :1])[0, 0]
    torch.testing.assert_close(alone, relation.out.bias)
    pair = [0, 3]
    far = relation(x[:, pair], log_energy[:, pair], direction[:, pair], mask[:, pair])[0, 0]
    assert (far - alone).abs().max() < 0.1 * (beside - alone).abs().max()


def test_relations_know_no_order_and_no_padding(relation):
    parts = four_particles()
    one = relation(*parts)
    order = torch.tensor([3, 1, 0, 2, 4])
    torch.testing.assert_close(relation(*(part[:, order] for part in parts)), one[:, order])
    torch.testing.assert_close(relation(*(part[:, :4] for part in parts)), one[:, :4])


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


def test_the_target_of_shares_and_of_what_is_real(make_network, batch):
    network = awake(make_network(revise_layers=1))
    taught = teach(network, network(batch), batch.target)
    reread = taught.reread
    assert torch.equal(reread.written, batch.target.mask)
    share = torch.cat([batch.target.hit_share, batch.target.track_share], dim=-1)
    pairs = reread.revised.pairs
    torch.testing.assert_close(reread.true, share[pairs.event, pairs.particle, pairs.item])
    losses = PointingLoss()(taught, network)
    weight = reread.item_weight
    by_hand = -(weight.flatten()[pairs.item_of] * reread.true * reread.revised.log_share).sum()
    by_hand = by_hand - (weight * (1.0 - share.sum(1)).clamp(min=0) * reread.revised.log_nobody).sum()
    torch.testing.assert_close(losses["shares"], by_hand / weight.sum())
    right = reread.revised.real[batch.target.mask].sigmoid()
    torch.testing.assert_close(losses["real"], -right.log().mean())
    both = PointingLoss()(taught._replace(reread=None), network)
    second = PointingLoss()(taught._replace(particles=reread.particles, reread=None), network)
    torch.testing.assert_close(losses["energy"], (both["energy"] + second["energy"]) / 2)


def beyond(make_network, batch, n, *, seed=0, **options):
    network = awake(
        make_network(revise_layers=1, relate=True, beyond=n, own_incidence=1.0, order_jitter=0.0, **options)
    ).train()
    torch.manual_seed(seed)
    return network, teach(network, network(batch), batch.target)


def test_beyond_the_end_more_is_written_that_is_none(make_network, batch):
    counts = set()
    for seed in range(4):
        network, taught = beyond(make_network, batch, 3, seed=seed)
        mask, written = taught.target.mask, taught.reread.written
        n_true, n_written = batch.target.mask.sum(1), written.sum(1)
        assert torch.equal(mask.sum(1), n_true)
        assert torch.equal(mask & written, mask)
        counts |= set((n_written - n_true).tolist())
        position = torch.arange(mask.shape[1] + 1)
        expected = (position >= n_true[:, None]) & (position <= n_written[:, None])
        assert torch.equal(taught.ends, expected)
        more = written & ~mask
        assert not taught.seed_weight[more].any()
        pairs = taught.reread.revised.pairs
        of_more = more[pairs.event, pairs.particle]
        assert of_more.any() == more.any()
        assert not taught.reread.true[of_more].any()
        losses = PointingLoss()(taught, network)
        losses["total"].backward()
        assert all(value.isfinite() for value in losses.values())
        real = taught.reread.revised.real
        cost = torch.where(mask, -real.sigmoid().log(), -(-real).sigmoid().log())[written]
        torch.testing.assert_close(losses["real"], cost.mean())
    assert counts == {0, 1, 2, 3}


@pytest.fixture
def two_clusters(by_hand):
    """A photon of two clusters 300 mm apart, one token each, and one that is whole; and a place for a piece."""
    batch = by_hand(
        energy=[4.0, 2.0, 1.0, 3.0, 2.0],
        position=[[2000, 0, 0], [2000, 10, 0], [2000, 300, 0], [2000, 310, 0], [0, 2000, 0]],
        token=[0, 0, 1, 1, 2],
        particles=[(PHOTON, NEUTRAL, 10.0), (PHOTON, NEUTRAL, 2.0)],
        hit_share=[[1, 1, 1, 1, 0], [0, 0, 0, 0, 1]],
        track_share=[[], []],
    )
    return batch, _padded(batch.target, 1)


@pytest.mark.parametrize("broken", [0.0, 1.0])
def test_a_piece_is_what_lies_nearer_to_another_token(make_network, two_clusters, broken):
    network = make_network(revise_layers=1, broken=broken)
    batch, target = two_clusters
    real = torch.ones(1, 3, dtype=torch.bool)
    first = torch.tensor([[[1.0, 1, 1, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]])
    with torch.no_grad():
        source = network.encode(batch)
        states, query = torch.randn(1, 4, 24), torch.randn(1, 3, 24)
        seed, pairs = torch.tensor([[0, 2, 2]]), Pairs.where(first > 0)
        share = torch.ones(len(pairs.item))
        particles = network.particles(query, seed, share, pairs, source)
        found = _Pass(states, states, seed, query, pairs, share, share, particles)
        made, parts = _break(network, source, target, found, first, real)
    if not broken:
        assert torch.equal(parts, first)
        return
    assert parts.tolist() == [[[1, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 1, 1, 0]]]
    assert made.seed.tolist() == [[0, 2, 1]]
    assert made.particles.proxies.energy.tolist() == [[6.0, 2.0, 4.0]]
    assert first[0, 0].sum() == 4
    changed = (made.query != query).any(-1)
    assert changed.tolist() == [[False, False, True]]


def test_pieces_are_of_no_target(make_network, batch):
    for seed in range(3):
        network, taught = beyond(make_network, batch, 2, seed=seed, broken=1.0)
        reread = taught.reread
        more = reread.written & ~taught.target.mask
        pairs = reread.revised.pairs
        assert not reread.true[more[pairs.event, pairs.particle]].any()
        losses = PointingLoss()(taught, network)
        losses["total"].backward()
        assert all(value.isfinite() for value in losses.values())


def test_nothing_is_written_beyond_the_end_in_evaluation(make_network, batch):
    network = make_network(revise_layers=1, beyond=3, own_incidence=1.0)
    assert torch.equal(teach(network, network(batch), batch.target).reread.written, batch.target.mask)


@pytest.mark.parametrize("kinds", [[()], [(), (0,)], [(), ()]], ids=["one", "besides another", "all"])
def test_events_without_tokens_have_finite_losses(make_network, make_event, collate, kinds):
    network, taught = beyond(make_network, collate([make_event(part, seed=1) for part in kinds]), 3)
    losses = PointingLoss()(taught, network)
    losses["total"].backward()
    assert all(value.isfinite() for value in losses.values())
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


def test_a_false_particle_learns_to_give_back(make_network, batch):
    """What a few steps do: particles beyond the end become improbable, and shares right."""
    network = make_network(revise_layers=1, beyond=2, own_incidence=1.0, order_jitter=0.0, at_birth=True).train()
    loss = PointingLoss(weights={"shares": 4.0})
    optimiser = torch.optim.AdamW(network.parameters(), lr=5e-3)
    torch.manual_seed(0)
    history = []
    for _ in range(40):
        optimiser.zero_grad()
        losses = loss(teach(network, network(batch), batch.target), network)
        losses["total"].backward()
        optimiser.step()
        history.append((losses["shares"].item(), losses["real"].item()))
    (shares, real), (later_shares, later_real) = (torch.tensor(part).mean(0) for part in (history[:5], history[-5:]))
    assert later_shares < 0.5 * shares
    assert later_real < 0.5 * real


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"broken": 1.5}, "broken: 1.5"),
        ({"relate": True}, "relate: there is no second reading"),
        ({"keep": 1.0}, "keep: 1.0"),
        ({"revise_layers": -1}, "revise_layers, beyond: -1"),
        ({"beyond": -2}, "-2"),
    ],
)
def test_options_that_make_no_sense_are_errors(make_network, options, message):
    with pytest.raises(ValueError, match=message):
        make_network(**options)
