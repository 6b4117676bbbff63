"""An event as a figure and as an interactive page that needs no network, and the steps of its decoding as a figure.

Both draw an `EventScene`: hits in coloured groups, tracks and particles as lines, the detector.
"""

from __future__ import annotations

import colorsys
import dataclasses
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from mpl_toolkits.mplot3d.art3d import Line3DCollection  # type: ignore[import-untyped]

from pflow.errors import ConfigError, check_choice
from pflow.event import jagged
from pflow.event.events import Events, Reconstruction
from pflow.event.jagged import assigned_particle
from pflow.event.schema import LINKED
from pflow.event.truth import STABLE_STATUS, select_targets
from pflow.physics.arrays import Index
from pflow.physics.detector import Detector
from pflow.physics.kinematics import length_to_cylinder, propagate, tangent_basis, unit_vector
from pflow.physics.pdg import CLASSES, class_of, name_of
from pflow.plots import MARK, plain, styled

COLOUR_BY = ("truth", "reco", "energy", "subdetector")
"""Meanings of the colour of a hit."""

GREY = "#9a9a9a"
"""Colour of particles beyond `max_colours`."""
DARK = "#303030"
"""Colour of tracks and particles whose hits are not coloured by them."""
PALETTE = (
    *("#3f90da", "#bd1f01", "#ffa90e", "#832db6", "#1b9e4b", "#e76300"),
    *("#17becf", "#a96b59", "#e377c2", "#6b6ecf", "#b9ac70", "#556b2f"),
)
"""First colours of particles: M. Petroff's (arXiv:2107.02270) without the greys, and some more."""

Points = npt.NDArray[np.floating[Any]]


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
    InputError: links missing or wrong, a reconstruction of another event or of several.
    """
    if len(event) != 1:
        raise ConfigError(f"expected one event, e.g. events[3], found {len(event)} events")
    if reconstruction is not None:
        reconstruction.check_events(event)
    detector, hits, position = event.detector, jagged.columns(event.hits), jagged.vectors(event.hits.position)
    shown: dict[str, _Particles] = {}  # by kind of their lines
    if event.has_truth:
        targets = select_targets(event, rule=rule, stable_status=stable_status, invisible=invisible)
        shown["truth"] = _Particles("true", targets.particles[0], detector, targets)
    if reconstruction is not None:
        shown["reco"] = _Particles(reconstruction.name, reconstruction.particles[0], detector, reconstruction)
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
        particles, of_hits = shown[colour_by], shown[colour_by].assigned("hit_links", event)
        note = f"the {particles.name} particle with the largest weight"
        if colour_by == "truth":
            note += f" (rule '{rule}')"
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
        groups.append((f"no {kind} particle", "#c8c8c8", of_hits < 0))
    elif colour_by == "subdetector":
        numbered = enumerate(colours(len(detector.calorimeters)))
        groups = [(detector.calorimeters[k].name, shade, hits["subdetector"] == k) for k, shade in numbered]
    else:
        groups = [("hits", GREY, np.full(len(position), True))]

    lines, n_tracks = [], ""
    if event.tracks is not None:
        n_tracks = f", {len(event.tracks[0])} tracks"
        of_tracks = shown[colour_by].assigned("track_links", event) if colour_by in shown else None
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

    Arrows start there, along their direction there. `linked` holds the links to the particles, if there are any.
    """

    def __init__(self, name: str, records: ak.Array, detector: Detector, linked: Any = None) -> None:
        self.name, self.linked, self.momentum = name, linked, jagged.vectors(records.momentum)
        charge, self.energy = (ak.to_numpy(records[field]).astype(np.float64) for field in ("charge", "energy"))
        vertex = "vertex" in ak.fields(records)
        # A particle with an unknown vertex, NaN, starts at the origin.
        start = np.nan_to_num(jagged.vectors(records.vertex)) if vertex else np.zeros_like(self.momentum)
        # A particle may turn a hundred times before it enters the calorimeter.
        position, direction = _paths(start, self.momentum, charge, detector, 100.0, np.ones(1))
        self.entry: Points = position[:, 0]
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

    def assigned(self, name: str, event: Events) -> Index | None:
        """Particle with the largest weight of each hit or track of the event, -1 for none; None without links."""
        links, sources = getattr(self.linked, name, None), getattr(event, LINKED[name])
        if links is None or sources is None:
            return None
        if isinstance(self.linked, Reconstruction):
            self.linked.check_links(name, event)
        return jagged.flat(assigned_particle(links, sources), np.int64)


