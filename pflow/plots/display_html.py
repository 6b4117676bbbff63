"""An event as one self-contained HTML page, to turn, zoom and ask with the mouse; needs no network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from pflow.plots.motion import SCRIPT, hits_in_motion
from pflow.plots.scene import Lines, Scene
from pflow.plots.shapes import bends, hit_size, outline_points

__all__ = ["event_page", "interactive_figure"]

LINE_STYLES: dict[str, dict[str, Any]] = {
    "tracks": {"width": 2},
    "truth": {"width": 4},
    "reco": {"width": 4, "dash": "dash"},
    "reference": {"width": 3, "dash": "dot"},
}
"""How the kinds of lines are drawn; the reference beside reconstructed particles is first shown by a click."""

TOLERANCE = 3.0
"""How far from its place a part of a line may be drawn, mm: about half a pixel where the whole detector is seen.
Without a graphics card the points of curved tracks cost more than the hits."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
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
<p>{note}. Lengths in mm, energies in GeV. Drag to turn, scroll to zoom, point at anything for its values;
a click in the legend switches it off or on, a double click leaves it alone.</p>
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
"""What the page may do: run what is in it, and load nothing at all."""


CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "scrollZoom": True,
    # plotly's button that would upload the event.
    "modeBarButtonsToRemove": ["sendChartToCloud", "sendDataToCloud"],
    "plotlyServerURL": "",
}


def event_page(scene: Scene) -> str:
    """Draw an event as a whole HTML page with everything in it, the drawing library included (about 5 MB).

    While the event is turned or zoomed only its strongest hits are drawn (`pflow.plots.motion`).

    Parameters
    ----------
    scene
        What `pflow.plots.scene.make_scene` arranged.
    """
    figure = interactive_figure(scene).to_html(
        full_html=False,
        include_plotlyjs=True,
        include_mathjax=False,
        div_id="event",
        default_width="100%",
        default_height="100%",
        config=CONFIG,
        post_script=SCRIPT,
    )
    title, note = html.escape(scene.title), html.escape(scene.note)
    return PAGE.format(title=title, note=note, figure=figure, policy=POLICY)


def interactive_figure(scene: Scene) -> go.Figure:
    """The same as a plotly figure, e.g. to show in a notebook.

    One trace a group of hits and one a kind of lines, so that an event of 10,000 hits has some 50 of them. The hits of
    a trace are in order of energy, the highest first; ``meta`` says how many of them to draw while the page is turned.
    """
    figure = go.Figure()
    figure.add_trace(_outline(scene))
    for lines in scene.lines:
        figure.add_traces([_lines(lines), _legend_entry(lines)])
    moving = hits_in_motion([len(group.index) for group in scene.groups])
    for k, n_moving in enumerate(moving):
        figure.add_trace(_hits(scene, k, n_moving))
    axis = {"showbackground": False, "gridcolor": "#eeeeee", "zeroline": False, "showspikes": False}
    figure.update_layout(
        scene={
            "xaxis": {**axis, "title": {"text": "x [mm]"}},
            "yaxis": {**axis, "title": {"text": "y [mm]"}},
            "zaxis": {**axis, "title": {"text": "z [mm]"}},
            "aspectmode": "data",
            "camera": {"up": {"x": 0, "y": 1, "z": 0}, "eye": {"x": 1.2, "y": 0.65, "z": 0.65}},
        },
        legend={"itemsizing": "constant", "font": {"size": 11}, "tracegroupgap": 0},
        margin={"l": 0, "r": 0, "t": 34, "b": 0},
        hoverlabel={"align": "left"},
        uirevision="event",
    )
    return figure


def _outline(scene: Scene) -> go.Scatter3d:
    points = _joined([line for frame in outline_points(scene.detector) for line in frame])
    return go.Scatter3d(
        **_columns(points),
        mode="lines",
        line={"color": "#bbbbbb", "width": 1},
        hoverinfo="skip",
        name="ECAL inner surface",
        legendgroup="outline",
    )


def _hits(scene: Scene, k: int, n_moving: int) -> go.Scatter3d:
    group = scene.groups[k]
    index = group.index[np.argsort(-scene.energy[group.index], kind="stable")]
    energy, time = scene.energy[index], scene.time[index]
    names = np.array([html.escape(calorimeter.name) for calorimeter in scene.detector.calorimeters])
    marker: dict[str, Any] = {
        "symbol": "square",  # drawn in half the time of a circle where there is no GPU
        "size": np.round(2.0 + 4.0 * hit_size(energy), 1).astype(np.float32),
        "color": group.colour,
        "line": {"width": 0},
        "opacity": 1.0,
    }
    if scene.colour_by == "energy":
        marker |= {
            "color": np.log10(np.maximum(energy, 1e-6)).astype(np.float32),
            "colorscale": "Viridis",
            "colorbar": {"title": {"text": "log10(E / GeV)"}, "x": 0.0, "len": 0.6, "thickness": 14},
        }
    when = "time %{customdata[2]:.2f} ns<br>" if np.isfinite(time).all() else ""
    columns = [energy, scene.layer[index].astype(np.float32), *([time] if when else [])]
    return go.Scatter3d(
        **_columns(scene.position[index]),
        mode="markers",
        marker=marker,
        customdata=np.stack(columns, axis=-1),
        text=names[scene.subdetector[index]].tolist(),
        hovertemplate=(
            "E %{customdata[0]:.4f} GeV<br>x %{x:.1f}, y %{y:.1f}, z %{z:.1f} mm<br>"
            f"{when}%{{text}}, layer %{{customdata[1]}}<extra>{html.escape(group.name)}</extra>"
        ),
        name=f"{html.escape(group.name)} ({len(index)} hits)",
        legendgroup=f"hits {k}",
        meta={"moving": n_moving},
    )


def _lines(lines: Lines) -> go.Scatter3d:
    drawn = [points[bends(points, TOLERANCE)] for points in lines.points]
    n_points = [len(points) + 1 for points in drawn]
    texts = [html.escape(text).replace("\n", "<br>") for text in lines.texts]
    return go.Scatter3d(
        **_columns(_joined(drawn)),
        mode="lines",
        line={"color": np.repeat(lines.colours, n_points).tolist(), **LINE_STYLES[lines.kind]},
        text=np.repeat(texts, n_points).tolist(),
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
        visible=_first_shown(lines),
        legendgroup=lines.kind,
    )


def _legend_entry(lines: Lines) -> go.Scatter3d:
    """The legend cannot show lines of many colours: an empty trace of the same group stands for them."""
    return go.Scatter3d(
        x=[None],
        y=[None],
        z=[None],
        mode="lines",
        line={"color": "#303030", **LINE_STYLES[lines.kind]},
        name=f"{html.escape(lines.name)} ({len(lines)})",
        visible=_first_shown(lines),
        legendgroup=lines.kind,
    )


def _first_shown(lines: Lines) -> bool | str:
    return "legendonly" if lines.kind == "reference" else True


def _joined(lines: Sequence[npt.NDArray[np.floating[Any]]]) -> npt.NDArray[np.float32]:
    """Polylines, [point, 3] each, one after the other, with a gap (NaN) after each: [points and gaps, 3]."""
    gap = np.full((1, 3), np.nan)
    return np.concatenate([part for line in lines for part in (line, gap)]).astype(np.float32)


def _columns(points: npt.NDArray[np.floating[Any]]) -> dict[str, npt.NDArray[np.float32]]:
    return {axis: np.ascontiguousarray(points[:, k], dtype=np.float32) for k, axis in enumerate("xyz")}
