"""Truth rules: which Monte Carlo particles a reconstruction should find, and which hits and tracks belong to them.

A rule assigns each Monte Carlo particle to an ancestor or to itself, which gets its hits and tracks, and selects
targets among these assigned ancestors:

``calo``
    Each particle is assigned to itself: conversion electrons, decay products and albedo are separate particles.
    Targets have the largest weight of at least one hit.
``stable``
    The assigned ancestor is the nearest one with generator status 1 (or another stable status of this generator), so
    that conversions, decays in flight and showers belong to the particle that made them. If a particle that the
    generator decays (K0S, Lambda) reaches material before, it has visible hits that belong to no stable particle; then
    it is the assigned ancestor of all its descendants. Targets are visible: they have a track, or hits of at least
    max(0.1 GeV, 5% of their energy).
``entering``
    The assigned ancestor is the particle that enters the calorimeter: in the ancestry from the root down to the
    particle, the last one before the first vertex inside the calorimeter. Albedo and its products belong to the
    particle that went in. Targets have the largest weight of at least one hit.

In every rule a target has more energy than `e_min`, and detectors see it (`pflow.physics.pdg.INVISIBLE`). If tracks are
part of the source, a particle with a track needs no hits. Hits and tracks of dropped particles stay in the event, as in
a real detector, and belong to no target.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_choice, check_type, warn
from pflow.event import jagged
from pflow.event.events import Events, ImplausibleWarning
from pflow.event.jagged import Links, largest_weight
from pflow.event.schema import validate_part
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.pdg import is_invisible

RULES = ("calo", "stable", "entering")  # names of the truth rules
STABLE_STATUS = (1,)  # generator status of stable particles: HepMC's
DECAYED = 0.9  # smallest share of its energy that a decayed particle's final descendants have; a radiating one's: less
MIN_VISIBLE_ENERGY = 0.1  # smallest energy in hits, GeV, that makes a particle visible under ``stable``
MIN_VISIBLE_FRACTION = 0.05  # smallest fraction of its energy in hits that makes a particle visible under ``stable``


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Targets:
    """The truth particles that a rule selects, with their hits and tracks.

    `counts` int64 [event]: number of targets; `chosen` int64 [target]: indices into the flat list of `truth`; `final`
    bool [particle]: whether a truth particle counts in the visible energy: in the generator's final state, not
    invisible, not of overlaid background, and without final descendants that have its energy; `added`: further fields
    of `particles`, [target] each. `hits` and `tracks` link to each particle's assigned ancestor; `tracks` is None if
    the events have no links from tracks. Records are made when they are first used; `list_dropped` makes `dropped`.
    `assigned` int64 [particle]: assigned ancestors, -1 for none.
    """

    rule: str
    counts: Index
    chosen: Index
    final: Mask
    truth: ak.Array
    added: Mapping[str, npt.NDArray[Any]]
    hits: Links
    tracks: Links | None
    assigned: Index
    list_dropped: Callable[[], ak.Array]

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        return f"<Targets: {len(self)} events, {self.counts.sum()} particles by rule '{self.rule}'>"

    def column(self, name: str) -> npt.NDArray[Any]:
        """A flat column of `particles`, [target], by its name in `pflow.event.jagged.columns`."""
        return self.added[name] if name in self.added else jagged.columns(self.truth)[name].take(self.chosen)

    def moved(self, events: Events) -> Targets:
        """The same particles, with their hits in the same events as another form of the detector records them."""
        assert events.truth is not None
        hits, _, _ = Ancestry(events, events.truth).linked(events.hit_links, events.hits, self.assigned)
        return dataclasses.replace(self, truth=events.truth, hits=hits)

    @functools.cached_property
    def particles(self) -> ak.Array:
        """[event, target]: fields of ``events.truth``, ``index`` in it, ``hit_energy`` in GeV, ``n_tracks``.

        ``parent``, too, is an index in ``events.truth``, -1 for none, and not in this list.
        """
        columns = {name: values.take(self.chosen) for name, values in jagged.columns(self.truth).items()}
        return jagged.records({**columns, **self.added}, self.counts)

    @functools.cached_property
    def hit_links(self) -> ak.Array:
        """[event, link]: source (hit), particle (index into `particles`), weight; links to targets only."""
        return self.links_to(self.hits).records()

    @functools.cached_property
    def track_links(self) -> ak.Array | None:
        """The same for tracks; None if the events have no links from tracks."""
        return None if self.tracks is None else self.links_to(self.tracks).records()

    def links_to(self, links: Links, number: npt.NDArray[Any] | None = None) -> Links:
        """`hits` or `tracks` restricted to targets; `number` int [target]: particle index, by default in its event."""
        number = jagged.local_index(self.counts) if number is None else number
        n_particles = jagged.count(self.truth)
        numbers = np.full(int(n_particles.sum()), -1, dtype=number.dtype)
        numbers[self.chosen] = number
        return links.to(numbers, n_particles)

    @functools.cached_property
    def dropped(self) -> ak.Array:
        """[event, particle]: index (int64, into ``events.truth``), pdg, reason (text), energy, hit_energy, and the
        energy needed in hits, GeV."""
        return self.list_dropped()


def assigned_ancestors(events: Events, *, rule: str) -> Index:
    """Index of each particle's assigned ancestor, target or not, int64 [N] in the flat list of truth; -1 for none."""
    assert events.truth is not None
    return _assign(Ancestry(events, events.truth), events, rule, STABLE_STATUS)[0]


