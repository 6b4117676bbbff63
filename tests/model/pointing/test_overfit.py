"""A network that is shown two events over and over decodes them."""

import torch

STEPS = 70
LN10 = 2.302585092994046
NAMES = ("energy", "direction", "pdg", "charge", "hit_fraction", "track_fraction")


def test_all_particles_that_are_learned_by_heart_are_decoded_and_no_more(make_model, events, collate):
    torch.manual_seed(0)
    two = collate([events[0], events[2]])
    model = make_model(seed=0, initial=True).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=STEPS)
    for _ in range(STEPS):
        optimiser.zero_grad()
        model.losses(two)["total"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    decoded, target = model.eval().decode(two, max_particles=8), two.target
    assert decoded.mask.sum(1).tolist() == target.mask.sum(1).tolist() == [2, 4]
    assert not decoded.truncated.any()
    for i in range(2):
        ours, true = (part.energy[i][part.mask[i]].argsort() for part in (decoded, target))
        pairs = {name: (getattr(decoded, name)[i, ours], getattr(target, name)[i, true]) for name in NAMES}
        difference = {name: found - truth for name, (found, truth) in pairs.items()}
        assert LN10 * model.inputs.energy_std * difference["energy"].abs().max() < 0.05
        assert difference["direction"].norm(dim=-1).max() < 0.02
        assert not difference["pdg"].any()
        assert not difference["charge"].any()
        for name in ("hit_fraction", "track_fraction"):
            found, truth = pairs[name]
            assert ((found > 0.5) == (truth > 0.5)).float().mean() > 0.97
