"""Attention against its formula, and masks that hide what they shall."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from pflow.model.common.attention import CrossAttention, SelfAttention
from pflow.model.common.cache import KVCache

W, H = 8, 2


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def by_formula(query, key, value, seen):
    """softmax(q k^T / sqrt(D)) v, head by head."""
    D = query.shape[-1] // H
    heads = []
    for h in range(H):
        part = slice(h * D, (h + 1) * D)
        logits = query[..., part] @ key[..., part].transpose(-1, -2) / D**0.5
        heads.append(logits.masked_fill(~seen, -torch.inf).softmax(-1) @ value[..., part])
    return torch.cat(heads, dim=-1)


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_the_formula(generator, causal):
    attention = SelfAttention(width=W, heads=H)
    x = torch.randn(3, 5, W, generator=generator)
    query, key, value = attention.query_key_value(x).chunk(3, dim=-1)
    seen = torch.ones(5, 5, dtype=torch.bool)
    expected = attention.out(by_formula(query, key, value, seen.tril() if causal else seen))
    torch.testing.assert_close(attention(x, causal=causal), expected)


def test_masked_tokens_are_not_seen_and_a_full_mask_is_no_mask(generator):
    attention = SelfAttention(width=W, heads=H)
    x = torch.randn(2, 5, W, generator=generator)
    mask = torch.tensor([[True, True, True, False, False], [True] * 5])
    torch.testing.assert_close(attention(x, mask=mask)[:1, :3], attention(x[:1, :3]))
    torch.testing.assert_close(attention(x, mask=mask)[1:], attention(x[1:]))


def test_cross_attention_is_the_formula(generator):
    attention = CrossAttention(width=W, heads=H)
    x, memory = torch.randn(2, 3, W, generator=generator), torch.randn(2, 4, W, generator=generator)
    key, value = attention.key_value(memory).chunk(2, dim=-1)
    mask = torch.tensor([[True, True, False, True], [True, False, False, False]])
    expected = attention.out(by_formula(attention.query(x), key, value, mask[:, None, :]))
    torch.testing.assert_close(attention(x, attention.project(memory), mask=mask), expected)


def test_rows_without_anything_to_see_are_finite_with_finite_gradients(generator):
    attention = CrossAttention(width=W, heads=H)
    x = torch.randn(2, 3, W, generator=generator, requires_grad=True)
    memory = torch.randn(2, 4, W, generator=generator, requires_grad=True)
    out = attention(x, attention.project(memory), mask=torch.zeros(2, 4, dtype=torch.bool))
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()
    assert memory.grad.isfinite().all()


def test_one_token_at_a_time_with_a_cache_equals_all_at_once(generator):
    attention = SelfAttention(width=W, heads=H)
    x = torch.randn(2, 5, W, generator=generator)
    cache = KVCache()
    with torch.no_grad():
        steps = [attention(x[:, i : i + 1], causal=True, cache=cache) for i in range(5)]
        torch.testing.assert_close(torch.cat(steps, dim=1), attention(x, causal=True))


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


def test_heads_that_do_not_divide_the_width_are_an_error():
    with pytest.raises(ValueError, match="3 heads do not divide a width of 8"):
        SelfAttention(width=W, heads=3)
