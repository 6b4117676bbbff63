"""Hits and tracks to particles: pairs of a particle and an item that it may be assigned, and their logits.

Each computation on pairs is written once, for either layout: `PairList` of the particles of a batch, and
`PairsOfOne` particle, where look-ups of particles fall away. Values of pairs are rows, [F, P], so that each operation
goes through memory once; values of particles are columns, [N, F].

Letters: B batch, T particles, N = B * T, S tokens, M items, P pairs, W width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pflow.model.common.decode import where
from pflow.model.common.transformer import FullyConnected, gelu
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.geometry import ItemFeatures, ItemPlaces, Items, Tables, TokenFrames, cosines, gather

CONE = 0.3  # rad, angle to a seed within which hits and tracks can be assigned to its particle
# Items with a smaller unassigned fraction are in no pair: the number of pairs shrinks as hits are assigned. Over the
# width above it, the part of the unassigned fraction that can be assigned falls to 0.
MIN_UNASSIGNED, MIN_UNASSIGNED_WIDTH = 0.01, 0.005

PAIR_FEATURES = (
    *("log_across", "near", "wide", "along", "depth", "log_angle", "angle", "same_token"),
    *("theta", "near_theta", "arc", "near_theta_arc"),
)
"""Features of the position of an item relative to a seed. Of the distance across the shower's axis: logarithm, and
exponentials over a short and a long distance; of the distance along it: itself, and exponential; of the angle:
logarithm, and exponential; whether the item is in the seed's token; and differences in angle: without tracks these
tell the two showers of a converted photon, which the field separates in azimuth, from two photons."""


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

    def item_rows(self, values: Tensor) -> Tensor:
        """The values of each pair's item, [F, P], of [B * M, F]."""
        return _rows(values, self.item)

    def of_particles(self, values: Tensor) -> Tensor:
        """The value of each pair's particle, of [N, ...]: [P, ...], or a tensor that broadcasts to it."""
        return values.index_select(0, self.particle)

    def particle_rows(self, values: Tensor) -> Tensor:
        """The values of each pair's particle, of [N, F]: [F, P], or a tensor that broadcasts to it."""
        return _rows(values, self.particle)

    def sums(self, rows: Tensor) -> Tensor:
        """Sums of rows [F, P] over the pairs of each particle, [N, F]."""
        batch, steps, _ = self.shape
        return rows.new_zeros(batch * steps, rows.shape[0]).index_add(0, self.particle, rows.t())

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

    def item_rows(self, values: Tensor) -> Tensor:
        """As of `PairList`."""
        return self.of_items(values).t()

    def of_particles(self, values: Tensor) -> Tensor:
        """As of `PairList`."""
        return values

    def particle_rows(self, values: Tensor) -> Tensor:
        """As of `PairList`."""
        return values.t()

    def sums(self, rows: Tensor) -> Tensor:
        """As of `PairList`."""
        return rows.sum(1, keepdim=True).t()

    def mean_state(self, weight: Tensor, token: Tensor, states: Tensor) -> Tensor:
        """As of `PairList`."""
        total = weight[None] @ states.index_select(0, token)
        return total / weight.sum(0, keepdim=True).clamp(min=1e-9)


Pairs = PairList | PairsOfOne


def ramp(values: Tensor, start: float, width: float) -> Tensor:
    """From 0 at `start` to 1 at ``start + width``, which may lie below: a cut would turn rounding into a jump."""
    return ((values - start) / width).clamp(0.0, 1.0)


def sums_of_each(pairs: Pairs, *rows: Tensor) -> tuple[Tensor, ...]:
    """`PairList.sums` of several rows [F, P], [N, F] of each."""
    return pairs.sums(torch.cat(rows)).split_with_sizes([each.shape[0] for each in rows], dim=1)


def rows_of_each(pairs: Pairs, *values: Tensor) -> tuple[Tensor, ...]:
    """`PairList.particle_rows` of several columns [N, F], [F, P] of each."""
    return pairs.particle_rows(torch.cat(values, dim=1)).split_with_sizes([each.shape[1] for each in values])


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Values [N, F] at an index [P], a row for each column: [F, P]."""
    # Row by row into place: a copy of [P, F] that is then transposed takes ten times as long on a CPU.
    return values.t().gather(1, index.expand(values.shape[1], -1))


def lengths(rows: Tensor) -> Tensor:
    """Lengths [1, P] of the vectors in rows [F, P]; torch's norm along them takes fifty times as long on a CPU."""
    return rows.square().sum(0, keepdim=True).sqrt()


class Assignment(NamedTuple):
    """Hits and tracks of particles."""

    query: Tensor  # float [N, W], what describes the particle to the assignment and to its head
    logits: Tensor  # float [P], of the particle's fraction of the item's unassigned part
    hit_fraction: Tensor  # float [P], fraction of the item that is the particle's


