"""An event as a figure and as an interactive page that needs no network, and the steps of its decoding as a figure."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from mpl_toolkits.mplot3d.art3d import Line3DCollection  # type: ignore[import-untyped]

from pflow.event import jagged
from pflow.physics.detector import Detector
from pflow.physics.kinematics import unit_vector
from pflow.physics.pdg import CLASSES
from pflow.plots.scene import DARK, EventScene, hit_size, outline_points
from pflow.plots.style import MARK, styled

Points = npt.NDArray[np.floating[Any]]

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
    """Draw a scene of `pflow.plots.scene.make_scene`: x-y, z-r (distance from the beam) and 3D.

    Lengths are in mm. True particles are arrows from their entry into the calorimeter; reconstructed ones are dashed
    and further out. Colours name particles, markers at the tips the classes of those without a colour. The size of a
    hit grows with its energy. With ``max_colours`` up to about 12 the legend stays readable.
    """
    detector, energy, norm = scene.detector, scene.hits["energy"], None
    if scene.colour_by == "energy" and (energy > 0).any():
        norm = LogNorm(float(energy[energy > 0].min()), float(energy.max()) * 1.001)
    markers, lines, legend, furthest, tips = [], [], [], [scene.position], dict[str, list[Points]]()
    for group in scene.groups:
        of_hits = energy[group.index]
        colour: dict[str, Any] = {"color": group.colour}
        if norm is not None:
            colour = {"c": np.maximum(of_hits, norm.vmin or 0.0), "norm": norm}
        markers.append((scene.position[group.index], {"s": 2.0 + 22.0 * hit_size(of_hits) ** 2, **colour}))
        if scene.colour_by != "energy":
            label = _plain(f"{group.name} ({len(group.index)} hits)")
            legend.append(Line2D([], [], ls="", marker="o", color=group.colour, label=label))
    for some in scene.lines:
        if style := STYLES[some.kind][0]:
            points = some.points
            if some.kind == "reco":
                points = points + OUTWARDS * detector.ecal_inner_radius * unit_vector(points[:, 1:2] - points[:, :1])
                furthest.append(points[:, 1])
            # RGB values, because matplotlib takes two names of colours for a colour and its opacity.
            lines.append((points, {"colors": [to_rgb(colour) for colour in some.colours], "zorder": 3, **style}))
            width, dashes = style["linewidths"], style.get("linestyles", "solid")
            for of_class, shade_of, point in zip(some.classes, some.colours, points, strict=False):
                if shade_of == DARK:
                    tips.setdefault(of_class, []).append(point[1])
            label = _plain(f"{some.name} ({len(some)})")
            legend.append(Line2D([], [], color=DARK, lw=width, ls=dashes, label=label))

    named = {name: {"s": 20.0, "marker": CLASS_MARKERS[name], "color": DARK} for name in CLASSES if name in tips}
    of_classes = [(np.array(tips[name]), style) for name, style in named.items()]
    legend += [
        Line2D([], [], ls="", marker=CLASS_MARKERS[name], color=DARK, label=name.replace("_", " ")) for name in named
    ]
    inner, half = detector.ecal_inner_radius, detector.ecal_inner_z
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
        for points, style in [*of_classes, *markers]:
            shade = {} if flat else {"depthshade": False}
            axes.scatter(*project(points).T, linewidths=0, rasterized=True, zorder=2, **style, **shade)
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
    space.set_box_aspect((z, radius, radius), zoom=2.0)
    if norm is not None:
        figure.colorbar(
            across.collections[-1], ax=across, location="bottom", label="Hit energy [GeV]", aspect=50, pad=0.02
        )
    if legend:
        figure.legend(handles=legend, loc="outside right upper", fontsize=10, frameon=False)
    figure.suptitle(_plain(f"{scene.title}\n{scene.note}"), fontsize=12)
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


def _plain(text: str) -> str:
    """Text with escaped dollar signs, which would start a formula."""
    return text.replace("$", r"\$")


def event_page(scene: EventScene) -> str:
    """HTML of a page (about 5 MB with the drawing library) for a scene of `pflow.plots.scene.make_scene`."""
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
        style, n_points = STYLES[lines.kind][1], lines.points.shape[1] + 1
        visible = "legendonly" if lines.kind == "reference" else True
        common: dict[str, Any] = {"mode": "lines", "visible": visible, "legendgroup": lines.kind}
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
    phi = np.degrees((np.arctan2(y, x) - np.arctan2(energy @ y, energy @ x) + np.pi) % (2 * np.pi) - np.pi)
    theta = np.degrees(np.arctan2(np.hypot(x, y), z))
    rows, columns = -(-len(steps) // 4), min(len(steps), 4)
    figure = Figure(figsize=(4.0 * columns, 3.7 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    style: dict[str, Any] = {"cmap": "YlOrRd", "edgecolors": "0.6", "linewidths": 0.2, "rasterized": True}
    for number, (panel, step) in enumerate(zip(panels, steps, strict=False), 1):
        order, shown = np.argsort(step.weight), step.weight / max(step.weight.max(initial=0.0), 1e-9)
        hits = phi[order], theta[order], 14.0 * hit_size(energy)[order], shown[order]
        drawn = panel.scatter(*hits, norm=PowerNorm(0.5, 0.0, 1.0), **style)
        panel.set_title(f"{number}: {step}", fontsize=11)
    for values, limit in ((phi, panels[0].set_xlim), (theta, panels[0].set_ylim)):
        low, high = np.quantile(values, [0.01, 0.99], weights=energy, method="inverted_cdf")
        limit(low - 1.0 - 0.15 * (high - low), high + 1.0 + 0.15 * (high - low))
    figure.colorbar(drawn, ax=panels, aspect=40, pad=0.01, label="weight / the largest")
    figure.supxlabel("azimuth [deg]")
    figure.supylabel("polar angle [deg]")
    return figure
