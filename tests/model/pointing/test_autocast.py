"""Mixed precision, as `--trainer.precision bf16-mixed` has it."""

from __future__ import annotations

import pytest
import torch

from pflow.model.pointing.generate import generate_pointing
from pflow.model.pointing.loss import PointingLoss
from pflow.model.pointing.refine_training import teach_again
from pflow.model.pointing.teacher_forcing import teach

SECOND = {"revise_layers": 1, "relate": True, "revise_bend": True}


@pytest.fixture(autouse=True)
def bfloat16():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


@pytest.mark.parametrize(("options", "taught_by"), [({"bend": True}, teach), (SECOND, teach_again)])
def test_it_trains(make_network, batch, options, taught_by):
    network = make_network(**options, end=1.0).train()
    losses = PointingLoss()(taught_by(network, network(batch), batch.target), network)
    losses["total"].backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert losses["total"].dtype == torch.float32


@pytest.mark.parametrize("options", [{}, SECOND])
def test_it_writes(make_network, batch, options):
    written = generate_pointing(make_network(**options, end=1.0), batch, max_particles=4)
    assert written.mask.any()
    assert written.energy.dtype == torch.float32
    assert all(value.isfinite().all() for value in (written.energy, written.direction, written.hit_fraction))


def test_positions_are_not_rounded(make_network, batch):
    network = make_network(end=1.0)
    rounded = network.encode(batch)
    with torch.autocast("cpu", enabled=False):
        full = network.encode(batch)
    torch.testing.assert_close(rounded.scene.token_unit, full.scene.token_unit, rtol=0, atol=0)
    torch.testing.assert_close(rounded.states.float(), full.states, rtol=0, atol=0.1)