def _tracks(tracks: ak.Array, shades: tuple[str, ...], detector: Detector) -> Lines:
    """Tracks as helices from the perigee to the calorimeter."""
    momentum, charge = jagged.vectors(tracks.momentum), ak.to_numpy(tracks.charge).astype(np.float64)
    d0, phi, z0 = (np.nan_to_num(ak.to_numpy(tracks[field]).astype(np.float64)) for field in ("d0", "phi", "z0"))
    perigee = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=-1)
    # Of a track that stays in the tracker two turns.
    points, _ = _paths(perigee, momentum, charge, detector, 2.0, np.linspace(0.0, 1.0, 49))
    texts = _texts((f"track {k}, charge {q:+.0f}" for k, q in enumerate(charge)), momentum)
    return Lines(name="tracks", kind="tracks", points=points.astype(np.float32), colours=shades, texts=texts)


def _paths(
    start: Points, momentum: Points, charge: Points, detector: Detector, max_turns: float, parts: Points
) -> tuple[Points, Points]:
    """Positions, mm, and directions after `parts` of the path to the calorimeter's inner surface; both [n, part, 3]."""
    helix, b_field = (start, momentum, charge), detector.b_field
    surface = {"radius": detector.ecal_inner_radius, "half_length": detector.ecal_inner_z}
    length = length_to_cylinder(*helix, b_field=b_field, max_turns=max_turns, **surface)
    return propagate(*helix, length[:, None] * parts, b_field=b_field)


def _texts(names: Iterable[str], momentum: Points) -> tuple[str, ...]:
    """Names with the momenta [n, 3], GeV, in a second line."""
    theta = np.arctan2(np.hypot(momentum[:, 0], momentum[:, 1]), momentum[:, 2])
    values = zip(names, np.linalg.norm(momentum, axis=1), theta, np.arctan2(*momentum[:, 1::-1].T), strict=True)
    return tuple(f"{name}\np = {p:.3g} GeV, theta = {t:.3f}, phi = {phi:.3f} rad" for name, p, t, phi in values)


def arrow_points(start: npt.ArrayLike, direction: npt.ArrayLike, energy: npt.ArrayLike, unit: float) -> Points:
    """Arrows as polylines float64 [n, 10, 3], mm, that look like arrows in space, in x-y and in z-r.

    From `start` [n, 3], mm, along unit vectors `direction` [n, 3]. The length is a `unit` (mm) at 1 GeV and changes by
    half a `unit` for each factor of ten in `energy`, within 0.2 and 2.5 units. Points: start, tip, and each of four
    barbs followed by the tip. The barbs point along polar angle and azimuth, so that each projection shows two.
    """
    start, n = (np.asarray(vectors, dtype=np.float64).reshape(-1, 3) for vectors in (start, direction))
    # An energy of 0 gives -inf, which the clip turns into the shortest arrow.
    with np.errstate(divide="ignore"):
        units = 1.0 + 0.5 * np.log10(np.asarray(energy, dtype=np.float64).reshape(-1))
    tip = start + (unit * np.clip(units, 0.2, 2.5))[:, None] * n
    points = [start, tip]
    for across in tangent_basis(n):
        for side in (0.06 * unit, -0.06 * unit):
            points += [tip - 0.15 * unit * n + side * across, tip]
    return np.stack(points, axis=1)


def outline_points(detector: Detector) -> tuple[Points, Points]:
    """The ECAL's inner surface as circles [5, 73, 3] around the beam and bars [12, 2, 3] along it, mm."""
    radius, half = detector.ecal_inner_radius, detector.ecal_inner_z
    around = np.linspace(0.0, 2 * np.pi, 73)
    ring = np.stack([radius * np.cos(around), radius * np.sin(around), np.zeros_like(around)], axis=-1)
    along = np.array([0.0, 0.0, half])
    circles = np.stack([ring + share * along for share in (-1.0, -0.5, 0.0, 0.5, 1.0)])
    # The last point of the circle is the first one again.
    edge = ring[:-1:6]
    return circles, np.stack([edge - along, edge + along], axis=1)


