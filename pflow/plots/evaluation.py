"""All figures of an evaluation, by the name of their file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pflow.metrics.counting import OPENING_ANGLE
from pflow.metrics.evaluation import EvaluationResult
from pflow.metrics.particles import ENERGY, THETA
from pflow.metrics.stats import Axis, Number, Tree
from pflow.plots.binned import plot_binned
from pflow.plots.confusion import plot_confusion
from pflow.plots.distributions import plot_count_difference, plot_distribution

__all__ = ["figures"]

BINNED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("response_median", "Median of $E_{reco}/E_{true}$", {"reference": 1.0}),
    ("resolution_68", r"Resolution $\sigma_{68}$ of $E_{reco}/E_{true}$", {"limits": (0.0, None)}),
    ("q68_deg", "68% quantile of the angle [deg]", {"log": True}),
    ("efficiency", "Efficiency", {"limits": (0.0, 1.2)}),
    ("fake_rate", "Fake rate", {"limits": (0.0, 1.2)}),
)
"""Metric in bins, label, and how it is drawn."""


def figures(result: EvaluationResult, classes: Sequence[str] = ()) -> dict[str, Figure]:
    """Figures of whatever the result holds numbers for.

    Response, resolution, angle, efficiency and fake rate against energy and polar angle; residuals; difference of
    counts; confusion matrix; separation of two photons; visible energy and mass of events.

    Parameters
    ----------
    result
        The numbers.
    classes
        Classes of particles that get the binned figures of their own, beside those of all particles.
    """
    lines = {result.titles.get(line, line): tree for line, tree in result.algorithms.items()}
    text = f"{result.n_events - result.n_bad_input} events, truth rule '{result.settings.rule}'"
    drawn: dict[str, Figure] = {}
    for axis, group, (metric, label, options) in itertools.product((ENERGY, THETA), ("all", *classes), BINNED):
        series = {name: tree["binned"][axis.name][group][metric] for name, tree in lines.items()}
        if any(np.isfinite(s.value).any() for s in series.values()):
            shown = _reconstructed(axis) if metric == "fake_rate" else axis
            suffix, of = ("", "") if group == "all" else (f"_{group}", f"{group.replace('_', ' ')}, ")
            name = f"{metric}_vs_{axis.name}{suffix}"
            drawn[name] = plot_binned(shown, series, label=label, text=of + text, **options)
    drawn["response"] = plot_distribution(
        {name: tree["histograms"]["response"] for name, tree in lines.items()},
        label="$E_{reco}/E_{true}$",
        numbers=_numbers(lines, lambda tree: _response_text(tree["energy"])),
        text=text,
    )
    drawn["angle"] = plot_distribution(
        {name: tree["histograms"]["angle_deg"] for name, tree in lines.items()},
        label="Angle between true and reconstructed direction [deg]",
        numbers=_numbers(lines, lambda tree: f"median {_digits(tree['angle']['median_deg'])} deg"),
        text=text,
        log_x=True,
    )
    drawn["count_difference"] = plot_count_difference(
        {name: {int(d): n for d, n in tree["count"]["difference"].items()} for name, tree in lines.items()},
        numbers=_numbers(lines, lambda tree: f"exact: {tree['count']['exact_fraction'].value:.1%}"),
        text=text,
    )
    for quantity, label in (("visible_energy", "Visible energy"), ("visible_mass", "Visible mass")):
        if any(tree["event"][quantity]["n_events"] for tree in lines.values()):
            drawn[quantity] = plot_distribution(
                {name: tree["event"][quantity]["histogram"] for name, tree in lines.items()},
                label=f"{label}, reconstructed / true",
                numbers=_numbers(lines, lambda tree, q=quantity: _response_text(tree["event"][q])),
                text=text,
            )
    separation = {name: tree["count"]["two_photons_found"]["efficiency"] for name, tree in lines.items()}
    if any(np.isfinite(series.value).any() for series in separation.values()):
        drawn["two_photons_found"] = plot_binned(
            OPENING_ANGLE, separation, label="Two photons told from one", text=text, limits=(0.0, 1.2)
        )
    for line, tree in result.algorithms.items():
        confusion = tree["confusion"]
        if np.any(confusion["counts"]):
            name = "confusion" if line == result.name else f"confusion_{line}"
            drawn[name] = plot_confusion(
                confusion["counts"],
                true_classes=confusion["true_classes"],
                reco_classes=confusion["reco_classes"],
                text=f"{result.titles.get(line, line)}, {text}",
            )
    return drawn


def _reconstructed(axis: Axis) -> Axis:
    return Axis(
        name=axis.name,
        label=axis.label.replace("True", "Reconstructed"),
        unit=axis.unit,
        edges=axis.edges,
        log=axis.log,
    )


def _numbers(lines: dict[str, Tree], write: Callable[..., str]) -> dict[str, str]:
    return {name: write(tree) for name, tree in lines.items()}


def _response_text(tree: dict[str, Any]) -> str:
    return f"median {_digits(tree['response_median'])}, $\\sigma_{{68}}$ {_digits(tree['resolution_68'])}"


def _digits(number: Number) -> str:
    return f"{number.value:.3g}" if np.isfinite(number.value) else "-"
