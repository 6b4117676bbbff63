import pytest
import torch
from torch.nn.functional import normalize

from pflow.model.pointing import attention as nearby
from pflow.model.pointing.attention import Directions, attend_nearby

S, H, K, D = 2 * nearby.ROWS, 3, 5, 8
STRENGTH = torch.tensor([2.0, 300.0, 20000.0])
SCALE = K**-0.5


def jets(*, width: float = 0.2) -> torch.Tensor:
    """Directions of tokens in two jets back to back."""
    generator = torch.Generator().manual_seed(1)
    axis = torch.where(torch.arange(S)[:, None] % 2 == 0, 1.0, -1.0) * torch.tensor([[0.6, 0.0, 0.8]])
    return normalize(axis + width * torch.randn(S, 3, generator=generator), dim=-1)


def tensors():
    generator = torch.Generator().manual_seed(2)
    return (torch.randn(S, H, width, generator=generator) for width in (K, K, D))


def full(query, key, value, unit):
    """Softmax attention to all tokens, in double precision; [S, H, D]."""
    query, key, value, unit = (part.double() for part in (query, key, value, unit))
    unit = normalize(unit, dim=-1)
    near = STRENGTH.double()[:, None, None] * (unit @ unit.t() - 1.0)
    logits = torch.einsum("shk,thk->hst", query, key) * SCALE + near
    return torch.einsum("hst,thd->shd", logits.softmax(-1), value).float()


def attend(query, key, value, unit):
    directions, order = Directions.of(unit)
    parts = (part[order] for part in (SCALE * query, key, value))
    return attend_nearby(*parts, directions, STRENGTH)[order.argsort()].unflatten(1, (H, D))


@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("width", [0.02, 0.2, 2.0])
def test_it_is_attention_to_all_tokens(size, width):
    query, key, value = tensors()
    unit = jets(width=width)
    expected = full(size * query, size * key, value, unit)
    torch.testing.assert_close(attend(size * query, size * key, value, unit), expected, rtol=1e-5, atol=2e-5)


def test_tokens_out_of_reach_are_not_read():
    query, key, value = tensors()
    order = Directions.of(jets())[1]  # one jet, then the other
    value[order[: nearby.ROWS - nearby.STEP]] = torch.inf
    seen = attend(query, key, value, jets())[order[nearby.ROWS :]]
    assert not seen[:, 0].isfinite().any()
    assert seen[:, 1:].isfinite().all()


def test_directions_made_for_some_rows_at_a_time_change_nothing(monkeypatch):
    inputs = (*tensors(), jets())
    expected = attend(*inputs)
    monkeypatch.setattr(nearby, "MAX_PAIRS", 0)
    torch.testing.assert_close(attend(*inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [slice(5, 6), slice(None)])
def test_tokens_without_direction_are_as_far_from_all(rows):
    query, key, value = tensors()
    unit = jets()
    unit[rows] = 0.0
    # Logits of -20,000 are rounded to 0.001.
    torch.testing.assert_close(attend(query, key, value, unit), full(query, key, value, unit), rtol=0, atol=0.005)


def test_one_token():
    query, key, value = (part[:1] for part in tensors())
    torch.testing.assert_close(attend(query, key, value, jets()[:1]), value)
