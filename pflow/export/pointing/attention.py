"""`pflow.model.pointing.attention.DirectionalSelfAttention` of one event, with few passes over the logits.

As `pflow.model.pointing.nearby` it leaves out pairs of tokens that are too far apart to count.

Letters: S source tokens, R of them, W width, H heads, D = W / H, K width of a key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.export.attention_scan import AttentionInBlocks
from pflow.model.pointing.nearby import LOG_ROUNDING, ROWS, jet_axis

__all__ = ["DirectionalAttention", "Directions"]

MARGIN = 1e-3
"""Added to the angle within which tokens count: near an axis, angles from cosines are rounded to 4e-4 rad."""

STEP = 16
"""Tokens in whose steps the slices of those that count begin and end."""

MAX_WIDE = LOG_ROUNDING / 2.0
"""Largest strength of a head for which all tokens count, be they back to back."""

MAX_SINGLE = 1000.0
"""Largest strength of a head whose preference for directions is computed in single precision, which rounds its logits
to 6e-8 of the strength."""


class Directions(NamedTuple):
    """Directions of tokens in the order of their angles to an axis.

    Parameters
    ----------
    unit : float [S, 3]
    row_in_block : int64 [blocks * `ROWS`]
        Tokens in blocks of `ROWS`; the last is repeated where it is the end of one.
    rows : double [blocks, `ROWS`, 4]
    columns : double [S, 4]
        n_i . n_j - 1 = -|n_i - n_j|^2 / 2 is the product of a row and a column.
    angle : float [S / `STEP`], of the first of `STEP` tokens each, rising, rad
    begin, end : float [blocks, 1], smallest and largest angle of `ROWS` tokens each
    log_length : float [], logarithm of S
    """

    unit: Tensor
    row_in_block: Tensor
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
        cosine = torch.matmul(direction, jet_axis(direction).view(3, 1)).view(-1)
        angle = torch.acos(cosine.float().clamp(-1.0, 1.0))
        # A token without direction is equally far from all.
        angle = torch.where(direction.square().sum(1).min() < 0.5, torch.zeros_like(angle), angle)
        angle, order = torch.sort(angle)
        length = torch.ones_like(angle, dtype=torch.int64).sum()
        first = torch.arange(0, angle.shape[0], ROWS)
        begin, end = angle[first][:, None], angle[torch.minimum(first + (ROWS - 1), length - 1)][:, None]
        direction = direction.index_select(0, order)
        one = torch.ones_like(direction[:, :1])
        row_in_block = torch.minimum(first[:, None] + torch.arange(ROWS), length - 1).view(-1)
        rows = torch.cat([direction, one], dim=1).index_select(0, row_in_block).view(-1, ROWS, 4)
        columns = torch.cat([direction, -one], dim=1)
        bounds = angle[::STEP], begin, end, length.float().log()
        return cls(direction.float(), row_in_block, rows, columns, *bounds), order

    def in_blocks(self, x: Tensor) -> Tensor:
        """Values float [S, F] in blocks, float [blocks, `ROWS`, F]."""
        return x.index_select(0, self.row_in_block).view(-1, ROWS, x.shape[1])


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
        self.sliced = [int(strength > MAX_WIDE) for strength in self.strengths]
        self.precise = [strength if strength > MAX_SINGLE else 0.0 for strength in self.strengths]
        self.widths = [self.key_width + 3 * (not strength) for strength in self.precise]
        self.of_head = torch.eye(self.heads).repeat_interleave(self.key_width, dim=0)
        self.out = attention.out

    def forward(self, x: Tensor, directions: Directions) -> Tensor:
        """Attended states float [S, W] of x float [S, W], in the order of the directions."""
        products = torch.addmm(self.bias, x, self.weight)
        parts = torch.split(products, self.sizes, dim=1)
        queries, keys, values = (list(parts[i * self.heads : (i + 1) * self.heads]) for i in range(3))
        bounds, slices = self._bounds(products, directions), []
        for head, strength in enumerate(self.strengths):
            if self.sliced[head]:
                slices += [bounds[head, :, :1], bounds[head, :, 1:]]
            if not self.precise[head]:
                queries[head] = torch.cat([queries[head], strength * directions.unit], dim=1)
                keys[head] = torch.cat([keys[head], directions.unit], dim=1)
        in_blocks = directions.in_blocks(torch.cat(queries, dim=1)), directions.rows
        attended: Tensor = AttentionInBlocks.apply(  # type: ignore[no-untyped-call]
            self.widths, self.sliced, self.precise, *in_blocks, directions.columns, *slices, *keys, *values
        )
        return self.out(attended.view(-1, self.out.in_features)[: x.shape[0]])  # type: ignore[no-any-return]

    def _bounds(self, products: Tensor, directions: Directions) -> Tensor:
        """Slices of tokens that count for each head and block of tokens, int64 [H, blocks, 2], as in
        `pflow.model.pointing.nearby`."""
        width = self.heads * self.key_width
        query, key, _ = torch.split(products, [width, width, self.out.in_features], dim=1)
        queries, keys, own = (torch.matmul(x * y, self.of_head) for x, y in ((query, query), (key, key), (query, key)))
        largest = (queries * keys.amax(0)).sqrt()
        excess = (largest - own).amax(0) + directions.log_length + LOG_ROUNDING
        reach = 2.0 * torch.asin((excess / (2.0 * self.strength)).sqrt().clamp(max=1.0)) + MARGIN
        reach = reach[:, None, None]  # [H, 1, 1]
        n_before = (directions.angle < directions.begin - reach).long().sum(2)  # [H, blocks]
        n_within = (directions.angle <= directions.end + reach).long().sum(2)
        return STEP * torch.stack([(n_before - 1).clamp(min=0), n_within], dim=2)
