"""Targets: the truth particles that a rule (`pflow.event.truth`) selects, and the links with their hits and tracks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.links import Links

__all__ = ["Targets"]

Index = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Targets:
    """The truth particles that a rule selects, with their hits and tracks; made into records where these are looked at.

    `counts` int64 [event]: number of targets; `chosen` int64 [target]: index into the flat list of all events' `truth`;
    `final` bool [particle]: which of these are in the generator's final state and visible in principle; `added`:
    further fields of `particles`, [target] each. `hits` and `tracks` link to each particle's assigned ancestor;
    `tracks` is None where the events have no links from tracks. `list_dropped` makes `dropped`.
    """

    rule: str
    counts: Index
    chosen: Index
    final: npt.NDArray[np.bool_]
    truth: ak.Array
    added: Mapping[str, npt.NDArray[Any]]
    hits: Links
    tracks: Links | None
    list_dropped: Callable[[], ak.Array]

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        return f"<Targets: {len(self)} events, {self.counts.sum()} particles by rule '{self.rule}'>"

    def column(self, name: str) -> npt.NDArray[Any]:
        """A field of `particles` one event after the other, [target]; by a name as of `pflow.event.jagged.columns`."""
        return self.added[name] if name in self.added else jagged.columns(self.truth)[name].take(self.chosen)

    @functools.cached_property
    def particles(self) -> ak.Array:
        """[event, target]: fields of ``events.truth``, ``index`` in it, ``hit_energy`` in GeV, ``n_tracks``."""
        columns = {name: values.take(self.chosen) for name, values in jagged.columns(self.truth).items()}
        return jagged.records({**columns, **self.added}, self.counts)

    @functools.cached_property
    def hit_links(self) -> ak.Array:
        """[event, link]: source (hit), particle (index into `particles`), weight; none to what is no target."""
        return self.links_to(self.hits, jagged.local_index(self.counts)).records()

    @functools.cached_property
    def track_links(self) -> ak.Array | None:
        """The same of tracks; None where the events have none."""
        return None if self.tracks is None else self.links_to(self.tracks, jagged.local_index(self.counts)).records()

    def links_to(self, links: Links, number: npt.NDArray[Any]) -> Links:
        """`hits` or `tracks` as links to the targets alone, by the `number` of each target, int [target]."""
        n_particles = jagged.count(self.truth)
        numbers = np.full(int(n_particles.sum()), -1, dtype=number.dtype)
        numbers[self.chosen] = number
        return links.to(numbers, n_particles)

    @functools.cached_property
    def dropped(self) -> ak.Array:
        """[event, particle]: index (int64, into ``events.truth``), pdg, energy [GeV], reason (text)."""
        return self.list_dropped()
