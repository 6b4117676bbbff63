"""`pflow.model.pointing.attention.DirectionalSelfAttention` of one event, with few passes over the logits.

As `pflow.model.pointing.nearby` it leaves out pairs of tokens that are too far apart to count.

Letters: S source tokens, R of them, W width, H heads, D = W / H, K width of a key.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.pointing.nearby import LOG_ROUNDING, ROWS, jet_axis

__all__ = ["DirectionalAttention", "Directions"]

MARGIN = 1e-3
"""Added to the angle within which tokens count: near an axis, angles from cosines are rounded to 4e-4 rad."""

STEP = 16
"""Tokens in whose steps the slices of those that count begin and end."""

MAX_WIDE = LOG_ROUNDING / 2.0
"""Largest strength of a head for which all tokens count, be they back to back."""


class Directions(NamedTuple):
    """Directions of tokens in the order of their angles to an axis.

    Parameters
    ----------
    unit : float [S, 3]
    rows, columns : double [S, 4]
        n_i . n_j - 1 = -|n_i - n_j|^2 / 2 is the product of a row and a column.
    angle : float [S / `STEP`], of the first of `STEP` tokens each, rising, rad
    begin, end : float [blocks, 1], smallest and largest angle of `ROWS` tokens each
    log_length : float [], logarithm of S
    """

    unit: Tensor
    rows: Tensor
    columns: Tensor
    angle: Tensor
    begin: Tensor
    end: Tensor
    log_length: Tensor

    @classmethod
    def of(cls, unit: Tensor) -> tuple[Directions, Tensor]:
        """Of vectors float [S, 3], and the order int64 [S] in which they are."""
        direction = functional.normalize(unit.double(), dim=-1)
        angle = torch.acos(torch.mv(direction, jet_axis(direction)).float().clamp(-1.0, 1.0))
        # A token without direction is equally far from all.
        angle = torch.where(direction.square().sum(1).min() < 0.5, torch.zeros_like(angle), angle)
        angle, order = torch.sort(angle)
        length = torch.ones_like(angle, dtype=torch.int64).sum()
        first = torch.arange(0, angle.shape[0], ROWS)
        begin, end = angle[first][:, None], angle[torch.minimum(first + (ROWS - 1), length - 1)][:, None]
        direction = direction.index_select(0, order)
        one = torch.ones_like(direction[:, :1])
        rows, columns = torch.cat([direction, one], dim=1), torch.cat([direction, -one], dim=1)
        return cls(direction.float(), rows, columns, angle[::STEP], begin, end, length.float().log()), order


class DirectionalAttention(nn.Module):
    """The attention of a layer.

    Parameters
    ----------
    attention
        A `pflow.model.pointing.attention.DirectionalSelfAttention`.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.heads, self.key_width = attention.heads, attention.key_width
        width = self.heads * self.key_width
        scale = torch.ones(2 * width)
        scale[:width] = self.key_width**-0.5
        self.bias = torch.cat([attention.query_key.bias * scale, attention.value.bias])
        self.weight = torch.cat([attention.query_key.weight * scale[:, None], attention.value.weight]).t().contiguous()
        self.sizes = [*[self.key_width] * 2 * self.heads, *[attention.head_width] * self.heads]
        strength = torch.zeros(self.heads)
        if attention.log_strength is not None:
            strength = attention.initial_strength * attention.log_strength.exp()
        self.strength, self.strengths = strength, strength.tolist()
        self.out = attention.out

    def forward(self, x: Tensor, directions: Directions) -> Tensor:
        """Attended states float [S, W] of x float [S, W], in the order of the directions."""
        n, products = self.heads, torch.addmm(self.bias, x, self.weight)
        parts = torch.split(products, self.sizes, dim=1)
        bounds = self._bounds(products, directions)
        attended = []
        for head, strength in enumerate(self.strengths):
            query, key, value = parts[head], parts[n + head], parts[2 * n + head]
            if strength <= MAX_WIDE:
                query, key = torch.cat([query, strength * directions.unit], dim=1), torch.cat([key, directions.unit], 1)
                attended.append(_scripted(_attend)(query, key, value))
            else:
                of_directions = directions.rows, directions.columns, bounds[head]
                attended.append(_scripted(_attend_nearby)(query, key, value, *of_directions, strength))
        return self.out(torch.cat(attended, dim=1))  # type: ignore[no-any-return]

    def _bounds(self, products: Tensor, directions: Directions) -> Tensor:
        """Slices of tokens that count for each head and block of tokens, int64 [H, blocks, 2], as in
        `pflow.model.pointing.nearby`."""
        query, key = (
            products[:, begin : begin + self.heads * self.key_width].view(-1, self.heads, self.key_width)
            for begin in (0, self.heads * self.key_width)
        )
        largest = (query.square().sum(2) * key.square().sum(2).amax(0)).sqrt()
        excess = (largest - (query * key).sum(2)).amax(0) + directions.log_length + LOG_ROUNDING
        reach = 2.0 * torch.asin((excess / (2.0 * self.strength)).sqrt().clamp(max=1.0)) + MARGIN
        reach = reach[:, None, None]  # [H, 1, 1]
        n_before = (directions.angle < directions.begin - reach).long().sum(2)  # [H, blocks]
        n_within = (directions.angle <= directions.end + reach).long().sum(2)
        return STEP * torch.stack([(n_before - 1).clamp(min=0), n_within], dim=2)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A head's [S, D] of queries and keys [S, K + 3], values [S, D]."""
    length = query.shape[0]
    n_rows = 4194304 // length + 1  # some 16 MB of logits: memory grows with the number of tokens only
    blocks: list[Tensor] = []
    for start in range(0, length, n_rows):
        logits = torch.matmul(query[start : start + n_rows], key.t())
        blocks.append(torch.matmul(torch.softmax(logits, -1), value))
    return torch.cat(blocks, 0)


def _attend_nearby(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor,
    columns: Tensor,
    bounds: Tensor,
    strength: float,
) -> Tensor:
    """A head's [S, D] of queries and keys [S, K], values [S, D], `Directions` and bounds [blocks, 2]."""
    blocks: list[Tensor] = []
    for block in range(bounds.shape[0]):
        first = 128 * block  # `ROWS`: a script reads no constants of the module
        start, stop = int(bounds[block, 0]), int(bounds[block, 1])
        near = torch.matmul(rows[first : first + 128], columns[start:stop].t()).float()
        logits = torch.addmm(near, query[first : first + 128], key[start:stop].t(), beta=strength)
        blocks.append(torch.matmul(torch.softmax(logits, -1), value[start:stop]))
    return torch.cat(blocks, 0)


def _scripted(code: Any) -> Any:
    """As a script, whose loops become those of the graph; tracing would unroll them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=DeprecationWarning)
        return torch.jit.script(code)
