"""What an event display shows, as numbers: hits in coloured groups, tracks, particles as arrows, the detector."""

from __future__ import annotations

import colorsys
import dataclasses
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, InputError, check_choice
from pflow.event import jagged
from pflow.event.events import LINKED, Events
from pflow.event.links import assigned_particle
from pflow.event.particles import Reconstruction
from pflow.event.truth import Targets, select_targets
from pflow.event.validate import validate_links
from pflow.physics.detector import Detector
from pflow.physics.kinematics import unit_vector
from pflow.physics.pdg import is_neutrino, name_of
from pflow.plots.helix import helix_end, helix_points
from pflow.plots.shapes import arrow_points

__all__ = ["COLOUR_BY", "Group", "Lines", "Scene", "colours", "make_scene"]

COLOUR_BY = ("truth", "reco", "energy", "subdetector")
"""What the colour of a hit can stand for."""

GREY = "#9a9a9a"
"""Colour of what belongs to nobody."""
DARK = "#303030"
"""Colour of tracks and particles that share it with no hits."""
PALETTE = (
    *("#3f90da", "#bd1f01", "#ffa90e", "#832db6", "#1b9e4b", "#e76300"),
    *("#17becf", "#a96b59", "#e377c2", "#6b6ecf", "#b9ac70", "#556b2f"),
)
"""First colours of particles: M. Petroff's (arXiv:2107.02270) without the greys, and some more."""

Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Group:
    """Hits that are switched on and off together.

    Parameters
    ----------
    name
        For the legend.
    colour
        As ``#rrggbb``.
    index
        int64 [hit]: which of the scene's hits.
    """

    name: str
    colour: str
    index: Index


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Lines:
    """Polylines that are switched on and off together: tracks, or particles as arrows.

    Parameters
    ----------
    name
        For the legend.
    kind
        ``tracks``, ``truth``, ``reco`` or ``reference``.
    points
        float32 [line, point, 3], mm.
    colours
        One a line, as ``#rrggbb``.
    texts
        What each line is, in words; one or more lines of text.
    """

    name: str
    kind: str
    points: npt.NDArray[np.float32]
    colours: tuple[str, ...]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.points)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Scene:
    """One event, ready to be drawn.

    Parameters
    ----------
    title, note
        Which event, and what the colours mean.
    colour_by
        One of `COLOUR_BY`. Under ``energy`` there is one group, to be coloured by `energy`.
    position : float32 [hit, 3]
        Positions of the hits, mm.
    energy, time : float32 [hit]
        Of the hits, GeV and ns; the time is NaN where it is not known.
    subdetector, layer : int64 [hit]
        Index into ``detector.calorimeters``, and layer (-1 unknown).
    groups
        The hits, each in one group; no group is empty.
    lines
        Tracks, true particles, reconstructed ones, in this order; none is empty.
    detector
        The detector around the event.
    """

    title: str
    note: str
    colour_by: str
    position: npt.NDArray[np.float32]
    energy: npt.NDArray[np.float32]
    time: npt.NDArray[np.float32]
    subdetector: Index
    layer: Index
    groups: tuple[Group, ...]
    lines: tuple[Lines, ...]
    detector: Detector


