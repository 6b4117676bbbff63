"""Networks that decode the charged particles of tracks at the same time."""

import dataclasses
import math

import pytest
import torch

from pflow.model.pointing.generate import decode_first_stage
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


def test_tracks_start_particles(model, batch, events):
    """Initially all of them do."""
    decoded = model.decode(batch)
    n_tracks = [len(event.charge) for event in events]
    assert max(n_tracks) > 1
    for i, n in enumerate(n_tracks):
        assert (decoded.track_fraction[i, :n].argmax(1) == torch.arange(n)).all()  # the first particles, in order
        torch.testing.assert_close(decoded.track_fraction[i].sum(0)[:n], torch.ones(n))
    assert (decoded.mask.sum(1) > torch.tensor(n_tracks)).any()  # the others are decoded after them
    with torch.no_grad():
        model.network.decoder.starts[-1].bias.fill_(-10.0)
    model.set_decoding(eos_threshold=1e-9)
    assert model.decode(batch).mask.shape == (len(batch), 0)


def test_there_are_no_gaps_between_particles(model, batch):
    """Of the tracks of event 2 the first starts none."""
    with torch.no_grad():
        source = model.network.encode(batch)
        logits = torch.full((len(batch), source.tokens.track.shape[1]), 5.0)
        logits[2, 0] = -5.0
        of_tracks = model.network.decoder.of_tracks
        model.network.decoder.of_tracks = lambda *inputs: (of_tracks(*inputs)[0], logits)
        decoded = decode_first_stage(model.network, source, model.decoding.limited(8))
    n = decoded.mask.sum(1)
    assert torch.equal(decoded.mask, torch.arange(decoded.mask.shape[1]) < n[:, None])
    assert decoded.columns["seed"][2, 0] == source.tokens.track[2, 1]


def test_explained_seeds_are_of_the_particles(model, make_event, collate):
    """Of two tracks the first starts none: its row is not among the particles' rows."""
    batch = collate([make_event((PION, PION, PHOTON), seed=2)])
    of_tracks = model.network.decoder.of_tracks
    model.network.decoder.of_tracks = lambda *inputs: (of_tracks(*inputs)[0], torch.tensor([[-5.0, 5.0]]))
    model.set_decoding(max_particles=6, hits_per_particle=0)
    explained, decoded = model.explain(batch), model.decode(batch, max_particles=6)
    n = int(decoded.mask.sum())
    assert len(explained["seed"]) == len(explained["probability.pdg"]) == len(explained["assignment"]) == n > 1
    assert len(explained["probability.seed"]) == n + 1
    assert explained["probability.seed"][:-1].argmax(1).tolist() == explained["seed"].tolist()
    assert explained["probability.seed"][0].max() == 1.0


def test_fractions_of_an_item_sum_to_at_most_one(model, batch):
    """Tracks of the same direction claim the same hits."""
    position = batch.readout.track_position[:, :1].expand_as(batch.readout.track_position)
    batch = dataclasses.replace(batch, readout=dataclasses.replace(batch.readout, track_position=position))
    model.network.assignment.pair_logits.out[-1].bias.data.add_(5.0)
    decoded = model.decode(batch)
    total = torch.cat([decoded.hit_fraction, decoded.track_fraction], dim=-1).sum(1)
    assert 0.99 < total.max() <= 1.0 + 1e-5


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
    """Of two tracks of a pion the harder one starts it; tracks of a K0S and of no particle start none."""
    batch = by_hand(
        energy=[1.0, 2.0],
        position=[[2000, 0, 0], [2000, 300, 0]],
        token=[0, 1],
        momentum=[[1, 0, 0], [3, 0, 0], [2, 0, 0], [5, 0, 0]],
        charge=[1, -1, 1, 1],
        particles=[(NEUTRON, NEUTRAL, 2.0), (PHOTON, NEUTRAL, 2.5), (PION, POSITIVE, 4.0)],
        hit_fraction=[[0, 0], [0, 1], [1, 0]],
        track_fraction=[[0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0]],
    )
    target = behind_tracks(batch.target, source_of(batch))
    assert target.mask[0].tolist() == [False, True, False, False, True, True]
    assert target.pdg[0][target.mask[0]].tolist() == [PION, NEUTRON, PHOTON]
    assert target.hit_fraction[0].tolist() == [[0, 0], [1, 0], [0, 0], [0, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize("own_particles", [False, True])
def test_both_stages_are_trained(make_model, batch, own_particles):
    model = make_model(parallel_tracks=True, refine_layers=1, joint=True).train()
    model.own_particles = own_particles
    losses = model.losses(batch)
    losses["total"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.network.decoder.embed_track.weight.grad.abs().sum() > 0


def test_whether_a_track_starts_a_particle_is_learned(model, batch):
    """Of the event whose pion becomes a neutron, the track learns to start none."""
    neutral = dataclasses.replace(batch.target, charge=batch.target.charge.clone())
    neutral.charge[0] = NEUTRAL
    batches = batch, dataclasses.replace(batch, target=neutral)
    made = [model.losses(given)["starts"].item() for given in batches]
    assert made[0] == pytest.approx(math.log1p(math.exp(-3.0)), rel=1e-4)  # initially 95%
    n_tracks = int(batch.readout.track_mask.sum())
    assert made[1] - made[0] == pytest.approx(3.0 / n_tracks, rel=1e-3)


def test_an_event_without_tracks(model, make_event, collate):
    decoded = model.decode(collate([make_event((PHOTON, NEUTRON), seed=3)]))
    assert decoded.mask.sum() > 0
