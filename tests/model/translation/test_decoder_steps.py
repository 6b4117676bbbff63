"""Cached generation against a naive one, events against batches, and what ends a sequence."""

import pytest
import torch

from benchmarks.naive import generate_naively
from pflow.model.api import DecodingConfig, GeneratedParticles
from pflow.model.translation.reconstructor import explain
from pflow.model.translation.special import EOS, SPECIAL

UNEQUAL = [40, 0, 3, 17, 1, 25, 0, 9]
FIELDS = ("charge", "pdg", "energy", "direction", "score", "mask", "truncated")


def generate(model, batch, *, max_particles):
    return model.generate(batch, decoding=DecodingConfig(max_particles=max_particles))


def assert_same(a: GeneratedParticles, b: GeneratedParticles) -> None:
    """Token by token: classes and masks exactly, numbers to 5e-5, as decoded particles are inputs."""
    for name in FIELDS:
        left, right = getattr(a, name), getattr(b, name)
        exact = not left.is_floating_point()
        torch.testing.assert_close(left, right, rtol=0 if exact else 1e-4, atol=0 if exact else 5e-5, msg=name)


def end_bias(model):
    return model.network.heads.classifiers[model.network.special.end][-1].bias


def test_cached_equals_naive_on_random_weights(variant, make_batch, make_model, with_unequal_ends):
    batch = make_batch(UNEQUAL)
    model = with_unequal_ends(make_model(**variant, target_position=True, norm="pre"), batch)
    cached = generate(model, batch, max_particles=12)
    assert_same(cached, generate_naively(model.network, batch, max_particles=12))


def test_a_batch_equals_its_events_one_by_one(variant, make_batch, make_model, with_unequal_ends, event_of):
    batch = make_batch(UNEQUAL)
    model = with_unequal_ends(make_model(**variant), batch)
    together = generate(model, batch, max_particles=10)
    for i in range(len(batch)):
        alone = generate(model, event_of(batch, i), max_particles=10)
        n = alone.mask.shape[1]
        assert not together.mask[i, n:].any()
        row = {name: getattr(together, name)[i : i + 1] for name in FIELDS}
        cut = {name: value if name == "truncated" else value[:, :n] for name, value in row.items()}
        assert_same(GeneratedParticles(**cut), alone)


@pytest.mark.parametrize("special", SPECIAL)
def test_eos_ends_at_once_and_is_no_particle(special, make_batch, make_model):
    model = make_model(special=special)
    with torch.no_grad():
        end_bias(model)[EOS] = 1e4
    decoded = generate(model, make_batch([3, 5]), max_particles=4)
    assert decoded.mask.shape == (2, 0)
    assert not decoded.truncated.any()


@pytest.mark.parametrize("special", SPECIAL)
def test_an_event_that_does_not_end_is_flagged_and_its_particles_are_physical(special, make_batch, make_model):
    model = make_model(special=special)
    with torch.no_grad():
        for name in ("charge", "pdg", *model.network.special.heads):
            special_classes = 2 if name == "kind" else model.network.special.offset
            model.network.heads.classifiers[name][-1].bias[:special_classes] = 1e4
        end_bias(model)[EOS] = -1e4
    decoded = generate(model, make_batch([3, 5]), max_particles=4)
    assert decoded.mask.all()
    assert decoded.mask.shape == (2, 4)
    assert decoded.truncated.all()
    for values, n_classes in ((decoded.charge, 3), (decoded.pdg, 6)):
        assert ((values >= 0) & (values < n_classes)).all()


def test_a_batch_without_events_is_decoded(variant, make_batch, make_model):
    def without(part):
        return part[:0] if isinstance(part, torch.Tensor) else part._with(without)

    decoded = generate(make_model(**variant), without(make_batch([3])), max_particles=3)
    assert len(decoded.mask) == len(decoded.truncated) == 0


def test_fields_have_their_types_unit_directions_and_zeros_in_the_padding(make_batch, make_model, with_unequal_ends):
    batch = make_batch(UNEQUAL)
    decoded = generate(with_unequal_ends(make_model(), batch), batch, max_particles=10)
    dtypes = {"charge": torch.int64, "pdg": torch.int64, "mask": torch.bool, "truncated": torch.bool}
    assert {name: getattr(decoded, name).dtype for name in FIELDS} == dict.fromkeys(FIELDS, torch.float32) | dtypes
    torch.testing.assert_close(decoded.direction.norm(dim=-1), decoded.mask.float())
    blank = ~decoded.mask
    assert blank.any()
    assert not any(getattr(decoded, name)[blank].any() for name in FIELDS[:5])


def test_generation_under_bfloat16_autocast(variant, make_batch, make_model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        decoded = generate(make_model(**variant), make_batch(UNEQUAL), max_particles=4)
    weights = generate(make_model(**variant).bfloat16(), make_batch(UNEQUAL), max_particles=4)
    assert decoded.energy.dtype == weights.energy.dtype == torch.float32
    assert decoded.energy.isfinite().all()


def test_finished_events_leave_the_batch_and_the_source_is_encoded_once(make_batch, make_model, with_unequal_ends):
    batch = make_batch(UNEQUAL)
    model = with_unequal_ends(make_model(), batch)
    calls = {"source": [], "heads": []}
    for name, sizes in calls.items():  # of the batch
        part = model.network.get_submodule(name)
        part.register_forward_pre_hook(lambda _, arguments, sizes=sizes: sizes.append(len(arguments[0])))
    decoded = generate(model, batch, max_particles=10)
    assert calls == {"source": [len(batch)], "heads": [len(batch), *decoded.mask.sum(0).tolist()]}


@pytest.fixture(params=SPECIAL)
def explained(request, make_model, make_batch):
    model, batch = make_model(special=request.param), make_batch([7])
    particles = generate(model, batch, max_particles=3)
    return model, particles, explain(model.network, batch, particles)


def test_probabilities_sum_to_one_in_each_step(explained):
    model, particles, explanation = explained
    for name in model.network.heads.classifiers:
        total = explanation[f"probability.{name}"].sum(-1)
        assert total.shape == (particles.mask.shape[1] + 1,)
        torch.testing.assert_close(total, torch.ones_like(total))


def test_attention_is_of_every_layer_and_looks_back_only_and_nothing_is_recorded_afterwards(explained):
    model, particles, explanation = explained
    assert not any(module._forward_pre_hooks for module in model.modules())
    steps, source = particles.mask.shape[1] + 1, 7 + 2  # bos and eos stand among the hits
    attention = {name: weights for name, weights in explanation.items() if name.startswith("attention.")}
    assert len(attention) >= 3
    for name, weights in attention.items():
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        if ".source." in name:
            assert weights.shape[1:] == (source, source)
        elif name.endswith("memory_attention"):
            assert weights.shape[1:] == (steps, source)
        else:
            assert weights.shape[1:] == (steps, steps)
            assert not weights.triu(1).any()
