"""Figures of RESULTS.md from flagship.json: each model beside Pandora and the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from measurements.evaluation import CLASSICAL, ORACLE
from measurements.quantities import ROLES
from pflow.io.atomic import replacing
from pflow.metrics.counting import OPENING_ANGLE
from pflow.metrics.particles import ENERGY
from pflow.metrics.stats import Histogram, Series
from pflow.physics.pdg import CLASSES
from pflow.plots.binned import plot_binned
from pflow.plots.distributions import plot_distribution
from pflow.plots.style import COLORS, MARKERS, styled

MAX_BYTES = 2_000_000
"""All figures together: they are part of the repository."""
DISPLAY_DPI, FIGURE_DPI = 75, 90

TITLES = {
    **{role: f"pflow, {role} model" for role in ROLES},
    CLASSICAL: "PandoraPFA",
    ORACLE: "oracle",
}
"""Algorithms that are drawn, in this order and always in the same colours."""


def figures(results: dict[str, Any]) -> dict[str, Figure]:
    """The figures that there are results for, by the name of their file."""
    drawn: dict[str, Figure] = {}
    samples = results["samples"]
    if "gamma1" in samples:
        for key, label, log in (
            ("resolution_68", r"Resolution $\sigma_{68}$ of $E_{reco}/E_{true}$", False),
            ("median_deg", "Median angle [deg]", True),
        ):
            drawn[f"gamma1_{key}"] = plot_binned(
                ENERGY,
                {title: _binned(samples["gamma1"], name, "all", key) for name, title in TITLES.items()},
                label=label,
                text=_text("gamma1", samples),
                limits=(None, None) if log else (0.0, None),
                log=log,
            )
    if "gammasep" in samples:
        drawn["gammasep_two_found"] = plot_binned(
            OPENING_ANGLE,
            {title: _two_found(samples["gammasep"], name) for name, title in TITLES.items() if name != ORACLE},
            label="Both photons found",
            text=_text("gammasep", samples),
        )
    if "zqq" in samples:
        algorithms = samples["zqq"]["algorithms"]
        visible = {
            title: algorithms[name]["event"]["visible_energy"] for name, title in TITLES.items() if name in algorithms
        }
        empty = Histogram(edges=np.array([0.0, 1.0]), counts=np.zeros(1))
        drawn["zqq_visible_energy"] = plot_distribution(
            {
                title: Histogram(**_arrays(visible[title]["histogram"])) if title in visible else empty
                for title in TITLES.values()
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
        for panel, class_name in zip(panels, CLASSES, strict=False):
            for k, (name, title) in enumerate(TITLES.items()):
                series = _binned(samples["zqq"], name, class_name, "efficiency")
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
            panel.set_title(class_name.replace("_", " "), loc="left")
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


def _binned(sample: dict[str, Any], algorithm: str, group: str, key: str) -> Series:
    """A metric in bins of energy; NaN everywhere for an algorithm that the sample does not have."""
    tree = sample["algorithms"].get(algorithm)
    return _series(tree["binned"]["energy"][group] if tree else None, key, len(ENERGY))


def _two_found(sample: dict[str, Any], algorithm: str) -> Series:
    tree = sample["algorithms"].get(algorithm)
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


def save(drawn: dict[str, Figure], folder: Path, *, dpi: int = FIGURE_DPI) -> None:
    """Write PNG files.

    Raises
    ------
    SystemExit
        All figures of the folder together are larger than `MAX_BYTES`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        with replacing(folder / f"{name}.png") as partial, styled():
            figure.savefig(partial, format="png", dpi=dpi, metadata={"Software": None})
    if sum(path.stat().st_size for path in folder.glob("*.png")) > MAX_BYTES:
        raise SystemExit(f"more than {MAX_BYTES / 1e6:.0f} MB of figures in {folder}: draw fewer or smaller ones")
