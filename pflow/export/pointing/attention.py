"""`pflow.model.pointing.attention.DirectionalSelfAttention` of one event, with few passes over the logits.

Letters: S source tokens, R of them, W width, H heads, D = W / H.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["DirectionalAttention", "Directions"]


class Directions(NamedTuple):
    """Directions of tokens.

    Parameters
    ----------
    rows, columns : double [S, 4], [4, S]
        Whose product is n_i . n_j - 1 = -|n_i - n_j|^2 / 2.
    near : float [S, S]
        The product; [0, S] where it is so large that each layer makes it for some rows at a time.
    """

    rows: Tensor
    columns: Tensor
    near: Tensor

    @classmethod
    def of(cls, unit: Tensor) -> Directions:
        """Of vectors float [S, 3]."""
        direction = functional.normalize(unit.double(), dim=-1)
        one = torch.ones_like(direction[:, :1])
        rows, columns = torch.cat([direction, one], dim=1), torch.cat([direction, -one], dim=1).t()
        return cls(rows, columns, _scripted(_shared)(rows, columns))


class DirectionalAttention(nn.Module):
    """The attention of a layer.

    Parameters
    ----------
    attention
        A `pflow.model.pointing.attention.DirectionalSelfAttention`.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        heads, width = attention.heads, attention.key_width
        scale = torch.ones(2 * heads * width)
        scale[: heads * width] = width**-0.5
        self.bias = torch.cat([attention.query_key.bias * scale, attention.value.bias])
        self.weight = torch.cat([attention.query_key.weight * scale[:, None], attention.value.weight]).t().contiguous()
        self.sizes = [*[width] * 2 * heads, *[attention.head_width] * heads]
        strength = torch.zeros(heads)
        if attention.log_strength is not None:
            strength = attention.initial_strength * attention.log_strength.exp()
        self.strength = strength.tolist()
        self.out = attention.out

    def forward(self, x: Tensor, directions: Directions) -> Tensor:
        """Attended states float [S, W] of x float [S, W]."""
        parts = torch.split(torch.addmm(self.bias, x, self.weight), self.sizes, dim=1)
        n = len(self.strength)
        heads = zip(parts[:n], parts[n : 2 * n], parts[2 * n :], self.strength, strict=True)
        attend = _scripted(_attend)
        attended = [attend(query, key, value, *directions, strength) for query, key, value, strength in heads]
        return self.out(torch.cat(attended, dim=1))  # type: ignore[no-any-return]


def _shared(rows: Tensor, columns: Tensor) -> Tensor:
    """`Directions.near`: of up to 2,048 tokens, 16 MB. (A script reads no constants of the module.)"""
    few = rows
    if rows.shape[0] > 2048:
        few = rows[:0]
    return torch.matmul(few, columns).float()


def _attend(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor, near: Tensor, strength: float
) -> Tensor:
    """A head's [S, D] of queries and keys [S, D - 3], values [S, D] and `Directions`."""
    length = rows.shape[0]
    if near.shape[0] == length:
        attended = torch.matmul(torch.softmax(torch.addmm(near, query, key.t(), beta=strength), -1), value)
    else:  # memory grows with the number of tokens only
        n_rows = 4194304 // length + 1  # some 16 MB of logits
        blocks: list[Tensor] = []
        for start in range(0, length, n_rows):
            block = torch.matmul(rows[start : start + n_rows], columns).float()
            logits = torch.addmm(block, query[start : start + n_rows], key.t(), beta=strength)
            blocks.append(torch.matmul(torch.softmax(logits, -1), value))
        attended = torch.cat(blocks, 0)
    return attended


def _scripted(code: Any) -> Any:
    """As a script, whose loops and conditions become those of the graph; tracing would unroll them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=DeprecationWarning)
        return torch.jit.script(code)
