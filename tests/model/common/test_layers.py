"""Layers against torch's own, which are built of the same blocks in another way."""

import pytest
import torch

from pflow.model.common.attention import CrossAttention, SelfAttention
from pflow.model.common.layers import LayerStyle, TransformerLayer
from pflow.model.translation import TranslationNetworkConfig
from pflow.model.translation.layers import Decoder

W, H, FF = 8, 2, 12


def copy_attention(source, self_attention):
    """Weights of torch's multi-head attention into ours; both fuse query, key and value in this order."""
    if self_attention is not None:
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