def make_scene(
    events: Events,
    index: int = 0,
    *,
    reconstruction: Reconstruction | None = None,
    colour_by: str | None = None,
    rule: str = "stable",
    max_particles: int = 40,
) -> Scene:
    """Arrange one event for drawing.

    Parameters
    ----------
    events
        Events; truth, tracks and hits may each be absent.
    index
        Which of the events.
    reconstruction
        Particles of the same events. Without it, the `events`' own reference (another algorithm's particles, if the
        file holds them) takes its place; with it, the reference is shown beside it.
    colour_by
        What the colour of a hit stands for, one of `COLOUR_BY`: the true particle with the largest share of it; the
        reconstructed particle with the largest share, or, if the algorithm assigns no hits, the one nearest in angle
        as seen from the origin (charged ones where their helix meets the calorimeter); its energy; its subdetector. By
        default the first for which there is something.
    rule
        Truth rule that selects the true particles.
    max_particles
        Particles with a colour of their own, those of highest energy; the others share one.

    Raises
    ------
    IndexError
        No event of this index.
    ConfigError
        Another `colour_by` or `rule`, a reconstruction of another number of events, or no reconstructed particles to
        colour by.
    InputError
        Colours by truth without truth particles and links to them, or by a reconstruction whose links point to hits
        or tracks that are not there.
    ValueError
        `max_particles` below 0.
    """
    if max_particles < 0:
        raise ValueError(f"max_particles is {max_particles}, expected at least 0")
    if reconstruction is not None and len(reconstruction) != len(events):
        raise ConfigError(f"{len(reconstruction)} reconstructed events for {len(events)} events")
    event = events[index]
    answers = _answers(events, index, reconstruction)
    if colour_by is None:
        colour_by = "truth" if event.has_truth else "reco" if answers else "energy"
    check_choice(colour_by, COLOUR_BY, "colour of hits by")
    if colour_by == "reco" and not answers:
        raise ConfigError("no reconstructed particles to colour hits by: the file holds none and none were given")
    if colour_by == "truth" and not event.has_truth:
        raise InputError(
            "holds no truth particles with links from hits; colour by reco, energy or subdetector",
            file=event.path or None,
        )

    hits = event.hits[0]
    position = _vectors(hits.position, "xyz").astype(np.float32)
    hit_energy = ak.to_numpy(hits.energy).astype(np.float32)
    subdetector = ak.to_numpy(hits.subdetector).astype(np.int64)
    targets = select_targets(event, rule=rule) if event.has_truth else None
    true = _true_particles(event, targets)

    owner = np.full(len(position), -1, dtype=np.int64)
    answer_colours = [(DARK,) * len(answer) for answer in answers]
    true_colours: tuple[str, ...] = (DARK,) * len(true)
    if colour_by == "truth":
        assert targets is not None
        true_colours = _by_energy(true.energy, max_particles)
        owner = _assigned(targets.hit_links, event.hits)
        groups = _particle_groups(true, owner, true_colours, "no true particle")
        note = f"hits coloured by the true particle with the largest share (rule '{rule}')"
    elif colour_by == "reco":
        answer_colours[0] = _by_energy(answers[0].energy, max_particles)
        if reconstruction is not None and reconstruction.hit_links is not None:
            owner = _assigned(_links(event, reconstruction, "hit_links", index), event.hits)
            note = f"hits coloured by the {answers[0].name} particle with the largest share"
        else:
            owner = _nearest_in_angle(position, answers[0], event.detector)
            note = f"hits coloured by the nearest {answers[0].name} particle in angle (it assigns no hits)"
        groups = _particle_groups(answers[0], owner, answer_colours[0], "no reconstructed particle")
    elif colour_by == "energy":
        groups = [Group(name="hits", colour=GREY, index=np.arange(len(position)))] if len(position) else []
        note = "hits coloured by energy"
    else:
        groups = _subdetector_groups(event.detector, subdetector)
        note = "hits coloured by subdetector"

    track_owner, track_colours = None, true_colours
    if colour_by == "truth" and targets is not None and targets.track_links is not None and event.tracks is not None:
        track_owner = _assigned(targets.track_links, event.tracks)
    links = reconstruction.track_links if colour_by == "reco" and reconstruction is not None else None
    if reconstruction is not None and links is not None and event.tracks is not None:
        track_colours = answer_colours[0]
        track_owner = _assigned(_links(event, reconstruction, "track_links", index), event.tracks)
    lines = [
        _tracks(event, track_owner, track_colours),
        _arrows("true particles", "truth", true, true_colours, event.detector),
        *(
            _arrows(f"{answer.name} particles", answer.kind, answer, colours_, event.detector)
            for answer, colours_ in zip(answers, answer_colours, strict=True)
        ),
    ]
    return Scene(
        title=_title(event, hit_energy),
        note=note,
        colour_by=colour_by,
        position=position,
        energy=hit_energy,
        time=ak.to_numpy(hits.time).astype(np.float32),
        subdetector=subdetector,
        layer=ak.to_numpy(hits.layer).astype(np.int64),
        groups=tuple(groups),
        lines=tuple(line for line in lines if len(line)),
        detector=event.detector,
    )


def colours(n: int) -> tuple[str, ...]:
    """`n` colours as ``#rrggbb``: the palette, then hues a golden section apart, of changing lightness."""
    hues = (
        colorsys.hls_to_rgb((0.11 + 0.6180339887 * k) % 1.0, (0.38, 0.52, 0.64)[k % 3], 0.65)
        for k in range(max(0, n - len(PALETTE)))
    )
    more = ("#{:02x}{:02x}{:02x}".format(*(round(255 * part) for part in rgb)) for rgb in hues)
    return (*PALETTE[:n], *more)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Particles:
    """Particles of one event in flat columns; `start` is where they begin, mm."""

    name: str
    kind: str
    pdg: Index
    charge: Float
    energy: Float
    momentum: Float
    start: Float

    def __len__(self) -> int:
        return len(self.pdg)

    def names(self) -> list[str]:
        return [f"{name_of(int(pdg))} {energy:.3g} GeV" for pdg, energy in zip(self.pdg, self.energy, strict=True)]