def select_targets(
    events: Events,
    *,
    rule: str = "stable",
    e_min: float = 0.1,
    use_tracks: bool = True,
    stable_status: Sequence[int] = STABLE_STATUS,
    invisible: Sequence[int] = (),
) -> Targets:
    """Apply a truth rule to events.

    Parameters
    ----------
    events
        Events with truth and links from hits to it.
    rule
        ``stable``, ``entering`` or ``calo`` (`pflow.event.truth` defines them).
    e_min
        Energy that a target must exceed, GeV.
    use_tracks
        Whether tracks are part of the source, so that a track makes a particle visible.
    stable_status
        Generator status of stable particles under ``stable``, for generators that do not use 1.
    invisible
        PDG codes of particles that no detector sees, nor their antiparticles, in addition to
        `pflow.physics.pdg.INVISIBLE`.

    Raises
    ------
    ConfigError
        No such rule, or an `e_min` that is not finite. TypeError: an `e_min` that is no number.
    InputError
        The events hold no truth, no links to it, links or parents outside of their lists, or particles that are their
        own ancestors.

    Examples
    --------
    >>> events = pflow.read_events("multi_test_small.root", entry_stop=2)
    >>> select_targets(events).particles.pdg.to_list()
    [[22, 211], [211, -11, 211]]
    """
    check_type(events, Events, "events, of pflow.read_events")
    check_choice(rule, RULES, "truth rule")
    check_type(e_min, int | float | np.number, "e_min, an energy in GeV")
    if not np.isfinite(e_min):
        raise ConfigError(f"e_min must be an energy in GeV, found {e_min}")
    check_type(use_tracks, bool | np.bool_, "use_tracks, True or False")
    for name, numbers in (("stable_status", stable_status), ("invisible", invisible)):
        check_type(numbers, Sequence, f"{name}, a sequence of whole numbers")
        for number in numbers:
            check_type(number, int | np.integer, f"whole numbers in {name}")
    truth, hit_links = events.truth, events.hit_links
    if truth is None or hit_links is None:
        names = events.detector.truth_particles if events.truth is None else events.detector.hit_links
        called = f" called {', '.join(names)}" if names else ""
        message = f"truth rule '{rule}' needs truth particles and links from hits to them; the file holds none{called}"
        raise events.error(message, field="truth" if truth is None else "hit_links")
    for name, records in (("truth", truth[["parent"]]), ("hit_links", hit_links)):
        for violation in validate_part(name, records, {"truth": jagged.count(truth)})[:1]:
            message = f"{violation.message}; true particles that are cut need new parents and links"
            raise events.error(message, index=violation.index, field=violation.field)
    ancestry = Ancestry(events, truth)
    if rule == "stable" and (problem := unknown_status(ancestry.status, stable_status)):
        warn(f"{events.path or 'events'}: {problem}", ImplausibleWarning)
    assigned, final = _assign(ancestry, events, rule, stable_status)
    hits, hit, of_hit = ancestry.linked(hit_links, events.hits, assigned)
    weighted = hits.weight * jagged.columns(events.hits)["energy"].take(hit)
    hit_energy = np.bincount(of_hit, weighted, ancestry.size).astype(np.float64)
    tracks, n_tracks = None, np.zeros(ancestry.size, dtype=np.int64)
    if events.track_links is not None and events.tracks is not None:
        tracks, track, of_track = ancestry.linked(events.track_links, events.tracks, assigned)
        n_tracks = np.bincount(of_track[largest_weight(track, of_track, tracks.weight)], minlength=ancestry.size)
    has_track = (n_tracks > 0) & use_tracks

    energy, needed = ancestry.energy, np.zeros(ancestry.size)
    unseen = is_invisible(ancestry.pdg, invisible)
    if rule == "stable":
        needed, candidate = _needed(energy), final
        visible = has_track | (hit_energy >= needed)
    else:
        candidate = n_tracks > 0
        candidate[of_hit] = True
        visible = has_track.copy()
        visible[of_hit[largest_weight(hit, of_hit, hits.weight)]] = True
    target = candidate & visible & ~unseen & (energy > e_min)

    chosen = np.flatnonzero(target)
    return Targets(
        rule=rule,
        counts=np.bincount(ancestry.event[chosen], minlength=len(ancestry.counts)),
        chosen=chosen,
        truth=truth,
        added={"index": ancestry.local[chosen], "hit_energy": hit_energy[chosen], "n_tracks": n_tracks[chosen]},
        final=final & ~unseen & ~_decayed(ancestry, final) & ~jagged.columns(truth).get("overlay", np.bool_(False)),
        hits=hits,
        tracks=tracks,
        assigned=assigned,
        list_dropped=functools.partial(_dropped, ancestry, candidate & ~target, e_min, unseen, hit_energy, needed),
    )


