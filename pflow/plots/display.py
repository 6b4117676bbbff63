"""An event as a matplotlib figure: across the beam (x-y), along it (z-r) and in 3D."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from mpl_toolkits.mplot3d.art3d import Line3DCollection  # type: ignore[import-untyped]

from pflow.plots.scene import DARK, EventScene, hit_size, outline_points
from pflow.plots.style import styled

Points = npt.NDArray[np.floating[Any]]

STYLES: dict[str, dict[str, Any]] = {
    "tracks": {"linewidths": 0.8, "linestyles": "solid", "alpha": 0.8},
    "truth": {"linewidths": 1.2, "linestyles": "solid", "alpha": 0.9},
    "reco": {"linewidths": 2.2, "linestyles": (0, (1.5, 0.7)), "alpha": 0.9},
}
"""Line styles by kind; reference particles are not drawn beside reconstructed ones."""

VIEWS: dict[str, Callable[[Points], Points]] = {
    "xy": lambda points: points[..., :2],
    "zr": lambda points: np.stack([points[..., 2], np.hypot(points[..., 0], points[..., 1])], axis=-1),
    "zxy": lambda points: points[..., [2, 0, 1]],  # matplotlib's 3D axes then show the detector lying
}
"""Projections of points [..., 3] by the names of their axes."""

OUTWARDS = 0.35
"""Distance, in radii of the ECAL, by which reconstructed particles are drawn further out than true ones."""


@styled()
def plot_event(scene: EventScene) -> Figure:
    """Draw a scene of `pflow.plots.scene.make_scene`: x-y, z-r (distance from the beam) and 3D.

    Lengths are in mm. True particles are arrows from their entry into the calorimeter; reconstructed ones are dashed
    and further out. The size of a hit grows with its energy. With ``max_colours`` up to about 12 the legend stays
    readable.
    """
    detector = scene.detector
    reach = detector.ecal_inner_radius * (1 + OUTWARDS)
    tips = [_outwards(lines.points, scene)[:, 1] for lines in scene.lines if lines.kind == "reco"]
    furthest = np.concatenate([scene.position, *tips, np.zeros((0, 3))])
    radius = 1.15 * max(np.hypot(*furthest[:, :2].T).max(initial=0.0), 1.3 * reach)
    z = 1.15 * max(np.abs(furthest[:, 2]).max(initial=0.0), 1.3 * detector.ecal_inner_z)
    circles, bars = outline_points(detector)
    half = detector.ecal_inner_z
    inner, outer, hcal = detector.ecal_inner_radius, detector.ecal_outer_radius, detector.hcal_inner_radius
    barrels = [(inner, half), (outer, half), (hcal, detector.hcal_inner_z or half)]
    rings = [circles[2] * (r / detector.ecal_inner_radius) for r, _ in barrels if r]
    profiles = [np.array([[0, 0, -end], [r, 0, -end], [r, 0, end], [0, 0, end]]) for r, end in barrels if r]
    positive = scene.energy[scene.energy > 0]
    norm = None
    if scene.colour_by == "energy" and len(positive):
        norm = LogNorm(float(positive.min()), float(positive.max()) * 1.001)
    figure = Figure(figsize=(17.0, 8.6), layout="constrained")
    grid = figure.add_gridspec(2, 2)
    across, along = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    space: Any = figure.add_subplot(grid[1, 1], projection="3d")
    _draw(across, scene, "xy", rings, norm, (-radius, radius, -radius, radius))
    _draw(along, scene, "zr", profiles, norm, (-z, z, 0, radius))
    _draw(space, scene, "zxy", [*circles, *bars, np.array([[0, 0, -half], [0, 0, half]])], norm)
    space.set_axis_off()
    space.view_init(elev=20, azim=-65)
    space.text(1.05 * half, 0, 0, "z", fontsize=11)
    space.set(xlim=(-z, z), ylim=(-radius, radius), zlim=(-radius, radius))
    space.set_box_aspect((z, radius, radius), zoom=2.0)
    for axes in (across, along):
        axes.set_aspect("equal")
        axes.tick_params(labelsize=10)
    if norm is not None:
        figure.colorbar(
            across.collections[-1], ax=across, location="bottom", label="Hit energy [GeV]", aspect=50, pad=0.02
        )
    if handles := _legend_handles(scene):
        figure.legend(handles=handles, loc="outside right upper", fontsize=10, frameon=False)
    figure.suptitle(_plain(f"{scene.title}\n{scene.note}"), fontsize=12)
    return figure


def _draw(
    axes: Any, scene: EventScene, view: str, frame: Any, norm: LogNorm | None, limits: tuple[float, ...] = ()
) -> None:
    """Add outline, lines and hits to axes of two dimensions, with `limits`, or of three."""
    flat, project = axes.name != "3d", VIEWS[view]
    collection: Any
    collection, add = (LineCollection, axes.add_collection) if flat else (Line3DCollection, axes.add_collection3d)
    add(collection([project(line) for line in frame], colors="0.75", linewidths=1.0 if flat else 0.6, zorder=1))
    for lines in scene.lines:
        if lines.kind in STYLES:
            # RGB values, because matplotlib takes two names of colours for a colour and its opacity.
            shades = [to_rgb(colour) for colour in lines.colours]
            points = _outwards(lines.points, scene) if lines.kind == "reco" else lines.points
            add(collection(project(points), colors=shades, zorder=3, **STYLES[lines.kind]))
    for group in scene.groups:
        energy = scene.energy[group.index]
        colour = {"color": group.colour} if norm is None else {"c": np.maximum(energy, norm.vmin or 0.0), "norm": norm}
        axes.scatter(
            *project(scene.position[group.index]).T,
            s=2.0 + 22.0 * hit_size(energy) ** 2,
            linewidths=0,
            rasterized=True,
            zorder=2,
            **colour,
            **({} if flat else {"depthshade": False}),
        )
    if flat:
        axes.set(xlim=limits[:2], ylim=limits[2:], xlabel=f"{view[0]} [mm]", ylabel=f"{view[1]} [mm]")


def _outwards(arrows: Points, scene: EventScene) -> Points:
    """Arrows [n, point, 3] moved along their directions by `OUTWARDS`."""
    direction = arrows[:, 1] - arrows[:, 0]
    length = np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-9)
    moved: Points = arrows + (OUTWARDS * scene.detector.ecal_inner_radius * direction / length)[:, None]
    return moved


def _legend_handles(scene: EventScene) -> list[Line2D]:
    hits = [
        Line2D([], [], ls="", marker="o", color=group.colour, label=_plain(f"{group.name} ({len(group.index)} hits)"))
        for group in (() if scene.colour_by == "energy" else scene.groups)
    ]
    for lines in scene.lines:
        if lines.kind in STYLES:
            style, label = STYLES[lines.kind], _plain(f"{lines.name} ({len(lines)})")
            hits.append(Line2D([], [], color=DARK, lw=style["linewidths"], ls=style["linestyles"], label=label))
    return hits


def _plain(text: str) -> str:
    """Text with escaped dollar signs, which would start a formula."""
    return text.replace("$", r"\$")
