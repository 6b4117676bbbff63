"""Cached generation against the naive reference, events against batches, and what ends a sequence."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pflow.data.batch import Batch, TokenSet
from pflow.model.api import DecodingConfig, GeneratedParticles, Sampler
from pflow.model.translation import TranslationLossConfig
from pflow.model.translation.decoder_step import generate as generate_particles
from pflow.model.translation.loss import TranslationLoss
from pflow.model.translation.special import EOS

UNEQUAL = [40, 0, 3, 17, 1, 25, 0, 9]
CONTINUOUS = ("energy", "direction", "score")
FIELDS = ("charge", "pdg", *CONTINUOUS, "mask", "truncated")


def make_loss(*, special="flags", **options):
    return TranslationLoss(special=special, config=TranslationLossConfig(**options))


def generate(model, batch, *, max_particles, **sampling):
    return generate_particles(model, batch, DecodingConfig(max_particles=max_particles), Sampler(**sampling))


def assert_same(a: GeneratedParticles, b: GeneratedParticles) -> None:
    """Token by token: classes and masks exactly, numbers to 5e-5, as decoded particles are inputs."""
    for name in FIELDS:
        left, right = getattr(a, name), getattr(b, name)
        if name in CONTINUOUS:
            torch.testing.assert_close(left, right, rtol=1e-4, atol=5e-5)
        else:
            assert torch.equal(left, right), name


def end_head(model, special):
    """Logit of the end: the head's bias, and the class that means it."""
    name, index = {"flags": ("charge", EOS), "kind": ("kind", EOS), "learned": ("stop", 1)}[special]
    return model.heads.classifiers[name][-1].bias, index


def with_end(model, special, shift):
    with torch.no_grad():
        bias, index = end_head(model, special)
        bias[index] += shift
    return model


def with_unequal_ends(model, special, batch):
    """Bisect for a shift of the end's logit with which the events of `batch` end at different places."""
    low, high = -16.0, 16.0
    bias, index = end_head(model, special)
    for _ in range(20):
        with torch.no_grad():
            bias[index] = (low + high) / 2
        decoded = generate(model, batch, max_particles=10)
        if len(decoded.mask.sum(1).unique()) > 1:
            return model
        low, high = ((low + high) / 2, high) if decoded.truncated.all() else (low, (low + high) / 2)
    raise AssertionError("no shift makes the events end at different places")


@pytest.fixture(scope="module")
def trained(make_batch, make_model):
    """A network that has learned sequences of very unequal lengths by heart, with the special tokens asked for."""
    batch = make_batch(UNEQUAL, [5, 0, 2, 9, 1, 3, 0, 6])

    def train(special: str):
        model = make_model(special=special, width=32, norm="pre").train()
        loss = make_loss(special=special)
        optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(150):
            optimiser.zero_grad()
            loss(model(batch), batch)["total"].backward()
            optimiser.step()
        return model.eval()

    return {special: train(special) for special in ("flags", "kind", "learned")}, batch


def test_cached_equals_naive_on_random_weights(variant, make_batch, make_model, naive):
    batch = make_batch(UNEQUAL)
    model = with_unequal_ends(make_model(**variant), variant["special"], batch)
    cached = generate(model, batch, max_particles=12)
    assert_same(cached, naive.generate_naively(model, batch, max_particles=12))


@pytest.mark.parametrize("special", ["flags", "kind", "learned"])
def test_cached_equals_naive_on_trained_weights(special, trained, naive):
    models, batch = trained
    cached = generate(models[special], batch, max_particles=12)
    assert len(set(cached.mask.sum(1).tolist())) > 3  # the lengths are indeed unequal
    assert_same(cached, naive.generate_naively(models[special], batch, max_particles=12))


@pytest.mark.parametrize("special", ["flags", "kind", "learned"])
def test_trained_network_writes_what_it_learned(special, trained):
    models, batch = trained
    decoded = generate(models[special], batch, max_particles=12)
    lengths = decoded.mask.sum(1)
    assert (lengths == batch.target.mask.sum(1)).float().mean() >= 0.75


def test_cached_equals_naive_with_sampling(variant, make_batch, make_model, naive):
    batch = make_batch(UNEQUAL)
    model = make_model(**variant)

    def generator():
        return torch.Generator().manual_seed(3)

    def uncached(model, batch, decoding, sampler):
        return naive.generate_naively(model, batch, max_particles=decoding.max_particles, sampler=sampler)

    results = [
        decode(model, batch, DecodingConfig(max_particles=8), Sampler(temperature=5.0, generator=generator()))
        for decode in (generate_particles, uncached)
    ]
    assert len(set(results[0].mask.sum(1).tolist())) > 1
    assert_same(*results)