def unknown_status(codes: npt.NDArray[np.integer[Any]], stable_status: Sequence[int]) -> str:
    """A message if the particles have status `codes` but none is stable, else ""."""
    if not len(codes) or np.isin(codes, stable_status).any():
        return ""
    of_generator = codes[codes != 0] if codes.any() else codes  # 0: made by the simulation
    found = ", ".join(f"{code} ({n} times)" for code, n in Counter(of_generator.tolist()).most_common(10))
    remedy = "option stable-status" if codes.any() else "the rule 'calo' needs none"
    expected = f"no particle has status {', '.join(map(str, stable_status))}, as targets of the rule 'stable' have"
    return f"{expected} ({remedy}); found are most often {found}"


class Ancestry:
    """The flat list of all events' particles, with indices of their parents in it (-1 for none)."""

    def __init__(self, events: Events, truth: ak.Array) -> None:
        self.counts = jagged.count(truth)
        self.size = int(self.counts.sum())
        self.event = jagged.event_index(self.counts)
        self.local = jagged.local_index(self.counts)
        columns = jagged.columns(truth)
        parent = columns["parent"]
        self.parent = np.where(parent < 0, -1, parent + jagged.offsets(self.counts)[self.event])
        self.status, self.energy, self.pdg = columns["status"], columns["energy"], columns["pdg"]
        self.vertex = {axis: columns[f"vertex.{axis}"] for axis in "xyz"}
        self._events = events
        self.nearest(np.zeros(self.size, dtype=np.bool_))  # refuses particles that are their own ancestors

    def linked(self, links: ak.Array, sources: ak.Array, assigned: Index) -> tuple[Links, Index, Index]:
        """Links to the `assigned` ancestors, and the flat indices of their sources and particles."""
        n_sources, given = jagged.count(sources), Links.of(links)
        beyond = np.flatnonzero(given.source >= np.repeat(n_sources, given.counts))
        if len(beyond):
            field, remedy = "hit_links", "pflow.event.events.keep_hits drops hits with their links"
            if sources is not self._events.hits:
                field, remedy = "track_links", "tracks that are cut or sorted need new links"
            text = f"links lead to {field.partition('_')[0]}s that are not there: {remedy}"
            raise self._events.error(text, index=given.event[beyond[0]], field=field)
        summed = given.summed(assigned, n_sources, self.counts)
        return summed, summed.flat_source(n_sources), summed.flat_particle(self.counts)

    def nearest(self, mask: Mask) -> Index:
        """For each particle, the nearest of itself and its ancestors where `mask` holds; -1 for none."""
        ancestor = np.arange(self.size)
        # No chain of parents is longer than its event, unless it is a circle.
        for _ in range(int(self.counts.max(initial=0)) + 1):
            # An ancestor of -1 reads the mask of the last particle, which the first condition discards.
            moving = (ancestor >= 0) & ~mask[ancestor]
            if not moving.any():
                return ancestor
            ancestor = np.where(moving, self.parent[ancestor], ancestor)
        index = int(self.event[np.flatnonzero(moving)[0]])
        raise self._events.error("a particle is its own ancestor", index=index, field="truth.parent")

    def topmost(self, mask: Mask) -> Index:
        """For each particle, the farthest of itself and its ancestors where `mask` holds; -1 for none."""
        nearest = self.nearest(mask)
        top = higher = nearest
        while (higher >= 0).any():
            top = np.where(higher >= 0, higher, top)
            above = np.where(higher >= 0, self.parent[top], -1)
            higher = np.where(above >= 0, nearest[above], -1)
        return top