def hit_size(energy: npt.ArrayLike) -> npt.NDArray[Any]:
    """Relative size of a drawn hit: 0 up to 0.1 MeV, 1 from 1 GeV on, linear in the logarithm of its energy [GeV]."""
    with np.errstate(divide="ignore"):
        return np.clip(1.0 + 0.25 * np.log10(np.asarray(energy, dtype=np.float64)), 0.0, 1.0)


STYLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tracks": ({"linewidths": 0.8, "alpha": 0.8}, {"width": 2}),
    "truth": ({"linewidths": 1.2, "alpha": 0.9}, {"width": 4}),
    "reco": ({"linewidths": 2.2, "linestyles": (0, (1.5, 0.7)), "alpha": 0.9}, {"width": 4, "dash": "dash"}),
    "reference": ({}, {"width": 3, "dash": "dot"}),
}
"""Styles of lines by kind, of the figure and of the page; reference particles, beside reconstructed ones, are not in
the figure and initially hidden in the page."""

CLASS_MARKERS = dict(zip(CLASSES, ("^", "s", "o", "P", "X"), strict=True))
"""Markers at the tips of the arrows of particles that no colour names in the legend."""

VIEWS: dict[str, Callable[[Points], Points]] = {
    "xy": lambda points: points[..., :2],
    "zr": lambda points: np.stack([points[..., 2], np.hypot(points[..., 0], points[..., 1])], axis=-1),
    "zxy": lambda points: points[..., [2, 0, 1]],  # matplotlib's 3D axes then show the detector lying
}
"""Projections of points [..., 3] by the names of their axes."""

OUTWARDS = 0.35
"""Distance, in radii of the ECAL, by which the figure draws reconstructed particles further out than true ones."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{mark}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval';
 style-src 'unsafe-inline'; img-src data: blob:; connect-src 'none'">
<title>{title}</title>
<style>
html, body {{ height: 100%; margin: 0; font-family: sans-serif; color: #222; }}
body {{ display: flex; flex-direction: column; }}
header {{ padding: 8px 14px; }}
h1 {{ font-size: 1.05rem; margin: 0 0 2px; }}
p {{ font-size: 0.85rem; margin: 0; color: #555; }}
main {{ flex: 1; min-height: 0; }}
</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{note}. Lengths in mm, energies in GeV. Drag to turn, scroll to zoom, hover for values;
click in the legend to hide or show, double-click to show one alone.</p>
</header>
<main>
{figure}
</main>
</body>
</html>
"""
"""The page; its policy lets it run its own scripts and load nothing."""


