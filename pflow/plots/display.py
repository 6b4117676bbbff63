"""An event as a matplotlib figure: across the beam (x-y), along it (z-r) and in space."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from mpl_toolkits.mplot3d.art3d import Line3DCollection  # type: ignore[import-untyped]

from pflow.plots.scene import Lines, Scene
from pflow.plots.shapes import hit_size, outline_points
from pflow.plots.style import styled

__all__ = ["plot_event"]

STYLES: dict[str, dict[str, Any]] = {
    "tracks": {"linewidths": 0.8, "linestyles": "solid", "alpha": 0.8},
    "truth": {"linewidths": 1.2, "linestyles": "solid", "alpha": 0.9},
    "reco": {"linewidths": 1.6, "linestyles": (0, (3, 1.5)), "alpha": 0.9},
}
"""How the kinds of lines are drawn; another algorithm's particles beside the reconstructed ones are left out."""

ENERGY_MAP = "viridis"
OUTLINE = "0.75"

Points = npt.NDArray[np.floating[Any]]


def plot_event(scene: Scene) -> Figure:
    """Draw an event.

    Parameters
    ----------
    scene
        What `pflow.plots.scene.make_scene` arranged; with ``max_particles`` about 12 the legend stays readable.
        Hits are larger the higher their energy.

    Returns
    -------
    Figure with three views: x-y, z-r (distance from the beam) and 3D, lengths in mm. Belongs to no pyplot state.
    """
    with styled():
        figure = Figure(figsize=(17.0, 8.6), layout="constrained")
        grid = figure.add_gridspec(2, 2, width_ratios=(1.0, 0.95))
        across, along = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
        space = figure.add_subplot(grid[1, 1], projection="3d")
        norm = _energy_norm(scene)
        lines = [line for line in scene.lines if line.kind in STYLES]
        radius, z = _reach(scene)
        _draw_2d(across, scene, lines, _xy, norm)
        across.set(xlim=(-radius, radius), ylim=(-radius, radius), xlabel="x [mm]", ylabel="y [mm]")
        _draw_2d(along, scene, lines, _zr, norm)
        along.set(xlim=(-z, z), ylim=(0, radius), xlabel="z [mm]", ylabel="r [mm]")
        _draw_3d(space, scene, lines, norm)
        space.set(xlim=(-z, z), ylim=(-radius, radius), zlim=(-radius, radius))
        space.set_box_aspect((z, radius, radius), zoom=1.5)
        if norm is not None:
            figure.colorbar(across.collections[-1], ax=across, location="bottom", label="Hit energy [GeV]", aspect=50)
        handles = [*_group_handles(scene), *(_line_handle(line) for line in lines)]
        if handles:
            figure.legend(handles=handles, loc="outside right upper", fontsize=10, frameon=False)
        figure.suptitle(_plain(f"{scene.title}\n{scene.note}"), fontsize=12)
        return figure


def _xy(points: Points) -> Points:
    return points[..., :2]


def _zr(points: Points) -> Points:
    return np.stack([points[..., 2], np.hypot(points[..., 0], points[..., 1])], axis=-1)


def _zxy(points: Points) -> Points:
    """Beam along the first axis, y up: how matplotlib's 3D axes show a detector lying."""
    return points[..., [2, 0, 1]]


def _energy_norm(scene: Scene) -> LogNorm | None:
    """Scale of the colours where they stand for energy; needs hits with energy."""
    positive = scene.energy[scene.energy > 0]
    if scene.colour_by != "energy" or not len(positive):
        return None
    return LogNorm(float(positive.min()), float(positive.max()) * 1.001)


def _hit_options(scene: Scene, group: int, norm: LogNorm | None) -> dict[str, Any]:
    index = scene.groups[group].index
    size = 2.0 + 22.0 * hit_size(scene.energy[index]) ** 2
    options: dict[str, Any] = {"s": size, "linewidths": 0, "rasterized": True, "zorder": 2}
    if norm is None:
        return {**options, "color": scene.groups[group].colour}
    return {**options, "c": np.maximum(scene.energy[index], norm.vmin or 0.0), "cmap": ENERGY_MAP, "norm": norm}


def _line_options(line: Lines) -> dict[str, Any]:
    # As numbers: matplotlib would read two names of colours as one colour and its opacity.
    return {"colors": [to_rgb(colour) for colour in line.colours], **STYLES[line.kind]}


def _draw_2d(axes: Axes, scene: Scene, lines: list[Lines], project: Any, norm: LogNorm | None) -> None:
    axes.set_aspect("equal")
    axes.tick_params(labelsize=10)
    circles, bars = outline_points(scene.detector)
    shown = project(circles if project is _xy else bars[:1])
    axes.add_collection(LineCollection(shown, colors=OUTLINE, linewidths=1.0, zorder=1))
    if project is _zr:
        # The front faces of the endcaps, which the wireframe's bars do not show from the side.
        half, radius = scene.detector.ecal_inner_z, scene.detector.ecal_inner_radius
        faces = [[(z, 0.0), (z, radius)] for z in (-half, half)]
        axes.add_collection(LineCollection(faces, colors=OUTLINE, linewidths=1.0, zorder=1))
    for line in lines:
        axes.add_collection(LineCollection(project(line.points), zorder=3, **_line_options(line)))
    for k, group in enumerate(scene.groups):
        position = project(scene.position[group.index])
        axes.scatter(position[:, 0], position[:, 1], **_hit_options(scene, k, norm))


def _draw_3d(axes: Any, scene: Scene, lines: list[Lines], norm: LogNorm | None) -> None:
    axes.set_axis_off()
    axes.view_init(elev=20, azim=-65)
    half = scene.detector.ecal_inner_z
    axes.plot([-half, half], [0, 0], [0, 0], color=OUTLINE, linewidth=0.6)
    axes.text(1.05 * half, 0, 0, "z", fontsize=11)
    for frame in outline_points(scene.detector):
        axes.add_collection3d(Line3DCollection(_zxy(frame), colors=OUTLINE, linewidths=0.6))
    for line in lines:
        axes.add_collection3d(Line3DCollection(_zxy(line.points), **_line_options(line)))
    for k, group in enumerate(scene.groups):
        position = _zxy(scene.position[group.index])
        axes.scatter(*position.T, depthshade=False, **_hit_options(scene, k, norm))


def _reach(scene: Scene) -> tuple[float, float]:
    """Radius and |z| that hold the hits and the calorimeter's inner surface, mm, with a margin."""
    radius = np.hypot(scene.position[:, 0], scene.position[:, 1]).max(initial=scene.detector.ecal_inner_radius)
    z = np.abs(scene.position[:, 2]).max(initial=scene.detector.ecal_inner_z)
    return 1.05 * float(radius), 1.05 * float(z)


def _group_handles(scene: Scene) -> list[Line2D]:
    if scene.colour_by == "energy":
        return []
    return [
        Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            color=group.colour,
            label=_plain(f"{group.name} ({len(group.index)} hits)"),
        )
        for group in scene.groups
    ]


def _line_handle(line: Lines) -> Line2D:
    style = STYLES[line.kind]
    return Line2D(
        [],
        [],
        color="#303030",
        linewidth=style["linewidths"],
        linestyle=style["linestyles"],
        label=_plain(f"{line.name} ({len(line)})"),
    )


def _plain(text: str) -> str:
    """Text from a file, in which a dollar sign begins no formula."""
    return text.replace("$", r"\$")
