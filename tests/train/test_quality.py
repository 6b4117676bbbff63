from __future__ import annotations

import math

import pytest
import torch

from pflow.data.batch import Target
from pflow.train.quality import next_particle_errors

X, Y, Z = torch.eye(3)


def target(energy, direction, mask) -> Target:
    energy = torch.tensor(energy)
    index = torch.zeros_like(energy, dtype=torch.int64)
    return Target(charge=index, pdg=index, energy=energy, direction=direction, mask=torch.tensor(mask))


def test_hand_computed_errors():
    true = target([[0.0, 1.0]], torch.stack([X, Z])[None], [[True, True]])
    # With a deviation of 0.5 in log10 E: 2 log10(2) is a factor of 2, -2 log10(2) one of 1/2.
    shift = 2 * math.log10(2)
    prediction = {
        "energy": torch.tensor([[shift, 1.0 - shift]]),
        "direction": torch.stack([X, torch.sqrt(torch.tensor(0.5)) * (Z + X)])[None],
    }
    errors = next_particle_errors(prediction, true, 0.5)
    assert float(errors["energy_error"]) == pytest.approx((1.0 + 0.5) / 2, rel=1e-5)
    assert float(errors["angle_deg"]) == pytest.approx(45 / 2, rel=1e-5)


def test_padding_does_not_count():
    true = target([[0.0, 0.0], [0.0, 0.0]], torch.stack([X, X, X, X]).view(2, 2, 3), [[True, False], [True, True]])
    prediction = {"energy": torch.zeros(2, 2), "direction": X.expand(2, 2, 3).clone()}
    prediction["energy"][0, 1] = 5.0
    prediction["direction"][0, 1] = Y
    errors = next_particle_errors(prediction, true, 1.0)
    assert float(errors["energy_error"]) == 0
    assert float(errors["angle_deg"]) == 0


def test_small_angles_keep_their_precision():
    small = 1e-5
    true = target([[0.0]], Z.view(1, 1, 3), [[True]])
    prediction = {
        "energy": torch.zeros(1, 1),
        "direction": torch.tensor([math.sin(small), 0.0, math.cos(small)]).expand(1, 1, 3),
    }
    assert float(next_particle_errors(prediction, true, 1.0)["angle_deg"]) == pytest.approx(math.degrees(small))