@styled()
def plot_event(scene: EventScene) -> Figure:
    """Draw a scene of `pflow.plots.display.make_scene`: x-y, z-r (distance from the beam) and 3D.

    Lengths are in mm. True particles are arrows from their entry into the calorimeter; reconstructed ones are dashed
    and further out. Colours name particles, markers at the tips the classes of those without a colour. The size of a
    hit grows with its energy. With ``max_colours`` up to about 12 the legend stays readable.
    """
    detector, energy, norm = scene.detector, scene.hits["energy"], None
    inner, half = detector.ecal_inner_radius, detector.ecal_inner_z
    if scene.colour_by == "energy" and (energy > 0).any():
        # The factor keeps both ends of the scale apart if all hits have the same energy.
        norm = LogNorm(float(energy[energy > 0].min()), float(energy.max()) * 1.001)
    markers, lines, legend, furthest = [], [], list[Line2D](), [scene.position]
    tips: dict[str, list[Points]] = {name: [] for name in CLASSES}

    def explain(label: str, **style: Any) -> None:
        legend.append(Line2D([], [], label=plain(label), **style))

    for group in scene.groups:
        of_hits = energy[group.index]
        colour: dict[str, Any] = {"color": group.colour}
        if norm is not None:
            # Hits without energy have no logarithm: they get the lowest colour.
            colour = {"c": np.maximum(of_hits, norm.vmin or 0.0), "norm": norm}
        markers.append((scene.position[group.index], {"s": 2.0 + 22.0 * hit_size(of_hits) ** 2, **colour}))
        if scene.colour_by != "energy":
            explain(f"{group.name} ({len(group.index)} hits)", ls="", marker="o", color=group.colour)
    for some in scene.lines:
        if style := STYLES[some.kind][0]:
            points = some.points
            if some.kind == "reco":
                points = points + OUTWARDS * inner * unit_vector(points[:, 1:2] - points[:, :1])
                furthest.append(points[:, 1])
            # RGB values, because matplotlib takes two names of colours for a colour and its opacity.
            lines.append((points, {"colors": [to_rgb(colour) for colour in some.colours], "zorder": 3, **style}))
            # Not strict: tracks have no classes, and get no markers.
            for of_class, shade_of, point in zip(some.classes, some.colours, points, strict=False):
                if shade_of == DARK:
                    tips[of_class].append(point[1])
            dashes = style.get("linestyles", "solid")
            explain(f"{some.name} ({len(some)})", color=DARK, lw=style["linewidths"], ls=dashes)
    of_classes = []
    for name, places in tips.items():
        if places:
            of_classes.append((np.array(places), {"s": 20.0, "marker": CLASS_MARKERS[name], "color": DARK}))
            explain(name.replace("_", " "), ls="", marker=CLASS_MARKERS[name], color=DARK)

    circles, bars = outline_points(detector)
    barrels = _faces(detector)
    frames: dict[str, list[Points]] = {
        "xy": [circles[2] * (r / inner) for r, _ in barrels],
        "zr": [np.array([[0, 0, -z], [r, 0, -z], [r, 0, z], [0, 0, z]]) for r, z in barrels],
        "zxy": [*circles, *bars, np.array([[0, 0, -half], [0, 0, half]])],
    }
    figure = Figure(figsize=(17.0, 8.6), layout="constrained")
    grid = figure.add_gridspec(2, 2)
    across, along = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    space: Any = figure.add_subplot(grid[1, 1], projection="3d")
    axes: Any
    for axes, (view, project) in zip((across, along, space), VIEWS.items(), strict=True):
        flat = axes is not space
        collection: Any = LineCollection if flat else Line3DCollection
        add = axes.add_collection if flat else axes.add_collection3d
        frame = {"colors": "0.75", "linewidths": 1.0 if flat else 0.6, "zorder": 1}
        add(collection([project(line) for line in frames[view]], **frame))
        for points, style in lines:
            add(collection(project(points), **style))
        # Shading by depth would change the colours, which name particles or energies.
        common = {"linewidths": 0, "rasterized": True, "zorder": 2, **({} if flat else {"depthshade": False})}
        for points, style in [*of_classes, *markers]:
            axes.scatter(*project(points).T, **common, **style)
        if flat:
            axes.set(xlabel=f"{view[0]} [mm]", ylabel=f"{view[1]} [mm]", aspect="equal")
            axes.tick_params(labelsize=10)

    most = np.concatenate(furthest)
    radius = 1.15 * max(np.hypot(most[:, 0], most[:, 1]).max(initial=0.0), 1.3 * (1 + OUTWARDS) * inner)
    z = 1.15 * max(np.abs(most[:, 2]).max(initial=0.0), 1.3 * half)
    across.set(xlim=(-radius, radius), ylim=(-radius, radius))
    along.set(xlim=(-z, z), ylim=(0, radius))
    space.set_axis_off()
    space.view_init(elev=20, azim=-65)
    space.text(1.05 * half, 0, 0, "z", fontsize=11)
    space.set(xlim=(-z, z), ylim=(-radius, radius), zlim=(-radius, radius))
    space.set_box_aspect((z, radius, radius), zoom=1.4)
    if norm is not None:
        # Hits are drawn last and, coloured by energy, are one group: the last collection.
        style = {"location": "bottom", "label": "Hit energy [GeV]", "aspect": 50, "pad": 0.02}
        figure.colorbar(across.collections[-1], ax=across, **style)
    if legend:
        figure.legend(handles=legend, loc="outside right upper", fontsize=10, frameon=False)
    figure.suptitle(plain(f"{scene.title}\n{scene.note}"), fontsize=12)
    return figure