def _assign(ancestry: Ancestry, events: Events, rule: str, stable_status: Sequence[int]) -> tuple[Index, Mask]:
    """Assigned ancestors, and whether each particle is in the generator's final state.

    Under ``stable``, particles that reach material before the generator decays them are final, too.
    """
    final, itself = np.isin(ancestry.status, stable_status), np.arange(ancestry.size)
    if rule == "calo":
        return itself, final
    if rule == "entering":
        # The parent of the topmost ancestor with a vertex inside the calorimeter; if it has no parent, this ancestor.
        # Moving an event only scales its vertices, so the calorimeter faces are the simulation's, scaled.
        radius, detector = np.hypot(ancestry.vertex["x"], ancestry.vertex["y"]), events.detector
        moved = events.geometry
        scale = 1.0 if moved is None else (moved.faces.radius[:, -1] / detector.ecal_inner_radius)[ancestry.event]
        inside = radius >= scale * detector.ecal_inner_radius
        inside |= np.abs(ancestry.vertex["z"]) >= scale * detector.ecal_inner_z
        top = ancestry.topmost(inside)
        above = np.where(top >= 0, ancestry.parent[top], -1)
        return np.where(top < 0, itself, np.where(above < 0, top, above)), final
    nearest = ancestry.nearest(final)
    links = Links.of(events.hit_links, len(ancestry.counts))
    particle = links.flat_particle(ancestry.counts)
    unassigned = np.flatnonzero(nearest[particle] < 0)
    if not len(unassigned):
        return nearest, final
    of_generator = ancestry.nearest(ancestry.status != 0)  # itself, or the ancestor that it is a secondary of
    ancestor = of_generator[particle[unassigned]]
    hit = links.flat_source(jagged.count(events.hits))[unassigned]
    energy = np.where(ancestor >= 0, links.weight[unassigned] * jagged.columns(events.hits)["energy"][hit], 0.0)
    # Hits without an ancestor give particle 0 an energy of 0.
    is_visible = np.bincount(np.maximum(ancestor, 0), energy, ancestry.size) >= _needed(ancestry.energy)
    top = ancestry.topmost(is_visible)
    return np.where(top < 0, nearest, top), np.where(top < 0, final, top == itself)


def _decayed(ancestry: Ancestry, final: Mask) -> Mask:
    """Whether the energy of final particles is in final descendants, and would count twice in a sum."""
    rows = np.flatnonzero(final)
    above = ancestry.parent[rows]
    while (moving := (above >= 0) & ~final[above]).any():
        above = np.where(moving, ancestry.parent[above], above)
    energy = np.bincount(above[above >= 0], ancestry.energy[rows[above >= 0]], ancestry.size)
    return np.asarray(energy > DECAYED * ancestry.energy)


def _needed(energy: Floats) -> Floats:
    """Energy in hits, GeV, that makes particles visible under ``stable``."""
    return np.maximum(MIN_VISIBLE_ENERGY, MIN_VISIBLE_FRACTION * energy)


def _dropped(
    ancestry: Ancestry, mask: Mask, e_min: float, unseen: Mask, hit_energy: Floats, needed: Floats
) -> ak.Array:
    rows = np.flatnonzero(mask)
    energy = ancestry.energy[rows]
    reasons = np.select(
        [unseen[rows], energy <= e_min, needed[rows] > 0],
        ["invisible", f"energy not above {e_min:g} GeV", "no track, and too little energy in hits"],
        "no hit has its largest weight for it",
    )
    columns = {"index": ancestry.local[rows], "pdg": ancestry.pdg[rows], "reason": ak.from_numpy(reasons)}
    columns |= {"energy": energy, "hit_energy": hit_energy[rows], "needed": needed[rows]}
    counts = np.bincount(ancestry.event[rows], minlength=len(ancestry.counts))
    return jagged.unflatten(ak.zip(columns, depth_limit=1), counts)
