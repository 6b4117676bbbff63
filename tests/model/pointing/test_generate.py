from __future__ import annotations

import dataclasses

import pytest
import torch

from pflow.model.pointing import generate


def test_the_same_seed_gives_the_same_particles(model, batch):
    a, b, c = (
        model.decode(batch, max_particles=6, temperature=2.0, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    for field in dataclasses.fields(a):
        assert torch.equal(getattr(a, field.name), getattr(b, field.name)), field.name
    assert a.pdg.shape != c.pdg.shape or not torch.equal(a.pdg, c.pdg)


def test_a_low_temperature_is_greedy(model, batch):
    cold = model.decode(batch, max_particles=6, temperature=1e-6, generator=torch.Generator().manual_seed(0))
    greedy = model.decode(batch, max_particles=6)
    assert torch.equal(cold.pdg, greedy.pdg)
    torch.testing.assert_close(cold.energy, greedy.energy)


def test_dtypes_and_padding(model, batch):
    decoded = model.decode(batch, max_particles=8)
    expected = {
        "charge": torch.int64,
        "pdg": torch.int64,
        "mask": torch.bool,
        "truncated": torch.bool,
        "by_track": torch.bool,
    }
    for field in dataclasses.fields(decoded):
        value = getattr(decoded, field.name)
        assert value.dtype == expected.get(field.name, torch.float32), field.name
        if field.name not in ("truncated", "mask"):
            assert not value[~decoded.mask].any(), field.name


def test_charges_fit_the_identities(model, batch):
    decoded = model.decode(batch, max_particles=8)
    charged = model.network.head.charged[decoded.pdg]
    assert torch.equal((decoded.charge != 1)[decoded.mask], charged[decoded.mask])


def test_the_score_is_the_probability_of_the_chosen_class(model, batch):
    decoded = model.decode(batch, max_particles=8)
    torch.testing.assert_close(decoded.pdg_probability.sum(-1)[decoded.mask], torch.ones(int(decoded.mask.sum())))
    torch.testing.assert_close(decoded.score, decoded.pdg_probability.amax(-1))


def test_an_event_without_tokens_has_no_particles(model, events, make_event, collate):
    nothing = make_event((), seed=0)
    decoded = model.decode(collate([nothing, events[0], nothing]), max_particles=4)
    assert decoded.mask.any(1).tolist() == [False, True, False]
    assert not decoded.truncated.any()
    assert model.decode(collate([nothing]), max_particles=4).mask.shape == (1, 0)


def test_a_batch_without_events_can_be_decoded(model, batch, first_events):
    decoded = model.decode(first_events(batch, 0), max_particles=3)
    assert len(decoded.mask) == len(decoded.truncated) == 0


def test_the_target_is_not_looked_at(model, batch):
    one, other = (model.decode(given, max_particles=8) for given in (batch, dataclasses.replace(batch, target=None)))
    assert torch.equal(one.energy, other.energy)


def test_options_that_make_no_sense_are_errors(model, batch):
    with pytest.raises(ValueError, match="max_particles: 0 is not positive"):
        model.decode(batch, max_particles=0)
    with pytest.raises(ValueError, match="training mode"):
        model.train().decode(batch, max_particles=1)
    with pytest.raises(ValueError, match=r"temperature: -1\.0"):
        model.eval().decode(batch, max_particles=1, temperature=-1.0)


def test_a_batch_refined_in_parts_gives_the_same(make_model, batch, monkeypatch):
    model = make_model(refine_layers=1)
    with torch.no_grad():  # initially the refinement repeats the first stage
        torch.manual_seed(7)
        model.network.refiner.query_update[-1].weight.normal_(std=0.5)
        model.network.refiner.messages.out.weight.normal_(std=0.5)
    expected, sizes = model.decode(batch), []
    monkeypatch.setattr(generate, "CACHED_FRACTIONS", 1)
    model.network.refiner.register_forward_pre_hook(lambda _, arguments: sizes.append(len(arguments[0].mask)))
    found = model.decode(batch)
    assert sizes == [1] * len(batch)
    torch.testing.assert_close(vars(found), vars(expected), rtol=1e-4, atol=1e-5)
