"""Cached generation against a naive one, events against batches, and what ends a sequence."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import pad

from pflow.data.batch import Batch, Readout, Target, TokenSet
from pflow.model.api import DecodingConfig, GeneratedParticles, LossConfig, ModelInputs
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
from pflow.model.translation.network import TranslationNetwork
from pflow.model.translation.reconstructor import losses_of
from pflow.model.translation.tokens import EOS, SPECIAL

UNEQUAL = [40, 0, 3, 17, 1, 25, 0, 9]
TOLERANCE = {"rtol": 1e-4, "atol": 5e-5}  # of numbers, as decoded particles are inputs; classes are whole numbers


def generate(model, batch, *, max_particles):
    return model.generate(batch, decoding=DecodingConfig(max_particles=max_particles))


@torch.inference_mode()
def generate_naively(network: TranslationNetwork, batch: Batch, *, max_particles: int) -> GeneratedParticles:
    """Decode as the first paper's code did: every step encodes the events and decodes their whole sequences again."""
    B, scores, goes_on = len(batch), [], []
    none, ended = torch.zeros(B, 0, dtype=torch.int64), torch.zeros(B, dtype=torch.bool)
    parts = {"charge": none, "pdg": none, "energy": none.float(), "direction": torch.zeros(B, 0, 3)}
    if network.copy is not None and batch.readout is not None:
        parts["hit_fraction"] = torch.zeros(B, 0, batch.readout.mask.shape[1])
        if network.copy.reads_tracks:
            parts["track_fraction"] = torch.zeros(B, 0, batch.readout.track_mask.shape[1])
    for step in range(max_particles + 1):
        everything = torch.ones(B, step, dtype=torch.bool)  # events that have ended are decoded on
        prediction = network(dataclasses.replace(batch, target=Target(**parts, mask=everything)))
        prediction.pop("item_energy", None)  # no prediction, and not of a step
        last = {name: value[:, step] for name, value in prediction.items()}
        ends, pick = network.special.choose(last)
        ended = ended | ends
        if step == max_particles or ended.all():
            break
        new = last | pick
        if batch.readout is not None and "fraction" in last:
            new["hit_fraction"] = last["fraction"].gather(1, batch.readout.token) * batch.readout.mask
            new["track_fraction"] = last["fraction"][:, last["pointer"].shape[1] :]
        parts = {name: torch.cat([part, new[name][:, None]], dim=1) for name, part in parts.items()}
        scores.append(pick["score"])
        goes_on.append(~ended)
    mask = torch.stack(goes_on, dim=1) if goes_on else none.bool()
    for name in ("hit_fraction", "track_fraction"):
        parts.pop(name, None)
    parts["score"] = torch.stack(scores, dim=1) if scores else none.float()
    parts = {name: part * mask.view(*mask.shape, *[1] * (part.ndim - 2)) for name, part in parts.items()}
    return GeneratedParticles(**parts, mask=mask, truncated=~ended)


def end_bias(model):
    return model.network.heads.classifiers[model.network.special.end][-1].bias


def with_unequal_ends(model: TranslationReconstructor, batch: Batch) -> TranslationReconstructor:
    """Bisect for a shift of the end's logit, with which the model ends the events of a batch at different places."""
    low, high = -16.0, 16.0
    for _ in range(20):
        with torch.no_grad():
            end_bias(model)[EOS] = (low + high) / 2
        decoded = generate(model, batch, max_particles=10)
        if len(decoded.mask.sum(1).unique()) > 1:
            return model
        low, high = ((low + high) / 2, high) if decoded.truncated.all() else (low, (low + high) / 2)
    raise AssertionError("no shift makes the events end at different places")


def event_of(batch: Batch, i: int) -> Batch:
    """Event i of a batch alone, without padding and target."""
    parts, readout = [], batch.readout
    for tokens in (batch.hits, batch.tracks, batch.tracker_hits):
        n = int(tokens.mask[i].sum())
        parts.append(TokenSet(tokens.features[i : i + 1, :n], tokens.mask[i : i + 1, :n]))
    own = {
        name: values[i : i + 1, : int((readout.track_mask if name.startswith("track_") else readout.mask)[i].sum())]
        for name, values in vars(readout).items()
    }
    return Batch(*parts, readout=Readout(**own))


def test_cached_equals_naive_on_random_weights(variant, make_batch, make_model):
    batch = make_batch(UNEQUAL)
    model = with_unequal_ends(make_model(**variant, target_position=True, norm="pre"), batch)
    cached = generate(model, batch, max_particles=4)
    expected = generate_naively(model.network, batch, max_particles=4)
    torch.testing.assert_close(vars(cached), vars(expected), **TOLERANCE)


def test_a_batch_equals_its_events_one_by_one(variant, make_batch, make_model, row_of):
    batch = make_batch(UNEQUAL)
    model = with_unequal_ends(make_model(**variant), batch)
    together = generate(model, batch, max_particles=10)
    for i in range(len(batch)):
        alone = generate(model, event_of(batch, i), max_particles=10)
        assert not together.mask[i, alone.mask.shape[1] :].any()
        torch.testing.assert_close(row_of(together, i, alone), vars(alone), **TOLERANCE)


@pytest.mark.parametrize("special", SPECIAL)
def test_eos_ends_at_once_and_an_event_without_is_flagged_and_physical(special, make_batch, make_model):
    model = make_model(special=special)
    with torch.no_grad():
        end_bias(model)[EOS] = 1e4
    decoded = generate(model, make_batch([3, 5]), max_particles=4)
    assert decoded.mask.shape == (2, 0)
    assert not decoded.truncated.any()
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


