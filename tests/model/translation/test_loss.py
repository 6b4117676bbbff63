"""Losses against values computed by hand, and what they must not see."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from pflow.data.batch import Batch, Target, TokenSet
from pflow.model.translation import TranslationLossConfig
from pflow.model.translation.loss import TranslationLoss

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


def make_loss(*, special: str = "flags", **options) -> TranslationLoss:
    return TranslationLoss(special=special, config=TranslationLossConfig(**options))


def prediction(special: str, batch: Batch) -> dict[str, torch.Tensor]:
    """Uniform classes; energies off by 0.5, 1 and 2; directions off by 0, 0.3 and 0.3 rad; nonsense in padding."""
    offset, extra = {"flags": (3, {}), "kind": (1, {"kind": 4}), "learned": (0, {"stop": 2})}[special]
    sizes = {"charge": 2 + offset, "pdg": 2 + offset, **extra}
    made = {name: torch.zeros(2, 3, n, requires_grad=True) for name, n in sizes.items()}
    energy = torch.tensor([[1.5, 1.0, 77.0], [2.5, 77.0, 77.0]])
    c, s = math.cos(ANGLE), math.sin(ANGLE)
    off = [0.0, 1.0, 0.0]
    direction = torch.tensor([[[1.0, 0, 0], [s, 0, c], off], [[c, s, 0], off, off]])
    return {**made, "energy": energy.requires_grad_(), "direction": direction.requires_grad_()}


@pytest.mark.parametrize("special", ["flags", "kind", "learned"])
def test_uniform_classes_cost_the_logarithm_of_their_number(special, batch):
    made = prediction(special, batch)
    losses = make_loss(special=special)(made, batch)
    for name in set(losses) & {"charge", "pdg", "kind", "stop"}:
        assert losses[name].item() == pytest.approx(math.log(made[name].shape[-1]))


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("mse", (0.25 + 1.0 + 4.0) / 3),
        ("huber", (0.5 * 0.25 + 0.5 * 1.0 + (2.0 - 0.5)) / 3),
    ],
)
def test_energy(option, expected, batch):
    losses = make_loss(energy=option)(prediction("flags", batch), batch)
    assert losses["energy"].item() == pytest.approx(expected)


def test_energy_with_a_gaussian_width(batch):
    """Log widths 0 and log 2: (0.25 + 1)/2 + (4/4)/2 + log 2, over three."""
    made = prediction("flags", batch)
    made["energy_log_sigma"] = torch.tensor([[0.0, 0.0, 50.0], [math.log(2.0), 50.0, 50.0]])
    losses = make_loss(energy="gaussian")(made, batch)
    assert losses["energy"].item() == pytest.approx((1.25 / 2 + 0.5 + math.log(2.0)) / 3)


@pytest.mark.parametrize(
    ("option", "expected"), [("mse", 2 * (2 - 2 * math.cos(ANGLE)) / 3 / 3), ("angle", 2 * ANGLE / 3)]
)
def test_direction(option, expected, batch):
    """The chord of 0.3 rad squared is 2 - 2 cos 0.3, a mean over 3 components; two of three particles are off."""
    losses = make_loss(direction=option)(prediction("flags", batch), batch)
    assert losses["direction"].item() == pytest.approx(expected, rel=1e-5)


def test_angle_of_equal_and_opposite_directions_has_a_finite_gradient(batch):
    made = prediction("flags", batch)
    exact = torch.tensor([[[1.0, 0, 0], [0, 0, -1.0], [0, 0, 1.0]], [[1.0, 0, 0]] * 3], requires_grad=True)
    losses = make_loss(direction="angle")({**made, "direction": exact}, batch)
    losses["total"].backward()
    assert losses["direction"].item() == pytest.approx(math.pi / 3)
    assert exact.grad.isfinite().all()


@pytest.mark.parametrize("special", ["flags", "kind", "learned"])
def test_padding_has_no_gradient(special, batch):
    """Nothing follows eos: event 1 has one particle, so that only its first two positions are trained."""
    made = prediction(special, batch)
    make_loss(special=special, direction="angle")(made, batch)["total"].backward()
    for value in made.values():
        assert not value.grad[1, 2].any()
    assert not made["energy"].grad[1, 1].any()
    assert made["charge"].grad[0, 0].any()


@pytest.mark.parametrize("special", ["flags", "kind", "learned"])
def test_padding_does_not_dilute(special, batch):
    made = prediction(special, batch)
    more = {
        name: torch.nn.functional.pad(value, (0, 0) * (value.ndim - 2) + (0, 5), value=3.0)
        for name, value in made.items()
    }
    target = batch.target
    values = {name: value for name, value in vars(target).items() if value is not None}
    longer = dataclasses.replace(
        target,
        **{name: torch.nn.functional.pad(value, (0, 0) * (value.ndim - 2) + (0, 5)) for name, value in values.items()},
    )
    loss = make_loss(special=special)
    first, second = loss(made, batch), loss(more, dataclasses.replace(batch, target=longer))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value)


def test_label_smoothing(batch):
    """Two classes, logits (log 3, 0), smoothing 0.2: truth 0 costs 0.9 log(4/3) + 0.1 log 4."""
    made = prediction("learned", batch)
    logits = torch.tensor([math.log(3.0), 0.0]).expand(2, 3, 2)
    target = dataclasses.replace(batch.target, charge=torch.zeros(2, 2, dtype=torch.int64))
    losses = make_loss(special="learned", label_smoothing=0.2)(
        {**made, "charge": logits}, dataclasses.replace(batch, target=target)
    )
    assert losses["charge"].item() == pytest.approx(0.9 * math.log(4 / 3) + 0.1 * math.log(4))


def test_total_is_the_weighted_sum(batch):
    weights = {"charge": 0.0, "pdg": 2.0, "energy": 0.5}
    losses = make_loss(weights=weights)(prediction("flags", batch), batch)
    expected = 2.0 * losses["pdg"] + 0.5 * losses["energy"] + losses["direction"]
    torch.testing.assert_close(losses["total"], expected)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"special": "paper"}, "special"),
        ({"energy": "paper"}, "energy"),
        ({"direction": "paper"}, "direction"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"weights": {"mass": 1.0}}, "weights"),
        ({"weights": {"kind": 1.0}}, "weights"),
        ({"weights": {"pdg": -1.0}}, "weights"),
        ({"weights": {"pdg": math.nan}}, "weights"),
    ],
)
def test_arguments_that_make_no_sense(arguments, name):
    with pytest.raises(ValueError, match=name):
        make_loss(**arguments)


def test_a_prediction_with_other_special_tokens_is_rejected(batch):
    with pytest.raises(ValueError, match="give network and loss the same 'special'"):
        make_loss(special="kind")(prediction("flags", batch), batch)


def test_gaussian_needs_a_width(batch):
    with pytest.raises(ValueError, match="needs a network with energy_sigma"):
        make_loss(energy="gaussian")(prediction("flags", batch), batch)


def test_a_batch_without_target_is_rejected(batch):
    with pytest.raises(ValueError, match="target"):
        make_loss()(prediction("flags", batch), dataclasses.replace(batch, target=None))
