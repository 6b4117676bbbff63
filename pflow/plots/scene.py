"""An event arranged for drawing: hits in coloured groups, tracks and particles as lines, the detector."""

from __future__ import annotations

import colorsys
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_choice
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import assigned_particle
from pflow.event.particles import LINKS, Reconstruction
from pflow.event.schema import LINKED
from pflow.event.truth import STABLE_STATUS, Targets, select_targets
from pflow.physics.arrays import Index
from pflow.physics.detector import Detector
from pflow.physics.kinematics import length_to_cylinder, propagate, tangent_basis, unit_vector
from pflow.physics.pdg import name_of

COLOUR_BY = ("truth", "reco", "energy", "subdetector")
"""Meanings of the colour of a hit."""

GREY = "#9a9a9a"
"""Colour of particles beyond `max_colours`."""
LIGHT_GREY = "#c8c8c8"
"""Colour of hits without a particle."""
DARK = "#303030"
"""Colour of tracks and particles whose hits are not coloured by them."""
PALETTE = (
    *("#3f90da", "#bd1f01", "#ffa90e", "#832db6", "#1b9e4b", "#e76300"),
    *("#17becf", "#a96b59", "#e377c2", "#6b6ecf", "#b9ac70", "#556b2f"),
)
"""First colours of particles: M. Petroff's (arXiv:2107.02270) without the greys, and some more."""

TRACK_POINTS, TRACK_TURNS = 49, 2.0
"""Points of a drawn track, and largest number of turns of a track that stays in the tracker."""
ENTRY_TURNS = 100.0
"""Largest number of turns of a particle before it enters the calorimeter."""

