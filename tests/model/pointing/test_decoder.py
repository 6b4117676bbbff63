"""Attention to a memory that is not projected."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from pflow.model.pointing.decoder import UNSEEN, CoverageDecoder, MemoryAttention


@pytest.fixture
def attention() -> MemoryAttention:
    torch.manual_seed(0)
    attention = MemoryAttention(width=12, heads=3)
    nn.init.normal_(attention.key_value.bias)
    return attention


def test_it_says_what_projected_keys_and_values_say(attention):
    x, memory, bias = torch.randn(2, 5, 12), torch.randn(2, 7, 12), torch.randn(2, 3, 5, 7)

    def split(part):
        return part.view(2, -1, 3, 4).transpose(1, 2)

    key, value = attention.key_value(memory).chunk(2, dim=-1)
    attended = scaled_dot_product_attention(split(attention.query(x)), split(key), split(value), attn_mask=bias)
    expected = attention.out(attended.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, memory, bias), expected)


def test_what_is_not_seen_says_nothing(attention):
    x, memory = torch.randn(1, 2, 12), torch.randn(1, 4, 12)
    bias = torch.zeros(1, 3, 2, 4)
    bias[..., 2:] = UNSEEN
    torch.testing.assert_close(attention(x, memory, bias), attention(x, memory[:, :2], bias[..., :2]))


def test_heads_that_do_not_divide_the_width_are_told():
    with pytest.raises(ValueError, match="5 heads do not divide a width of 12"):
        MemoryAttention(width=12, heads=5)


def test_step_by_step_with_caches_says_what_the_whole_sentence_says():
    torch.manual_seed(0)
    decoder = CoverageDecoder(width=12, heads=3, feedforward=16, layers=2).eval()
    x, memory, covered = torch.randn(2, 4, 12), torch.randn(2, 6, 12), torch.rand(2, 4, 6)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    whole = decoder(x, memory, covered=covered, mask=mask)
    caches = decoder.caches(memory, 4)
    steps = [
        decoder(x[:, t : t + 1], memory, covered=covered[:, t : t + 1], mask=mask, caches=caches) for t in range(4)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