def _faces(detector: Detector) -> list[tuple[float, float]]:
    """Radius of the barrel and half length, mm, of the front and back of ECAL and HCAL, as far as they are known."""
    inner, outer, half = detector.ecal_inner_radius, detector.ecal_outer_radius, detector.ecal_inner_z
    hcal = [part for part in detector.calorimeters if part.kind == "hcal"]
    radius = next((part.inner_radius for part in hcal if part.region == "barrel"), None) or detector.hcal_inner_radius
    if radius is None:
        return [(inner, half), (outer, half + outer - inner)]
    length = next((part.inner_z for part in hcal if part.region == "endcap"), None) or detector.hcal_inner_z or half
    depth = next((sum(of.count * of.pitch for of in part.layers) for part in hcal if part.region == "barrel"), 0.0)
    return [(inner, half), (outer, half + outer - inner), (radius, length), (radius + depth, length + depth)]


def event_page(scene: EventScene) -> str:
    """HTML of a page (about 5 MB with the drawing library) for a scene of `pflow.plots.display.make_scene`."""
    config = {
        "displaylogo": False,
        "responsive": True,
        "scrollZoom": True,
        # The button that would upload the event.
        "modeBarButtonsToRemove": ["sendChartToCloud", "sendDataToCloud"],
        "plotlyServerURL": "",
    }
    size = {"default_width": "100%", "default_height": "100%"}
    figure = interactive_figure(scene).to_html(
        config=config, full_html=False, include_plotlyjs=True, include_mathjax=False, div_id="event", **size
    )
    title, note = html.escape(scene.title), html.escape(scene.note)
    return PAGE.format(title=title, note=note, figure=figure, mark=MARK)


def interactive_figure(scene: EventScene) -> go.Figure:
    """The page's plotly figure."""
    outline = _joined(line for frame in outline_points(scene.detector) for line in frame)
    style = {"mode": "lines", "line": {"color": "#bbbbbb", "width": 1}, "hoverinfo": "skip"}
    figure = go.Figure(go.Scatter3d(**outline, **style, name="ECAL inner surface", legendgroup="outline"))
    for lines in scene.lines:
        # One point more than drawn: the NaN behind each line takes a colour and a text, too.
        style, n_points = STYLES[lines.kind][1], lines.points.shape[1] + 1
        visible = "legendonly" if lines.kind == "reference" else True
        common: dict[str, Any] = {"mode": "lines", "visible": visible, "legendgroup": lines.kind}
        # Escaped before the line breaks are put in, or they would be escaped, too.
        texts = [html.escape(text).replace("\n", "<br>") for text in lines.texts]
        figure.add_scatter3d(
            **_joined(lines.points),
            line={"color": np.repeat(lines.colours, n_points).tolist(), **style},
            text=np.repeat(texts, n_points).tolist(),
            hovertemplate="%{text}<extra></extra>",
            showlegend=False,
            **common,
        )
        # An empty trace of one colour for the legend, which cannot show several colours in a line.
        name, nothing = f"{html.escape(lines.name)} ({len(lines)})", _columns(np.full((1, 3), np.nan))
        figure.add_scatter3d(**nothing, line={"color": DARK, **style}, name=name, **common)
    names = np.array([html.escape(calorimeter.name) for calorimeter in scene.detector.calorimeters])
    for group in scene.groups:
        energy, time, layer, subdetector = (
            scene.hits[name][group.index] for name in ("energy", "time", "layer", "subdetector")
        )
        colour: dict[str, Any] = {"color": group.colour}
        if scene.colour_by == "energy":
            colour = {"color": np.log10(np.maximum(energy, 1e-6)), "coloraxis": "coloraxis"}
        when = "time %{customdata[2]:.2f} ns<br>" if np.isfinite(time).all() else ""
        columns = [energy, layer.astype(np.float32), *([time] if when else [])]
        figure.add_scatter3d(
            **_columns(scene.position[group.index]),
            mode="markers",
            marker={
                "symbol": "square",  # without a GPU twice as fast as a circle
                "size": np.round(2.0 + 4.0 * hit_size(energy), 1).astype(np.float32),
                "line": {"width": 0},
                "opacity": 1.0,
                **colour,
            },
            customdata=np.stack(columns, axis=-1),
            text=names[subdetector].tolist(),
            hovertemplate=(
                "E %{customdata[0]:.4f} GeV<br>x %{x:.1f}, y %{y:.1f}, z %{z:.1f} mm<br>"
                f"{when}%{{text}}, layer %{{customdata[1]}}<extra>{html.escape(group.name)}</extra>"
            ),
            name=f"{html.escape(group.name)} ({len(group.index)} hits)",
        )
    axis = {"showbackground": False, "gridcolor": "#eeeeee", "zeroline": False, "showspikes": False}
    bar = {"title": {"text": "log10(E / GeV)"}, "x": 0.0, "len": 0.6, "thickness": 14}
    figure.update_layout(
        scene={
            **{f"{name}axis": {**axis, "title": {"text": f"{name} [mm]"}} for name in "xyz"},
            "aspectmode": "data",
            "camera": {"up": {"x": 0, "y": 1, "z": 0}, "eye": {"x": 1.2, "y": 0.65, "z": 0.65}},
        },
        coloraxis={"colorscale": "Viridis", "colorbar": bar},
        legend={"itemsizing": "constant", "font": {"size": 11}, "tracegroupgap": 0},
        margin={"l": 0, "r": 0, "t": 34, "b": 0},
        hoverlabel={"align": "left"},
        uirevision="event",
    )
    return figure