Float = npt.NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Group:
    """Hits that share a legend entry: their indices, int64 [hit], and their colour (``#rrggbb``)."""

    name: str
    colour: str
    index: Index


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Lines:
    """Polylines `points` [line, point, 3], mm, that share a legend entry.

    `kind`: ``tracks``, ``truth``, ``reco`` or ``reference``.
    """

    name: str
    kind: str
    points: npt.NDArray[np.float32]
    colours: tuple[str, ...]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.points)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EventScene:
    """An event to be drawn.

    `title` names file and event, `note` explains the colours. Columns of the hits: `position` [hit, 3], mm; `energy`,
    GeV; `time`, ns, NaN if unknown; `subdetector`, index into ``detector.calorimeters``; `layer`, -1 if unknown. Each
    hit is in one of the non-empty `groups`; `colour_by` ``energy`` has one group.
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
    event: Events,
    *,
    reconstruction: Reconstruction | None = None,
    colour_by: str | None = None,
    rule: str = "stable",
    stable_status: Sequence[int] = STABLE_STATUS,
    invisible: Sequence[int] = (),
    max_colours: int = 40,
) -> EventScene:
    """Arrange one event, e.g. ``events[3]``, for drawing; truth with its links, tracks and hits may be missing.

    Reconstructed particles are from `reconstruction` or, without it, from the file's reference. `colour_by` is one of
    `COLOUR_BY`: the true particle with the largest weight of the hit; the reconstructed one or, if the algorithm
    assigns no hits, the nearest one in angle from the origin (for a charged particle of its entry into the
    calorimeter); the energy; the subdetector; by default the first that is available. `rule`, `stable_status` and
    `invisible` select the true particles as in `pflow.select_targets`; the `max_colours` particles with the highest
    energies have different colours. ConfigError: an unknown choice, several events, no particles to colour by;
    InputError: links missing or wrong.
    """
    if len(event) != 1 or (reconstruction is not None and len(reconstruction) != 1):
        raise ConfigError(f"expected one event and its reconstruction, e.g. events[3], found {len(event)} events")
    targets, true = None, []
    if event.has_truth:
        targets = select_targets(event, rule=rule, stable_status=stable_status, invisible=invisible)
        true = [_Particles("true", "truth", targets.particles[0])]
    reconstructed = []  # the first ones colour the hits
    if reconstruction is not None:
        reconstructed.append(_Particles(reconstruction.name, "reco", reconstruction.particles[0]))
    if event.reference is not None:
        kind = "reference" if reconstructed else "reco"
        reconstructed.append(_Particles(event.reference_name or "reference", kind, event.reference[0]))
    if colour_by is None:
        colour_by = "truth" if targets else "reco" if reconstructed else "energy"
    check_choice(colour_by, COLOUR_BY, "colour of hits")

    hits = event.hits[0]
    energy = ak.to_numpy(hits.energy).astype(np.float32)
    subdetector = ak.to_numpy(hits.subdetector).astype(np.int64)
    coloured, of_hits, of_tracks, note = _colouring(event, colour_by, true, targets, reconstructed, reconstruction)
    shades: tuple[str, ...] = ()
    if coloured is not None:
        shades = _colours_by_energy(coloured.energy, max_colours)
        groups = _particle_groups(coloured, of_hits, shades)
    elif colour_by == "subdetector":
        names = [calorimeter.name for calorimeter in event.detector.calorimeters]
        shaded = enumerate(zip(names, colours(len(names)), strict=True))
        groups = [Group(name=name, colour=c, index=np.flatnonzero(subdetector == k)) for k, (name, c) in shaded]
    else:
        groups = [Group(name="hits", colour=GREY, index=np.arange(len(hits)))]

    lines = []
    if event.tracks is not None:
        lines.append(_tracks(event, tuple(shades[k] if k >= 0 else DARK for k in of_tracks)))
    for particles in (*true, *reconstructed):
        arrow_shades = shades if particles is coloured else (DARK,) * len(particles.pdg)
        lines.append(_arrows(particles, arrow_shades, event.detector))
    n_tracks = "" if event.tracks is None else f", {len(event.tracks[0])} tracks"
    file = f"{Path(event.path).name}, " if event.path else ""
    n_hits = f"{len(energy)} hits, {energy.sum(dtype=np.float64):.1f} GeV"
    return EventScene(
        title=f"{file}entry {event.entry[0]}, event {event.event[0]}: {n_hits}{n_tracks}",
        note=f"hits coloured by {note}",
        colour_by=colour_by,
        position=jagged.vectors(hits.position, np.float32),
        energy=energy,
        time=ak.to_numpy(hits.time).astype(np.float32),
        subdetector=subdetector,
        layer=ak.to_numpy(hits.layer).astype(np.int64),
        groups=tuple(group for group in groups if len(group.index)),
        lines=tuple(line for line in lines if len(line)),
        detector=event.detector,
    )


def colours(n: int) -> tuple[str, ...]:
    """`n` colours as ``#rrggbb``: the palette, then hues a golden section apart, in three lightnesses."""
    hues = (
        colorsys.hls_to_rgb((0.11 + 0.6180339887 * k) % 1.0, (0.38, 0.52, 0.64)[k % 3], 0.65)
        for k in range(max(0, n - len(PALETTE)))
    )
    more = ("#{:02x}{:02x}{:02x}".format(*(round(255 * part) for part in rgb)) for rgb in hues)
    return (*PALETTE[:n], *more)


class _Particles:
    """Particles of one event in flat columns; `start` in mm, `kind` as in `Lines`."""

    def __init__(self, name: str, kind: str, records: ak.Array) -> None:
        self.name, self.kind = name, kind
        self.pdg: Index = ak.to_numpy(records.pdg).astype(np.int64)
        self.charge, self.energy = (ak.to_numpy(records[field]).astype(np.float64) for field in ("charge", "energy"))
        self.momentum = jagged.vectors(records.momentum)
        vertex = "vertex" in ak.fields(records)
        self.start = np.nan_to_num(jagged.vectors(records.vertex)) if vertex else np.zeros_like(self.momentum)

    def labels(self) -> list[str]:
        return [f"{name_of(int(pdg))} {energy:.3g} GeV" for pdg, energy in zip(self.pdg, self.energy, strict=True)]

    def entry(self, detector: Detector) -> tuple[Float, Float]:
        """Positions, mm, and directions of the particles at the calorimeter's inner surface; both [n, 3]."""
        position, direction = _path(self.start, self.momentum, self.charge, detector, ENTRY_TURNS, np.ones(1))
        return position[:, 0], direction[:, 0]


