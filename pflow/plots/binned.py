"""A metric in bins of a quantity, one set of points a line: response, resolution, efficiency, fake rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pflow.metrics.stats import Axis as Bins
from pflow.metrics.stats import Series
from pflow.plots.style import COLORS, MARKERS, new_figure, styled, title

__all__ = ["plot_binned"]


def plot_binned(
    axis: Bins,
    lines: Mapping[str, Series],
    *,
    label: str,
    text: str = "",
    limits: tuple[float | None, float | None] = (None, None),
    reference: float | None = None,
    log: bool = False,
) -> Figure:
    """Points with intervals against a binned quantity.

    Parameters
    ----------
    axis
        The quantity, its bins, label and unit.
    lines
        Values in these bins, by the name for the legend. Bins without a value are left out.
    label
        Of the vertical axis, with the unit.
    text
        What the figure was made of, above the axes.
    limits
        Of the vertical axis; None leaves an end to the data.
    reference
        Height of a thin line to compare with, e.g. response 1.
    log
        Whether the vertical axis is logarithmic.

    Raises
    ------
    ValueError
        A line does not have one value a bin.
    """
    with styled():
        figure, axes = new_figure()
        if reference is not None:
            axes.axhline(reference, color="0.6", linewidth=1, zorder=0)
        for k, (name, series) in enumerate(lines.items()):
            if len(series.value) != len(axis):
                raise ValueError(f"line '{name}' has {len(series.value)} values for {len(axis)} bins")
            _points(axes, axis, series, k, len(lines), name)
        if axis.log:
            axes.set_xscale("log")
        if log and any(np.nanmax(series.value, initial=0) > 0 for series in lines.values()):
            axes.set_yscale("log", nonpositive="mask")
        used = _used_edges(axis, list(lines.values()))
        axes.set_xlim(used)
        axes.set_ylim(*limits)
        axes.set_xlabel(f"{axis.label} [{axis.unit}]" if axis.unit else axis.label)
        axes.set_ylabel(label)
        if any(np.isfinite(series.value).any() for series in lines.values()):
            axes.legend(loc="best")
        title(axes, text)
        return figure


def _points(axes: Axes, axis: Bins, series: Series, k: int, n_lines: int, name: str) -> None:
    there = np.isfinite(series.value)
    if not there.any():
        return
    low_edge, high_edge = axis.edges[:-1][there], axis.edges[1:][there]
    # Lines share a bin side by side, so that their intervals can be read.
    place = (k + 1) / (n_lines + 1)
    if axis.log:
        x = low_edge ** (1 - place) * high_edge**place
    else:
        x = low_edge + place * (high_edge - low_edge)
    value = series.value[there]
    below = np.nan_to_num(np.maximum(0, value - series.low[there]))
    above = np.nan_to_num(np.maximum(0, series.high[there] - value))
    axes.errorbar(
        x,
        value,
        xerr=np.stack([x - low_edge, high_edge - x]),
        yerr=np.stack([below, above]),
        fmt=MARKERS[k % len(MARKERS)],
        color=COLORS[k % len(COLORS)],
        linewidth=1.2,
        label=name,
    )


def _used_edges(axis: Bins, lines: Sequence[Series]) -> tuple[float, float]:
    """The range of bins in which any line has a value, or all."""
    there = np.zeros(len(axis), dtype=np.bool_)
    for series in lines:
        there |= np.isfinite(series.value)
    if not there.any():
        there[:] = True
    bins = np.flatnonzero(there)
    return float(axis.edges[bins[0]]), float(axis.edges[bins[-1] + 1])