@pytest.mark.parametrize("option", [{"target_position": True}, {"norm": "pre"}, {"bias": False}, {"target_width": 24}])
def test_cached_equals_naive_with_options(option, make_batch, make_model, naive):
    batch = make_batch(UNEQUAL)
    model = make_model(**option)
    assert_same(generate(model, batch, max_particles=9), naive.generate_naively(model, batch, max_particles=9))


def event(batch, i):
    """Event i alone, without padding."""

    def cut(tokens):
        n = int(tokens.mask[i].sum())
        return type(tokens)(tokens.features[i : i + 1, :n], tokens.mask[i : i + 1, :n])

    return type(batch)(cut(batch.hits), cut(batch.tracks), cut(batch.tracker_hits))


def test_a_batch_equals_its_events_one_by_one(variant, make_batch, make_model):
    batch = make_batch(UNEQUAL)
    model = with_unequal_ends(make_model(**variant), variant["special"], batch)
    together = generate(model, batch, max_particles=10)
    for i in range(len(batch)):
        alone = generate(model, event(batch, i), max_particles=10)
        n = alone.mask.shape[1]
        assert not together.mask[i, n:].any()
        row = {name: getattr(together, name)[i : i + 1] for name in FIELDS}
        cut = {name: value if name == "truncated" else value[:, :n] for name, value in row.items()}
        assert_same(GeneratedParticles(**cut), alone)


