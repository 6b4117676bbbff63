"""Histograms: residuals, and the difference in the number of particles."""

from __future__ import annotations

from collections.abc import Mapping

import mplhep
import numpy as np
from matplotlib.figure import Figure

from pflow.metrics.stats import Histogram
from pflow.plots.style import COLORS, new_figure, styled, title

__all__ = ["plot_count_difference", "plot_distribution"]


def plot_distribution(
    histograms: Mapping[str, Histogram],
    *,
    label: str,
    numbers: Mapping[str, str] | None = None,
    text: str = "",
    log_x: bool = False,
    fraction_of: str = "entries per bin",
) -> Figure:
    """Fraction of the entries in each bin, as outlines.

    Parameters
    ----------
    histograms
        By algorithm. Entries outside the axis count for the fractions.
    label
        Of the horizontal axis, with the unit.
    numbers
        Text for the legend by algorithm, e.g. median and resolution (computed on all values).
    text
        Title: events and truth rule.
    log_x
        Whether the horizontal axis is logarithmic.
    fraction_of
        What the vertical axis counts.
    """
    with styled():
        figure, axes = new_figure()
        for k, (name, histogram) in enumerate(histograms.items()):
            total = float(histogram.counts.sum()) + histogram.below + histogram.above
            if not total:
                continue
            outside = (histogram.below + histogram.above) / total
            parts = [name, (numbers or {}).get(name, ""), f"{outside:.1%} outside" if outside >= 0.0005 else ""]
            mplhep.histplot(
                histogram.counts / total,
                histogram.edges,
                ax=axes,
                flow="none",
                color=COLORS[k % len(COLORS)],
                linewidth=1.5,
                label="\n".join(filter(None, parts)),
            )
        if log_x:
            axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.set_ylabel(f"Fraction of {fraction_of}")
        axes.set_ylim(bottom=0)
        if axes.patches:
            axes.legend(loc="best")
        title(axes, text)
        return figure


def plot_count_difference(
    counts: Mapping[str, Mapping[int, int]], *, numbers: Mapping[str, str] | None = None, text: str = ""
) -> Figure:
    """Fraction of events against the reconstructed minus true number of particles.

    `counts` are numbers of events by difference, by algorithm; `numbers` and `text` as of `plot_distribution`.
    """
    differences = [difference for by_difference in counts.values() for difference in by_difference] or [0]
    edges = np.arange(min(differences) - 1.5, max(differences) + 2.5)
    histograms = {
        name: Histogram(edges=edges, counts=np.histogram(list(of), edges, weights=list(of.values()))[0])
        for name, of in counts.items()
    }
    label = "Reconstructed minus true number of particles"
    return plot_distribution(histograms, label=label, numbers=numbers, text=text, fraction_of="events")
