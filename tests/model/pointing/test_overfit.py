"""A network that is shown two events over and over decodes them."""

from __future__ import annotations

import pytest
import torch

STEPS = 70
LN10 = 2.302585092994046


@pytest.fixture(scope="module")
def learned(make_model, batch, events, collate):
    """What is decoded after training, the truth, and the losses before and after."""
    torch.manual_seed(0)
    two = collate([events[0], events[2]])
    model = make_model(seed=0, initial=True).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=STEPS)
    totals = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        total = model.losses(two)["total"]
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        totals.append(total.item())
    return model, model.eval().decode(two, max_particles=8), two, totals


def test_the_loss_falls(learned):
    totals = learned[-1]
    assert totals[-1] < totals[0] - 5.0


def test_all_particles_are_decoded_and_no_more(learned):
    _, decoded, two, _ = learned
    assert decoded.mask.sum(1).tolist() == two.target.mask.sum(1).tolist() == [2, 4]
    assert not decoded.truncated.any()


def pairs(learned, name):
    """Decoded and true values of the particles of each event, by their energy."""
    _, decoded, two, _ = learned
    for i in range(2):
        yield tuple(
            getattr(one, name)[i][one.mask[i]][one.energy[i][one.mask[i]].argsort()] for one in (decoded, two.target)
        )


def test_particles_with_their_hits_and_tracks_are_those_learned(learned):
    factor = LN10 * learned[0].inputs.energy_std
    assert all((factor * (ours - truth)).abs().max() < 0.05 for ours, truth in pairs(learned, "energy"))
    assert all((ours - truth).norm(dim=-1).max() < 0.02 for ours, truth in pairs(learned, "direction"))
    for name in ("pdg", "charge"):
        assert all(torch.equal(ours, truth) for ours, truth in pairs(learned, name))
    for name in ("hit_fraction", "track_fraction"):
        assert all(((ours > 0.5) == (truth > 0.5)).float().mean() > 0.97 for ours, truth in pairs(learned, name))
