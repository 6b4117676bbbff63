"""Figures of an evaluation: metrics in bins, distributions, and the confusion matrix."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import mplhep
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pflow.metrics.evaluation import EvaluationResult
from pflow.metrics.event import OPENING_ANGLE
from pflow.metrics.particles import ENERGY, THETA
from pflow.metrics.stats import Axis, Histogram, Number, Series, Tree
from pflow.plots.style import COLORS, MARKERS, new_figure, styled, title

__all__ = ["figures", "plot_binned", "plot_confusion", "plot_count_difference", "plot_distribution"]

BINNED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("response_median", "Median of $E_{reco}/E_{true}$", {"reference": 1.0}),
    ("resolution_68", r"Resolution $\sigma_{68}$ of $E_{reco}/E_{true}$", {"limits": (0.0, None)}),
    ("q68_deg", "68% quantile of the angle [deg]", {"log": True}),
    ("efficiency", "Efficiency", {"limits": (0.0, 1.2)}),
    ("fake_rate", "Fake rate", {"limits": (0.0, 1.2)}),
)
"""Metric in bins, label, options of `plot_binned`."""


def figures(result: EvaluationResult, classes: Sequence[str] = ()) -> dict[str, Figure]:
    """Figures by the name of their file; a metric without values has none.

    Response, resolution, angle, efficiency and fake rate against energy and polar angle, of all particles and of each
    of `classes`; residuals; difference of counts; confusion matrix; separation of two photons; visible energy and mass.
    """
    trees = {result.titles.get(name, name): tree for name, tree in result.algorithms.items()}
    text = f"{result.n_events - result.n_bad_input} events, truth rule '{result.settings.rule}'"
    if result.n_truth_tracks:
        text += ", tracks from Monte Carlo particles"
    drawn: dict[str, Figure] = {}
    for axis, group, (metric, label, options) in itertools.product((ENERGY, THETA), ("all", *classes), BINNED):
        series = {title: tree["binned"][axis.name][group][metric] for title, tree in trees.items()}
        if _any_value(series):
            shown = _reconstructed(axis) if metric == "fake_rate" else axis
            suffix, of = ("", "") if group == "all" else (f"_{group}", f"{group.replace('_', ' ')}, ")
            drawn[f"{metric}_vs_{axis.name}{suffix}"] = plot_binned(
                shown, series, label=label, text=of + text, **options
            )
    drawn["response"] = plot_distribution(
        {title: tree["histograms"]["response"] for title, tree in trees.items()},
        label="$E_{reco}/E_{true}$",
        numbers={title: _response_text(tree["energy"]) for title, tree in trees.items()},
        text=text,
    )
    drawn["angle"] = plot_distribution(
        {title: tree["histograms"]["angle_deg"] for title, tree in trees.items()},
        label="Angle between true and reconstructed direction [deg]",
        numbers={title: f"median {_digits(tree['angle']['median_deg'])} deg" for title, tree in trees.items()},
        text=text,
        log_x=True,
    )
    drawn["count_difference"] = plot_count_difference(
        {title: {int(d): n for d, n in tree["count"]["difference"].items()} for title, tree in trees.items()},
        numbers={title: f"exact: {tree['count']['exact_fraction'].value:.1%}" for title, tree in trees.items()},
        text=text,
    )
    for quantity in ("visible_energy", "visible_mass"):
        by_title = {title: tree["event"][quantity] for title, tree in trees.items()}
        if any(tree["n_events"] for tree in by_title.values()):
            drawn[quantity] = plot_distribution(
                {title: tree["histogram"] for title, tree in by_title.items()},
                label=f"{quantity.replace('_', ' ').capitalize()}, reconstructed / true",
                numbers={title: _response_text(tree) for title, tree in by_title.items()},
                text=text,
            )
    separation = {title: tree["count"]["two_photons_found"]["efficiency"] for title, tree in trees.items()}
    if _any_value(separation):
        drawn["two_photons_found"] = plot_binned(
            OPENING_ANGLE, separation, label="Both photons found", text=text, limits=(0.0, 1.2)
        )
    for name, tree in result.algorithms.items():
        confusion = tree["confusion"]
        if np.any(confusion["counts"]):
            drawn["confusion" if name == result.name else f"confusion_{name}"] = plot_confusion(
                confusion["counts"],
                true_classes=confusion["true_classes"],
                reco_classes=confusion["reco_classes"],
                text=f"{result.titles.get(name, name)}, {text}",
            )
    return drawn


def _any_value(series: Mapping[str, Series]) -> bool:
    return any(np.isfinite(values.value).any() for values in series.values())


def _reconstructed(axis: Axis) -> Axis:
    return dataclasses.replace(axis, label=axis.label.replace("True", "Reconstructed"))


def _response_text(tree: Tree) -> str:
    return f"median {_digits(tree['response_median'])}, $\\sigma_{{68}}$ {_digits(tree['resolution_68'])}"


def _digits(number: Number) -> str:
    return f"{number.value:.3g}" if np.isfinite(number.value) else "-"


def plot_binned(
    axis: Axis,
    series: Mapping[str, Series],
    *,
    label: str,
    text: str = "",
    limits: tuple[float | None, float | None] = (None, None),
    reference: float | None = None,
    log: bool = False,
) -> Figure:
    """Points with their 68.3% intervals against a binned quantity, by algorithm; bins without a value are left out.

    `limits` are those of the vertical axis (None: from the data), `reference` the height of a thin line, `text` the
    title.
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