def test_a_batch_of_one_equals_its_place_in_a_batch_of_64(make_batch, make_model):
    batch = make_batch([(7 * i) % 33 for i in range(64)])
    model = with_end(make_model(), "flags", 0.5)
    together, alone = generate(model, batch, max_particles=10), generate(model, event(batch, 40), max_particles=10)
    n = alone.mask.shape[1]
    assert torch.equal(together.mask[40, :n], alone.mask[0])
    assert torch.equal(together.pdg[40, :n], alone.pdg[0])
    torch.testing.assert_close(together.energy[40, :n], alone.energy[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("special", ["flags", "kind", "learned"])
def test_eos_ends_at_once_and_is_no_particle(special, make_batch, make_model):
    model = with_end(make_model(special=special), special, 1e4)
    decoded = generate(model, make_batch([3, 5]), max_particles=4)
    assert decoded.mask.shape == (2, 0)
    assert not decoded.truncated.any()


@pytest.mark.parametrize("special", ["flags", "kind", "learned"])
def test_an_event_that_does_not_end_is_flagged(special, make_batch, make_model):
    model = with_end(make_model(special=special), special, -1e4)
    decoded = generate(model, make_batch([3, 5]), max_particles=4)
    assert decoded.mask.all()
    assert decoded.mask.shape == (2, 4)
    assert decoded.truncated.all()


def test_an_event_that_ends_at_the_maximum_is_not_flagged(trained):
    models, batch = trained
    model = models["learned"]
    free = generate(model, batch, max_particles=30)
    longest = free.mask.sum(1)
    complete = longest[~free.truncated]
    decoded = generate(model, batch, max_particles=int(complete.max()))
    assert not decoded.truncated[(longest == complete.max()) & ~free.truncated].any()


@pytest.mark.parametrize("special", ["flags", "kind"])
def test_pad_and_bos_are_never_particles(special, make_batch, make_model):
    model = make_model(special=special)
    with torch.no_grad():
        for name in ("charge", "pdg", *model.special.heads):
            model.heads.classifiers[name][-1].bias[: 2 if name == "kind" else model.special.offset] = 1e4
        bias, index = end_head(model, special)
        bias[index] = -1e4
    decoded = generate(model, make_batch([3, 5]), max_particles=4)
    assert ((decoded.charge >= 0) & (decoded.charge < 3)).all()
    assert ((decoded.pdg >= 0) & (decoded.pdg < 6)).all()


def test_events_without_any_hit_can_be_written(make_batch, make_model):
    decoded = generate(make_model(), make_batch([0, 0]), max_particles=3)
    assert decoded.energy.isfinite().all()


def test_a_batch_without_events_can_be_written(variant, make_model):
    def nothing(features):
        return TokenSet(torch.zeros(0, 0, features), torch.zeros(0, 0, dtype=torch.bool))

    decoded = generate(make_model(**variant), Batch(nothing(4), nothing(5), nothing(3)), max_particles=3)
    assert len(decoded.mask) == len(decoded.truncated) == 0


def test_padding_holds_zeros(make_batch, make_model):
    decoded = generate(with_end(make_model(), "flags", 0.5), make_batch(UNEQUAL), max_particles=12)
    blank = ~decoded.mask
    assert blank.any()
    for name in ("charge", "pdg", "energy", "direction", "score"):
        assert not getattr(decoded, name)[blank].any()


def test_dtypes(make_batch, make_model):
    decoded = generate(make_model(), make_batch([3, 5]), max_particles=4)
    expected = {"charge": torch.int64, "pdg": torch.int64, "mask": torch.bool, "truncated": torch.bool}
    for name in FIELDS:
        assert getattr(decoded, name).dtype == expected.get(name, torch.float32)


def test_directions_are_unit_vectors(make_batch, make_model):
    decoded = generate(make_model(), make_batch([3, 5]), max_particles=4)
    torch.testing.assert_close(decoded.direction.norm(dim=-1)[decoded.mask], torch.ones(int(decoded.mask.sum())))


def test_greedy_is_deterministic(make_batch, make_model):
    model, batch = make_model(), make_batch(UNEQUAL)
    assert_same(generate(model, batch, max_particles=6), generate(model, batch, max_particles=6))


def test_the_same_seed_gives_the_same_tokens(make_batch, make_model):
    model, batch = make_model(), make_batch(UNEQUAL)
    a, b, c = (
        generate(model, batch, max_particles=6, temperature=1.0, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert_same(a, b)
    assert a.pdg.shape != c.pdg.shape or not torch.equal(a.pdg, c.pdg)


def test_a_low_temperature_is_greedy(make_batch, make_model):
    model, batch = make_model(), make_batch(UNEQUAL)
    cold = generate(model, batch, max_particles=6, temperature=1e-6, generator=torch.Generator().manual_seed(0))
    assert_same(cold, generate(model, batch, max_particles=6))


def test_draws_follow_the_softmax():
    """Probabilities 1/2, 1/3, 1/6 at temperature 1; at temperature 1/2 their squares: 9/14, 4/14, 1/14."""
    logits = torch.tensor([1 / 2, 1 / 3, 1 / 6]).log().expand(200_000, 3)
    for temperature, expected in ((1.0, [1 / 2, 1 / 3, 1 / 6]), (0.5, [9 / 14, 4 / 14, 1 / 14])):
        generator = torch.Generator().manual_seed(0)
        drawn = Sampler(temperature=temperature, generator=generator)(logits).bincount() / len(logits)
        torch.testing.assert_close(drawn, torch.tensor(expected), atol=0.005, rtol=0)


def test_the_target_is_not_looked_at(make_batch, make_model):
    model, batch = make_model(), make_batch([3, 5], [2, 1])
    without = dataclasses.replace(batch, target=None)
    assert_same(generate(model, batch, max_particles=4), generate(model, without, max_particles=4))


def test_generation_under_bfloat16_autocast(variant, make_batch, make_model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        decoded = generate(make_model(**variant), make_batch(UNEQUAL), max_particles=4)
    assert decoded.energy.dtype == torch.float32
    assert decoded.energy.isfinite().all()


def test_generation_with_bfloat16_weights(make_batch, make_model):
    decoded = generate(make_model().bfloat16(), make_batch(UNEQUAL), max_particles=4)
    assert decoded.energy.dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"max_particles": 0}, "max_particles"),
        ({"max_particles": 2, "temperature": 0.0}, "temperature"),
        ({"max_particles": 2, "temperature": float("nan")}, "temperature"),
        ({"max_particles": 2, "generator": torch.Generator()}, "generator"),
    ],
)
def test_arguments_that_make_no_sense(arguments, name, make_batch, make_model):
    with pytest.raises(ValueError, match=name):
        generate(make_model(), make_batch([3]), **arguments)


def test_training_mode_is_rejected(make_batch, make_model):
    with pytest.raises(ValueError, match="training mode"):
        generate(make_model().train(), make_batch([3]), max_particles=2)


def test_finished_events_leave_the_batch_and_the_source_is_read_once(make_batch, make_model, monkeypatch):
    batch = make_batch(UNEQUAL)
    model = with_unequal_ends(make_model(), "flags", batch)
    sizes, calls = [], {"encode": 0, "project": 0}
    step, encode, project = model.step, model.encode, model.decoder.project
    monkeypatch.setattr(model, "step", lambda tokens, state: sizes.append(len(tokens.kind)) or step(tokens, state))
    monkeypatch.setattr(model, "encode", lambda b: calls.update(encode=calls["encode"] + 1) or encode(b))
    monkeypatch.setattr(model.decoder, "project", lambda m: calls.update(project=calls["project"] + 1) or project(m))
    decoded = generate(model, batch, max_particles=10)
    assert sizes == [len(UNEQUAL), *decoded.mask.sum(0).tolist()]
    assert calls == {"encode": 1, "project": 1}
