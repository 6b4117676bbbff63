"""All figures of an evaluation."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pflow.metrics.counting import OPENING_ANGLE
from pflow.metrics.evaluation import EvaluationResult
from pflow.metrics.particles import ENERGY, THETA
from pflow.metrics.stats import Axis, Number, Series, Tree
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
"""Metric in bins, label, options of `plot_binned`."""


def figures(result: EvaluationResult, classes: Sequence[str] = ()) -> dict[str, Figure]:
    """Figures by the name of their file; a metric without values has none.

    Response, resolution, angle, efficiency and fake rate against energy and polar angle; residuals; difference of
    counts; confusion matrix; separation of two photons; visible energy and mass of events.

    Parameters
    ----------
    result
        The numbers.
    classes
        Particle classes with binned figures of their own, beside those of all particles.
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
