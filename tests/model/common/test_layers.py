"""Layers against torch's own, which are built of the same blocks in another way; packed events against padded ones."""

import dataclasses

import pytest
import torch
from torch.nn import functional

from pflow.model.common.transformer import CrossAttention, LayerStyle, Packing, SelfAttention, TransformerLayer, gelu
from pflow.model.translation import TranslationNetworkConfig
from pflow.model.translation.network import Decoder, make_encoder

W, H, FF = 8, 2, 12


def copy_attention(source, self_attention):
    """Weights of torch's multi-head attention into ours; both fuse query, key and value in this order."""
    self_attention.query_key_value.weight.copy_(source.in_proj_weight)
    self_attention.query_key_value.bias.copy_(source.in_proj_bias)
    self_attention.out.load_state_dict(source.out_proj.state_dict())


def copy_cross(source, attention):
    attention.query.weight.copy_(source.in_proj_weight[:W])
    attention.query.bias.copy_(source.in_proj_bias[:W])
    attention.key_value.weight.copy_(source.in_proj_weight[W:])
    attention.key_value.bias.copy_(source.in_proj_bias[W:])
    attention.out.load_state_dict(source.out_proj.state_dict())


def randomise(module):
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.uniform_(-0.5, 0.5, generator=generator)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer_is_torchs(norm, activation):
    with torch.no_grad():
        theirs = torch.nn.TransformerEncoderLayer(
            W, H, FF, 0.0, activation, batch_first=True, norm_first=norm == "pre"
        ).train()
        randomise(theirs)
        style = LayerStyle(norm=norm, activation=activation)
        ours = TransformerLayer(SelfAttention(width=W, heads=H), width=W, feedforward=FF, style=style)
        copy_attention(theirs.self_attn, ours.attention)
        ours.feedforward[0].load_state_dict(theirs.linear1.state_dict())
        ours.feedforward[-1].load_state_dict(theirs.linear2.state_dict())
        ours.attention_residual.norm.load_state_dict(theirs.norm1.state_dict())
        ours.feedforward_residual.norm.load_state_dict(theirs.norm2.state_dict())
        x = torch.randn(2, 5, W, generator=torch.Generator().manual_seed(1))
        mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
        expected = theirs(x, src_key_padding_mask=~mask)
        torch.testing.assert_close(ours(x, mask=mask)[mask], expected[mask])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_decoder_layer_is_torchs(norm):
    with torch.no_grad():
        theirs = torch.nn.TransformerDecoderLayer(W, H, FF, 0.0, batch_first=True, norm_first=norm == "pre")
        randomise(theirs)
        attentions = SelfAttention(width=W, heads=H), CrossAttention(width=W, heads=H)
        ours = TransformerLayer(*attentions, width=W, feedforward=FF, style=LayerStyle(norm=norm))
        copy_attention(theirs.self_attn, ours.attention)
        copy_cross(theirs.multihead_attn, ours.memory_attention)
        ours.feedforward[0].load_state_dict(theirs.linear1.state_dict())
        ours.feedforward[-1].load_state_dict(theirs.linear2.state_dict())
        ours.attention_residual.norm.load_state_dict(theirs.norm1.state_dict())
        ours.memory_residual.norm.load_state_dict(theirs.norm2.state_dict())
        ours.feedforward_residual.norm.load_state_dict(theirs.norm3.state_dict())
        generator = torch.Generator().manual_seed(1)
        x, memory = torch.randn(2, 4, W, generator=generator), torch.randn(2, 5, W, generator=generator)
        mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
        causal = torch.nn.Transformer.generate_square_subsequent_mask(4)
        expected = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=~mask)
        known = ours.memory_attention.project(memory)
        torch.testing.assert_close(ours(x, known, memory_mask=mask, causal=True), expected)


