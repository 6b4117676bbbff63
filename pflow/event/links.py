"""Links from hits and tracks (sources) to particles, with weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array

from pflow.event import jagged
from pflow.physics.arrays import Floats, Index

MIN_HIT_FRACTION = 0.01
"""Smaller fractions of a hit or track are not stored as links."""

FlatLinks = tuple[Index, Index, npt.NDArray[np.floating[Any]]]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Links:
    """Links of consecutive events; L in all.

    `counts` int64 [event]; `source` and `particle` int [L], indices of the hit or track and of the particle within the
    event; `weight` float [L], the particle's fraction of the source.
    """

    counts: Index
    source: npt.NDArray[np.integer[Any]]
    particle: npt.NDArray[np.integer[Any]]
    weight: npt.NDArray[np.floating[Any]]

    @classmethod
    def of(cls, records: ak.Array | None, n_events: int = 0) -> Links:
        """From records [event, link] such as ``events.hit_links``; for None, `n_events` events without links."""
        if records is None:
            none = np.zeros(0, dtype=np.int64)
            return cls(counts=np.zeros(n_events, dtype=np.int64), source=none, particle=none, weight=np.zeros(0))
        return cls(counts=jagged.count(records), **jagged.columns(records))

    @classmethod
    def by_event(cls, event: Index, source: Index, particle: Index, weight: Any, n_events: int) -> Links:
        """From columns [L] with the event of each link, in any order; stable within an event."""
        columns = {"source": source, "particle": particle, "weight": weight}
        if (event[1:] < event[:-1]).any():
            order = np.argsort(event, kind="stable")
            columns = {name: values[order] for name, values in columns.items()}
        return cls(counts=np.bincount(event, minlength=n_events), **columns)

    @classmethod
    def join(cls, pieces: Sequence[Links]) -> Links:
        """Join one or more sets of links of the same events."""
        columns = zip(*((piece.event, piece.source, piece.particle, piece.weight) for piece in pieces), strict=True)
        event, source, particle, weight = map(np.concatenate, columns)
        return cls.by_event(event, source, particle, weight, len(pieces[0].counts))

    def __len__(self) -> int:
        """Number of links."""
        return len(self.source)

    def records(self) -> ak.Array:
        """Records [event, link]: source and particle int32, weight float32."""
        types = {"source": np.int32, "particle": np.int32, "weight": np.float32}
        columns = {name: getattr(self, name).astype(dtype, copy=False) for name, dtype in types.items()}
        return jagged.records(columns, self.counts)

    @property
    def event(self) -> Index:
        """Event of each link, int64 [L]."""
        return jagged.event_index(self.counts)

    def flat_source(self, n_sources: Index) -> Index:
        """Each link's index into the flat list of sources, int64 [L]; `n_sources` int64 [event]."""
        return np.asarray(self.source + np.repeat(jagged.offsets(n_sources)[:-1], self.counts))

    def flat_particle(self, n_particles: Index) -> Index:
        """Each link's index into the flat list of particles, int64 [L]; `n_particles` int64 [event]."""
        return np.asarray(self.particle + np.repeat(jagged.offsets(n_particles)[:-1], self.counts))

    def take(self, rows: npt.NDArray[Any], **changed: npt.NDArray[Any]) -> Links:
        """Links chosen by a mask, or by indices in the order of the events, from these with columns `changed`."""
        columns = {name: getattr(self, name) for name in ("source", "particle", "weight")} | changed
        if rows.dtype == np.bool_:
            counts = self.counts if rows.all() else np.diff(jagged.offsets(rows)[jagged.offsets(self.counts)])
        else:
            counts = np.bincount(self.event[rows], minlength=len(self.counts))
        return Links(counts=counts, **{name: values[rows] for name, values in columns.items()})

    def to(self, particle: npt.NDArray[Any], n_particles: Index) -> Links:
        """Renumber the particles: `particle` has the new index of each in the flat list, -1 drops its links."""
        number = particle.take(self.flat_particle(n_particles))
        return self.take(number >= 0, particle=number)

    def normalised(self) -> Links:
        """With the weights of each source divided by their sum, float64.

        Weights in files are not comparable between calorimeters (4e-5 to 3.3 in one event), so only fractions are
        kept. A source whose weights sum to 0 has equal weights. A negative weight makes all weights of its source NaN,
        which `Events.validate` reports.
        """
        if not len(self):
            return self
        first = int(self.source.min())
        stride = int(self.source.max()) - first + 1
        group = self.event * stride + (self.source.astype(np.int64) - first)
        if len(self.counts) * stride > 16 * len(self) + 1024:  # else counting the sources is faster than sorting
            _, group = np.unique(group, return_inverse=True)
        weight = np.where(self.weight < 0, np.nan, self.weight).astype(np.float64)
        total = np.bincount(group, weight)[group]
        with np.errstate(divide="ignore", invalid="ignore"):
            fractions = np.where(total == 0, 1.0 / np.bincount(group)[group], weight / total)
        return dataclasses.replace(self, weight=fractions)

    def summed(self, ancestor: Index, n_sources: Index, n_particles: Index) -> Links:
        """Links to each particle's ancestor, int64 [all particles], -1 none; weights summed for each pair."""
        particle = ancestor.take(self.flat_particle(n_particles))
        linked = np.flatnonzero(particle >= 0)
        source, particle, weight = sum_by_pair(
            self.flat_source(n_sources)[linked], particle[linked], self.weight[linked].astype(np.float64)
        )
        first_source, first_particle = jagged.offsets(n_sources), jagged.offsets(n_particles)
        event = np.searchsorted(first_source, source, side="right") - 1
        links = Links.by_event(
            event, source - first_source[event], particle - first_particle[event], weight, len(n_sources)
        )
        return links.take(weight > 0)


