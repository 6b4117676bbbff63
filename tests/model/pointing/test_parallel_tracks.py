"""Networks in which every track starts a particle, all of them at the same time."""

import dataclasses

import pytest
import torch

from pflow.model.pointing.teacher_forcing import behind_tracks, teacher_forcing

PHOTON, PION, NEUTRON = 0, 1, 2
NEGATIVE, NEUTRAL, POSITIVE = 0, 1, 2


@pytest.fixture
def model(make_model):
    """A network in which the states of tracks differ."""
    model = make_model(parallel_tracks=True)
    with torch.no_grad():
        model.network.decoder.embed_track.weight.normal_(std=0.2)
    return model


def test_every_track_starts_a_particle(model, batch, events):
    decoded = model.decode(batch)
    n_tracks = [len(event.charge) for event in events]
    assert max(n_tracks) > 1
    for i, n in enumerate(n_tracks):
        assert (decoded.track_fraction[i, :n].argmax(1) == torch.arange(n)).all()  # the first particles, in order
        torch.testing.assert_close(decoded.track_fraction[i].sum(0)[:n], torch.ones(n))
    assert (decoded.mask.sum(1) > torch.tensor(n_tracks)).any()  # the others are decoded after them


def test_others_start_at_hits(model, batch, events):
    model.network.decoder.pointer.eos[-1].bias.data.sub_(5.0)
    with torch.no_grad():
        source = model.network.encode(batch)
        forced = teacher_forcing(model.network, source, batch.target, model.training_config)
    n_hits = batch.hits.mask.shape[1]
    assert (forced.pointer[..., n_hits:-1].exp() == 0).all()


def test_fractions_of_an_item_sum_to_at_most_one(model, batch):
    """Tracks of the same direction claim the same hits."""
    position = batch.readout.track_position[:, :1].expand_as(batch.readout.track_position)
    batch = dataclasses.replace(batch, readout=dataclasses.replace(batch.readout, track_position=position))
    model.network.assignment.pair_logits.out[-1].bias.data.add_(5.0)
    decoded = model.decode(batch)
    total = torch.cat([decoded.hit_fraction, decoded.track_fraction], dim=-1).sum(1)
    assert 0.99 < total.max() <= 1.0 + 1e-5


@pytest.mark.parametrize("refine_layers", [0, 1])
def test_an_event_has_the_same_particles_alone_and_in_a_batch(make_model, batch, events, collate, refine_layers):
    model = make_model(parallel_tracks=True, refine_layers=refine_layers)
    together = model.decode(batch)
    for i, event in enumerate(events):
        alone = model.decode(collate([event]))
        n = int(alone.mask.sum())
        assert together.mask[i].sum() == n > 0
        for name in ("pdg", "charge", "energy", "direction"):
            torch.testing.assert_close(getattr(together, name)[i, :n], getattr(alone, name)[0, :n], msg=name)


def test_training_predicts_what_is_decoded(model, batch, events):
    """Of the particles of tracks, which know nothing of the targets; the mass of those is the target's in training."""
    model.set_decoding(eos_threshold=0.01)
    decoded = model.decode(batch)
    with torch.no_grad():
        source = model.network.encode(batch)
        forced = teacher_forcing(model.network, source, batch.target, model.training_config)
    for i, event in enumerate(events):
        n = len(event.charge)
        logits = forced.particles.pdg[i, :n]
        torch.testing.assert_close(logits.softmax(-1), decoded.pdg_probability[i, :n], rtol=1e-4, atol=1e-5)


def test_targets_of_tracks(source_of, by_hand):
    """A K0S of two tracks is the target of the harder one; a pion of its track; a fake track and the rest have none."""
    batch = by_hand(
        energy=[1.0, 2.0],
        position=[[2000, 0, 0], [2000, 300, 0]],
        token=[0, 1],
        momentum=[[1, 0, 0], [3, 0, 0], [2, 0, 0], [5, 0, 0]],
        charge=[1, -1, 1, 1],
        particles=[(PION, POSITIVE, 2.0), (PHOTON, NEUTRAL, 2.5), (NEUTRON, NEUTRAL, 4.0), (PHOTON, NEUTRAL, 1.5)],
        hit_fraction=[[0, 0], [0, 1], [1, 0], [0, 0]],
        track_fraction=[[0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]],
    )
    target = behind_tracks(batch.target, source_of(batch))
    assert target.mask[0].tolist() == [False, True, True, False, True, True]
    assert target.pdg[0][target.mask[0]].tolist() == [NEUTRON, PION, PHOTON, PHOTON]
    assert target.hit_fraction[0].tolist() == [[0, 0], [1, 0], [0, 0], [0, 0], [0, 1], [0, 0]]


@pytest.mark.parametrize("own_particles", [False, True])
def test_both_stages_are_trained(make_model, batch, own_particles):
    model = make_model(parallel_tracks=True, refine_layers=1, joint=True).train()
    model.own_particles = own_particles
    losses = model.losses(batch)
    losses["total"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.network.decoder.embed_track.weight.grad.abs().sum() > 0


def test_a_track_without_a_target_learns_to_take_no_hits(model, by_hand):
    batch = by_hand(
        energy=[1.0],
        position=[[2000, 0, 0]],
        token=[0],
        momentum=[[1, 0, 0]],
        charge=[1],
        particles=[(PHOTON, NEUTRAL, 1.0)],
        hit_fraction=[[1.0]],
        track_fraction=[[0.0]],
    )
    with torch.no_grad():
        forced = teacher_forcing(model.network, model.network.encode(batch), batch.target, model.training_config)
    target = forced.pairs.dense(forced.target_fraction)[0]
    assert target.tolist() == [[0.0, 1.0], [1.0, 0.0]]  # its track, and the hit for the photon
    assert forced.assigned.all()
    assert forced.target.mask.tolist() == [[False, True]]


def test_an_event_without_tracks(model, make_event, collate):
    decoded = model.decode(collate([make_event((PHOTON, NEUTRON), seed=3)]))
    assert decoded.mask.sum() > 0
