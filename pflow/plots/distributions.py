"""Histograms with their numbers written in: residuals, and the difference in the number of particles."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from pflow.metrics.stats import Histogram
from pflow.plots.style import COLORS, new_figure, styled, title

__all__ = ["plot_count_difference", "plot_distribution"]


def plot_distribution(
    lines: Mapping[str, Histogram],
    *,
    label: str,
    numbers: Mapping[str, str] | None = None,
    text: str = "",
    log_x: bool = False,
) -> Figure:
    """Shares per bin of one or more histograms, as outlines.

    Parameters
    ----------
    lines
        Histograms by the name for the legend. Shares are of all entries, those outside the axis included.
    label
        Of the horizontal axis, with the unit.
    numbers
        What to write beside a name in the legend, e.g. median and resolution (computed on all values).
    text
        What the figure was made of, above the axes.
    log_x
        Whether the horizontal axis is logarithmic.
    """
    with styled():
        figure, axes = new_figure()
        for k, (name, histogram) in enumerate(lines.items()):
            total = float(histogram.counts.sum()) + histogram.below + histogram.above
            if not total:
                continue
            written = (numbers or {}).get(name, "")
            outside = (histogram.below + histogram.above) / total
            lines_of_text = [
                name,
                *([written] if written else []),
                *([f"{outside:.1%} outside"] if outside >= 0.0005 else []),
            ]
            axes.stairs(
                histogram.counts / total,
                histogram.edges,
                color=COLORS[k % len(COLORS)],
                linewidth=1.5,
                label="\n".join(lines_of_text),
            )
        if log_x:
            axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel("Fraction of entries per bin")
        axes.set_ylim(bottom=0)
        axes.margins(y=0.15)
        if axes.patches:
            axes.legend(loc="best")
        title(axes, text)
        return figure


def plot_count_difference(
    lines: Mapping[str, Mapping[int, int]], *, numbers: Mapping[str, str] | None = None, text: str = ""
) -> Figure:
    """Fraction of events against the reconstructed minus true number of particles.

    Parameters
    ----------
    lines
        Number of events by difference, by the name for the legend.
    numbers, text
        As in `plot_distribution`.
    """
    differences = [difference for line in lines.values() for difference in line]
    low, high = (min(differences), max(differences)) if differences else (0, 0)
    edges = np.arange(low - 1.5, high + 2.5)
    with styled():
        figure, axes = new_figure()
        for k, (name, line) in enumerate(lines.items()):
            total = sum(line.values())
            if not total:
                continue
            shares = np.zeros(len(edges) - 1)
            for difference, events in line.items():
                shares[difference - low + 1] = events / total
            written = (numbers or {}).get(name, "")
            axes.stairs(
                shares,
                edges,
                color=COLORS[k % len(COLORS)],
                linewidth=1.5,
                label=f"{name}\n{written}" if written else name,
            )
        axes.set_xlabel("Reconstructed minus true number of particles")
        axes.set_ylabel("Fraction of events")
        axes.set_ylim(bottom=0)
        if axes.patches:
            axes.legend(loc="best")
        title(axes, text)
        return figure
