"""An event as a self-contained interactive HTML page that needs no network."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from pflow.plots.scene import DARK, EventScene, Group, Lines, hit_size, outline_points
from pflow.plots.style import MARK

LINE_STYLES: dict[str, dict[str, Any]] = {
    "tracks": {"width": 2},
    "truth": {"width": 4},
    "reco": {"width": 4, "dash": "dash"},
    "reference": {"width": 3, "dash": "dot"},
}
"""Line styles by kind; reference particles are initially hidden beside reconstructed ones."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{mark}">
<meta http-equiv="Content-Security-Policy" content="{policy}">
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

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'none'"
)
"""The page may run its own scripts and load nothing."""

CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "scrollZoom": True,
    # The button that would upload the event.
    "modeBarButtonsToRemove": ["sendChartToCloud", "sendDataToCloud"],
    "plotlyServerURL": "",
}


def event_page(scene: EventScene) -> str:
    """HTML of a page (about 5 MB with the drawing library) for a scene of `pflow.plots.scene.make_scene`."""
    size = {"default_width": "100%", "default_height": "100%"}
    figure = interactive_figure(scene).to_html(
        config=CONFIG, full_html=False, include_plotlyjs=True, include_mathjax=False, div_id="event", **size
    )
    title, note = html.escape(scene.title), html.escape(scene.note)
    return PAGE.format(title=title, note=note, figure=figure, policy=POLICY, mark=MARK)


def interactive_figure(scene: EventScene) -> go.Figure:
    """The page's plotly figure."""
    outline = _columns(_joined([line for frame in outline_points(scene.detector) for line in frame]))
    style = {"mode": "lines", "line": {"color": "#bbbbbb", "width": 1}, "hoverinfo": "skip"}
    figure = go.Figure(go.Scatter3d(**outline, **style, name="ECAL inner surface", legendgroup="outline"))
    for lines in scene.lines:
        figure.add_traces(_lines(lines))
    figure.add_traces([_hits(scene, group) for group in scene.groups])
    axis = {"showbackground": False, "gridcolor": "#eeeeee", "zeroline": False, "showspikes": False}
    figure.update_layout(
        scene={
            **{f"{name}axis": {**axis, "title": {"text": f"{name} [mm]"}} for name in "xyz"},
            "aspectmode": "data",
            "camera": {"up": {"x": 0, "y": 1, "z": 0}, "eye": {"x": 1.2, "y": 0.65, "z": 0.65}},
        },
        coloraxis={
            "colorscale": "Viridis",
            "colorbar": {"title": {"text": "log10(E / GeV)"}, "x": 0.0, "len": 0.6, "thickness": 14},
        },
        legend={"itemsizing": "constant", "font": {"size": 11}, "tracegroupgap": 0},
        margin={"l": 0, "r": 0, "t": 34, "b": 0},
        hoverlabel={"align": "left"},
        uirevision="event",
    )
    return figure


def _hits(scene: EventScene, group: Group) -> go.Scatter3d:
    index, energy, time = group.index, scene.energy[group.index], scene.time[group.index]
    names = np.array([html.escape(calorimeter.name) for calorimeter in scene.detector.calorimeters])
    colour: dict[str, Any] = {"color": group.colour}
    if scene.colour_by == "energy":
        colour = {"color": np.log10(np.maximum(energy, 1e-6)), "coloraxis": "coloraxis"}
    when = "time %{customdata[2]:.2f} ns<br>" if np.isfinite(time).all() else ""
    columns = [energy, scene.layer[index].astype(np.float32), *([time] if when else [])]
    return go.Scatter3d(
        **_columns(scene.position[index]),
        mode="markers",
        marker={
            "symbol": "square",  # without a GPU twice as fast as a circle
            "size": np.round(2.0 + 4.0 * hit_size(energy), 1).astype(np.float32),
            "line": {"width": 0},
            "opacity": 1.0,
            **colour,
        },
        customdata=np.stack(columns, axis=-1),
        text=names[scene.subdetector[index]].tolist(),
        hovertemplate=(
            "E %{customdata[0]:.4f} GeV<br>x %{x:.1f}, y %{y:.1f}, z %{z:.1f} mm<br>"
            f"{when}%{{text}}, layer %{{customdata[1]}}<extra>{html.escape(group.name)}</extra>"
        ),
        name=f"{html.escape(group.name)} ({len(group.index)} hits)",
    )


def _lines(lines: Lines) -> list[go.Scatter3d]:
    """The lines, and an empty trace of one colour for the legend, which cannot show several colours in a line."""
    n_points = lines.points.shape[1] + 1
    texts = [html.escape(text).replace("\n", "<br>") for text in lines.texts]
    common = {
        "mode": "lines",
        "visible": "legendonly" if lines.kind == "reference" else True,
        "legendgroup": lines.kind,
    }
    return [
        go.Scatter3d(
            **_columns(_joined(lines.points)),
            line={"color": np.repeat(lines.colours, n_points).tolist(), **LINE_STYLES[lines.kind]},
            text=np.repeat(texts, n_points).tolist(),
            hovertemplate="%{text}<extra></extra>",
            showlegend=False,
            **common,
        ),
        go.Scatter3d(
            **_columns(np.full((1, 3), np.nan)),
            line={"color": DARK, **LINE_STYLES[lines.kind]},
            name=f"{html.escape(lines.name)} ({len(lines)})",
            **common,
        ),
    ]


def _joined(lines: Iterable[npt.NDArray[np.floating[Any]]]) -> npt.NDArray[np.float32]:
    """Concatenated polylines, [point, 3] each, separated by NaN: [points and gaps, 3]."""
    gap = np.full((1, 3), np.nan)
    return np.concatenate([part for line in lines for part in (line, gap)]).astype(np.float32)


def _columns(points: npt.NDArray[np.floating[Any]]) -> dict[str, npt.NDArray[np.float32]]:
    return {axis: np.ascontiguousarray(points[:, k], dtype=np.float32) for k, axis in enumerate("xyz")}
