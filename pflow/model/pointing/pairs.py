"""Pairs of a particle and an item (hit or track) that it may be assigned.

Letters: B batch, T particles, S source tokens, M items, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pflow.model.common.cache import where
from pflow.model.pointing.geometry import Scene

__all__ = ["Pairs", "select_pairs"]

MIN_UNASSIGNED, MIN_UNASSIGNED_WIDTH = 0.01, 0.005
"""Items of which less is unassigned are in no pair: there are ever fewer pairs in the course of the decoding. The width
is that of the unassigned fraction over which what can be assigned of it falls to none."""


class Pairs(NamedTuple):
    """Pairs of a particle and an item.

    ``*_values`` look up a value for each pair, along the first axis of the result; ``*_rows`` along its last axis, each
    feature in a row of its own. ``*_sums`` add up values of pairs.

    Parameters
    ----------
    event, particle, item : int64 [P]
        Indices into B, T and M.
    particle_of, item_of : int64 [P]
        Indices into B * T and B * M.
    """

    event: Tensor
    particle: Tensor
    item: Tensor
    particle_of: Tensor
    item_of: Tensor

    @classmethod
    def where(cls, selected: Tensor, size: int | None = None) -> Pairs:
        """The pairs that `selected`, bool [B, T, M], selects; `size`: their number, for which a GPU is not waited."""
        if size is None:
            event, particle, item = selected.nonzero(as_tuple=True)
        else:
            at = where(selected.flatten(), size)
            row, item = at // selected.shape[2], at % selected.shape[2]
            event, particle = row // selected.shape[1], row % selected.shape[1]
        if len(selected) == 1:
            return cls(event, particle, item, particle, item)
        return cls(event, particle, item, event * selected.shape[1] + particle, event * selected.shape[2] + item)

    def pair_values(self, values: Tensor) -> Tensor:
        """Of values [B, T, M] those of the pairs, [P]; the second axis may be longer than T."""
        # One index along one axis: with several indices it takes three times as long on a CPU.
        row = self.particle if len(values) == 1 else self.event * values.shape[1] + self.particle
        at = row * values.shape[2] + self.item
        return values.flatten().index_select(0, at)

    def item_values(self, values: Tensor) -> Tensor:
        """Of values [B, M, ...] that of each pair's item, [P, ...]."""
        return values.flatten(0, 1).index_select(0, self.item_of)

    def particle_values(self, values: Tensor) -> Tensor:
        """Of values [B, T, ...] that of each pair's particle, [P, ...]."""
        return self.flat_particle_values(values.flatten(0, 1))

    def flat_particle_values(self, values: Tensor) -> Tensor:
        """Of values [B * T, ...] that of each pair's particle, [P, ...]."""
        return values.index_select(0, self.particle_of)

    def item_rows(self, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Of values [B, M, F] that of each pair's item, [F, P] of `dtype`."""
        return _rows(values.flatten(0, 1), self.item_of, values.dtype if dtype is None else dtype)

    def particle_rows(self, values: Tensor) -> Tensor:
        """Of values [F, B * T] that of each pair's particle, [F, P]."""
        return _rows(values.t(), self.particle_of, values.dtype)

    def dense(self, values: Tensor, shape: Sequence[int]) -> Tensor:
        """Values float [P] of the pairs in a tensor of zeros [B, T, M]."""
        at = self.particle_of * shape[2] + self.item
        return values.new_zeros(shape[0] * shape[1] * shape[2]).scatter(0, at, values).view(*shape)

    def token_sums(self, values: Tensor, scene: Scene, shape: tuple[int, int]) -> Tensor:
        """Sum of values float [P] over a particle's items in each token, [B, T, S]; `shape` is (B, T)."""
        n_tokens = scene.token_mask.shape[1]
        at = self.particle_of * n_tokens + self.item_values(scene.item_token)
        summed = values.new_zeros(shape[0] * shape[1] * n_tokens).index_add(0, at, values)
        return summed.view(*shape, n_tokens)

    def particle_sums(self, values: Tensor, size: int) -> Tensor:
        """Sum of values float [P, ...] over the items of each of `size` = B * T particles, [size, ...]."""
        return values.new_zeros(size, *values.shape[1:]).index_add(0, self.particle_of, values)

    def particle_row_sums(self, values: Tensor, size: int) -> Tensor:
        """Sum of values float [F, P] over the items of each of `size` = B * T particles, [F, size]."""
        return self.particle_sums(values.t(), size).t()


def _rows(values: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Values [N, F] at an index [P], each of the F in a row of its own: [F, P]."""
    if not torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return torch.stack(values.index_select(0, index).unbind(1)).to(dtype)  # faster than a transposed copy
    # Element by element: onnxruntime takes as long for each short row as for ten elements.
    rows = values.t()
    n = len(rows)  # a constant: the other length is none
    begin = values.shape[0] * torch.arange(n)
    return rows.reshape(-1).index_select(0, (begin[:, None] + index).view(-1)).view(n, -1).to(dtype)


def select_pairs(scene: Scene, seed: Tensor, unassigned: Tensor, mask: Tensor, *, min_cosine: float) -> Tensor:
    """The items within an angle of each seed of which at least `MIN_UNASSIGNED` is unassigned, bool [B, T, M].

    Parameters
    ----------
    scene
        Of the batch.
    seed : int64 [B, T], index of a token
    unassigned : float [B, T, M], unassigned fraction of each item
    mask : bool [B, T], True = real particle
    min_cosine
        Cosine of the largest angle between the directions of seed and item from the origin.
    """
    near = scene.cosines(seed) > min_cosine
    return near & (unassigned >= MIN_UNASSIGNED) & mask[..., None] & scene.item_mask[:, None]
