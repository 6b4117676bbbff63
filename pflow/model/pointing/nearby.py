"""`DirectionalSelfAttention` of one event on a CPU, without the pairs of tokens that are too far apart to count.

A head of strength lambda subtracts lambda |n_i - n_j|^2 / 2 from the logit of tokens i and j. Beyond some angle this is
more than any product of query and key can add, and the weight of j is below the rounding of single precision: such
pairs are not computed.

To find the others without looking at all pairs, tokens are ordered by their angle to one axis. The angle between two
tokens is at least the difference of their angles to the axis. So for each block of `ROWS` consecutive tokens, all
tokens within the angle that counts lie in one slice of that order, and the attention of the block is computed with this
slice alone.

Letters: S tokens, H heads, D width of a value, K width of a key.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["LOG_ROUNDING", "MAX_NEARNESS", "ROWS", "OrderedDirections", "attend_nearby", "jet_axis", "nearness_of"]

ROWS = 128
"""Tokens whose attention is computed at a time."""

LOG_ROUNDING = 26.0 * math.log(2.0)
"""Minus the logarithm of the largest fraction of a token's attention that may be left out: 1/4 of the rounding."""

MARGIN = 1e-6
"""Added to the angle within which tokens count, for the rounding of angles; rad."""

MAX_NEARNESS = 2**24
"""Most pairs of tokens whose `nearness_of` is held in memory, 64 MB; of more tokens it is made for `ROWS` at a time."""


class OrderedDirections(NamedTuple):
    """Directions of an event's tokens in the order of their angles to an axis.

    Parameters
    ----------
    unit : double [S, 3]
    angle : double [S], rising, rad
    near : float32 [S, S] or None
        `nearness_of` them, unless they are too many.
    """

    unit: Tensor
    angle: Tensor
    near: Tensor | None

    @classmethod
    def of(cls, unit: Tensor) -> tuple[OrderedDirections, Tensor]:
        """From directions float [S, 3], and the order int64 [S] in which they are."""
        unit = functional.normalize(unit.double(), dim=-1)
        angle = torch.acos((unit @ jet_axis(unit)).clamp(-1.0, 1.0))
        if len(unit) and unit.square().sum(1).min() < 0.5:  # a token without direction is equally far from all
            angle = torch.zeros_like(angle)
        order = angle.argsort(stable=True)
        unit = unit[order]
        return cls(unit, angle[order], nearness_of(unit, unit) if len(unit) ** 2 <= MAX_NEARNESS else None), order


def jet_axis(unit: Tensor) -> Tensor:
    """About the axis to which most of the directions double [S, 3] are close, either way; double [3]."""
    spread = unit.t() @ unit
    for _ in range(4):  # its 16th power, of which the largest eigenvector remains
        spread = spread @ spread
        spread = spread / spread.square().sum().clamp(min=1e-300).sqrt()
    return functional.normalize(spread[spread.square().sum(1).argmax()], dim=0)


def nearness_of(unit: Tensor, others: Tensor) -> Tensor:
    """n_i . n_j - 1 = -|n_i - n_j|^2 / 2 of unit vectors double [..., R, 3] and double [..., S, 3].

    Returns
    -------
    float32 [..., R, S]
        Computed in double precision.
    """
    return (unit @ others.transpose(-1, -2)).sub_(1.0).float()


def attend_nearby(
    query: Tensor, key: Tensor, value: Tensor, directions: OrderedDirections, *, strength: Tensor, scale: float
) -> Tensor:
    """Attention with a preference for tokens in similar directions, float [S, H, D].

    Parameters
    ----------
    query, key : float [S, H, K], in the order of the directions
    value : float [S, H, D]
    directions
        Of the tokens.
    strength : float [H]
    scale
        Factor of the products of queries and keys.
    """
    length, heads = len(query), len(strength)
    first = torch.arange(0, length, ROWS)
    last = (first + ROWS).clamp(max=length) - 1
    reach = _reach(query, key, strength=strength, scale=scale)[:, None] + MARGIN
    angle = directions.angle
    starts = torch.searchsorted(angle, angle[first] - reach).tolist()  # [H, blocks]
    stops = torch.searchsorted(angle, angle[last] + reach, right=True).tolist()
    factors = strength.tolist()
    attended = torch.empty_like(value, memory_format=torch.contiguous_format)
    for block, row in enumerate(first.tolist()):
        rows = slice(row, row + ROWS)
        begin = min(start[block] for start in starts)
        if directions.near is None:
            end = max(stop[block] for stop in stops)
            near = nearness_of(directions.unit[rows], directions.unit[begin:end])
        else:
            near, begin = directions.near[rows], 0
        for head in range(heads):
            start, stop = starts[head][block], stops[head][block]
            logits = torch.addmm(
                near[:, start - begin : stop - begin],
                query[rows, head],
                key[start:stop, head].t(),
                beta=factors[head],
                alpha=scale,
            )
            torch.softmax(logits, -1, out=logits)
            torch.mm(logits, value[start:stop, head], out=attended[rows, head])
    return attended


def _reach(query: Tensor, key: Tensor, *, strength: Tensor, scale: float) -> Tensor:
    """Angle beyond which tokens do not count for a head, double [H], rad; at most pi.

    The weight of a token at the distance d is at most exp(scale |q| max |k| - scale q . k - lambda d^2 / 2) of that of
    the token itself, whose key is k, and there are S of them.
    """
    own = (query * key).sum(-1)  # [S, H]
    largest = torch.linalg.vector_norm(query, dim=-1) * torch.linalg.vector_norm(key, dim=-1).amax(0)
    excess = scale * (largest - own).amax(0).double() + math.log(len(query)) + LOG_ROUNDING  # [H]
    return 2.0 * torch.asin((excess / (2.0 * strength.double())).sqrt().clamp(max=1.0))
