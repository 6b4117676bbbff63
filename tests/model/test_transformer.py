"""Layers against torch's own, which are built of the same blocks in another way."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pflow.model.transformer import (
    CrossAttention,
    Encoder,
    LayerStyle,
    SelfAttention,
    TransformerLayer,
    can_pack,
    gelu,
)
from pflow.model.translation import TranslationNetworkConfig
from pflow.model.translation.network import Decoder, standard_layer

W, H, FF = 8, 2, 12


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randomise(module):
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.uniform_(-0.5, 0.5, generator=generator)


def copied(theirs, *attentions, **style):
    """Our layer with the weights of torch's: its attentions fuse query, key and value in this order."""
    ours = TransformerLayer(*attentions, width=W, feedforward=FF, style=LayerStyle(**style))
    attention = theirs.self_attn
    ours.attention.query_key_value.weight.copy_(attention.in_proj_weight)
    ours.attention.query_key_value.bias.copy_(attention.in_proj_bias)
    pairs = [(ours.attention.out, attention.out_proj), (ours.attention_residual.norm, theirs.norm1)]
    if len(attentions) > 1:
        cross, attention = ours.memory_attention, theirs.multihead_attn
        for name in ("weight", "bias"):
            fused = getattr(attention, f"in_proj_{name}")
            getattr(cross.query, name).copy_(fused[:W])
            getattr(cross.key_value, name).copy_(fused[W:])
        pairs += [(cross.out, attention.out_proj), (ours.memory_residual.norm, theirs.norm2)]
    last_norm = theirs.norm3 if len(attentions) > 1 else theirs.norm2
    pairs += [(ours.feedforward[0], theirs.linear1), (ours.feedforward[-1], theirs.linear2)]
    for part, source in (*pairs, (ours.feedforward_residual.norm, last_norm)):
        part.load_state_dict(source.state_dict())
    return ours


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@torch.no_grad()
def test_encoder_layer_is_torchs(norm, activation):
    theirs = nn.TransformerEncoderLayer(W, H, FF, 0.0, activation, batch_first=True, norm_first=norm == "pre").train()
    randomise(theirs)
    ours = copied(theirs, SelfAttention(width=W, heads=H), norm=norm, activation=activation)
    x, mask = randn(2, 5, W), torch.tensor([[True] * 5, [True, True, True, False, False]])
    torch.testing.assert_close(ours(x, mask=mask)[mask], theirs(x, src_key_padding_mask=~mask)[mask])


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_decoder_layer_is_torchs(norm):
    theirs = nn.TransformerDecoderLayer(W, H, FF, 0.0, batch_first=True, norm_first=norm == "pre")
    randomise(theirs)
    ours = copied(theirs, SelfAttention(width=W, heads=H), CrossAttention(width=W, heads=H), norm=norm)
    x, memory, mask = randn(2, 4, W), randn(2, 5, W, seed=1), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    expected = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=~mask)
    known = ours.memory_attention.project(memory)
    torch.testing.assert_close(ours(x, known, memory_mask=mask, causal=True), expected)


@torch.no_grad()
def test_multi_projection_layer_is_its_description():
    """Project n times, each through its own decoder layer, join, add & norm, feed-forward 2 D_t, add & norm."""
    sizes = {"width": W, "heads": H, "feedforward": FF, "decoder_layers": 1}
    decoder = Decoder(TranslationNetworkConfig(decoder="multi_projection", n_projections=3, **sizes))
    randomise(decoder)
    x, memory, layer = randn(2, 4, 3 * W), randn(2, 5, W, seed=1), decoder.layers[0]
    weight, bias = layer.projections.weight.split(W), layer.projections.bias.split(W)
    translated = [
        branch(functional.linear(x, weight[i], bias[i]), branch.memory_attention.project(memory), causal=True)
        for i, branch in enumerate(layer.branches)
    ]
    joined = layer.branches_residual.norm(x + torch.cat(translated, dim=-1))
    first, second = layer.feedforward[0], layer.feedforward[-1]
    assert len(translated) == 3
    assert first.out_features == 2 * 3 * W
    expected = layer.feedforward_residual.norm(joined + second(first(joined).relu()))
    torch.testing.assert_close(decoder(x, decoder.project(memory)), expected)


def test_rows_without_anything_to_see_are_finite_with_finite_gradients():
    attention = CrossAttention(width=W, heads=H)
    x, memory = randn(2, 3, W).requires_grad_(), randn(2, 4, W, seed=1).requires_grad_()
    out = attention(x, attention.project(memory), mask=torch.zeros(2, 4, dtype=torch.bool))
    out.sum().backward()
    assert all(values.isfinite().all() for values in (out, x.grad, memory.grad))


def test_attention_with_a_bias_is_that_of_the_fused_kernel():
    attention = CrossAttention(width=12, heads=3)
    nn.init.normal_(attention.key_value.bias)
    x, memory, bias = randn(2, 5, 12), randn(2, 7, 12, seed=1), randn(2, 3, 5, 7, seed=2)
    query, key, value = attention.query(x), *attention.key_value(memory).chunk(2, dim=-1)
    parts = (part.view(2, -1, 3, 4).transpose(1, 2) for part in (query, key, value))
    attended = functional.scaled_dot_product_attention(*parts, attn_mask=bias)
    expected = attention.out(attended.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, attention.project(memory).contiguous(), bias=bias), expected)
    torch.testing.assert_close(attention(x[:, 1], attention.project(memory), bias=bias[:, :, 1:2]), expected[:, 1])


@pytest.mark.parametrize("shape", [(8,), (0, 8), (1, 8), (5, 8), (3, 1, 8), (1, 4, 8), (2, 3, 8)])
def test_it_is_torchs_gelu_and_so_is_its_gradient(shape):
    x = randn(*shape).requires_grad_()
    result, expected = gelu(x), functional.gelu(x)
    torch.testing.assert_close(result, expected)
    assert result.is_contiguous()
    weight = torch.linspace(-1.0, 2.0, x.numel()).view(shape)
    gradients = (torch.autograd.grad((y * weight).sum(), x) for y in (result, expected))
    torch.testing.assert_close(*gradients)


def test_gelu_of_one_row_is_as_of_many():
    x = randn(7, 96)
    assert torch.equal(gelu(x[3:4]), gelu(x)[3:4])


CONFIG = TranslationNetworkConfig(width=W, heads=H, feedforward=16, encoder_layers=2)
MASK = torch.tensor([[True, False, True, True], [True, False, False, False], [False, True, True, False]])


X = randn(3, 4, W)


def test_padding_is_packed_on_the_cpu_only():
    assert can_pack(MASK)
    assert not can_pack(None)
    assert not can_pack(MASK.to("meta"))
    encoder = Encoder([standard_layer(CONFIG, memory=False)], width=W, style=CONFIG.style)
    encoded = encoder(X, mask=torch.tensor([[False] * 4, [True] * 4, [False] * 4]))
    assert encoded.isfinite().all()
    torch.testing.assert_close(encoded[1:2], encoder(X[1:2]))