def _joined(lines: Iterable[Points]) -> dict[str, Points]:
    """Coordinates of polylines, [point, 3] each, with NaN behind each of them, as columns x, y, z."""
    return _columns(np.concatenate([np.pad(line, ((0, 1), (0, 0)), constant_values=np.nan) for line in lines]))


def _columns(points: Points) -> dict[str, Points]:
    return dict(zip("xyz", np.ascontiguousarray(points.T, dtype=np.float32), strict=True))


@styled()
def plot_steps(steps: Sequence[Any]) -> Figure:
    """Weights of hits in each step of `pflow.explain`; the axes (azimuth: from the mean) hold 98% of the energy."""
    (x, y, z), energy = jagged.vectors(steps[0].hits.position).T, np.asarray(steps[0].hits.energy)
    # From the mean azimuth, so that a shower at phi = pi is not torn apart.
    phi = np.degrees((np.arctan2(y, x) - np.arctan2(energy @ y, energy @ x) + np.pi) % (2 * np.pi) - np.pi)
    theta = np.degrees(np.arctan2(np.hypot(x, y), z))
    rows, columns = -(-len(steps) // 4), min(len(steps), 4)
    figure = Figure(figsize=(4.0 * columns, 3.7 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    style: dict[str, Any] = {"cmap": "YlOrRd", "edgecolors": "0.6", "linewidths": 0.2, "rasterized": True}
    for number, (panel, step) in enumerate(zip(panels, steps, strict=False), 1):
        # Hits with large weights are drawn last, where no others cover them.
        order, shown = np.argsort(step.weight), step.weight / max(step.weight.max(initial=0.0), 1e-9)
        hits = phi[order], theta[order], 14.0 * hit_size(energy)[order], shown[order]
        drawn = panel.scatter(*hits, norm=PowerNorm(0.5, 0.0, 1.0), **style)
        panel.set_title(f"{number}: {step}", fontsize=11)
    for values, limit in ((phi, panels[0].set_xlim), (theta, panels[0].set_ylim)):
        # inverted_cdf is the only method of np.quantile that takes weights.
        low, high = np.quantile(values, [0.01, 0.99], weights=energy, method="inverted_cdf")
        limit(low - 1.0 - 0.15 * (high - low), high + 1.0 + 0.15 * (high - low))
    figure.colorbar(drawn, ax=panels, aspect=40, pad=0.01, label="weight / the largest")
    figure.supxlabel("azimuth from the mean [deg]")
    figure.supylabel("polar angle [deg]")
    return figure