def test_generation_under_bfloat16_autocast(variant, make_batch, make_model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        decoded = generate(make_model(**variant), make_batch(UNEQUAL), max_particles=4)
    weights = generate(make_model(**variant).bfloat16(), make_batch(UNEQUAL), max_particles=4)
    assert decoded.energy.dtype == weights.energy.dtype == torch.float32
    assert decoded.energy.isfinite().all()


def test_finished_events_leave_the_batch(make_batch, make_model):
    batch = make_batch(UNEQUAL)
    model = with_unequal_ends(make_model(), batch)
    calls = {"source": [], "heads": []}
    for name, sizes in calls.items():  # of the batch
        part = model.network.get_submodule(name)
        part.register_forward_pre_hook(lambda _, arguments, sizes=sizes: sizes.append(len(arguments[0])))
    decoded = generate(model, batch, max_particles=10)
    assert calls == {"source": [len(batch)], "heads": [len(batch), *decoded.mask.sum(0).tolist()]}


ANGLE = 0.3


@pytest.fixture
def batch():
    """Three real particles in two events: two along x and z, one along x."""
    return Batch(
        hits=TokenSet(torch.zeros(2, 1, 4), torch.ones(2, 1, dtype=torch.bool)),
        target=Target(
            charge=torch.tensor([[0, 1], [1, 0]]),
            pdg=torch.tensor([[1, 0], [1, 0]]),
            energy=torch.tensor([[1.0, 2.0], [0.5, 0.0]]),
            direction=torch.tensor([[[1.0, 0, 0], [0, 0, 1.0]], [[1.0, 0, 0], [0, 0, 0]]]),
            mask=torch.tensor([[True, True], [True, False]]),
        ),
    )


def make_loss(special: str = "flags", **weights: float) -> Callable[..., dict[str, torch.Tensor]]:
    """Losses of a prediction and a batch."""
    sizes = {"n_charge": 2, "n_pdg": 2, "hit_features": 1, "masses": (0.0, 0.0), "charged": (False, False)}
    network = TranslationNetworkConfig(special=special, width=8, heads=1)
    model = TranslationReconstructor(
        ModelInputs(**sizes, energy_mean=0.0, energy_std=1.0), network=network, loss=LossConfig(weights=weights)
    )
    return lambda made, batch: losses_of(made, batch.target, SPECIAL[special], model.loss_weights)


def prediction(special: str = "flags") -> dict[str, torch.Tensor]:
    """Uniform classes; energies off by 0.5, 1 and 2; directions off by 0, 0.3 and 0.3 rad; nonsense in padding."""
    offset, extra = {"flags": (3, {}), "kind": (1, {"kind": 4})}[special]
    sizes = {"charge": 2 + offset, "pdg": 2 + offset, **extra}
    made = {name: torch.zeros(2, 3, n, requires_grad=True) for name, n in sizes.items()}
    energy = torch.tensor([[1.5, 1.0, 77.0], [2.5, 77.0, 77.0]])
    c, s = math.cos(ANGLE), math.sin(ANGLE)
    off = [0.0, 1.0, 0.0]
    direction = torch.tensor([[[1.0, 0, 0], [s, 0, c], off], [[c, s, 0], off, off]])
    return {**made, "energy": energy.requires_grad_(), "direction": direction.requires_grad_()}


@pytest.mark.parametrize("special", SPECIAL)
def test_uniform_classes_cost_the_logarithm_of_their_number(special, batch):
    made = prediction(special)
    losses = make_loss(special)(made, batch)
    for name in set(losses) & {"charge", "pdg", "kind"}:
        assert losses[name].item() == pytest.approx(math.log(made[name].shape[-1]))


def test_losses_are_mean_square_errors_and_their_weighted_sum(batch):
    """The chord of 0.3 rad squared is 2 - 2 cos 0.3, a mean over 3 components; two of three particles are off."""
    losses = make_loss()(prediction(), batch)
    assert losses["energy"].item() == pytest.approx((0.25 + 1.0 + 4.0) / 3)
    assert losses["direction"].item() == pytest.approx(2 * (2 - 2 * math.cos(ANGLE)) / 3 / 3, rel=1e-5)
    losses = make_loss(charge=0.0, pdg=2.0, energy=0.5)(prediction(), batch)
    torch.testing.assert_close(losses["total"], 2.0 * losses["pdg"] + 0.5 * losses["energy"] + losses["direction"])


@pytest.mark.parametrize("special", SPECIAL)
def test_padding_has_no_gradient_and_does_not_dilute(special, batch):
    """Nothing follows eos: event 1 has one particle, so that only its first two positions are trained."""
    made, loss = prediction(special), make_loss(special)
    losses = loss(made, batch)
    losses["total"].backward()
    for value in made.values():
        assert not value.grad[1, 2].any()
    assert not made["energy"].grad[1, 1].any()
    assert made["charge"].grad[0, 0].any()

    def longer(value, filling=0.0):
        return pad(value, (0, 0) * (value.ndim - 2) + (0, 5), value=filling)

    more = dataclasses.replace(batch, target=batch.target._with(longer))
    torch.testing.assert_close(loss({name: longer(value, 3.0) for name, value in made.items()}, more), losses)


@pytest.mark.parametrize("weights", [{"mass": 1.0}, {"kind": 1.0}, {"pdg": -1.0}, {"pdg": math.nan}])
def test_weights_that_make_no_sense(weights):
    with pytest.raises(ValueError, match="weights"):
        make_loss(**weights)
