"""Truth rules: which Monte Carlo particles a reconstruction should write, and which hits and tracks are theirs.

Three named rules (``calo``, ``stable``, ``entering``). Each gives every Monte Carlo particle an owner, the particle
that answers for what it left in the detector, and says which owners are targets:

``calo``
    A particle answers for itself: conversion electrons, decay products and albedo count as particles of their own.
    Targets are the particles to which a hit points with its largest share.
``stable``
    The owner is the nearest of the particle and its ancestors with generator status 1, so that conversions, decays in
    flight and showers belong to the particle that made them. Targets are the owners that are no neutrinos and visible:
    a track, or hits worth at least max(0.1 GeV, 5% of the particle's energy).
``entering``
    The owner is what physically enters the calorimeter: of the line of ancestors that leads to the particle, the last
    one before the first birth inside the calorimeter (so albedo, and what albedo makes on its way, belong to the
    particle that went in). Targets are the owners to which a hit points with its largest share.

In every rule a target has more energy than `e_min` and is no neutrino, and, if tracks are part of the source, a
particle with a track is a target even where its hits alone would not make it one. Hits and tracks of the particles
that a rule drops stay in the event, as they would in a real detector, and belong to no target.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError, check_choice
from pflow.event import jagged
from pflow.event.build import make_links
from pflow.event.events import Events
from pflow.event.links import largest_share
from pflow.physics.detector import Detector
from pflow.physics.pdg import is_neutrino

__all__ = ["RULES", "Targets", "owners", "select_targets"]

RULES = ("calo", "stable", "entering")
"""Names of the truth rules."""

VISIBLE_ENERGY = 0.1
"""Least energy in hits, GeV, that makes a particle visible under ``stable``."""
VISIBLE_FRACTION = 0.05
"""Least share of its energy in hits that makes a particle visible under ``stable``."""

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Targets:
    """The truth particles that a rule selects, with their hits and tracks.

    Parameters
    ----------
    rule
        Name of the rule.
    particles
        [event, target]: the fields of ``events.truth`` and ``index`` (int64, into it), ``hit_energy`` (float64, energy
        of its hits by shares, GeV), ``n_tracks`` (int64); in the order of ``events.truth``.
    hit_links, track_links
        [event, link]: source (hit or track), particle (index into `particles`), weight (share of the source, float32).
        Shares of dropped particles are left out, so those of a source may sum to less than 1. `track_links` is None
        where the events have none.
    dropped
        [event, particle]: index (int64, into ``events.truth``), pdg, energy [GeV], reason (text).
    """

    rule: str
    particles: ak.Array
    hit_links: ak.Array
    track_links: ak.Array | None
    dropped: ak.Array

    def __len__(self) -> int:
        return len(self.particles)


def owners(events: Events, *, rule: str) -> npt.NDArray[np.int64]:
    """Owner of every Monte Carlo particle under a rule, whether it becomes a target or not.

    Returns
    -------
    int64 [N] over the flat list of all events' ``truth``: index into the same list, -1 for no owner.

    Raises
    ------
    ConfigError
        No such rule.
    InputError
        The events hold no truth, or particles that are their own ancestors.
    """
    check_choice(rule, RULES, "truth rule")
    if events.truth is None:
        raise InputError(f"truth rule '{rule}' needs truth particles; the file holds none", file=events.path or None)
    return _OWNERS[rule](_Family(events, events.truth), events.detector)


def select_targets(events: Events, *, rule: str = "stable", e_min: float = 0.1, use_tracks: bool = True) -> Targets:
    """Apply a truth rule to events.

    Parameters
    ----------
    events
        Events with truth particles and links from hits to them.
    rule
        ``calo``, ``stable`` or ``entering``.
    e_min
        Least energy of a target, GeV.
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
        raise InputError(
            f"truth rule '{rule}' needs truth particles and links from hits to them; the file holds none",
            file=events.path or None,
            field="truth" if truth is None else "hit_links",
        )
    family = _Family(events, truth)
    owner = _OWNERS[rule](family, events.detector)

    hits = _Shares.of(hit_links, events.hits, family, owner)
    tracks = None
    if events.track_links is not None and events.tracks is not None:
        tracks = _Shares.of(events.track_links, events.tracks, family, owner)
    hit_energies = jagged.flat(events.hits.energy, np.float64)
    hit_energy = _sums(hits.owner, hits.weight * hit_energies[hits.source], family.size)
    n_tracks = np.zeros(family.size, dtype=np.int64)
    if tracks is not None:
        n_tracks = np.bincount(tracks.owner[tracks.largest()], minlength=family.size)
    has_track = (n_tracks > 0) & use_tracks

    energy = jagged.flat(truth.energy)
    neutrino = is_neutrino(jagged.flat(truth.pdg))
    if rule == "stable":
        needed = np.maximum(VISIBLE_ENERGY, VISIBLE_FRACTION * energy)
        visible = has_track | (hit_energy >= needed)
        candidate = jagged.flat(truth.status) == 1
    else:
        needed = np.zeros(family.size)
        visible = np.zeros(family.size, dtype=np.bool_)
        visible[hits.owner[hits.largest()]] = True
        visible |= has_track
        candidate = np.zeros(family.size, dtype=np.bool_)
        candidate[hits.owner] = True
        candidate |= n_tracks > 0
    target = candidate & visible & ~neutrino & (energy > e_min)

    rank = np.where(target, np.cumsum(target) - 1, -1) - family.targets_before(target)
    return Targets(
        rule=rule,
        particles=_select(truth, target, index=family.local, hit_energy=hit_energy, n_tracks=n_tracks),
        hit_links=hits.to_links(target, rank),
        track_links=None if tracks is None else tracks.to_links(target, rank),
        dropped=_dropped(truth, candidate & ~target, family.local, e_min, neutrino, hit_energy, needed),
    )


