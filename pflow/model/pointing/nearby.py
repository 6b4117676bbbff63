"""Attention of one event's tokens in blocks, without the pairs of tokens that are too far apart to count.

A head of strength lambda subtracts lambda |n_i - n_j|^2 / 2 from the logit of tokens i and j. Beyond some angle this is
more than any product of query and key can add, and the weight of j is below the rounding of single precision: such
pairs are not computed.

To find the others without looking at all pairs, tokens are ordered by their angle to one axis. The angle between two
tokens is at least the difference of their angles to the axis. So for each block of `ROWS` consecutive tokens, all
tokens within the angle that counts lie in one slice of that order, and the attention of the block is computed with this
slice alone.

Letters: S tokens, R rows of a block, B blocks, H heads, K width of a key, D width of a value.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pflow.model.common.directions import normalise

ROWS = 128
"""Tokens whose attention is computed at a time."""

STEP = 16
"""Tokens in whose steps the slices of those that count begin and end."""

LOG_ROUNDING = 26.0 * math.log(2.0)
"""Minus the logarithm of the largest fraction of a token's attention that may be left out: 1/4 of the rounding."""

MIN_DEPTH = 60.0
"""How far below zero the preference for directions counts at least: much farther, and the weights would be denormal
numbers, with which a CPU computes many times as slowly."""

MARGIN = 1e-3
"""Added to the angle within which tokens count: near an axis, angles from cosines are rounded to 4e-4 rad."""

MAX_WIDE = LOG_ROUNDING / 2.0
"""Largest strength of a head for which all tokens count, be they back to back. Its logits are rounded as others are."""

MAX_NEARNESS = 2**24
"""Most pairs of tokens whose `nearness_of` is held in memory, 64 MB; of more tokens it is made for `ROWS` at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Directions:
    """Directions of an event's tokens in the order of their angles to an axis."""

    unit: Tensor  # double [S, 3]
    angle: Tensor  # float [S], rising, rad

    @classmethod
    def of(cls, unit: Tensor) -> tuple[Directions, Tensor]:
        """From vectors float [S, 3] of at least one token, and the order int64 [S] in which they are."""
        unit = normalise(unit.double())
        angle = torch.acos((unit @ _jet_axis(unit)[:, None]).view(-1).float().clamp(-1.0, 1.0))
        # A token without direction is equally far from all.
        angle = torch.where(unit.square().sum(1).min() < 0.5, torch.zeros_like(angle), angle)
        angle, order = torch.sort(angle)
        return cls(unit.index_select(0, order), angle), order

    @functools.cached_property
    def near(self) -> list[Tensor] | None:
        """`nearness_of` each block of directions and all, float [R, S], unless they are too many."""
        if len(self.unit) ** 2 > MAX_NEARNESS:
            return None
        return [nearness_of(rows, self.unit) for rows in torch.split(self.unit, ROWS)]


def _jet_axis(unit: Tensor) -> Tensor:
    """About the axis to which most of the directions double [S, 3] are close, either way; double [3]."""
    spread = unit.t() @ unit
    for _ in range(4):  # in its 16th power the largest eigenvector dominates
        spread = spread @ spread
        spread = spread / spread.square().sum().clamp(min=1e-300).sqrt()
    return normalise(spread[spread.square().sum(1).argmax()])


def nearness_of(unit: Tensor, others: Tensor) -> Tensor:
    """n_i . n_j - 1 of unit vectors double [..., R, 3] and [..., S, 3], computed in double; float32 [..., R, S]."""
    return (unit @ others.transpose(-1, -2)).sub_(1.0).float()


def slices_nearby(query: Tensor, key: Tensor, directions: Directions, strength: Tensor) -> tuple[Tensor, Tensor]:
    """First token that counts, and the one after the last, for each head and block of tokens, int64 [2, H, B].

    Beside it the preference for directions, below zero, from which a token does not count, float [H].

    Of queries and keys [S, H, K], in the order of the directions, and strengths [H]. The weight of a token at the
    distance d is at most exp(|q| max |k| - q . k - lambda d^2 / 2) times the token's weight for itself (key k),
    and there are S.
    """
    angle = directions.angle
    length = torch.ones_like(angle).sum()
    largest = (query.square().sum(2) * key.square().sum(2).amax(0)).sqrt()  # [S, H]
    excess = (largest - (query * key).sum(2)).amax(0) + length.log() + LOG_ROUNDING
    reach = 2.0 * torch.asin((excess / (2.0 * strength)).sqrt().clamp(max=1.0)) + MARGIN
    first = torch.arange(0, angle.shape[0], ROWS, device=angle.device)
    begin, end = angle[first], angle[torch.minimum(first + (ROWS - 1), length.long() - 1)]  # of each block
    every, reach = angle[::STEP], reach[:, None]
    n_before = (every < (begin - reach)[..., None]).long().sum(2)  # [H, B]
    n_within = (every <= (end + reach)[..., None]).long().sum(2)
    return STEP * torch.stack([(n_before - 1).clamp(min=0), n_within]), excess


def attend_nearby(query: Tensor, key: Tensor, value: Tensor, directions: Directions, strength: Tensor) -> Tensor:
    """Attention with a preference for tokens in similar directions, float [S, H D].

    Of queries and keys [S, H, K] and values [S, H, D], in the order of the directions, and strengths [H].
    """
    slices, depth = slices_nearby(query, key, directions, strength)
    (starts, stops), near = slices.tolist(), directions.near
    factors, lowest = strength.tolist(), (depth.clamp(min=MIN_DEPTH) / -strength).tolist()
    queries, keys, values = query.unbind(1), [of_head.t() for of_head in key.unbind(1)], value.unbind(1)
    unit, wide = directions.unit.float(), {}
    for head, factor in enumerate(factors):
        if factor <= MAX_WIDE:  # torch's fused attention takes half the time
            both = torch.cat([queries[head], factor * unit], dim=1), torch.cat([key[:, head], unit], dim=1)
            of_all = scaled_dot_product_attention(*(part[None, None] for part in (*both, values[head])), scale=1.0)
            wide[head] = of_all[0, 0]
    attended = []
    for block, row in enumerate(range(0, len(query), ROWS)):
        rows, begin, of_heads = slice(row, row + ROWS), 0, []
        if near is None:
            begin = min(start[block] for start in starts)
            end = max(stop[block] for stop in stops)
            nearness = nearness_of(directions.unit[rows], directions.unit[begin:end])
        else:
            nearness = near[block]
        for head, factor in enumerate(factors):
            if head in wide:
                of_heads.append(wide[head][rows])
                continue
            start, stop = starts[head][block], stops[head][block]
            nearby = nearness[:, start - begin : stop - begin]
            logits = nearby.clamp(min=lowest[head]).addmm_(queries[head][rows], keys[head][:, start:stop], beta=factor)
            of_heads.append(logits.softmax(-1) @ values[head][start:stop])
        attended.append(torch.cat(of_heads, dim=1))
    return torch.cat(attended)