def _draw(axes: Axes, axis: Axis, series: Series, k: int, n_series: int, name: str) -> npt.NDArray[np.bool_]:
    """Draw series `k` of `n_series`, side by side in each bin; return which bins have a value, bool [bins]."""
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


def plot_distribution(
    histograms: Mapping[str, Histogram],
    *,
    label: str,
    numbers: Mapping[str, str] | None = None,
    text: str = "",
    log_x: bool = False,
    fraction_of: str = "entries per bin",
) -> Figure:
    """Fraction of the entries in each bin by algorithm, entries outside the axis included; `numbers`: legend texts."""
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
    """Fraction of events against the reconstructed minus true number of particles, from events by difference."""
    differences = [difference for by_difference in counts.values() for difference in by_difference] or [0]
    edges = np.arange(min(differences) - 1.5, max(differences) + 2.5)
    histograms = {
        name: Histogram(edges=edges, counts=np.histogram(list(of), edges, weights=list(of.values()))[0])
        for name, of in counts.items()
    }
    label = "Reconstructed minus true number of particles"
    return plot_distribution(histograms, label=label, numbers=numbers, text=text, fraction_of="events")


def plot_confusion(
    counts: npt.ArrayLike, *, true_classes: Sequence[str], reco_classes: Sequence[str], text: str = ""
) -> Figure:
    """Counts [true, reconstructed], coloured by the fraction of their row; each cell shows fraction and count."""
    matrix = np.asarray(counts, dtype=np.float64)
    total = matrix.sum(axis=1, keepdims=True)
    fractions = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    with styled():
        figure, axes = new_figure(width=8.0, height=6.4)
        image = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (row, column), fraction in np.ndenumerate(fractions):
            if matrix[row, column]:
                text_colour = "white" if fraction > 0.5 else "black"
                cell = f"{fraction:.1%}\n{int(matrix[row, column])}"
                axes.text(column, row, cell, ha="center", va="center", fontsize=9, color=text_colour)
        axes.set_xticks(range(len(reco_classes)), [name.replace("_", "\n") for name in reco_classes], fontsize=10)
        axes.set_yticks(range(len(true_classes)), [name.replace("_", "\n") for name in true_classes], fontsize=10)
        axes.tick_params(which="both", length=0)
        axes.minorticks_off()
        axes.set_xlabel("Reconstructed class")
        axes.set_ylabel("True class")
        figure.colorbar(image, ax=axes, label="Fraction of the true class")
        title(axes, text)
        return figure
