"""Cross-attention with a bias, and without anything to see; layers are compared with torch's elsewhere."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from pflow.model.common.transformer import CrossAttention

W, H = 8, 2


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def test_rows_without_anything_to_see_are_finite_with_finite_gradients(generator):
    attention = CrossAttention(width=W, heads=H)
    x = torch.randn(2, 3, W, generator=generator, requires_grad=True)
    memory = torch.randn(2, 4, W, generator=generator, requires_grad=True)
    out = attention(x, attention.project(memory), mask=torch.zeros(2, 4, dtype=torch.bool))
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()
    assert memory.grad.isfinite().all()


def test_attention_with_a_bias_is_that_of_the_fused_kernel(generator):
    attention = CrossAttention(width=12, heads=3)
    nn.init.normal_(attention.key_value.bias)
    sizes = (2, 5, 12), (2, 7, 12), (2, 3, 5, 7)
    x, memory, bias = (torch.randn(*size, generator=generator) for size in sizes)
    query, key, value = attention.query(x), *attention.key_value(memory).chunk(2, dim=-1)
    parts = (part.view(2, -1, 3, 4).transpose(1, 2) for part in (query, key, value))
    attended = scaled_dot_product_attention(*parts, attn_mask=bias)
    expected = attention.out(attended.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, attention.project(memory).contiguous(), bias=bias), expected)
    torch.testing.assert_close(attention(x[:, 1], memory, bias=bias[:, :, 1:2]), expected[:, 1])
