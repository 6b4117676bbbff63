"""Attention against its formula, and masks that hide what they shall."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from pflow.model.common.attention import AbsorbedCrossAttention, CrossAttention, SelfAttention
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


@pytest.mark.parametrize("kind", [SelfAttention, AbsorbedCrossAttention, CrossAttention])
@pytest.mark.parametrize("heads", [0, 3])
def test_heads_must_divide_the_width(kind, heads):
    with pytest.raises(ValueError, match=f"{heads} heads do not divide a width of 8"):
        kind(width=W, heads=heads)


def test_a_mask_is_not_for_causal_sequences_and_a_cache_takes_one_token():
    attention, x = SelfAttention(width=W, heads=H), torch.zeros(1, 2, W)
    with pytest.raises(ValueError, match="mask"):
        attention(x, causal=True, mask=torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="cache"):
        attention(x, causal=True, cache=KVCache())


@pytest.fixture
def to_memory():
    torch.manual_seed(0)
    attention = AbsorbedCrossAttention(width=12, heads=3)
    nn.init.normal_(attention.key_value.bias)
    return attention


def test_attention_to_a_memory_says_what_projected_keys_and_values_say(to_memory):
    x, memory, bias = torch.randn(2, 5, 12), torch.randn(2, 7, 12), torch.randn(2, 3, 5, 7)

    def split(part):
        return part.view(2, -1, 3, 4).transpose(1, 2)

    key, value = to_memory.key_value(memory).chunk(2, dim=-1)
    attended = scaled_dot_product_attention(split(to_memory.query(x)), split(key), split(value), attn_mask=bias)
    expected = to_memory.out(attended.transpose(1, 2).flatten(2))
    torch.testing.assert_close(to_memory(x, memory, bias), expected)
    torch.testing.assert_close(to_memory(x, to_memory.project(memory), bias), expected)


def test_what_a_bias_hides_of_a_memory_says_nothing(to_memory):
    x, memory = torch.randn(1, 2, 12), torch.randn(1, 4, 12)
    bias = torch.zeros(1, 3, 2, 4)
    bias[..., 2:] = -1e4
    torch.testing.assert_close(to_memory(x, memory, bias), to_memory(x, memory[:, :2], bias[..., :2]))
