"""Pairs of a particle and an item (hit or track) that it may be assigned.

What is computed of pairs is written once, for any of the layouts: `PairList` of the particles of a batch, and
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
"""Items of which less is unassigned are in no pair: there are ever fewer pairs in the course of the decoding. The width
is that of the unassigned fraction over which what can be assigned of it falls to none."""


class PairList(NamedTuple):
    """A list of the pairs of many particles."""

    item: Tensor  # int64 [P], indices into B * M
    particle: Tensor  # int64 [P], indices into B * T
    at: Tensor  # int64 [P], indices into B * T * M
    event: Tensor  # int64 [P], indices into B
    shape: tuple[int, int, int]  # B, T and M

    @classmethod
    def where(cls, selected: Tensor, size: int | None = None) -> PairList:
        """The pairs that `selected`, bool [B, T, M], selects; `size`: their number, for which a GPU is not waited."""
        batch, steps, n_items = selected.shape
        if size is None:
            event, step, item = selected.nonzero(as_tuple=True)
            particle = step if batch == 1 else event * steps + step
            at = particle * n_items + item
        else:
            at = where(selected.flatten(), size)
            particle, item = at // n_items, at % n_items
            event = particle // steps
        if batch > 1:
            item = event * n_items + item
        return cls(item, particle, at, event, (batch, steps, n_items))

    def values(self, values: Tensor) -> Tensor:
        """Of values [B, T, M] those of the pairs, [P]."""
        # One index along one axis: with several indices it takes three times as long on a CPU.
        return values.flatten().index_select(0, self.at)

    def dense(self, values: Tensor) -> Tensor:
        """Values float [P] of the pairs in a tensor of zeros [B, T, M]."""
        batch, steps, n_items = self.shape
        return values.new_zeros(batch * steps * n_items).scatter(0, self.at, values).view(self.shape)

    def of_items(self, values: Tensor) -> Tensor:
        """Of values [B * M, ...] that of each pair's item, [P, ...]."""
        return values.index_select(0, self.item)

    def item_rows(self, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Of values [B * M, F] that of each pair's item, [F, P] of `dtype`."""
        return _rows(values, self.item, dtype or values.dtype)

    def of_particles(self, values: Tensor) -> Tensor:
        """Of values [N, ...] that of each pair's particle, [P, ...] or what counts as that in a sum or product."""
        return values.index_select(0, self.particle)

    def particle_rows(self, values: Tensor) -> Tensor:
        """Of values [N, F] that of each pair's particle, [F, P] or what counts as that in a sum or product."""
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
        at = (self.particle - self.event) * n_tokens + token  # tokens of an event begin at the event's number times S
        on_tokens = weight.new_zeros(batch * steps * n_tokens).index_add(0, at, weight).view(batch, steps, n_tokens)
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


def _rows(values: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Values [N, F] at an index [P], each of the F in a row of its own: [F, P]."""
    # Row by row into place: a copy of [P, F] that is then transposed takes ten times as long on a CPU.
    return values.t().gather(1, index.expand(values.shape[1], -1)).to(dtype)


def lengths(rows: Tensor) -> Tensor:
    """Lengths [1, P] of the vectors in rows [F, P]; torch's norm along them takes fifty times as long on a CPU."""
    return rows.square().sum(0, keepdim=True).sqrt()