def test_multi_projection_layer_is_its_description():
    """Project n times, each through its own decoder layer, join, add & norm, feed-forward 2 D_t, add & norm."""
    with torch.no_grad():
        sizes = {"width": W, "heads": H, "feedforward": FF, "decoder_layers": 1}
        config = TranslationNetworkConfig(decoder="multi_projection", n_projections=3, **sizes)
        decoder = Decoder(config)
        randomise(decoder)
        generator = torch.Generator().manual_seed(1)
        x, memory = torch.randn(2, 4, 3 * W, generator=generator), torch.randn(2, 5, W, generator=generator)
        layer = decoder.layers[0]
        narrow = [
            torch.nn.functional.linear(
                x, layer.projections.weight[i * W : (i + 1) * W], layer.projections.bias[i * W : (i + 1) * W]
            )
            for i in range(3)
        ]
        translated = [
            branch(part, branch.memory_attention.project(memory), causal=True)
            for branch, part in zip(layer.branches, narrow, strict=True)
        ]
        joined = layer.branches_residual.norm(x + torch.cat(translated, dim=-1))
        first, second = layer.feedforward[0], layer.feedforward[-1]
        assert first.out_features == 2 * 3 * W
        expected = layer.feedforward_residual.norm(joined + second(first(joined).relu()))
        torch.testing.assert_close(decoder(x, decoder.project(memory)), expected)


@pytest.mark.parametrize("shape", [(8,), (0, 8), (1, 8), (5, 8), (3, 1, 8), (1, 4, 8), (2, 3, 8)])
def test_it_is_torchs_gelu_and_so_is_its_gradient(shape):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    result, expected = gelu(x), functional.gelu(x)
    torch.testing.assert_close(result, expected)
    assert result.is_contiguous()
    weight = torch.linspace(-1.0, 2.0, x.numel()).view(shape)
    gradients = (torch.autograd.grad((y * weight).sum(), x) for y in (result, expected))
    torch.testing.assert_close(*gradients)


CONFIG = TranslationNetworkConfig(width=W, heads=H, feedforward=16, encoder_layers=2)
MASK = torch.tensor([[True, False, True, True], [True, False, False, False], [False, True, True, False]])


@pytest.fixture
def x():
    return torch.randn(3, 4, W, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def unpacked(monkeypatch):
    """Switch packing off, as on a GPU."""

    def switch_off():
        monkeypatch.setattr(Packing, "of", staticmethod(lambda mask: None))

    return switch_off


def test_nothing_is_packed_without_padding_or_off_the_cpu():
    assert Packing.of(None) is None
    assert Packing.of(MASK.to("meta")) is None


@pytest.mark.parametrize("other_mask", [None, torch.tensor([[True, True], [True, False], [False, True]])])
def test_cross_encoder_is_the_same_packed_and_padded(other_mask, x, unpacked):
    encoder = make_encoder(dataclasses.replace(CONFIG, source="cross"))
    memory = torch.randn(3, 2, W, generator=torch.Generator().manual_seed(1))
    packed = encoder(x, mask=MASK, memory=memory, memory_mask=other_mask)
    unpacked()
    torch.testing.assert_close(packed[MASK], encoder(x, mask=MASK, memory=memory, memory_mask=other_mask)[MASK])


def test_encoder_and_its_gradients_are_the_same_packed_and_padded(x, unpacked):
    encoder = make_encoder(CONFIG)
    encoded, gradients = [], []
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        encoded.append(encoder(leaf, mask=MASK)[MASK])
        encoded[-1].square().sum().backward()
        gradients.append(leaf.grad)
        unpacked()
    torch.testing.assert_close(*encoded)
    torch.testing.assert_close(*gradients)


def test_an_event_without_any_token_packs(x):
    mask = torch.tensor([[False] * 4, [True] * 4, [False] * 4])
    encoder = make_encoder(CONFIG)
    encoded = encoder(x, mask=mask)
    assert encoded.isfinite().all()
    torch.testing.assert_close(encoded[1:2], encoder(x[1:2]))


def test_gelu_of_one_row_is_as_of_many():
    x = torch.randn(7, 96)
    assert torch.equal(gelu(x[3:4]), gelu(x)[3:4])
