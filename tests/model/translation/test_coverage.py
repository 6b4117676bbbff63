"""The decoder with an account of energies: cached against naive, events against batches, what it is trained on."""

import dataclasses
import math

import pytest
import torch

from benchmarks.naive import generate_naively
from pflow.data.batch import Readout
from pflow.model.api import DecodingConfig
from pflow.model.translation.coverage import Account, alignment_loss, number_left, true_alignment
from pflow.model.translation.reconstructor import explain

HITS, PARTICLES = [12, 0, 5, 9], [3, 0, 1, 4]
FIELDS = ("charge", "pdg", "energy", "direction", "score", "mask", "truncated")


@pytest.fixture
def model(make_model):
    return make_model(decoder="coverage", source="typed")


@pytest.fixture
def batch(make_batch):
    """Hits that are tokens one by one; particle t has the hits and tracks t, t + 4, t + 8 ... of its event."""
    batch = make_batch(HITS, PARTICLES)
    generator = torch.Generator().manual_seed(3)
    n_hits, n_tracks = batch.hits.mask.shape[1], batch.tracks.mask.shape[1]
    readout = Readout(
        energy=torch.rand(4, n_hits, generator=generator) * batch.hits.mask,
        position=torch.zeros(4, n_hits, 3),
        subdetector=torch.zeros(4, n_hits, dtype=torch.int64),
        layer=torch.zeros(4, n_hits, dtype=torch.int64),
        token=torch.arange(n_hits).expand(4, -1) * batch.hits.mask,
        mask=batch.hits.mask,
        track_momentum=torch.rand(4, n_tracks, 3, generator=generator) * batch.tracks.mask[..., None],
        track_charge=torch.ones(4, n_tracks),
        track_position=torch.zeros(4, n_tracks, 3),
        track_direction=torch.zeros(4, n_tracks, 3),
        track_mask=batch.tracks.mask,
    )
    fractions = {}
    for name, n, mask in (("hit", n_hits, batch.hits.mask), ("track", n_tracks, batch.tracks.mask)):
        of_particle = torch.arange(n)[None] % 4 == torch.arange(4)[:, None]  # [T, n]
        fractions[f"{name}_fraction"] = (of_particle & mask[:, None] & batch.target.mask[..., None]).float()
    return dataclasses.replace(batch, readout=readout, target=dataclasses.replace(batch.target, **fractions))


def test_cached_equals_naive(model, batch, with_unequal_ends):
    model = with_unequal_ends(model, batch)
    cached = model.generate(batch, decoding=DecodingConfig(max_particles=10))
    naive = generate_naively(model.network, batch, max_particles=10)
    for name in FIELDS:
        torch.testing.assert_close(getattr(cached, name), getattr(naive, name), rtol=1e-4, atol=5e-5)


def test_a_batch_equals_its_events_one_by_one(model, batch, with_unequal_ends, event_of):
    model = with_unequal_ends(model, batch)
    together = model.generate(batch, decoding=DecodingConfig(max_particles=10))
    for i in range(len(batch)):
        alone = model.generate(event_of(batch, i), decoding=DecodingConfig(max_particles=10))
        n = alone.mask.shape[1]
        assert not together.mask[i, n:].any()
        for name in FIELDS[:-1]:
            torch.testing.assert_close(getattr(together, name)[i, :n], getattr(alone, name)[0], rtol=1e-4, atol=5e-5)


def test_the_attention_of_each_step_is_told(model, batch, event_of):
    alone = event_of(batch, 0)
    particles = model.generate(alone, decoding=DecodingConfig(max_particles=3))
    told = explain(model.network, alone, particles)
    weights = [value for name, value in told.items() if "memory_attention" in name]
    assert len(weights) == 2  # layers
    for value in weights:
        assert value.shape[1] == particles.mask.shape[1] + 1
        torch.testing.assert_close(value.sum(-1), torch.ones_like(value[..., 0]))


def test_training_reduces_the_losses_and_trains_every_weight(model, batch):
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    first = model.training_step(batch).losses
    for _ in range(60):
        losses = model.training_step(batch).losses
        optimiser.zero_grad()
        losses["total"].backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
        optimiser.step()
    for name in ("left", "last", "next"):
        assert losses[name] < 0.9 * first[name], name


def test_a_prediction_sees_the_particles_before_it_and_none_after(model, batch):
    later = batch.target.energy + torch.tensor([0.0, 0.0, 1.0, 1.0])
    changed = dataclasses.replace(batch, target=dataclasses.replace(batch.target, energy=later))
    with torch.no_grad():
        first, second = model.network(batch), model.network(changed)
    for name in ("energy", "left", "last", "next"):
        torch.testing.assert_close(first[name][:, :3], second[name][:, :3])
        assert not torch.allclose(first[name][0, 3], second[name][0, 3])


def test_energies_and_links_are_put_on_the_tokens(batch):
    two = dataclasses.replace(batch.readout, token=batch.readout.token // 2)  # two hits a token
    batch = dataclasses.replace(batch, readout=two)
    account, share = Account.of(batch), true_alignment(batch)
    assert not account.energy[:, :2].any()  # bos and eos
    assert account.energy[0, 2].item() == pytest.approx(batch.readout.energy[0, :2].sum().item())
    momentum = batch.readout.track_momentum[3].norm(dim=-1)
    n = 2 + batch.hits.mask.shape[1]
    torch.testing.assert_close(account.energy[3, n : n + 3], momentum)
    assert account.is_track[3, n : n + 3].all()
    torch.testing.assert_close(share.sum(-1), batch.target.mask.float())
    of_track = momentum[1] / (momentum[1] + batch.readout.energy[3, [1, 5]].sum())
    assert share[3, 1, n + 1].item() == pytest.approx(of_track.item())


def test_losses_by_hand():
    assert number_left(torch.tensor([[True, True, False]])).exp().tolist() == [pytest.approx([3.0, 2.0, 1.0, 1.0])]
    share = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]])
    assert alignment_loss(torch.full((1, 2, 3), math.log(0.25)), share).item() == pytest.approx(math.log(4.0))
