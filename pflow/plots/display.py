"""An event as a matplotlib figure: across the beam (x-y), along it (z-r) and in space."""

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

__all__ = ["plot_event"]

Points = npt.NDArray[np.floating[Any]]

STYLES: dict[str, dict[str, Any]] = {
    "tracks": {"linewidths": 0.8, "linestyles": "solid", "alpha": 0.8},
    "truth": {"linewidths": 1.2, "linestyles": "solid", "alpha": 0.9},
    "reco": {"linewidths": 1.6, "linestyles": (0, (3, 1.5)), "alpha": 0.9},
}
"""Line styles by kind; reference particles beside reconstructed ones are not drawn."""


def plot_event(scene: EventScene) -> Figure:
    """Draw an event from `pflow.plots.scene.make_scene`: x-y, z-r (distance from the beam) and 3D, lengths in mm.

    The size of a hit grows with its energy; with ``max_colours`` about 12 the legend stays readable.
    """
    radius = 1.05 * np.hypot(*scene.position[:, :2].T).max(initial=scene.detector.ecal_inner_radius)
    z = 1.05 * np.abs(scene.position[:, 2]).max(initial=scene.detector.ecal_inner_z)
    circles, bars = outline_points(scene.detector)
    half = scene.detector.ecal_inner_z
    first, last = bars[0]
    profile = np.stack([first * [0, 0, 1], first, last, last * [0, 0, 1]])  # endcap, barrel, endcap
    norm = _energy_norm(scene)
    with styled():
        figure = Figure(figsize=(17.0, 8.6), layout="constrained")
        grid = figure.add_gridspec(2, 2, width_ratios=(1.0, 0.95))
        across, along = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
        space: Any = figure.add_subplot(grid[1, 1], projection="3d")
        for axes in (across, along):
            axes.set_aspect("equal")
            axes.tick_params(labelsize=10)
        _draw(across, scene, _xy, circles, norm)
        across.set(xlim=(-radius, radius), ylim=(-radius, radius), xlabel="x [mm]", ylabel="y [mm]")
        _draw(along, scene, _zr, profile[None], norm)
        along.set(xlim=(-z, z), ylim=(0, radius), xlabel="z [mm]", ylabel="r [mm]")
        _draw(space, scene, _zxy, [*circles, *bars, np.array([[0, 0, -half], [0, 0, half]])], norm)
        space.set_axis_off()
        space.view_init(elev=20, azim=-65)
        space.text(1.05 * half, 0, 0, "z", fontsize=11)
        space.set(xlim=(-z, z), ylim=(-radius, radius), zlim=(-radius, radius))
        space.set_box_aspect((z, radius, radius), zoom=1.6)
        if norm is not None:
            figure.colorbar(
                across.collections[-1], ax=across, location="bottom", label="Hit energy [GeV]", aspect=50, pad=0.02
            )
        handles = _legend_handles(scene)
        if handles:
            figure.legend(handles=handles, loc="outside right upper", fontsize=10, frameon=False)
        figure.suptitle(_plain(f"{scene.title}\n{scene.note}"), fontsize=12)
        return figure


def _xy(points: Points) -> Points:
    return points[..., :2]


def _zr(points: Points) -> Points:
    return np.stack([points[..., 2], np.hypot(points[..., 0], points[..., 1])], axis=-1)


def _zxy(points: Points) -> Points:
    """Beam along the first axis, y up: matplotlib's 3D axes then show the detector lying."""
    return points[..., [2, 0, 1]]


def _draw(axes: Any, scene: EventScene, project: Callable[[Points], Points], frame: Any, norm: LogNorm | None) -> None:
    """Add the outline, the lines and the hits to axes of two or three dimensions."""
    flat = axes.name != "3d"
    collection: Any
    collection, add = (LineCollection, axes.add_collection) if flat else (Line3DCollection, axes.add_collection3d)
    add(collection([project(line) for line in frame], colors="0.75", linewidths=1.0 if flat else 0.6, zorder=1))
    for lines in scene.lines:
        if lines.kind in STYLES:
            # RGB values: matplotlib would take two names of colours for one colour and its opacity.
            shades = [to_rgb(colour) for colour in lines.colours]
            add(collection(project(lines.points), colors=shades, zorder=3, **STYLES[lines.kind]))
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


def _energy_norm(scene: EventScene) -> LogNorm | None:
    """Scale of the colours where they stand for energy; None otherwise and without hits with energy."""
    positive = scene.energy[scene.energy > 0]
    if scene.colour_by != "energy" or not len(positive):
        return None
    return LogNorm(float(positive.min()), float(positive.max()) * 1.001)


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
    """Text in which a dollar sign starts no formula."""
    return text.replace("$", r"\$")
