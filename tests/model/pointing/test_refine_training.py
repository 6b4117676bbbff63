from __future__ import annotations

import dataclasses

import pytest
import torch

from pflow.model.pointing.generate import generate_pointing
from pflow.model.pointing.loss import PointingLoss
from pflow.model.pointing.network import SECOND
from pflow.model.pointing.refine_training import match, teach_again

PHOTON, PION, NEUTRON = 0, 1, 3
MINUS, NEUTRAL, PLUS = 0, 1, 2


@pytest.fixture
def network(make_network):
    """That writes as many particles as it may."""
    return make_network(revise_layers=1, relate=True, end=1.0)


@pytest.fixture
def three(by_hand):
    """A neutron of two hits and a photon of one beside a pion of a track and a hit."""
    return by_hand(
        energy=[6.0, 4.0, 3.0, 1.0],
        position=[[2000, 0, 0], [2000, 50, 0], [2000, 400, 0], [0, 2000, 0]],
        token=[0, 1, 2, 3],
        momentum=[[0.0, 2.0, 0.0]],
        charge=[1.0],
        particles=[(NEUTRON, NEUTRAL, 10.0), (PHOTON, NEUTRAL, 3.0), (PION, PLUS, 2.0)],
        hit_fraction=[[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
        track_fraction=[[0], [0], [1]],
    )


def matched(network, batch, taken, seed, *, n=None):
    """What `taken` [T, M] with these seeds is matched to; the first `n` of them are written."""
    n = len(seed) if n is None else n
    columns = {
        "taken": torch.tensor([taken], dtype=torch.float32),
        "seed": torch.tensor([seed]),
        "written": torch.arange(len(seed))[None] < n,
        "number": torch.arange(len(seed))[None],
    }
    share = torch.cat([batch.target.hit_fraction, batch.target.track_fraction], dim=-1)
    with torch.no_grad():
        found = match(columns, share, batch.target, network.encode(batch))
    return found.columns["number"][0].tolist(), found.target


def test_pieces_and_false_particles_come_last(network, three):
    pieces = [[0, 0, 0, 1, 1], [0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    number, target = matched(network, three, pieces, [4, 1, 0, 2, 3])
    assert number == [2, 3, 0, 1, 4]
    assert target.mask.tolist() == [[True, True, True, False, False]]
    assert target.pdg.tolist() == [[NEUTRON, PHOTON, PION, 0, 0]]
    torch.testing.assert_close(target.energy[:, :3], three.target.energy)
    assert torch.equal(target.hit_fraction[:, :3], three.target.hit_fraction)
    assert not target.hit_fraction[:, 3:].any()
    assert not target.track_fraction[:, 3:].any()


def test_who_begins_at_a_track_is_its_particle(network, three):
    """Though it took all of the neutron, of which it has five times the energy."""
    number, target = matched(network, three, [[1, 1, 0, 0, 1], [0, 0, 1, 0, 0]], [4, 2])
    assert number == [1, 0]
    assert target.pdg.tolist() == [[PHOTON, PION]]
    number, target = matched(network, three, [[1, 1, 0, 0, 1], [0, 0, 1, 0, 0]], [0, 2])
    assert number == [0, 1]
    assert target.pdg.tolist() == [[NEUTRON, PHOTON]]


@pytest.mark.parametrize(("part", "expected"), [(0.35, False), (0.4, True)])
def test_the_same_particle_has_a_tenth_of_both(network, by_hand, part, expected):
    """Of a photon's 3 GeV, with 9 GeV of no one: 1.05 of 12 or 1.2 of 12 GeV."""
    batch = by_hand(
        energy=[3.0, 9.0],
        position=[[2000, 0, 0], [2000, 50, 0]],
        token=[0, 1],
        particles=[(PHOTON, NEUTRAL, 3.0)],
        hit_fraction=[[1, 0]],
        track_fraction=[[]],
    )
    *_, target = matched(network, batch, [[part, 1]], [0])
    assert target.mask.tolist() == [[expected]]


def test_what_is_not_written_is_not_matched(network, three):
    number, target = matched(network, three, [[0, 0, 1, 0, 0], [1, 1, 0, 0, 0]], [2, 0], n=1)
    assert number == [0, 1]
    assert target.pdg.tolist() == [[PHOTON, 0]]
    assert target.mask.tolist() == [[True, False]]


def test_without_true_particles_nothing_is_matched(network, three):
    values = {field.name: getattr(three.target, field.name)[:, :0] for field in dataclasses.fields(three.target)}
    three = dataclasses.replace(three, target=type(three.target)(**values))
    number, target = matched(network, three, [[0, 0, 1, 0, 0], [1, 1, 0, 0, 0]], [2, 0])
    assert number == [0, 1]
    assert not target.mask.any()
    assert target.hit_fraction.shape == (1, 2, 4)


def test_the_targets_of_what_is_written(network, batch):
    reread = teach_again(network, network(batch), batch.target)
    n_true, n_matched = batch.target.mask.sum(1), reread.target.mask.sum(1)
    assert (n_matched <= n_true).all()
    assert n_matched.sum() > 0
    assert (reread.target.mask <= reread.written).all()
    assert (reread.written & ~reread.target.mask).any()
    pairs, target = reread.revised.pairs, reread.target
    share = torch.cat([target.hit_fraction, target.track_fraction], dim=-1)
    torch.testing.assert_close(reread.true, share[pairs.event, pairs.particle, pairs.item])
    torch.testing.assert_close(reread.rest, (1.0 - share.sum(1)).clamp(min=0))
    energy = 10 ** (network.energy_mean + network.energy_std * batch.target.energy)
    torch.testing.assert_close(reread.visible, (energy * batch.target.mask).sum(1))

    losses = PointingLoss()(reread, network)
    weight = reread.item_weight
    by_hand = -(weight.flatten()[pairs.item_of] * reread.true * reread.revised.log_share).sum()
    by_hand = by_hand - (weight * reread.rest * reread.revised.log_nobody).sum()
    torch.testing.assert_close(losses["shares"], by_hand / weight.sum())
    real = reread.revised.real
    cost = torch.where(target.mask, -real.sigmoid().log(), -(-real).sigmoid().log())[reread.written]
    torch.testing.assert_close(losses["real"], cost.mean())
    found = (reread.particles.log_energy.exp() * real.sigmoid() * reread.written).sum(1)
    off = ((found + 0.1) / (reread.visible + 0.1)).log().abs()
    torch.testing.assert_close(losses["visible"], off.mean())
    assert set(losses) == {"shares", "real", "visible", "pdg", "charge", "energy", "direction", "total"}


def test_the_first_reading_stays_as_it_is(make_network, batch):
    network = make_network(revise_layers=1, relate=True, bend=True, revise_bend=True, dropout=0.5).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    taught = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    assert taught
    assert {name.split(".")[0] for name in taught} == set(SECOND)
    assert not network.encoder.training
    assert network.revision.training
    optimiser = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-2)
    PointingLoss()(teach_again(network, network(batch), batch.target), network)["total"].backward()
    optimiser.step()
    after = network.state_dict()
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(SECOND)
    assert not network.eval().revision.training


def test_at_birth_particles_are_made_as_before(make_network, batch):
    plain = make_network(end=0.4)
    network = make_network(revise_layers=1, end=0.4)
    network.load_state_dict(plain.state_dict(), strict=False)
    source = network(batch)
    with torch.no_grad():
        reread = teach_again(network, network(batch), batch.target)
        again = network.particles(
            reread.revised.query,
            torch.zeros_like(reread.target.pdg),
            reread.revised.log_share.exp(),
            reread.revised.pairs,
            source,
        )
        same = network.remake(reread.revised, torch.zeros_like(reread.target.pdg), source)
    torch.testing.assert_close(same.log_energy, again.log_energy)
    assert generate_pointing(network, batch, max_particles=6).mask.any()


@pytest.mark.parametrize("kinds", [[()], [(), (0,)], [(), ()]], ids=["one", "besides another", "all"])
@pytest.mark.parametrize("end", [1e-9, 1.0], ids=["nothing is written", "as much as may be"])
def test_events_without_tokens_have_finite_losses(make_network, make_event, collate, kinds, end):
    network = make_network(revise_layers=1, relate=True, end=end).train()
    batch = collate([make_event(part, seed=1) for part in kinds])
    losses = PointingLoss()(teach_again(network, network(batch), batch.target), network)
    losses["total"].backward()
    assert all(value.isfinite() for value in losses.values())
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


def test_without_shares_there_is_nothing_to_teach(network, batch):
    with pytest.raises(ValueError, match="target: it has no shares"):
        teach_again(network, network(batch), dataclasses.replace(batch.target, hit_fraction=None))


def test_a_few_steps_find_what_is_false_and_whose_hits_are(make_network, batch):
    network = make_network(revise_layers=1, relate=True, end=1.0, at_birth=True).train()
    loss = PointingLoss(weights={"shares": 4.0})
    optimiser = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=5e-3)
    torch.manual_seed(0)
    history = []
    for _ in range(40):
        optimiser.zero_grad()
        losses = loss(teach_again(network, network(batch), batch.target), network)
        losses["total"].backward()
        optimiser.step()
        history.append([losses[name].item() for name in ("shares", "real")])
    first, last = torch.tensor(history[:5]).mean(0), torch.tensor(history[-5:]).mean(0)
    assert (last < 0.5 * first).all(), (first, last)
