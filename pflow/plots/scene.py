"""An event arranged for drawing: hits in coloured groups, tracks and particles as lines, the detector."""

from __future__ import annotations

import colorsys
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_choice
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import assigned_particle
from pflow.event.particles import Reconstruction
from pflow.event.schema import LINKED
from pflow.event.truth import STABLE_STATUS, select_targets
from pflow.physics.arrays import Index
from pflow.physics.detector import Detector
from pflow.physics.kinematics import length_to_cylinder, propagate, tangent_basis, unit_vector
from pflow.physics.pdg import class_of, name_of

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

    `kind`: ``tracks``, ``truth``, ``reco`` or ``reference``; `classes`: of particles (`pflow.physics.pdg.CLASSES`).
    """

    name: str
    kind: str
    points: npt.NDArray[np.float32]
    colours: tuple[str, ...]
    texts: tuple[str, ...]
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.points)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EventScene:
    """An event to be drawn.

    `title` names file and event, `note` explains the colours. `position` [hit, 3], mm, and `hits`, other columns of the
    hits: energy, GeV; time, ns, NaN if unknown; subdetector, index into ``detector.calorimeters``; layer, -1 if
    unknown. Each hit is in one of the non-empty `groups`; `colour_by` ``energy`` has one group.
    """

    title: str
    note: str
    colour_by: str
    position: npt.NDArray[np.float32]
    hits: Mapping[str, npt.NDArray[Any]]
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
    detector, hits, position = event.detector, jagged.columns(event.hits), jagged.vectors(event.hits.position)
    shown: dict[str, _Particles] = {}  # by kind of their lines
    linked: dict[str, Any] = {}  # what holds the links to them
    if event.has_truth:
        linked["truth"] = select_targets(event, rule=rule, stable_status=stable_status, invisible=invisible)
        shown["truth"] = _Particles("true", linked["truth"].particles[0], detector)
    if reconstruction is not None:
        linked["reco"] = reconstruction
        shown["reco"] = _Particles(reconstruction.name, reconstruction.particles[0], detector)
    if event.reference is not None:
        kind = "reference" if "reco" in shown else "reco"
        shown[kind] = _Particles(event.reference_name or "reference", event.reference[0], detector)
    if colour_by is None:
        colour_by = next((kind for kind in ("truth", "reco") if kind in shown), "energy")
    check_choice(colour_by, COLOUR_BY, "colour of hits")
    if colour_by == "truth" and "truth" not in shown:
        raise event.error("holds no truth particles with links from hits; colour by reco, energy or subdetector")
    if colour_by == "reco" and "reco" not in shown:
        raise ConfigError("no reconstructed particles to colour hits by: the file holds none and none were given")

    note = colour_by
    shades: dict[int, str] = {}  # of particles, by their index
    if colour_by in shown:
        particles, of_hits = shown[colour_by], _assigned(linked.get(colour_by), "hit_links", event)
        note = f"the {particles.name} particle with the largest weight"
        if colour_by == "truth":
            note += f" (rule '{linked['truth'].rule}')"
        if of_hits is None:
            note = f"the nearest {particles.name} particle in angle (it assigns no hits)"
            of_hits = np.full(len(position), -1)
            if len(particles.entry):
                of_hits = np.argmax(unit_vector(position) @ unit_vector(particles.entry).T, axis=1)
        highest = np.argsort(-particles.energy, kind="stable")[:max_colours].tolist()
        shades = dict(zip(highest, colours(len(highest)), strict=True))
        groups = [(particles.labels[k], colour, of_hits == k) for k, colour in shades.items()]
        others = (of_hits >= 0) & ~np.isin(of_hits, highest)
        groups.append((f"{len(np.unique(of_hits[others]))} other particles", GREY, others))
        kind = "true" if colour_by == "truth" else "reconstructed"
        groups.append((f"no {kind} particle", LIGHT_GREY, of_hits < 0))
    elif colour_by == "subdetector":
        numbered = enumerate(colours(len(detector.calorimeters)))
        groups = [(detector.calorimeters[k].name, shade, hits["subdetector"] == k) for k, shade in numbered]
    else:
        groups = [("hits", GREY, np.full(len(position), True))]

    lines, n_tracks = [], ""
    if event.tracks is not None:
        n_tracks = f", {len(event.tracks[0])} tracks"
        of_tracks = _assigned(linked.get(colour_by), "track_links", event)
        assigned = [-1] * len(event.tracks[0]) if of_tracks is None else of_tracks.tolist()
        of_each = tuple(shades.get(k, GREY) if k >= 0 else DARK for k in assigned)
        lines.append(_tracks(event.tracks[0], of_each, detector))
    lines += [particles.lines(kind, shades if kind == colour_by else None) for kind, particles in shown.items()]
    file = f"{Path(event.path).name}, " if event.path else ""
    n_hits = f"{len(position)} hits, {hits['energy'].sum(dtype=np.float64):.1f} GeV"
    return EventScene(
        title=f"{file}entry {event.entry[0]}, event {event.event[0]}: {n_hits}{n_tracks}",
        note=f"hits coloured by {note}",
        colour_by=colour_by,
        position=position.astype(np.float32),
        hits=hits,
        groups=tuple(Group(name=n, colour=c, index=np.flatnonzero(mask)) for n, c, mask in groups if mask.any()),
        lines=tuple(line for line in lines if len(line)),
        detector=detector,
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
    """Particles of one event: energies, GeV, labels, and where they enter the calorimeter or start in it, [n, 3], mm.

    Arrows start there, along their direction there.
    """

    def __init__(self, name: str, records: ak.Array, detector: Detector) -> None:
        self.name, self.momentum = name, jagged.vectors(records.momentum)
        charge, self.energy = (ak.to_numpy(records[field]).astype(np.float64) for field in ("charge", "energy"))
        vertex = "vertex" in ak.fields(records)
        start = np.nan_to_num(jagged.vectors(records.vertex)) if vertex else np.zeros_like(self.momentum)
        position, direction = _paths(start, self.momentum, charge, detector, ENTRY_TURNS, np.ones(1))
        self.entry: Float = position[:, 0]
        self.arrows = arrow_points(self.entry, direction[:, 0], self.energy, 0.25 * detector.ecal_inner_radius)
        self.pdg = ak.to_list(records.pdg)
        self.labels = [f"{name_of(pdg)} {energy:.3g} GeV" for pdg, energy in zip(self.pdg, self.energy, strict=True)]

    def lines(self, kind: str, shades: Mapping[int, str] | None) -> Lines:
        """The arrows of particles with a momentum, in the colours `shades`, or all dark."""
        drawn = np.flatnonzero(self.momentum.any(axis=1)).tolist()
        return Lines(
            name=f"{self.name} particles",
            kind=kind,
            points=self.arrows[drawn].astype(np.float32),
            colours=tuple(DARK if shades is None else shades.get(k, GREY) for k in drawn),
            texts=_texts((f"{self.name}: {self.labels[k]} (PDG {self.pdg[k]})" for k in drawn), self.momentum[drawn]),
            classes=tuple(class_of(self.pdg[k]) for k in drawn),
        )


def _tracks(tracks: ak.Array, shades: tuple[str, ...], detector: Detector) -> Lines:
    """Tracks as helices from the perigee to the calorimeter."""
    momentum, charge = jagged.vectors(tracks.momentum), ak.to_numpy(tracks.charge).astype(np.float64)
    d0, phi, z0 = (np.nan_to_num(ak.to_numpy(tracks[field]).astype(np.float64)) for field in ("d0", "phi", "z0"))
    perigee = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=-1)
    points, _ = _paths(perigee, momentum, charge, detector, TRACK_TURNS, np.linspace(0.0, 1.0, TRACK_POINTS))
    texts = _texts((f"track {k}, charge {q:+.0f}" for k, q in enumerate(charge)), momentum)
    return Lines(name="tracks", kind="tracks", points=points.astype(np.float32), colours=shades, texts=texts)


def _paths(
    start: Float, momentum: Float, charge: Float, detector: Detector, max_turns: float, parts: Float
) -> tuple[Float, Float]:
    """Positions, mm, and directions after `parts` of the path to the calorimeter's inner surface; both [n, part, 3]."""
    helix, b_field = (start, momentum, charge), detector.b_field
    surface = {"radius": detector.ecal_inner_radius, "half_length": detector.ecal_inner_z}
    length = length_to_cylinder(*helix, b_field=b_field, max_turns=max_turns, **surface)
    return propagate(*helix, length[:, None] * parts, b_field=b_field)


def _texts(names: Iterable[str], momentum: Float) -> tuple[str, ...]:
    """Names with the momenta [n, 3], GeV, in a second line."""
    theta = np.arctan2(np.hypot(momentum[:, 0], momentum[:, 1]), momentum[:, 2])
    values = zip(names, np.linalg.norm(momentum, axis=1), theta, np.arctan2(*momentum[:, 1::-1].T), strict=True)
    return tuple(f"{name}\np = {p:.3g} GeV, theta = {t:.3f}, phi = {phi:.3f} rad" for name, p, t, phi in values)


def _assigned(linked: Any, name: str, event: Events) -> Index | None:
    """Particle with the largest weight of each hit or track of the event, -1 for none; None without links `name`."""
    links, sources = getattr(linked, name, None), getattr(event, LINKED[name])
    if links is None or sources is None:
        return None
    if isinstance(linked, Reconstruction):
        linked.check_links(name, event)
    return jagged.flat(assigned_particle(links, sources), np.int64)


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