def _colouring(
    event: Events,
    colour_by: str,
    true: list[_Particles],
    targets: Targets | None,
    reconstructed: list[_Particles],
    reconstruction: Reconstruction | None,
) -> tuple[_Particles | None, Index, Index, str]:
    """Particles that colour the hits; the index of each hit's and each track's particle, -1 for none; a note."""
    links: dict[str, ak.Array | None] = dict.fromkeys(LINKS)
    particles, note = None, colour_by
    if colour_by == "truth":
        if targets is None:
            raise event.error("holds no truth particles with links from hits; colour by reco, energy or subdetector")
        particles, note = true[0], f"the true particle with the largest weight (rule '{targets.rule}')"
        links = {name: getattr(targets, name) for name in LINKS}
    elif colour_by == "reco":
        if not reconstructed:
            raise ConfigError("no reconstructed particles to colour hits by: the file holds none and none were given")
        particles, note = reconstructed[0], f"the {reconstructed[0].name} particle with the largest weight"
        for name in LINKS:
            part = getattr(reconstruction, name, None)
            if reconstruction is not None and part is not None and getattr(event, LINKED[name]) is not None:
                reconstruction.check_links(name, event)
                links[name] = part
    of_hits, of_tracks = (_assigned(links[name], getattr(event, LINKED[name])) for name in LINKS)
    if particles is not None and links["hit_links"] is None:
        of_hits = _nearest_in_angle(event, particles)
        note = f"the nearest {particles.name} particle in angle (it assigns no hits)"
    return particles, of_hits, of_tracks, note


def _colours_by_energy(energy: Float, max_colours: int) -> tuple[str, ...]:
    """A colour for each particle: different for the `max_colours` of highest energy, grey for the rest."""
    order = np.argsort(-energy, kind="stable")[:max_colours]
    chosen = dict(zip(order.tolist(), colours(len(order)), strict=True))
    return tuple(chosen.get(k, GREY) for k in range(len(energy)))


def _particle_groups(particles: _Particles, assigned: Index, shades: tuple[str, ...]) -> list[Group]:
    """Groups of hits by assigned particle: by falling energy, then the grey particles, then no particle (-1)."""
    labels = particles.labels()
    rank = np.argsort(-particles.energy, kind="stable").tolist()
    masks = [(labels[k], shades[k], assigned == k) for k in rank if shades[k] != GREY]
    grey = np.isin(assigned, [k for k in rank if shades[k] == GREY])
    masks.append((f"{len(np.unique(assigned[grey]))} other particles", GREY, grey))
    kind = "true" if particles.kind == "truth" else "reconstructed"
    masks.append((f"no {kind} particle", LIGHT_GREY, assigned < 0))
    return [Group(name=name, colour=colour, index=np.flatnonzero(mask)) for name, colour, mask in masks]


def _assigned(links: ak.Array | None, sources: ak.Array | None) -> Index:
    """Particle with the largest weight of each source of the event, -1 for none."""
    if links is None or sources is None:
        return np.full(0 if sources is None else len(sources[0]), -1, dtype=np.int64)
    return jagged.flat(assigned_particle(links, sources), np.int64)


def _nearest_in_angle(event: Events, particles: _Particles) -> Index:
    """The particle whose entry into the calorimeter is nearest to each hit in angle; -1 without particles."""
    position = jagged.vectors(event.hits[0].position)
    if not len(particles.pdg) or not len(position):
        return np.full(len(position), -1, dtype=np.int64)
    entry, _ = particles.entry(event.detector)
    return np.asarray(np.argmax(unit_vector(position) @ unit_vector(entry).T, axis=1))


def _path(
    start: Float, momentum: Float, charge: Float, detector: Detector, max_turns: float, parts: Float
) -> tuple[Float, Float]:
    """Positions, mm, and directions after `parts` of the path to the calorimeter's inner surface; both [n, part, 3]."""
    helix, b_field = (start, momentum, charge), detector.b_field
    surface = {"radius": detector.ecal_inner_radius, "half_length": detector.ecal_inner_z}
    length = length_to_cylinder(*helix, b_field=b_field, max_turns=max_turns, **surface)
    return propagate(*helix, length[:, None] * parts, b_field=b_field)


