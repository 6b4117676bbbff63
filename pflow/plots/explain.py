"""The weights of the hits in each step of a decoding (`pflow.explain`), drawn on the calorimeter."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from pflow.plots.scene import hit_size
from pflow.plots.style import styled


@styled()
def plot_steps(steps: Sequence[Any]) -> Figure:
    """A panel per step: hits by azimuth (from the mean direction) and polar angle; the axes hold 98% of the energy."""
    hits, rows = steps[0].hits, -(-len(steps) // 4)
    x, y, z = (np.asarray(hits.position[axis], dtype=np.float64) for axis in "xyz")
    energy = np.asarray(hits.energy, dtype=np.float64)
    middle = np.arctan2((energy * y).sum(), (energy * x).sum())
    phi = np.degrees((np.arctan2(y, x) - middle + np.pi) % (2 * np.pi) - np.pi)
    theta = np.degrees(np.arctan2(np.hypot(x, y), z))
    figure = Figure(figsize=(4.0 * min(len(steps), 4), 3.7 * rows), layout="constrained")
    panels = figure.subplots(rows, min(len(steps), 4), sharex=True, sharey=True, squeeze=False).ravel()
    for number, (panel, step) in enumerate(zip(panels, steps, strict=False), 1):
        shown, order = step.weight / max(step.weight.max(initial=0.0), 1e-9), np.argsort(step.weight)
        style = {"cmap": "YlOrRd", "norm": PowerNorm(0.5, 0.0, 1.0), "edgecolors": "0.6", "linewidths": 0.2}
        sizes = 14.0 * hit_size(energy)[order]
        drawn = panel.scatter(phi[order], theta[order], sizes, shown[order], rasterized=True, **style)
        panel.set_title(f"{number}: {step}", fontsize=11)
    for values, limit in ((phi, panels[0].set_xlim), (theta, panels[0].set_ylim)):
        order = np.argsort(values)
        low, high = np.interp([0.01, 0.99], np.cumsum(energy[order]) / energy.sum(), values[order])
        limit(low - 1.0 - 0.15 * (high - low), high + 1.0 + 0.15 * (high - low))
    figure.colorbar(drawn, ax=panels, aspect=40, pad=0.01, label="weight / the largest")
    figure.supxlabel("azimuth [deg]")
    figure.supylabel("polar angle [deg]")
    return figure
