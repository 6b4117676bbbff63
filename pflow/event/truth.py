"""Truth rules: which Monte Carlo particles a reconstruction should find, and which hits and tracks belong to them.

A rule assigns each Monte Carlo particle to an ancestor (or to itself), for which its hits and tracks count, and selects
targets among these assigned ancestors:

``calo``
    Each particle is assigned to itself: conversion electrons, decay products and albedo are particles of their own.
    Targets have the largest weight of at least one hit.
``stable``
    The assigned ancestor is the nearest one with generator status 1, so that conversions, decays in flight and showers
    belong to the particle that made them. Targets are visible: they have a track, or hits worth at least
    max(0.1 GeV, 5% of their energy).
``entering``
    The assigned ancestor is the one that enters the calorimeter: of the ancestry from the root down to the particle,
    the last one before the first vertex inside the calorimeter. Albedo, and what albedo makes on its way, belong to the
    particle that went in. Targets have the largest weight of at least one hit.

In every rule a target has more energy than `e_min` and is no neutrino. If tracks are part of the source, a particle
with a track needs no hits. Hits and tracks of dropped particles stay in the event, as in a real detector, and belong to
no target.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import check_choice
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.links import largest_weight, sum_neighbours
from pflow.physics.detector import Detector
from pflow.physics.pdg import is_neutrino

__all__ = ["RULES", "AssignmentWeights", "Targets", "assigned_ancestors", "select_targets"]

RULES = ("calo", "stable", "entering")
"""Names of the truth rules."""

MIN_VISIBLE_ENERGY = 0.1
"""Smallest energy in hits, GeV, that makes a particle visible under ``stable``."""
MIN_VISIBLE_FRACTION = 0.05
"""Smallest fraction of its energy in hits that makes a particle visible under ``stable``."""

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class AssignmentWeights:
    """Weights of sources (hits or tracks) by assigned ancestor, [L] rows by event, source and ancestor.

    One row for each pair of a source and an ancestor; others have the weight 0 and count for nothing.
    """

    source: npt.NDArray[np.int32]  # in the event's list
    flat_source: Index  # in the list of all events
    particle: Index  # flat
    weight: Floats
    offsets: Index  # where the rows of each event begin and end

    @classmethod
    def of(cls, links: ak.Array, sources: ak.Array, ancestry: _Ancestry, assigned: Index) -> AssignmentWeights:
        """Those of some links, by the ancestor that each particle is assigned to."""
        counts, n_links = jagged.count(sources), jagged.count(links)
        columns = jagged.columns(links)
        source, offsets = columns["source"], jagged.offsets(n_links)
        flat_source = np.repeat(jagged.offsets(counts)[:-1], n_links)
        flat_source += source
        particle = np.repeat(jagged.offsets(ancestry.counts)[:-1], n_links)
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


def assigned_ancestors(events: Events, *, rule: str) -> Index:
    """The ancestor that each Monte Carlo particle is assigned to under a rule, whether it becomes a target or not.

    Returns
    -------
    int64 [N] over the flat list of all events' ``truth``: index into the same list, -1 for none.

    Raises
    ------
    ConfigError
        No such rule.
    InputError
        The events hold no truth, or particles that are their own ancestors.
    """
    check_choice(rule, RULES, "truth rule")
    if events.truth is None:
        raise events.error(f"truth rule '{rule}' needs truth particles; the file holds none")
    return _assign(_Ancestry(events, events.truth), rule, events.detector)


def select_targets(events: Events, *, rule: str = "stable", e_min: float = 0.1, use_tracks: bool = True) -> Targets:
    """Apply a truth rule to events.

    Parameters
    ----------
    events
        Events with truth particles and links from hits to them.
    rule
        ``calo``, ``stable`` or ``entering``.
    e_min
        Energy that a target must exceed, GeV.
    use_tracks
        Whether tracks are part of the source: a particle with a track is then visible by it.

    Raises
    ------
    ConfigError
        No such rule.
    InputError
        The events hold no truth, no links to it, or particles that are their own ancestors.
    """
    check_choice(rule, RULES, "truth rule")
    truth, hit_links = events.truth, events.hit_links
    if truth is None or hit_links is None:
        raise events.error(
            f"truth rule '{rule}' needs truth particles and links from hits to them; the file holds none",
            field="truth" if truth is None else "hit_links",
        )
    ancestry = _Ancestry(events, truth)
    assigned = _assign(ancestry, rule, events.detector)
    hits = AssignmentWeights.of(hit_links, events.hits, ancestry, assigned)
    energy = jagged.columns(events.hits)["energy"].take(hits.flat_source)
    hit_energy = np.bincount(hits.particle, hits.weight * energy, ancestry.size).astype(np.float64)
    tracks = None
    n_tracks = np.zeros(ancestry.size, dtype=np.int64)
    if events.track_links is not None and events.tracks is not None:
        tracks = AssignmentWeights.of(events.track_links, events.tracks, ancestry, assigned)
        n_tracks = np.bincount(tracks.particle[tracks.largest()], minlength=ancestry.size)
    has_track = (n_tracks > 0) & use_tracks

    columns = jagged.columns(truth)
    energy = columns["energy"]
    neutrino = is_neutrino(columns["pdg"])
    needed = np.zeros(ancestry.size)
    if rule == "stable":
        needed = np.maximum(MIN_VISIBLE_ENERGY, MIN_VISIBLE_FRACTION * energy)
        candidate = ancestry.status == 1
        visible = has_track | (hit_energy >= needed)
    else:
        candidate = n_tracks > 0
        candidate[hits.particle[hits.rows()]] = True
        visible = has_track.copy()
        visible[hits.particle[hits.largest()]] = True
    target = candidate & visible & ~neutrino & (energy > e_min)

    chosen = np.flatnonzero(target)
    return Targets(
        rule=rule,
        counts=np.bincount(ancestry.event[chosen], minlength=len(ancestry.counts)),
        chosen=chosen,
        truth=truth,
        added={"index": ancestry.local[chosen], "hit_energy": hit_energy[chosen], "n_tracks": n_tracks[chosen]},
        hits=hits,
        tracks=tracks,
        list_dropped=functools.partial(
            _dropped, truth, ancestry, candidate & ~target, e_min, neutrino, hit_energy, needed
        ),
    )


class _Ancestry:
    """The particles of all events in one flat list, with indices of parents into the same list (-1 none)."""

    def __init__(self, events: Events, truth: ak.Array) -> None:
        self.counts = jagged.count(truth)
        self.size = int(self.counts.sum())
        self.event = jagged.event_index(self.counts)
        self.local = jagged.local_index(self.counts)
        columns = jagged.columns(truth)
        parent = columns["parent"]
        self.parent = np.where(parent < 0, -1, parent + jagged.offsets(self.counts)[self.event])
        self.status = columns["status"]
        self.vertex = {axis: columns[f"vertex.{axis}"] for axis in "xyz"}
        self._events = events
        self.nearest(np.zeros(self.size, dtype=np.bool_))  # refuses particles that are their own ancestors

    def nearest(self, wanted: Mask) -> Index:
        """For each particle, the nearest of itself and its ancestors where `wanted` holds; -1 if none does."""
        at = np.arange(self.size)
        for _ in range(int(self.counts.max(initial=0)) + 1):
            moving = (at >= 0) & ~wanted[at]
            if not moving.any():
                return at
            at = np.where(moving, self.parent[at], at)
        index = int(self.event[np.flatnonzero(moving)[0]])
        raise self._events.error("a particle is its own ancestor", index=index, field="truth.parent")


def _assign(ancestry: _Ancestry, rule: str, detector: Detector) -> Index:
    if rule == "calo":
        return np.arange(ancestry.size)
    if rule == "stable":
        return ancestry.nearest(ancestry.status == 1)
    return _entering(ancestry, detector)


def _entering(ancestry: _Ancestry, detector: Detector) -> Index:
    """The parent of the topmost ancestor whose vertex is inside the calorimeter."""
    radius = np.hypot(ancestry.vertex["x"], ancestry.vertex["y"])
    inside = (radius >= detector.ecal_inner_radius) | (np.abs(ancestry.vertex["z"]) >= detector.ecal_inner_z)
    nearest_inside = ancestry.nearest(inside)
    assigned = np.arange(ancestry.size)
    at = nearest_inside
    while (at >= 0).any():
        above = np.where(at >= 0, ancestry.parent[at], -1)
        # A particle with a vertex inside and no parent is assigned to itself.
        assigned = np.where(at >= 0, np.where(above >= 0, above, at), assigned)
        at = np.where(above >= 0, nearest_inside[above], -1)
    return assigned


def _dropped(
    truth: ak.Array,
    ancestry: _Ancestry,
    mask: Mask,
    e_min: float,
    neutrino: Mask,
    hit_energy: Floats,
    needed: Floats,
) -> ak.Array:
    energy = jagged.flat(truth.energy)

    def reason(at: int) -> str:
        if neutrino[at]:
            return "neutrino"
        if energy[at] <= e_min:
            return f"energy not above {e_min:g} GeV"
        if needed[at] > 0:
            return f"no track and {hit_energy[at]:.3g} GeV in hits, less than {needed[at]:.3g} GeV"
        return "no hit has its largest weight for it"

    at = np.flatnonzero(mask)
    columns: dict[str, Any] = {
        "index": ancestry.local[at],
        "pdg": jagged.flat(truth.pdg)[at],
        "energy": energy[at],
        "reason": ak.from_numpy(np.array([reason(int(i)) for i in at], dtype=np.str_)),
    }
    counts = np.bincount(ancestry.event[at], minlength=len(ancestry.counts))
    return jagged.unflatten(ak.zip(columns, depth_limit=1), counts)
