"""The weights of the hits in each step of a decoder, drawn on the calorimeter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure

from pflow.plots.scene import hit_size
from pflow.plots.style import styled

Floats = npt.NDArray[np.float64]

COLOURS = ListedColormap(colormaps["YlOrRd"](np.linspace(0.13, 1.0, 256)))
"""YlOrRd without its palest colours, which are invisible on white."""


@styled()
def plot_steps(steps: Sequence[tuple[str, ak.Array, npt.NDArray[Any]]], *, columns: int = 4) -> Figure:
    """Draw steps of `pflow.explain`, (text, hits, weights) each, in panels: hits by azimuth and polar angle.

    Colours show the weight of a hit relative to the largest. Azimuths are from the energy's mean direction; the axes
    hold 99% of the energy.
    """
    columns = min(columns, max(1, len(steps)))
    rows = -(-len(steps) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.9 * rows), layout="constrained")
    panels = np.ravel(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False))
    for panel in panels[len(steps) :]:
        panel.set_axis_off()
    for number, (panel, (text, hits, weight)) in enumerate(zip(panels, steps, strict=False), 1):
        x, y, z = (np.asarray(hits.position[axis], dtype=np.float64) for axis in "xyz")
        energy = np.asarray(hits.energy, dtype=np.float64)
        phi, theta = np.degrees(np.arctan2(y, x)), np.degrees(np.arctan2(np.hypot(x, y), z))
        middle = np.degrees(np.arctan2((energy * y).sum(), (energy * x).sum()))
        phi = (phi - middle + 180.0) % 360.0 - 180.0
        order = np.argsort(weight)
        drawn = panel.scatter(
            phi[order],
            theta[order],
            c=np.clip(weight / max(weight.max(initial=0.0), 1e-9), 0.0, 1.0)[order],
            s=14.0 * hit_size(energy)[order],
            cmap=COLOURS,
            norm=PowerNorm(0.5, vmin=0.0, vmax=1.0),
            edgecolors="0.6",
            linewidths=0.2,
        )
        drawn.set_rasterized(True)
        panel.set_title(f"{number}: {text}", fontsize=11)
    # All panels show the same hits.
    panels[0].set(xlim=np.clip(_range(phi, energy), -180, 180), ylim=np.clip(_range(theta, energy)[::-1], 0, 180))
    bar = figure.colorbar(drawn, ax=panels, aspect=40, pad=0.01)
    bar.set_label("weight of a hit in the step / the largest", fontsize=12)
    figure.supxlabel("azimuth [deg]", fontsize=12)
    figure.supylabel("polar angle [deg]", fontsize=12)
    return figure


def _range(values: Floats, weight: Floats) -> tuple[float, float]:
    """Range of the central 99% of the weight, with a margin."""
    order = np.argsort(values)
    low, high = np.interp([0.005, 0.995], np.cumsum(weight[order]) / weight.sum(), values[order])
    margin = max(1.0, 0.15 * (high - low))
    return float(low - margin), float(high + margin)
