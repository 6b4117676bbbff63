"""A metric in bins of a quantity: response, resolution, efficiency, fake rate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pflow.metrics.stats import Axis as Bins
from pflow.metrics.stats import Series
from pflow.plots.style import COLORS, MARKERS, new_figure, styled, title

__all__ = ["plot_binned"]


def plot_binned(
    axis: Bins,
    series: Mapping[str, Series],
    *,
    label: str,
    text: str = "",
    limits: tuple[float | None, float | None] = (None, None),
    reference: float | None = None,
    log: bool = False,
) -> Figure:
    """Points with their 68.3% intervals against a binned quantity.

    Parameters
    ----------
    axis
        The quantity, its bins, label and unit.
    series
        Values in these bins, by algorithm. Bins without a value are left out.
    label
        Of the vertical axis, with the unit.
    text
        Title: events and truth rule.
    limits
        Of the vertical axis; None takes an end from the data.
    reference
        Height of a thin horizontal line, e.g. response 1.
    log
        Whether the vertical axis is logarithmic.

    Raises
    ------
    ValueError
        A series does not have one value per bin.
    """
    with styled():
        figure, axes = new_figure()
        if reference is not None:
            axes.axhline(reference, color="0.6", linewidth=1, zorder=0)
        there = np.zeros(len(axis), dtype=np.bool_)
        for k, (name, values) in enumerate(series.items()):
            there |= _draw(axes, axis, values, k, len(series), name)
        if axis.log:
            axes.set_xscale("log")
        if log and any(np.nanmax(values.value, initial=0) > 0 for values in series.values()):
            axes.set_yscale("log", nonpositive="mask")
        bins = np.flatnonzero(there) if there.any() else np.arange(len(axis))
        axes.set_xlim(axis.edges[bins[0]], axis.edges[bins[-1] + 1])
        axes.set_ylim(*limits)
        axes.set_xlabel(f"{axis.label} [{axis.unit}]" if axis.unit else axis.label)
        axes.set_ylabel(label)
        if there.any():
            axes.legend(loc="best")
        title(axes, text)
        return figure


def _draw(axes: Axes, axis: Bins, series: Series, k: int, n_series: int, name: str) -> npt.NDArray[np.bool_]:
    """Draw series `k` of `n_series`, side by side in each bin; return which bins have a value, bool [bins]."""
    if len(series.value) != len(axis):
        raise ValueError(f"series '{name}' has {len(series.value)} values for {len(axis)} bins")
    there = np.isfinite(series.value)
    if not there.any():
        return there
    low_edge, high_edge = axis.edges[:-1][there], axis.edges[1:][there]
    place = (k + 1) / (n_series + 1)
    if axis.log:
        x = low_edge ** (1 - place) * high_edge**place
    else:
        x = low_edge + place * (high_edge - low_edge)
    value = series.value[there]
    axes.errorbar(
        x,
        value,
        xerr=[x - low_edge, high_edge - x],
        yerr=np.nan_to_num(np.maximum(0, [value - series.low[there], series.high[there] - value])),
        fmt=MARKERS[k % len(MARKERS)],
        color=COLORS[k % len(COLORS)],
        linewidth=1.2,
        label=name,
    )
    return there