def _true_particles(event: Events, targets: Targets | None) -> _Particles:
    """The targets of the truth rule, or, without links, the visible stable particles of the generator."""
    empty = np.zeros((0, 3))
    if targets is not None:
        records = targets.particles[0]
    elif event.truth is not None:
        records = event.truth[0]
        stable = (ak.to_numpy(records.status) == 1) & ~is_neutrino(ak.to_numpy(records.pdg))
        records = records[stable & (ak.to_numpy(records.energy) > 0.1)]
    else:
        none = np.zeros(0)
        return _Particles(
            name="true",
            kind="truth",
            pdg=none.astype(np.int64),
            charge=none,
            energy=none,
            momentum=empty,
            start=empty,
        )
    return _particles("true", "truth", records, np.nan_to_num(_vectors(records.vertex, "xyz")))


def _particles(name: str, kind: str, records: ak.Array, start: Float | None = None) -> _Particles:
    momentum = _vectors(records.momentum, ("px", "py", "pz"))
    return _Particles(
        name=name,
        kind=kind,
        pdg=ak.to_numpy(records.pdg).astype(np.int64),
        charge=ak.to_numpy(records.charge).astype(np.float64),
        energy=ak.to_numpy(records.energy).astype(np.float64),
        momentum=momentum,
        start=np.zeros_like(momentum) if start is None else start,
    )


def _answers(events: Events, index: int, reconstruction: Reconstruction | None) -> list[_Particles]:
    """What algorithms made of the event, the one to colour by first."""
    found = []
    if reconstruction is not None:
        found.append(_particles(reconstruction.name, "reco", reconstruction.particles[index]))
    if events.reference is not None:
        kind = "reference" if found else "reco"
        found.append(_particles(events.reference_name or "reference", kind, events.reference[index]))
    return found


def _by_energy(energy: Float, max_particles: int) -> tuple[str, ...]:
    """A colour for each particle: its own for the `max_particles` of highest energy, grey for the others."""
    order = np.argsort(-energy, kind="stable")[:max_particles]
    chosen = dict(zip(order.tolist(), colours(len(order)), strict=True))
    return tuple(chosen.get(k, GREY) for k in range(len(energy)))


def _particle_groups(particles: _Particles, owner: Index, shades: tuple[str, ...], nobody: str) -> list[Group]:
    """Groups of hits by their particle (-1 none), highest energy first, then the small ones and what is nobody's."""
    own = np.array([shade != GREY for shade in shades], dtype=np.bool_)
    names = particles.names()
    rank = np.argsort(-particles.energy, kind="stable")
    groups = [Group(name=names[k], colour=shades[k], index=np.flatnonzero(owner == k)) for k in rank.tolist() if own[k]]
    rest = np.zeros(len(owner), dtype=np.bool_)
    rest[owner >= 0] = ~own[owner[owner >= 0]]
    if rest.any():
        shared = len(np.unique(owner[rest]))
        groups.append(Group(name=f"{shared} other particles", colour=GREY, index=np.flatnonzero(rest)))
    groups.append(Group(name=nobody, colour="#c8c8c8", index=np.flatnonzero(owner < 0)))
    return [group for group in groups if len(group.index)]


def _subdetector_groups(detector: Detector, subdetector: Index) -> list[Group]:
    shades = colours(len(detector.calorimeters))
    groups = [
        Group(name=calorimeter.name, colour=shades[k], index=np.flatnonzero(subdetector == k))
        for k, calorimeter in enumerate(detector.calorimeters)
    ]
    return [group for group in groups if len(group.index)]


def _links(event: Events, reconstruction: Reconstruction, name: str, index: int) -> ak.Array:
    """Links of one reconstructed event, checked to be of this event's hits or tracks and of its own particles."""
    here = [index % len(reconstruction)]
    links = getattr(reconstruction, name)[here]
    violations = validate_links(name, links, getattr(event, LINKED[name]), reconstruction.particles[here])
    if violations:
        raise InputError(
            f"{reconstruction.name}: {violations[0].message}; made from another file?",
            file=event.path or None,
            entry=int(event.entry[0]),
            field=violations[0].field,
        )
    return links