class _Family:
    """The particles of all events in one flat list, with indices of parents into the same list."""

    def __init__(self, events: Events, truth: ak.Array) -> None:
        self.counts = jagged.count(truth)
        self.size = int(self.counts.sum())
        self.event = jagged.event_index(self.counts)
        self.local = jagged.local_index(self.counts)
        self.parent = np.where(jagged.flat(truth.parent) < 0, -1, jagged.global_index(truth.parent, self.counts))
        self.status = jagged.flat(truth.status)
        self.vertex = {axis: jagged.flat(truth.vertex[axis]) for axis in "xyz"}
        self._events = events
        self.climb(np.zeros(self.size, dtype=np.bool_))  # refuses particles that are their own ancestors

    def climb(self, stop: Mask) -> Index:
        """For each particle, the nearest of itself and its ancestors where `stop` holds; -1 if none does."""
        at = np.arange(self.size)
        for _ in range(int(self.counts.max(initial=0)) + 1):
            moving = (at >= 0) & ~stop[at]
            if not moving.any():
                return at
            at = np.where(moving, self.parent[at], at)
        index = int(self.event[np.flatnonzero(moving)[0]])
        raise InputError(
            "a particle is its own ancestor",
            file=self._events.path or None,
            entry=int(self._events.entry[index]),
            field="truth.parent",
        )

    def targets_before(self, target: Mask) -> Index:
        """For each particle, how many targets the events before its own have."""
        total = jagged.offsets(target)
        return np.asarray(total[jagged.offsets(self.counts)[self.event]])


def _itself(family: _Family, detector: Detector) -> Index:
    return np.arange(family.size)


def _generator_stable(family: _Family, detector: Detector) -> Index:
    return family.climb(family.status == 1)


def _entering(family: _Family, detector: Detector) -> Index:
    """Climb to the topmost birth inside the calorimeter on the way to the root; its parent is the one that entered."""
    radius = np.hypot(family.vertex["x"], family.vertex["y"])
    inside = (radius >= detector.ecal_inner_radius) | (np.abs(family.vertex["z"]) >= detector.ecal_inner_z)
    nearest_inside = family.climb(inside)
    owner = np.arange(family.size)
    at = nearest_inside
    while (at >= 0).any():
        above = np.where(at >= 0, family.parent[at], -1)
        # A particle born inside without a parent has nobody else to answer for it.
        owner = np.where(at >= 0, np.where(above >= 0, above, at), owner)
        at = np.where(above >= 0, nearest_inside[above], -1)
    return owner


