"""Mixed precision, as `--trainer.precision bf16-mixed` and `16-mixed` have it."""

from __future__ import annotations

import pytest
import torch

REFINED = {"refine_layers": 1}


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def rounded_to(request):
    return request.param


@pytest.fixture
def rounding(rounded_to):
    with torch.autocast("cpu", dtype=rounded_to):
        yield


@pytest.mark.usefixtures("rounding")
@pytest.mark.parametrize("options", [{}, REFINED])
def test_it_trains(make_model, batch, options):
    model = make_model(**options, eos_threshold=1.0).train()
    losses = model.losses(batch)
    losses["total"].backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert losses["total"].dtype == torch.float32


@pytest.mark.usefixtures("rounding")
@pytest.mark.parametrize("options", [{}, REFINED])
def test_it_writes(make_model, batch, options):
    written = make_model(**options, eos_threshold=1.0).decode(batch, max_particles=4)
    assert written.mask.any()
    assert written.energy.dtype == torch.float32
    assert all(value.isfinite().all() for value in (written.energy, written.direction, written.hit_fraction))


@pytest.mark.usefixtures("rounding")
def test_positions_are_not_rounded(make_model, batch):
    model = make_model(eos_threshold=1.0)
    rounded = model.network.encode(batch)
    with torch.autocast("cpu", enabled=False):
        full = model.network.encode(batch)
    torch.testing.assert_close(rounded.tokens.unit, full.tokens.unit, rtol=0, atol=0)
    torch.testing.assert_close(rounded.states.float(), full.states, rtol=0, atol=0.1)


@pytest.mark.parametrize("options", [{}, REFINED])
def test_losses_and_gradients_are_those_of_single_precision_but_for_rounding(make_model, batch, options, rounded_to):
    """In evaluation mode: nothing is drawn."""
    if (
        options is REFINED
        and rounded_to is torch.bfloat16
        and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11)
    ):
        pytest.skip("with torch 2.5 the particles that the refinement decodes in bfloat16 are others")
    model = make_model(**options, eos_threshold=1.0)
    found = {}
    for rounds in (True, False):
        model.zero_grad()
        with torch.autocast("cpu", dtype=rounded_to, enabled=rounds):
            losses = model.losses(batch)
        losses["total"].backward()
        parts = (torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
        gradient = torch.cat([part.flatten() for part in parts])
        found[rounds] = losses, gradient
    (rounded, other), (losses, gradient) = found[True], found[False]
    for name, loss in losses.items():
        torch.testing.assert_close(rounded[name], loss, rtol=0.03, atol=0.03, msg=f"{name}: {rounded[name]}, {loss}")
    assert torch.nn.functional.cosine_similarity(other, gradient, dim=0) > 0.98


def test_steps_of_an_optimiser_follow_those_in_single_precision(make_model, batch, rounded_to):
    """With float16 the loss is scaled, as Lightning does: by 65536 at first, and steps are left out until it fits."""
    ends = []
    for rounds in (True, False):
        model = make_model(eos_threshold=1.0)
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=rounds and rounded_to is torch.float16)
        for _ in range(8):
            optimiser.zero_grad()
            with torch.autocast("cpu", dtype=rounded_to, enabled=rounds):
                total = model.losses(batch)["total"]
            scaler.scale(total).backward()
            scaler.step(optimiser)
            scaler.update()
            ends.append(total.item())
    rounded, full = ends[:8], ends[8:]
    assert full[-1] < full[0] - 1.0
    assert abs(rounded[-1] - full[-1]) < 0.02 * (full[0] - full[-1])


def test_gradients_that_are_too_large_for_float16_change_nothing_but_the_scale(make_model, batch):
    model = make_model(eos_threshold=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    with torch.autocast("cpu", dtype=torch.float16):
        total = model.losses(batch)["total"]
    scaler.scale(total).backward()
    scaler.step(optimiser)
    scaler.update()
    assert total.isfinite()
    assert scaler.get_scale() == 2.0**39
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
