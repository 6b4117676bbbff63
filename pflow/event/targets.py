"""Targets: the truth particles that a rule selects, and the weights with which hits and tracks are theirs.

The rules: `pflow.event.truth`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.links import largest_weight, sum_neighbours

__all__ = ["AssignmentWeights", "Targets"]

Index = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class AssignmentWeights:
    """Weights of sources (hits or tracks) by assigned ancestor, [L] rows by event, source and ancestor.

    One row for each pair of a source and an ancestor; others have the weight 0 and count for nothing.
    """

    source: npt.NDArray[np.int32]  # in the event's list
    flat_source: Index  # in the list of all events
    particle: Index  # flat
    weight: npt.NDArray[np.float64]
    offsets: Index  # where the rows of each event begin and end

    @classmethod
    def of(cls, links: ak.Array, sources: ak.Array, assigned: Index, n_particles: Index) -> AssignmentWeights:
        """Those of some links.

        Parameters
        ----------
        links, sources
            [event, link] and [event, hit or track].
        assigned : int64 [particle], ancestor that each particle is assigned to, flat; -1 for none
        n_particles : int64 [event]
        """
        counts, n_links = jagged.count(sources), jagged.count(links)
        columns = jagged.columns(links)
        source, offsets = columns["source"], jagged.offsets(n_links)
        flat_source = np.repeat(jagged.offsets(counts)[:-1], n_links)
        flat_source += source
        particle = np.repeat(jagged.offsets(n_particles)[:-1], n_links)
        particle += columns["particle"]
        particle = assigned.take(particle)
        weight = columns["weight"].astype(np.float64)
        behind = np.flatnonzero(flat_source[1:] < flat_source[:-1])
        if len(behind):  # in few events
            is_unordered = np.zeros(len(n_links), dtype=np.bool_)
            is_unordered[np.searchsorted(offsets, behind, side="right") - 1] = True
            rows = np.flatnonzero(np.repeat(is_unordered, n_links))
            order = rows[np.argsort(flat_source[rows], kind="stable")]
            source = source.copy()
            for values in (source, flat_source, particle, weight):
                values[rows] = values[order]
        is_assigned = (particle >= 0) & (weight > 0)
        if not is_assigned.all():
            particle, weight = np.where(is_assigned, particle, 0), np.where(is_assigned, weight, 0.0)
        sum_neighbours(flat_source, particle, weight)
        return cls(source, flat_source, particle, weight, offsets)

    def rows(self) -> Index:
        """Those that count."""
        return np.flatnonzero(self.weight > 0)

    def largest(self) -> Index:
        """Row of each source's largest weight."""
        rows = self.rows()
        return rows[largest_weight(self.flat_source[rows], self.particle[rows], self.weight[rows])]

    def to_numbered(self, numbers: npt.NDArray[Any]) -> tuple[dict[str, npt.NDArray[Any]], Index]:
        """Rows that count of the particles that have a number, as columns of links, and their number in each event.

        `numbers` is that of each particle, int [particle], -1 for none.
        """
        number = numbers.take(self.particle)
        is_kept = (number >= 0) & (self.weight > 0)  # nearly all: faster by a mask than by indices
        dropped = np.flatnonzero(~is_kept)
        columns = {"source": self.source[is_kept], "particle": number[is_kept]}
        columns["weight"] = self.weight[is_kept].astype(np.float32)
        return columns, np.diff(self.offsets - np.searchsorted(dropped, self.offsets))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Targets:
    """The truth particles that a rule selects, with their hits and tracks, as records where they are first looked at.

    Parameters
    ----------
    rule
        Name of the rule.
    counts : int64 [event], number of targets
    chosen : int64 [target], index into the flat list of all events' ``truth``
    truth
        The events' truth.
    added
        Further fields of `particles`, [target] each.
    hits, tracks
        Weights by assigned ancestor; `tracks` is None where the events have no links from tracks.
    list_dropped
        Makes `dropped`.
    """

    rule: str
    counts: Index
    chosen: Index
    truth: ak.Array
    added: Mapping[str, npt.NDArray[Any]]
    hits: AssignmentWeights
    tracks: AssignmentWeights | None
    list_dropped: Callable[[], ak.Array]

    def __len__(self) -> int:
        return len(self.counts)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A field of `particles` one event after the other, [target]; by a name as of `pflow.event.jagged.columns`."""
        return self.added[name] if name in self.added else jagged.columns(self.truth)[name].take(self.chosen)

    @functools.cached_property
    def particles(self) -> ak.Array:
        """[event, target]: the fields of ``events.truth``, in its order, and what the rule adds.

        That is ``index`` (int64, into ``events.truth``), ``hit_energy`` (float64, energy of its hits by their weights,
        GeV) and ``n_tracks`` (int64).
        """
        particles = jagged.picked(jagged.flat_records(self.truth), self.chosen)
        return jagged.unflatten(jagged.extended(particles, self.added), self.counts)

    @functools.cached_property
    def hit_links(self) -> ak.Array:
        """[event, link]: source (hit), particle (index into `particles`), weight (float32, fraction of the source).

        Weights of dropped particles are left out, so those of a source may sum to less than 1.
        """
        return self._links(self.hits)

    @functools.cached_property
    def track_links(self) -> ak.Array | None:
        """The same of tracks; None where the events have none."""
        return None if self.tracks is None else self._links(self.tracks)

    def pairs(self, weights: AssignmentWeights, number: npt.NDArray[Any]) -> tuple[dict[str, npt.NDArray[Any]], Index]:
        """Columns of `hit_links` (of `hits`) or `track_links` (of `tracks`), [link], and the links of each event.

        ``particle`` is the `number` of each target, int [target].
        """
        numbers = np.full(int(jagged.count(self.truth).sum()), -1, dtype=number.dtype)
        numbers[self.chosen] = number
        return weights.to_numbered(numbers)

    def _links(self, weights: AssignmentWeights) -> ak.Array:
        return jagged.records(*self.pairs(weights, jagged.local_index(self.counts).astype(np.int32)))

    @functools.cached_property
    def dropped(self) -> ak.Array:
        """[event, particle]: index (int64, into ``events.truth``), pdg, energy [GeV], reason (text)."""
        return self.list_dropped()
