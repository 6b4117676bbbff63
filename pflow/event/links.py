"""Links from hits and tracks (sources) to particles, with weights: one form for all that computes with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array

from pflow.event import jagged

MIN_HIT_FRACTION = 0.01
"""Smaller fractions of a hit or track are not stored as links."""

Index = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
FlatLinks = tuple[Index, Index, npt.NDArray[np.floating[Any]]]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Links:
    """Links of consecutive events, one event after the other; L in all.

    `counts` int64 [event]; `source` and `particle` int [L], indices of the hit or track and of the particle within the
    event; `weight` float [L], fraction of the source that the particle has.
    """

    counts: Index
    source: npt.NDArray[np.integer[Any]]
    particle: npt.NDArray[np.integer[Any]]
    weight: npt.NDArray[np.floating[Any]]

    @classmethod
    def of(cls, records: ak.Array | None, n_events: int = 0) -> Links:
        """From records [event, link] as of ``events.hit_links``; none of `n_events` for None."""
        if records is None:
            none = np.zeros(0, dtype=np.int64)
            return cls(counts=np.zeros(n_events, dtype=np.int64), source=none, particle=none, weight=np.zeros(0))
        return cls(counts=jagged.count(records), **jagged.columns(records))

    @classmethod
    def by_event(cls, event: Index, source: Index, particle: Index, weight: Any, n_events: int) -> Links:
        """From columns [L] with the event of each link, in any order; the links of an event keep theirs."""
        columns = {"source": source, "particle": particle, "weight": weight}
        if (event[1:] < event[:-1]).any():
            order = np.argsort(event, kind="stable")
            columns = {name: values[order] for name, values in columns.items()}
        return cls(counts=np.bincount(event, minlength=n_events), **columns)

    @classmethod
    def join(cls, pieces: Sequence[Links]) -> Links:
        """In each event, the links of several pieces one after the other; at least one piece."""
        event, source, particle, weight = map(
            np.concatenate, zip(*((p.event, p.source, p.particle, p.weight) for p in pieces), strict=True)
        )
        return cls.by_event(event, source, particle, weight, len(pieces[0].counts))

    def __len__(self) -> int:
        """Number of links."""
        return len(self.source)

    def records(self) -> ak.Array:
        """Records [event, link] for the user: source and particle int32, weight float32."""
        columns = {
            "source": self.source.astype(np.int32, copy=False),
            "particle": self.particle.astype(np.int32, copy=False),
            "weight": self.weight.astype(np.float32, copy=False),
        }
        return jagged.records(columns, self.counts)

    @property
    def event(self) -> Index:
        """Event of each link, int64 [L]."""
        return jagged.event_index(self.counts)

    def flat_source(self, n_sources: Index) -> Index:
        """Each link's source in the flat list of all events', int64 [L]; `n_sources` in each event, int64 [event]."""
        return np.asarray(self.source + np.repeat(jagged.offsets(n_sources)[:-1], self.counts))

    def flat_particle(self, n_particles: Index) -> Index:
        """Each link's particle in the flat list of all events', int64 [L]; `n_particles` in each event."""
        return np.asarray(self.particle + np.repeat(jagged.offsets(n_particles)[:-1], self.counts))

    def take(self, rows: npt.NDArray[Any], **changed: npt.NDArray[Any]) -> Links:
        """The links of a mask, or of indices that keep the events in order, some of the columns replaced before."""
        columns = {name: getattr(self, name) for name in ("source", "particle", "weight")} | changed
        if rows.dtype == np.bool_:
            counts = self.counts if rows.all() else np.diff(jagged.offsets(rows)[jagged.offsets(self.counts)])
        else:
            counts = np.bincount(self.event[rows], minlength=len(self.counts))
        return Links(counts=counts, **{name: values[rows] for name, values in columns.items()})

    def to(self, particle: npt.NDArray[Any], n_particles: Index) -> Links:
        """Links to other particles: `particle` says which, for each of the flat list, -1 for none (dropped)."""
        number = particle.take(self.flat_particle(n_particles))
        return self.take(number >= 0, particle=number)

    def normalised(self) -> Links:
        """With the weights of each source divided by their sum, float64.

        Weights in files are not comparable between calorimeters (4e-5 to 3.3 in one event), so only fractions are
        kept. A source whose weights sum to 0 has equal weights. Negative weights are kept for `Events.validate` to
        name: they make all weights of their source NaN.
        """
        weight = np.asarray(self.weight, dtype=np.float64)
        same, falls = self.source[1:] == self.source[:-1], self.source[1:] < self.source[:-1]
        begins = jagged.offsets(self.counts)[1:-1]
        begins = begins[(begins > 0) & (begins < len(self))] - 1
        same[begins] = falls[begins] = False  # the next event counts its own sources
        if falls.any():
            return dataclasses.replace(self, weight=_fractions(self.event, self.source, weight))
        # In the order of the sources, as in most files: most of them have one link, whose fraction is 1.
        several = _beside(same, len(self))
        fractions = np.ones(len(self))
        fractions[~(weight >= 0) | np.isinf(weight)] = np.nan
        fractions[several] = _fractions(self.event[several], self.source[several], weight[several])
        return dataclasses.replace(self, weight=fractions)

    def summed(self, ancestor: Index, n_sources: Index, n_particles: Index) -> Links:
        """Links to each particle's ancestor, int64 [all particles], -1 none; weights of a source summed."""
        source, weight = self.flat_source(n_sources), self.weight.astype(np.float64)
        particle = ancestor.take(self.flat_particle(n_particles))
        if (source[1:] < source[:-1]).any():
            order = np.argsort(source, kind="stable")
            source, particle, weight = source[order], particle[order], weight[order]
        weight[particle < 0] = 0.0
        several = np.flatnonzero(_beside(source[1:] == source[:-1], len(self)))
        sums = sum_by_pair(source[several], particle[several], weight[several])
        # The sums of a source take the place of its first links; fast where most sources have one link.
        n_before = np.searchsorted(sums[0], sums[0])  # sums of earlier sources
        place = several[np.searchsorted(source[several], sums[0]) + np.arange(len(sums[0])) - n_before]
        weight[several] = 0.0
        particle[place], weight[place] = sums[1:]
        local = [
            values - np.repeat(jagged.offsets(counts)[:-1], self.counts)
            for values, counts in ((source, n_sources), (particle, n_particles))
        ]
        whole = Links(counts=self.counts, source=local[0], particle=local[1], weight=weight)
        return whole.take(weight > 0)