_OWNERS = {"calo": _itself, "stable": _generator_stable, "entering": _entering}


@dataclasses.dataclass(frozen=True)
class _Shares:
    """Shares of sources (hits or tracks) by owner, one row for each pair, sorted by source; flat indices."""

    source: Index
    owner: Index
    weight: npt.NDArray[np.float64]
    source_event: Index
    source_local: Index
    n_events: int

    @classmethod
    def of(cls, links: ak.Array, sources: ak.Array, family: _Family, owner: Index) -> _Shares:
        counts = jagged.count(sources)
        source = jagged.global_index(links.source, counts)
        owned = owner[jagged.global_index(links.particle, family.counts)]
        weight = jagged.flat(links.weight, np.float64)
        # Weight 0 says that the particle left nothing here.
        kept = (owned >= 0) & (weight > 0)
        pairs, at = np.unique(source[kept] * max(family.size, 1) + owned[kept], return_inverse=True)
        return cls(
            source=pairs // max(family.size, 1),
            owner=pairs % max(family.size, 1),
            weight=_sums(at, weight[kept], len(pairs)),
            source_event=jagged.event_index(counts),
            source_local=jagged.local_index(counts),
            n_events=len(counts),
        )

    def largest(self) -> Index:
        """Row of each source's largest share; of equal ones, that of the first particle."""
        return largest_share(self.source, self.owner, self.weight)

    def to_links(self, target: Mask, rank: Index) -> ak.Array:
        kept = target[self.owner] if len(self.owner) else np.zeros(0, dtype=np.bool_)
        source = self.source[kept]
        counts = np.bincount(self.source_event[source], minlength=self.n_events)
        columns = (self.source_local[source], rank[self.owner[kept]], self.weight[kept])
        local, particle, weight = (ak.unflatten(column, counts) for column in columns)
        return make_links(source=local, particle=particle, weight=weight, normalise=False)


def _sums(at: Index, values: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.float64]:
    return np.bincount(at, values, minlength=size).astype(np.float64)


def _select(truth: ak.Array, mask: Mask, **columns: npt.NDArray[Any]) -> ak.Array:
    """The records of `truth` where the flat mask holds, with further flat columns."""
    counts = jagged.count(truth)
    event = jagged.event_index(counts)
    selected = ak.flatten(truth, axis=1)[mask]
    for name, column in columns.items():
        selected = ak.with_field(selected, column[mask], name)
    return ak.unflatten(selected, np.bincount(event[mask], minlength=len(counts)))


def _dropped(
    truth: ak.Array,
    mask: Mask,
    local: Index,
    e_min: float,
    neutrino: Mask,
    hit_energy: npt.NDArray[np.float64],
    needed: npt.NDArray[np.float64],
) -> ak.Array:
    energy = jagged.flat(truth.energy)

    def reason(at: int) -> str:
        if neutrino[at]:
            return "neutrino"
        if energy[at] <= e_min:
            return f"energy not above {e_min:g} GeV"
        if needed[at] > 0:
            return f"no track and {hit_energy[at]:.3g} GeV in hits, less than {needed[at]:.3g} GeV"
        return "no hit with its largest share from it"

    at = np.flatnonzero(mask)
    counts = jagged.count(truth)
    event = jagged.event_index(counts)
    records = ak.zip(
        {
            "index": local[at].astype(np.int64),
            "pdg": jagged.flat(truth.pdg)[at],
            "energy": energy[at],
            "reason": ak.from_numpy(np.array([reason(int(i)) for i in at], dtype=np.str_)),
        },
        depth_limit=1,
    )
    return ak.unflatten(records, np.bincount(event[at], minlength=len(counts)))
