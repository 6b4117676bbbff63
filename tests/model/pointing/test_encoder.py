import pytest
import torch
from torch.nn.functional import normalize

from pflow.model import transformer
from pflow.model.pointing import encoder as nearby
from pflow.model.pointing.encoder import DirectionalSelfAttention, Directions, attend_nearby
from pflow.model.transformer import Encoder, LayerStyle, TransformerLayer

B, S, W, H = 3, 7, 24, 2
MASK = torch.arange(S)[None] < torch.tensor([7, 0, 4])[:, None]


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(1)
    unit = normalize(torch.randn(B, S, 3, generator=generator), dim=-1)
    return torch.randn(B, S, W, generator=generator), unit


@pytest.fixture
def attention():
    torch.manual_seed(0)
    attention = DirectionalSelfAttention(width=W, heads=H)
    with torch.no_grad():
        attention.log_strength.copy_(torch.tensor([0.3, -0.5]))
    return attention.eval()


def written_out(query, key, value, unit, strength, mask=None):
    """Softmax attention in double precision, with the bias lambda_h n_i . n_j of each head; [..., S, H, D]."""
    query, key, value, unit, strength = (part.double() for part in (query, key, value, unit, strength))
    near = strength[:, None, None] * (unit @ unit.mT)[..., None, :, :]
    logits = torch.einsum("...shk,...thk->...hst", query, key) / query.shape[-1] ** 0.5 + near
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None, None], float("-inf"))
    return torch.einsum("...hst,...thd->...shd", logits.softmax(-1), value).float()


def plain(attention, x, unit, mask):
    query, key = attention.query_key(x).unflatten(-1, (2, H, -1)).unbind(-3)
    strength = torch.tensor([3.0 * 2.718281828**0.3, 3000.0 * 2.718281828**-0.5])
    attended = written_out(query, key, attention.value(x).unflatten(-1, (H, -1)), unit, strength, mask)
    return attention.out(attended.flatten(-2))


def fused(unit):
    return {"unit": unit}


def precise(unit):
    return {"directions": unit.double()}


@pytest.mark.parametrize("by", [fused, precise])
def test_it_is_softmax_attention_with_a_bias_of_nearness(attention, inputs, by):
    x, unit = inputs
    expected = plain(attention, x, unit, torch.ones(B, S, dtype=torch.bool))
    torch.testing.assert_close(attention(x, **by(unit)), expected, rtol=1e-3, atol=1e-4)
    seen = MASK.any(1)
    expected = plain(attention, x, unit, MASK)[seen]
    torch.testing.assert_close(attention(x, **by(unit), mask=MASK)[seen], expected, rtol=1e-3, atol=1e-4)


def test_some_rows_at_a_time_or_one_event_in_order_give_the_same(attention, inputs, monkeypatch):
    x, unit = inputs
    directions, order = Directions.of(unit[0])
    expected = attention(x[:1, order], **precise(unit[:1, order]))[0]
    torch.testing.assert_close(attention(x[0, order], directions=directions), expected)
    expected = attention(x, **precise(unit), mask=MASK)[MASK]
    monkeypatch.setattr(nearby, "MAX_PAIRS", 2 * B * H * S)
    torch.testing.assert_close(attention(x, **precise(unit), mask=MASK)[MASK], expected)


def test_under_autocast_directions_are_not_rounded(attention, inputs):
    x, unit = inputs
    unit = normalize(unit[:, :1] + 0.02 * unit, dim=-1)  # some 20 mrad apart: the narrow head's width
    with torch.no_grad():
        for by in (fused, precise):
            expected = attention(x, **by(unit))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                torch.testing.assert_close(attention(x, **by(unit)).float(), expected, rtol=0, atol=0.05)


def test_the_encoder_and_its_gradients_are_the_same_packed_and_padded(inputs, monkeypatch):
    torch.manual_seed(0)
    style = LayerStyle(norm="pre", activation="gelu")
    layer = TransformerLayer(DirectionalSelfAttention(width=W, heads=H), width=W, feedforward=16, style=style)
    encoder, (x, unit), results = Encoder([layer], width=W, style=style), inputs, []
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        encoded = encoder(leaf, mask=MASK, unit=unit)[MASK]
        results.append((encoded, *torch.autograd.grad(encoded.square().sum(), leaf)))
        monkeypatch.setattr(transformer, "can_pack", lambda mask: False)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


N, K, D = 2 * nearby.BLOCK_TOKENS, 5, 8
STRENGTH = torch.tensor([2.0, 300.0, 20000.0])


def jets(*, width: float = 0.2) -> torch.Tensor:
    """Directions of tokens in two jets back to back."""
    generator = torch.Generator().manual_seed(1)
    axis = torch.where(torch.arange(N)[:, None] % 2 == 0, 1.0, -1.0) * torch.tensor([[0.6, 0.0, 0.8]])
    return normalize(axis + width * torch.randn(N, 3, generator=generator), dim=-1)


def tensors():
    generator = torch.Generator().manual_seed(2)
    return (torch.randn(N, 3, width, generator=generator) for width in (K, K, D))


def attend(query, key, value, unit):
    directions, order = Directions.of(unit)
    parts = (part[order] for part in (query / K**0.5, key, value))
    return attend_nearby(*parts, directions, STRENGTH)[order.argsort()].unflatten(1, (3, D))


@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("width", [0.02, 0.2, 2.0])
@pytest.mark.parametrize("max_pairs", [nearby.MAX_PAIRS, 0])  # with directions of all pairs, or of some rows at a time
def test_it_is_attention_to_all_tokens(size, width, max_pairs, monkeypatch):
    monkeypatch.setattr(nearby, "MAX_PAIRS", max_pairs)
    query, key, value = tensors()
    unit = jets(width=width)
    expected = written_out(size * query, size * key, value, normalize(unit.double(), dim=-1), STRENGTH)
    torch.testing.assert_close(attend(size * query, size * key, value, unit), expected, rtol=1e-5, atol=2e-5)


def test_tokens_out_of_reach_are_not_read():
    query, key, value = tensors()
    order = Directions.of(jets())[1]  # one jet, then the other
    value[order[: nearby.BLOCK_TOKENS - nearby.SLICE_STEP]] = torch.inf
    seen = attend(query, key, value, jets())[order[nearby.BLOCK_TOKENS :]]
    assert not seen[:, 0].isfinite().any()
    assert seen[:, 1:].isfinite().all()


@pytest.mark.parametrize("rows", [slice(5, 6), slice(None)])
def test_tokens_without_direction_are_as_far_from_all(rows):
    query, key, value = tensors()
    unit = jets()
    unit[rows] = 0.0
    expected = written_out(query, key, value, unit, STRENGTH)
    # Logits of -20,000 are rounded to 0.001.
    torch.testing.assert_close(attend(query, key, value, unit), expected, rtol=0, atol=0.005)


def test_one_token():
    query, key, value = (part[:1] for part in tensors())
    torch.testing.assert_close(attend(query, key, value, jets()[:1]), value)
