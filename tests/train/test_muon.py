import pytest
import torch
from torch import nn

from pflow.train.module import Muon, orthogonal


@pytest.mark.parametrize("shape", [(96, 96), (96, 192), (192, 96)])
def test_singular_values_become_about_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    made = u.T @ orthogonal(matrix) @ v.T
    large = s > 0.1 * s.max()
    assert (made.diagonal()[large] - 1.0).abs().max() < 0.35
    assert (made - made.diagonal().diag()).abs().max() < 1e-3  # its singular vectors are the same


def test_updates_have_the_documented_size_and_small_ones_are_adams():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 2))
    optimiser = Muon([{"params": list(model.parameters()), "weight_decay": 0.0}], lr=0.01)
    assert [group["orthogonal"] for group in optimiser.param_groups] == [True, False]
    assert [len(group["params"]) for group in optimiser.param_groups] == [1, 3]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.randn(5, 32)).square().sum().backward()
    optimiser.step()
    change = [(new - old).square().mean().sqrt().item() for new, old in zip(model.parameters(), before, strict=True)]
    assert change[0] / 0.01 == pytest.approx(0.2, rel=0.9)  # of few singular values, as the gradient has
    assert change[1:] == pytest.approx([0.01] * 3, rel=0.01)


def trained(steps, state=None):
    torch.manual_seed(6)
    model, inputs, losses = nn.Linear(32, 32), torch.randn(64, 32), []
    optimiser = Muon([{"params": list(model.parameters()), "weight_decay": 0.01}], lr=0.02)
    if state is not None:
        model.load_state_dict(state[0])
        optimiser.load_state_dict(state[1])
    for _ in range(steps):
        loss = (model(inputs) - inputs.roll(1, 1)).square().mean()
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.state_dict(), optimiser.state_dict(), losses


def test_it_learns_and_a_resumed_training_is_the_same():
    *_, losses = trained(100)
    assert losses[-1] < 0.05 * losses[0]
    in_one_go, resumed = trained(6), trained(3, trained(3))
    assert torch.equal(in_one_go[0]["weight"], resumed[0]["weight"])