def _beside(same: npt.NDArray[np.bool_], n: int) -> npt.NDArray[np.bool_]:
    """Which of `n` rows equal a neighbour, bool [n], from whether each equals the next, bool [n - 1]."""
    several = np.zeros(n, dtype=np.bool_)
    several[1:] = same
    several[:-1] |= same
    return several


def _fractions(event: Index, source: npt.NDArray[np.integer[Any]], weight: Floats) -> Floats:
    """Weights divided by the sum over all links of their source, in any order of the sources of an event."""
    if not len(source):
        return weight
    first = int(source.min())
    stride = int(source.max()) - first + 1
    group = event * stride + (source.astype(np.int64) - first)
    if event[-1] * stride > 16 * len(source) + 1024:  # far fewer sources than numbers of sources
        _, group = np.unique(group, return_inverse=True)
    weight = np.where(weight < 0, np.nan, weight)
    total = np.bincount(group, weight)[group]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(total == 0, 1.0 / np.bincount(group)[group], weight / total))


def sum_by_pair(source: Index, particle: Index, weight: Floats) -> tuple[Index, Index, Floats]:
    """Sum the weights [L] of links with the same source and particle; sorted by source, then particle."""
    lowest = int(particle.min(initial=0))
    stride = int(particle.max(initial=0)) - lowest + 1
    pairs, group = np.unique(source * stride + particle - lowest, return_inverse=True)
    return pairs // stride, pairs % stride + lowest, np.bincount(group, weight, len(pairs)).astype(np.float64)


def largest_weight(
    source: Index, particle: npt.NDArray[np.integer[Any]], weight: npt.NDArray[np.floating[Any]]
) -> Index:
    """Which link [L] has the largest weight of each source, by rising source; of equal ones, the lowest particle's."""
    order = np.lexsort((particle, -weight, source))
    _, first = np.unique(source[order], return_index=True)
    return np.asarray(order[first])


def assigned_particle(links: ak.Array, sources: ak.Array) -> ak.Array:
    """Particle with the largest weight of each of `sources`, int32 [event, source]; -1 for one without a link."""
    flat, n_sources = Links.of(links), jagged.count(sources)
    source = flat.flat_source(n_sources)
    largest = largest_weight(source, flat.particle, flat.weight)
    assigned = np.full(int(n_sources.sum()), -1, dtype=np.int32)
    assigned[source[largest]] = flat.particle[largest]
    return jagged.unflatten(assigned, n_sources)


def shared_sources(
    one: FlatLinks, other: FlatLinks, energy: npt.NDArray[np.floating[Any]]
) -> tuple[Index, Index, Floats]:
    """Energy that each particle of one set and each of another have in common, through links from the same sources.

    `one` and `other` are source, particle and weight of each link, indices over all events; `energy`, float [source],
    is each hit's, GeV, or 1 of each track. Returns the pairs that share a source, int64 [pair] each, sorted by
    particle, and the sum over their sources of energy x weight x other weight, float64 [pair].
    """

    def matrix(links: FlatLinks, scale: Any) -> Any:
        source, particle, weight = links
        shape = (int(particle.max(initial=-1)) + 1, len(energy))
        return coo_array((weight * scale, (particle, source)), shape=shape).tocsr()

    if not len(one[0]) or not len(other[0]):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    product = (matrix(one, np.asarray(energy, np.float64)[one[0]]) @ matrix(other, 1.0).T).tocoo()
    order = np.lexsort((product.col, product.row))
    return product.row[order].astype(np.int64), product.col[order].astype(np.int64), product.data[order]