def sum_by_pair(source: Index, particle: Index, weight: Floats) -> tuple[Index, Index, Floats]:
    """Sum the weights [L] of links with the same source and particle; sorted by source, then particle."""
    lowest = int(particle.min(initial=0))
    stride = int(particle.max(initial=0)) - lowest + 1
    pairs, group = np.unique(source * stride + particle - lowest, return_inverse=True)
    return pairs // stride, pairs % stride + lowest, np.bincount(group, weight, len(pairs)).astype(np.float64)


def largest_weight(
    source: Index, particle: npt.NDArray[np.integer[Any]], weight: npt.NDArray[np.floating[Any]]
) -> Index:
    """Index of each source's link with the largest weight, by rising source; ties take the lowest particle."""
    order = np.lexsort((particle, -weight, source))
    _, first = np.unique(source[order], return_index=True)
    return np.asarray(order[first])


def assigned_particle(links: ak.Array, sources: ak.Array) -> ak.Array:
    """Particle with the largest weight for each of `sources`, int32 [event, source]; -1 without a link."""
    flat, n_sources = Links.of(links), jagged.count(sources)
    source = flat.flat_source(n_sources)
    largest = largest_weight(source, flat.particle, flat.weight)
    assigned = np.full(int(n_sources.sum()), -1, dtype=np.int32)
    assigned[source[largest]] = flat.particle[largest]
    return jagged.unflatten(assigned, n_sources)


def shared_sources(
    first: FlatLinks, second: FlatLinks, energy: npt.NDArray[np.floating[Any]]
) -> tuple[Index, Index, Floats]:
    """Energy that each particle of one set shares with each of another through links from the same sources.

    `first` and `second` are source, particle and weight of each link, indices over all events; `energy`, float
    [source], is each hit's, GeV, or 1 for each track. Returns the pairs of particles that share a source, int64 [pair]
    each, sorted, and the sum over their sources of energy x first weight x second weight, float64 [pair].
    """

    def matrix(links: FlatLinks, scale: Any) -> Any:
        source, particle, weight = links
        shape = (int(particle.max(initial=-1)) + 1, len(energy))
        return coo_array((weight * scale, (particle, source)), shape=shape).tocsr()

    if not len(first[0]) or not len(second[0]):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    product = (matrix(first, np.asarray(energy, np.float64)[first[0]]) @ matrix(second, 1.0).T).tocoo()
    order = np.lexsort((product.col, product.row))
    return product.row[order].astype(np.int64), product.col[order].astype(np.int64), product.data[order]