def _assigned(links: ak.Array, sources: ak.Array) -> Index:
    """Particle with the largest share of each source of the one event, -1 none."""
    return jagged.flat(assigned_particle(links, sources), np.int64)


def _nearest_in_angle(position: npt.NDArray[np.float32], particles: _Particles, detector: Detector) -> Index:
    """The particle nearest to each hit in angle, -1 if there are none; a charged one where it meets the calorimeter."""
    if not len(particles) or not len(position):
        return np.full(len(position), -1, dtype=np.int64)
    seen, _ = _entry(particles, detector)
    return np.asarray(np.argmax(unit_vector(position.astype(np.float64)) @ unit_vector(seen).T, axis=1))


def _entry(particles: _Particles, detector: Detector) -> tuple[Float, Float]:
    """Where particles meet the calorimeter's inner surface, mm, and their direction there; [n, 3] both."""
    return helix_end(
        particles.start,
        particles.momentum,
        particles.charge,
        b_field=detector.b_field,
        radius=detector.ecal_inner_radius,
        half_length=detector.ecal_inner_z,
    )


def _tracks(event: Events, owner: Index | None, shades: tuple[str, ...]) -> Lines:
    """Tracks as helices from the point nearest to the beam to the calorimeter."""
    if event.tracks is None:
        return Lines(name="tracks", kind="tracks", points=np.zeros((0, 2, 3), np.float32), colours=(), texts=())
    tracks = event.tracks[0]
    momentum = _vectors(tracks.momentum, ("px", "py", "pz"))
    charge = ak.to_numpy(tracks.charge).astype(np.float64)
    d0, phi, z0 = (np.nan_to_num(ak.to_numpy(tracks[field]).astype(np.float64)) for field in ("d0", "phi", "z0"))
    perigee = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=-1)
    points = helix_points(
        perigee,
        momentum,
        charge,
        b_field=event.detector.b_field,
        radius=event.detector.ecal_inner_radius,
        half_length=event.detector.ecal_inner_z,
    )
    texts = [
        f"track {k}, charge {q:+.0f}\n{_momentum(p)}" for k, (q, p) in enumerate(zip(charge, momentum, strict=True))
    ]
    return Lines(
        name="tracks",
        kind="tracks",
        points=points.astype(np.float32),
        colours=tuple(DARK if owner is None or k < 0 else shades[k] for k in (owner if owner is not None else charge)),
        texts=tuple(texts),
    )


def _arrows(name: str, kind: str, particles: _Particles, shades: tuple[str, ...], detector: Detector) -> Lines:
    """Arrows from where the particles enter the calorimeter, or begin in it, in the direction they have there."""
    start, direction = _entry(particles, detector)
    points = arrow_points(start, direction, particles.energy, 0.25 * detector.ecal_inner_radius)
    texts = [
        f"{particles.name}: {label} (PDG {pdg})\n{_momentum(p)}"
        for label, pdg, p in zip(particles.names(), particles.pdg, particles.momentum, strict=True)
    ]
    chosen = np.flatnonzero(np.linalg.norm(particles.momentum, axis=1) > 0).tolist()
    return Lines(
        name=name,
        kind=kind,
        points=points[chosen].astype(np.float32),
        colours=tuple(shades[k] for k in chosen),
        texts=tuple(texts[k] for k in chosen),
    )


def _momentum(p: Float) -> str:
    theta, phi = np.arctan2(np.hypot(p[0], p[1]), p[2]), np.arctan2(p[1], p[0])
    return f"p = {np.linalg.norm(p):.3g} GeV, theta = {theta:.3f}, phi = {phi:.3f} rad"


def _title(event: Events, energy: npt.NDArray[Any]) -> str:
    n_tracks = "" if event.tracks is None else f", {len(event.tracks[0])} tracks"
    where = f"{Path(event.path).name}, " if event.path else ""
    return (
        f"{where}entry {event.entry[0]}, event {event.event[0]}: "
        f"{len(energy)} hits, {energy.sum(dtype=np.float64):.1f} GeV{n_tracks}"
    )


def _vectors(records: ak.Array, fields: Any) -> Float:
    return np.stack([ak.to_numpy(records[field]).astype(np.float64) for field in fields], axis=-1)
