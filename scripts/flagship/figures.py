"""Figures of the flagship section, from its results: each model beside Pandora and the limit."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flagship.samples import ROLES
from pflow.metrics.counting import OPENING_ANGLE
from pflow.metrics.evaluation import CLASSICAL, LIMIT
from pflow.metrics.number import Histogram, Series
from pflow.metrics.particles import ENERGY
from pflow.physics.pdg import CLASSES
from pflow.plots.binned import plot_binned
from pflow.plots.distributions import plot_distribution
from pflow.plots.style import COLORS, MARKERS, styled

__all__ = ["LINE_TITLES", "figures"]

LINE_TITLES = {
    **{role: f"pflow, {role} model" for role in ROLES},
    CLASSICAL: "PandoraPFA",
    LIMIT: "limit",
}
"""Lines that are drawn, in this order and always in the same colours."""


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """What there are results for, by the name of the file."""
    drawn: dict[str, Figure] = {}
    samples = results["samples"]
    if "gamma1" in samples:
        for key, label, log in (
            ("resolution_68", r"Resolution $\sigma_{68}$ of $E_{reco}/E_{true}$", False),
            ("median_deg", "Median angle [deg]", True),
        ):
            drawn[f"gamma1_{key}"] = plot_binned(
                ENERGY,
                {title: _binned(samples["gamma1"], line, "all", key) for line, title in LINE_TITLES.items()},
                label=label,
                text=_text("gamma1", samples),
                limits=(None, None) if log else (0.0, None),
                log=log,
            )
    if "gammasep" in samples:
        drawn["gammasep_two_found"] = plot_binned(
            OPENING_ANGLE,
            {title: _two_found(samples["gammasep"], line) for line, title in LINE_TITLES.items() if line != LIMIT},
            label="Two photons told from one",
            text=_text("gammasep", samples),
        )
    if "zqq" in samples:
        lines = samples["zqq"]["lines"]
        visible = {
            title: lines[line]["event"]["visible_energy"] for line, title in LINE_TITLES.items() if line in lines
        }
        empty = Histogram(edges=np.array([0.0, 1.0]), counts=np.zeros(1))
        drawn["zqq_visible_energy"] = plot_distribution(
            {
                title: Histogram(**_arrays(visible[title]["histogram"])) if title in visible else empty
                for title in LINE_TITLES.values()
            },
            label="Visible energy, reconstructed / true",
            numbers={title: _resolution(tree) for title, tree in visible.items()},
            text=_text("zqq", samples),
        )
        drawn["zqq_efficiency"] = _by_class(samples)
    return drawn


def _by_class(samples: dict[str, Any]) -> Figure:
    """Efficiency against true energy in `zqq`, a panel a class."""
    with styled():
        figure = Figure(figsize=(12.0, 6.0), layout="constrained")
        panels = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
        for panel, name in zip(panels, CLASSES, strict=False):
            for k, (line, title) in enumerate(LINE_TITLES.items()):
                series = _binned(samples["zqq"], line, name, "efficiency")
                there = np.isfinite(series.value)
                panel.errorbar(
                    np.sqrt(ENERGY.edges[:-1] * ENERGY.edges[1:])[there] * 1.06 ** (k - 1.5),
                    series.value[there],
                    yerr=np.stack([series.value - series.low, series.high - series.value])[:, there],
                    fmt=MARKERS[k],
                    color=COLORS[k],
                    linewidth=1.2,
                    label=title if there.any() else None,
                )
            panel.set_title(name.replace("_", " "), loc="left")
        panels[0].set_xscale("log")
        panels[0].set_ylim(0.0, 1.1)
        panels[-1].set_axis_off()
        panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center")
        panels[-1].set_title(_text("zqq", samples), loc="left")
        figure.supxlabel("True energy [GeV]")
        figure.supylabel("Efficiency")
        return figure


def _text(name: str, samples: dict[str, Any]) -> str:
    sample = samples[name]
    return f"{name}: {sample['n_events']} events, truth rule '{sample['settings']['truth_rule']}'"


def _binned(sample: dict[str, Any], line: str, group: str, key: str) -> Series:
    """A metric in bins of energy; NaN everywhere for a line that the sample does not have."""
    tree = sample["lines"].get(line)
    return _series(tree["binned"]["energy"][group] if tree else None, key, len(ENERGY))


def _two_found(sample: dict[str, Any], line: str) -> Series:
    tree = sample["lines"].get(line)
    return _series(tree["count"]["two_photons_found"] if tree else None, "efficiency", len(OPENING_ANGLE))


def _series(tree: dict[str, Any] | None, key: str, n: int) -> Series:
    if tree is None:
        return Series(value=np.full(n, np.nan), low=np.full(n, np.nan), high=np.full(n, np.nan))
    low, high = np.array(tree[f"{key}_interval"], dtype=np.float64).T
    return Series(value=np.array(tree[key], dtype=np.float64), low=low, high=high)


def _arrays(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) if isinstance(value, list) else value for name, value in tree.items()}


def _resolution(tree: dict[str, Any]) -> str:
    value = tree["resolution_68_over_median"]
    return "" if value is None else f"$\\sigma_{{68}}$ / median {value:.2%}"
