import pytest
import torch
from torch.nn import functional

from pflow.model.common.layers import gelu


@pytest.mark.parametrize("shape", [(8,), (0, 8), (1, 8), (5, 8), (3, 1, 8), (1, 4, 8), (2, 3, 8)])
def test_it_is_torchs_gelu_and_so_is_its_gradient(shape):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found, expected = gelu(x), functional.gelu(x)
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous()
    weight = torch.linspace(-1.0, 2.0, x.numel()).view(shape)
    gradients = (torch.autograd.grad((y * weight).sum(), x) for y in (found, expected))
    torch.testing.assert_close(*gradients)
