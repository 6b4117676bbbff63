"""Pairs of a particle and an item (hit or track) that it may be assigned.

Each computation on pairs is written once, for either layout: `PairList` of the particles of a batch, and
`PairsOfOne` particle, where look-ups of particles fall away. Values of pairs are rows, [F, P], so that each operation
goes through memory once; values of particles are columns, [N, F].

Letters: B batch, T particles, N = B * T, S source tokens, M items, P pairs, W width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pflow.model.common.cache import where

MIN_UNASSIGNED, MIN_UNASSIGNED_WIDTH = 0.01, 0.005
"""Items with a smaller unassigned fraction are in no pair: the number of pairs shrinks as hits are assigned. Over the
width above it, the part of the unassigned fraction that can be assigned falls to 0."""


class PairList(NamedTuple):
    """A list of the pairs of many particles."""

    item: Tensor  # int64 [P], indices into B * M
    particle: Tensor  # int64 [P], indices into B * T
    flat: Tensor  # int64 [P], indices into B * T * M
    event: Tensor  # int64 [P], indices into B
    shape: tuple[int, int, int]  # B, T and M

    @classmethod
    def where(cls, selected: Tensor, size: int | None = None) -> PairList:
        """The pairs that `selected`, bool [B, T, M], selects; `size`: their number, for which a GPU is not waited."""
        batch, steps, n_items = selected.shape
        if size is None:
            event, step, item = selected.nonzero(as_tuple=True)
            particle = step if batch == 1 else event * steps + step
            flat = particle * n_items + item
        else:
            flat = where(selected.flatten(), size)
            particle, item = flat // n_items, flat % n_items
            event = particle // steps
        if batch > 1:
            item = event * n_items + item
        return cls(item, particle, flat, event, (batch, steps, n_items))

    def values(self, values: Tensor) -> Tensor:
        """The pairs' values, [P], of [B, T, M]."""
        # One index along one axis: with several indices it takes three times as long on a CPU.
        return values.flatten().index_select(0, self.flat)

    def dense(self, values: Tensor) -> Tensor:
        """Values float [P] of the pairs in a tensor of zeros [B, T, M]."""
        batch, steps, n_items = self.shape
        return values.new_zeros(batch * steps * n_items).scatter(0, self.flat, values).view(self.shape)

    def of_items(self, values: Tensor) -> Tensor:
        """The value of each pair's item, [P, ...], of [B * M, ...]."""
        return values.index_select(0, self.item)

    def item_rows(self, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The values of each pair's item, [F, P] of `dtype`, of [B * M, F]."""
        return _rows(values, self.item, dtype or values.dtype)

    def of_particles(self, values: Tensor) -> Tensor:
        """The value of each pair's particle, of [N, ...]: [P, ...], or a tensor that broadcasts to it."""
        return values.index_select(0, self.particle)

    def particle_rows(self, values: Tensor) -> Tensor:
        """The values of each pair's particle, of [N, F]: [F, P], or a tensor that broadcasts to it."""
        return _rows(values, self.particle, values.dtype)

    def sums(self, rows: Tensor) -> Tensor:
        """Sums of rows [F, P] over the pairs of each particle, [N, F]."""
        batch, steps, _ = self.shape
        return rows.new_zeros(batch * steps, rows.shape[0]).index_add(0, self.particle, rows.t())

    def any(self, flags: Tensor) -> Tensor:
        """Whether a flag, bool [P], of the pairs of each particle is set, bool [N]."""
        return self.sums(flags[None].float())[:, 0] > 0

    def mean_state(self, weight: Tensor, token: Tensor, states: Tensor) -> Tensor:
        """Mean, weighted by float [P], of the states [B * S, W] of the tokens int64 [P] of each particle's items."""
        batch, steps, _ = self.shape
        n_tokens = states.shape[0] // max(batch, 1)
        states = states.view(batch, n_tokens, states.shape[-1])
        index = (self.particle - self.event) * n_tokens + token  # an event's tokens begin at its number times S
        on_tokens = weight.new_zeros(batch * steps * n_tokens).index_add(0, index, weight).view(batch, steps, n_tokens)
        return (on_tokens @ states / on_tokens.sum(-1, keepdim=True).clamp(min=1e-9)).flatten(0, 1)


class PairsOfOne(NamedTuple):
    """The pairs of one particle, in a batch of one event: graphs that are exported hold no more."""

    item: Tensor

    def of_items(self, values: Tensor) -> Tensor:
        """As of `PairList`."""
        return values.index_select(0, self.item)

    def item_rows(self, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """As of `PairList`."""
        rows = self.of_items(values).t()
        return rows if dtype is None else rows.to(dtype)

    def of_particles(self, values: Tensor) -> Tensor:
        """As of `PairList`."""
        return values

    def particle_rows(self, values: Tensor) -> Tensor:
        """As of `PairList`."""
        return values.t()

    def sums(self, rows: Tensor) -> Tensor:
        """As of `PairList`."""
        return rows.sum(1, keepdim=True).t()

    def any(self, flags: Tensor) -> Tensor:
        """As of `PairList`."""
        return flags.any(0, keepdim=True)

    def mean_state(self, weight: Tensor, token: Tensor, states: Tensor) -> Tensor:
        """As of `PairList`."""
        total = weight[None] @ states.index_select(0, token)
        return total / weight.sum(0, keepdim=True).clamp(min=1e-9)


Pairs = PairList | PairsOfOne
"""Either layout."""


def sums_of_each(pairs: Pairs, *rows: Tensor) -> tuple[Tensor, ...]:
    """`PairList.sums` of several rows [F, P], [N, F] of each."""
    return pairs.sums(torch.cat(rows)).split_with_sizes([each.shape[0] for each in rows], dim=1)


def rows_of_each(pairs: Pairs, *values: Tensor) -> tuple[Tensor, ...]:
    """`PairList.particle_rows` of several columns [N, F], [F, P] of each."""
    return pairs.particle_rows(torch.cat(values, dim=1)).split_with_sizes([each.shape[1] for each in values])


def _rows(values: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Values [N, F] at an index [P], a row for each column: [F, P]."""
    # Row by row into place: a copy of [P, F] that is then transposed takes ten times as long on a CPU.
    return values.t().gather(1, index.expand(values.shape[1], -1)).to(dtype)


def lengths(rows: Tensor) -> Tensor:
    """Lengths [1, P] of the vectors in rows [F, P]; torch's norm along them takes fifty times as long on a CPU."""
    return rows.square().sum(0, keepdim=True).sqrt()