class ParticleAssignment(nn.Module):
    """Assign items to the particles that start at given seeds."""

    def __init__(self, config: PointingNetworkConfig, *, n_subdetectors: int) -> None:
        super().__init__()
        width = config.width
        self.query = FullyConnected((2 * width, width, width))
        self.pair_logits = AssignmentLogits(
            width=width, hidden_width=config.hidden_width, n_subdetectors=n_subdetectors
        )

    def forward(self, states: Tensor, seed: Tensor, tables: Tables, unassigned: Tensor, pairs: Pairs) -> Assignment:
        """Assign to particles with decoder states [N, W] and seeds int64 [N], indices into B * S.

        `unassigned`, float [P], is the unassigned fraction of each pair's item before the particle.
        """
        query = self.query(torch.cat([states, tables.states.index_select(0, seed)], dim=1))
        logits = self.pair_logits(query, seed, tables, tables.hidden, (1.0 - unassigned)[None], pairs)
        available = unassigned * ramp(unassigned, MIN_UNASSIGNED, MIN_UNASSIGNED_WIDTH)
        return Assignment(query, logits, logits.sigmoid() * available)


def candidates(tables: Tables, seed: Tensor, unassigned: Tensor) -> Tensor:
    """Items that the particles of seeds int64 [B, T], indices into B * S, may be assigned, bool [B, T, M].

    They are near the seed and not assigned to others: `unassigned`, float [B, T, M] or [B, 1, M]. The items
    of the seed's token are among them in any case, so that each particle has a pair.
    """
    frames = TokenFrames.of(tables.tokens.frames.index_select(0, seed.flatten()))
    unit, of_token = frames.unit.view(*seed.shape, 3), tables.items.token.view(len(seed), 1, tables.n_items)
    near = (cosines(unit, tables.items.direction) > math.cos(CONE)) & (unassigned >= MIN_UNASSIGNED)
    near = near | (of_token == seed[..., None])
    return near & tables.items.mask.view_as(of_token) if tables.padded else near


class AssignmentLogits(nn.Module):
    """A logit for each pair of a particle and an item.

    Of the particle's query, the memory of the item's token, the item, its position relative to the seed along and
    across the axis of the shower that starts there, and `n_known` known fractions of the item.
    """

    def __init__(
        self, *, width: int, hidden_width: int, n_subdetectors: int, n_known: int = 1, initial: float | None = None
    ) -> None:
        super().__init__()
        self.query = nn.Linear(width, hidden_width)
        self.token = nn.Linear(width, hidden_width, bias=False)
        self.item = nn.Linear(sum(ItemFeatures.widths()) + n_subdetectors, hidden_width, bias=False)
        self.geometry = nn.Linear(len(PAIR_FEATURES) + n_known, hidden_width, bias=False)
        self.out = FullyConnected((hidden_width, 16, 1), initial=initial)
        # Distances over which exponentials fall by e: of across (twice) and along [mm], angle [rad], theta.
        falls_over = torch.tensor([[10.0], [50.0], [50.0], [0.02], [1.0]])
        self.register_buffer("falls_over", falls_over, persistent=False)

    def items(self, memory: Tensor, items: Items) -> Tensor:
        """The part that all particles share, float [B, M, hidden]: memory float [B, S, W] of the tokens, and items."""
        return gather(self.token(memory), items.token) + self.item(items.features)  # type: ignore[no-any-return]

    def forward(
        self, query: Tensor, seed: Tensor, tables: Tables, hidden: Tensor, known: Tensor, pairs: Pairs
    ) -> Tensor:
        """Logits float [P] of queries [N, W] and seeds int64 [N], indices into B * S.

        `hidden`, float [B * M, hidden], is from `items`; `known`, float [n_known, P], are the known fractions.
        """
        x = pairs.of_items(hidden) + pairs.of_particles(self.query(query))
        features = torch.cat([*self._features(seed, tables, pairs), known])
        x = torch.addmm(x, features.t(), self.geometry.weight.t())
        return self.out(gelu(x)).squeeze(-1)  # type: ignore[no-any-return]

    def _features(self, seed: Tensor, tables: Tables, pairs: Pairs) -> Sequence[Tensor]:
        """`PAIR_FEATURES`, float [1, P] each."""
        start = TokenFrames.of(pairs.particle_rows(tables.tokens.frames.index_select(0, seed)), dim=0)
        from_start = ItemPlaces.of(pairs.item_rows(tables.items.places) - start.place, dim=0)
        offset, apart = from_start.position, from_start.unit
        along = (offset * start.axis).sum(0, keepdim=True)
        across = lengths(offset.addcmul(along, start.axis, value=-1))
        angle = lengths(apart)
        theta = from_start.theta.sum(0, keepdim=True)
        arc = (apart * start.azimuth).sum(0, keepdim=True)
        sizes = torch.cat([across, across, along.abs(), angle, theta.abs()])
        near, wide, depth, narrow, near_theta = (sizes / -self.get_buffer("falls_over")).exp().chunk(5)
        same = (pairs.of_items(tables.items.token) == pairs.of_particles(seed))[None].to(along.dtype)
        turned, bent = torch.cat([theta, arc]).asinh().chunk(2)
        return (
            *(torch.log1p(across / 10.0), near, wide, (along / 300.0).clamp(-3.0, 5.0), depth),
            *((angle + 1e-3).log() / 2.0, narrow, same, turned, near_theta, bent, near_theta * bent.abs()),
        )
