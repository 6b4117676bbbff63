"""A network that is shown two events over and over writes them by heart, freely running."""

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


def test_all_particles_are_written_and_no_more(learned):
    _, decoded, two, _ = learned
    assert decoded.mask.sum(1).tolist() == two.target.mask.sum(1).tolist() == [2, 4]
    assert not decoded.truncated.any()


def in_order_of_energy(decoded, mask, values):
    """Values of the particles of each event, by their energy."""
    return [values[i][mask[i]][decoded[i][mask[i]].argsort()] for i in range(len(mask))]


def test_energies_and_directions_are_those_learned(learned):
    model, decoded, two, _ = learned
    target = two.target
    for ours, truth in zip(
        in_order_of_energy(decoded.energy, decoded.mask, decoded.energy),
        in_order_of_energy(target.energy, target.mask, target.energy),
        strict=True,
    ):
        assert (LN10 * model.inputs.energy_std * (ours - truth)).abs().max() < 0.05
    for ours, truth in zip(
        in_order_of_energy(decoded.energy, decoded.mask, decoded.direction),
        in_order_of_energy(target.energy, target.mask, target.direction),
        strict=True,
    ):
        assert (ours - truth).norm(dim=-1).max() < 0.02


def test_identities_are_those_learned(learned):
    _, decoded, two, _ = learned
    target = two.target
    for name in ("pdg", "charge"):
        ours = in_order_of_energy(decoded.energy, decoded.mask, getattr(decoded, name))
        truth = in_order_of_energy(target.energy, target.mask, getattr(target, name))
        assert [part.tolist() for part in ours] == [part.tolist() for part in truth]


def test_hits_and_tracks_go_to_their_particles(learned):
    _, decoded, two, _ = learned
    target = two.target
    for name in ("hit_fraction", "track_fraction"):
        ours = in_order_of_energy(decoded.energy, decoded.mask, getattr(decoded, name))
        truth = in_order_of_energy(target.energy, target.mask, getattr(target, name))
        for one, other in zip(ours, truth, strict=True):
            assert ((one > 0.5) == (other > 0.5)).float().mean() > 0.97
