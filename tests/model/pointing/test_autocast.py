"""Mixed precision, as `--trainer.precision bf16-mixed` has it."""

from __future__ import annotations

import pytest
import torch

REFINED = {"refine_layers": 1, "pairwise_messages": True, "refine_delta_theta_phi_features": True}


@pytest.fixture(autouse=True)
def bfloat16():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


@pytest.mark.parametrize("options", [{"delta_theta_phi_features": True}, REFINED])
def test_it_trains(make_model, batch, options):
    model = make_model(**options, eos_threshold=1.0).train()
    losses = model.losses(batch)
    losses["total"].backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert losses["total"].dtype == torch.float32


@pytest.mark.parametrize("options", [{}, REFINED])
def test_it_writes(make_model, batch, options):
    written = make_model(**options, eos_threshold=1.0).decode(batch, max_particles=4)
    assert written.mask.any()
    assert written.energy.dtype == torch.float32
    assert all(value.isfinite().all() for value in (written.energy, written.direction, written.hit_fraction))


def test_positions_are_not_rounded(make_model, batch):
    model = make_model(eos_threshold=1.0)
    rounded = model.network.encode(batch)
    with torch.autocast("cpu", enabled=False):
        full = model.network.encode(batch)
    torch.testing.assert_close(rounded.scene.token_unit, full.scene.token_unit, rtol=0, atol=0)
    torch.testing.assert_close(rounded.states.float(), full.states, rtol=0, atol=0.1)