def _tracks(event: Events, shades: tuple[str, ...]) -> Lines:
    """Tracks as helices from the perigee to the calorimeter."""
    assert event.tracks is not None
    tracks = event.tracks[0]
    momentum, charge = jagged.vectors(tracks.momentum), ak.to_numpy(tracks.charge).astype(np.float64)
    d0, phi, z0 = (np.nan_to_num(ak.to_numpy(tracks[field]).astype(np.float64)) for field in ("d0", "phi", "z0"))
    perigee = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=-1)
    points, _ = _path(perigee, momentum, charge, event.detector, TRACK_TURNS, np.linspace(0.0, 1.0, TRACK_POINTS))
    pairs = enumerate(zip(charge, momentum, strict=True))
    texts = tuple(f"track {k}, charge {q:+.0f}\n{_momentum_text(p)}" for k, (q, p) in pairs)
    return Lines(name="tracks", kind="tracks", points=points.astype(np.float32), colours=shades, texts=texts)


def _arrows(particles: _Particles, shades: tuple[str, ...], detector: Detector) -> Lines:
    """Arrows from the particles' entry into the calorimeter, or their start inside it, along their direction there."""
    start, direction = particles.entry(detector)
    points = arrow_points(start, direction, particles.energy, 0.25 * detector.ecal_inner_radius)
    texts = [
        f"{particles.name}: {label} (PDG {pdg})\n{_momentum_text(p)}"
        for label, pdg, p in zip(particles.labels(), particles.pdg, particles.momentum, strict=True)
    ]
    drawn = np.flatnonzero(particles.momentum.any(axis=1)).tolist()
    return Lines(
        name=f"{particles.name} particles",
        kind=particles.kind,
        points=points[drawn].astype(np.float32),
        colours=tuple(shades[k] for k in drawn),
        texts=tuple(texts[k] for k in drawn),
    )


def _momentum_text(p: Float) -> str:
    theta, phi = np.arctan2(np.hypot(p[0], p[1]), p[2]), np.arctan2(p[1], p[0])
    return f"p = {np.linalg.norm(p):.3g} GeV, theta = {theta:.3f}, phi = {phi:.3f} rad"


def arrow_points(start: npt.ArrayLike, direction: npt.ArrayLike, energy: npt.ArrayLike, unit: float) -> Float:
    """Arrows as polylines float64 [n, 10, 3], mm, that look like arrows in space, in x-y and in z-r.

    From `start` [n, 3], mm, along unit vectors `direction` [n, 3]. The length is a `unit` (mm) at 1 GeV and changes by
    half a `unit` for each factor of ten in `energy`, within 0.2 and 2.5 units. Points: start, tip, and each of four
    barbs followed by the tip. The barbs point along polar angle and azimuth, so that each projection shows two.
    """
    start, n = (np.asarray(vectors, dtype=np.float64).reshape(-1, 3) for vectors in (start, direction))
    with np.errstate(divide="ignore"):
        units = 1.0 + 0.5 * np.log10(np.asarray(energy, dtype=np.float64).reshape(-1))
    tip = start + (unit * np.clip(units, 0.2, 2.5))[:, None] * n
    points = [start, tip]
    for across in tangent_basis(n):
        for side in (0.06 * unit, -0.06 * unit):
            points += [tip - 0.15 * unit * n + side * across, tip]
    return np.stack(points, axis=1)


def outline_points(detector: Detector) -> tuple[Float, Float]:
    """The ECAL's inner surface as circles [5, 73, 3] around the beam and bars [12, 2, 3] along it, mm."""
    radius, half = detector.ecal_inner_radius, detector.ecal_inner_z
    around = np.linspace(0.0, 2 * np.pi, 73)
    ring = np.stack([radius * np.cos(around), radius * np.sin(around), np.zeros_like(around)], axis=-1)
    along = np.array([0.0, 0.0, half])
    circles = np.stack([ring + share * along for share in (-1.0, -0.5, 0.0, 0.5, 1.0)])
    edge = ring[:-1:6]
    return circles, np.stack([edge - along, edge + along], axis=1)


def hit_size(energy: npt.ArrayLike) -> npt.NDArray[Any]:
    """Relative size of a drawn hit: 0 up to 0.1 MeV, 1 from 1 GeV on, linear in the logarithm of its energy [GeV]."""
    with np.errstate(divide="ignore"):
        return np.clip(1.0 + 0.25 * np.log10(np.asarray(energy, dtype=np.float64)), 0.0, 1.0)
