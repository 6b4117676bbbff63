import dataclasses
import math

import pytest
import torch
from torch.nn.functional import pad

from pflow.data.batch import Batch, Target, TokenSet
from pflow.model.api import LossConfig
from pflow.model.translation.reconstructor import TranslationLoss
from pflow.model.translation.special import SPECIAL

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


def make_loss(special: str = "flags", **weights: float) -> TranslationLoss:
    return TranslationLoss(SPECIAL[special], LossConfig(weights=weights))


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


def test_energy_and_direction_are_mean_square_errors(batch):
    """The chord of 0.3 rad squared is 2 - 2 cos 0.3, a mean over 3 components; two of three particles are off."""
    losses = make_loss()(prediction(), batch)
    assert losses["energy"].item() == pytest.approx((0.25 + 1.0 + 4.0) / 3)
    assert losses["direction"].item() == pytest.approx(2 * (2 - 2 * math.cos(ANGLE)) / 3 / 3, rel=1e-5)


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


def test_total_is_the_weighted_sum(batch):
    losses = make_loss(charge=0.0, pdg=2.0, energy=0.5)(prediction(), batch)
    torch.testing.assert_close(losses["total"], 2.0 * losses["pdg"] + 0.5 * losses["energy"] + losses["direction"])


@pytest.mark.parametrize("weights", [{"mass": 1.0}, {"kind": 1.0}, {"pdg": -1.0}, {"pdg": math.nan}])
def test_weights_that_make_no_sense(weights):
    with pytest.raises(ValueError, match="weights"):
        make_loss(**weights)
