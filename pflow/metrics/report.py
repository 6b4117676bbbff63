"""Results as ``metrics.json`` and as a table on screen."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from rich.table import Table

from pflow.metrics.definitions import DEFINITIONS, definition_of
from pflow.metrics.evaluation import CLASSICAL, LIMIT, EvaluationResult
from pflow.metrics.number import Histogram, Number, Series, leaves

__all__ = ["SCHEMA", "document", "number_text", "table"]

SCHEMA = "pflow-metrics-1"
"""Changes when a key changes its meaning or goes; new keys do not change it."""

VERSIONS = ("pflow", "numpy", "scipy", "awkward", "uproot", "fastjet")

TABLE_KEYS = (
    "count.exact_fraction",
    "count.one_vs_two_accuracy",
    "class.all.efficiency",
    "class.all.fake_rate",
    "fake_energy_fraction",
    "energy.mean_abs_rel_error",
    "energy.response_median",
    "energy.resolution_68",
    "angle.mean_deg",
    "angle.median_deg",
    "angle.q68_deg",
    "charge.accuracy",
    "pdg.accuracy",
    "pdg.class_accuracy",
    "event.visible_energy.response_median",
    "event.visible_energy.resolution_68",
    "event.visible_energy.resolution_68_over_median",
    "event.visible_mass.resolution_68_over_median",
    "jets.durham_2.response_median",
    "jets.durham_2.iqr_over_median",
    "jets.genkt_r04.iqr_over_median",
    "legacy.count_difference",
    "legacy.mean_abs_rel_error",
    "legacy.charge_accuracy",
    "legacy.pdg_accuracy",
    "legacy.angle_mean_deg",
)
"""What the table on screen shows of every line; the classes follow."""
CLASS_KEYS = ("efficiency", "fake_rate", "purity", "response_median", "resolution_68")


def document(result: EvaluationResult, *, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything of a result as plain data for JSON, with the keys of ``metrics.json``.

    The line under evaluation lies at the top, ``limit`` and ``classical`` under their names, any other under
    ``compare``. A number `x` has its 68.3% interval
    beside it as ``x_interval``: [low, high]. What the data do not define is null. `inputs` says which files were read.
    """
    settings = result.settings
    lines = {name: _plain(tree) for name, tree in result.lines.items()}
    top = lines.pop(result.name, {})
    known = {name: lines.pop(name) for name in (LIMIT, CLASSICAL) if name in lines}
    return {
        "schema": SCHEMA,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in VERSIONS}},
        "inputs": dict(inputs or {}),
        "settings": {
            "truth_rule": settings.rule,
            "e_min_gev": settings.e_min,
            "use_tracks": settings.use_tracks,
            "matching": {
                "cost": settings.matching.cost,
                "cut": settings.matching.cut,
                "definition": settings.matching.definition,
            },
            "interval": "68.3%; Clopper-Pearson for fractions, ranks for quantiles, standard error for means",
        },
        "limit_calibration": result.calibrations,
        "definitions": {d.keys: {"unit": d.unit, "definition": d.text} for d in DEFINITIONS},
        "titles": result.titles,
        "n_events_read": result.n_events,
        "n_bad_input": result.n_bad_input,
        "n_max_particles": result.n_max_particles,
        "name": result.name,
        **top,
        **known,
        **({"compare": lines} if lines else {}),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def table(result: EvaluationResult) -> Table:
    """A table for a terminal: a row a metric, a column a line; metrics that no line has are left out."""
    table = Table(title=_title(result), title_justify="left", caption=_caption(result), caption_justify="left")
    table.add_column("metric")
    for line in result.lines:
        table.add_column(result.titles.get(line, line), justify="right")
    flat = {line: dict(leaves(tree)) for line, tree in result.lines.items()}
    _add_rows(table, flat, list(TABLE_KEYS))
    first = next(iter(flat.values()), {})
    classes = dict.fromkeys(key.split(".")[1] for key in first if key.startswith("class."))
    for name in classes:
        if name != "all" and any(tree[f"class.{name}.{n}"] for tree in flat.values() for n in ("n_truth", "n_reco")):
            table.add_section()
            _add_rows(table, flat, [f"class.{name}.{key}" for key in CLASS_KEYS])
    return table


def _add_rows(table: Table, flat: Mapping[str, Mapping[str, Any]], keys: list[str]) -> None:
    for key in keys:
        numbers = [tree.get(key, Number.undefined()) for tree in flat.values()]
        if any(not math.isnan(number.value) for number in numbers):
            unit = definition_of(key).unit
            label = key if unit == "1" else f"{key.removesuffix(f'_{unit}')} [{unit}]"
            table.add_row(label.replace("[", "\\["), *(number_text(number) for number in numbers))


def number_text(number: Number) -> str:
    """Value with its two errors, to two digits of the smaller one: ``0.934 -0.012 +0.010``.

    >>> number_text(Number(0.93421, 0.92219, 0.94412))
    '0.9342 -0.0120 +0.0099'
    """
    if math.isnan(number.value):
        return "-"
    below, above = number.value - number.low, number.high - number.value
    errors = [error for error in (below, above) if error > 0 and math.isfinite(error)]
    digits = min(6, max(0, 1 - math.floor(math.log10(min(errors))))) if errors else 4
    if math.isnan(below) or math.isnan(above):
        return f"{number.value:.{digits}f}"
    return f"{number.value:.{digits}f} -{below:.{digits}f} +{above:.{digits}f}"


def _title(result: EvaluationResult) -> str:
    text = f"{result.n_events} events"
    if result.n_bad_input:
        text += f", {result.n_bad_input} of them left out (bad input)"
    if result.n_max_particles:
        text += f", {result.n_max_particles} stopped at the maximum number of particles"
    return text


def _caption(result: EvaluationResult) -> str:
    settings = result.settings
    tracks = "" if settings.use_tracks else ", tracks not used"
    return (
        f"Truth: rule '{settings.rule}', energy above {settings.e_min:g} GeV{tracks}. "
        f"Matching: {settings.matching.definition}. Intervals: 68.3%."
    )


def _plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, content in tree.items():
        if isinstance(content, Mapping):
            plain[name] = _plain(content)
        elif isinstance(content, Number):
            plain[name] = _finite(content.value)
            plain[f"{name}_interval"] = [_finite(content.low), _finite(content.high)]
        elif isinstance(content, Series):
            plain[name] = [_finite(x) for x in content.value]
            plain[f"{name}_interval"] = [
                [_finite(low), _finite(high)] for low, high in zip(content.low, content.high, strict=True)
            ]
        elif isinstance(content, Histogram):
            plain[name] = {
                "edges": content.edges.tolist(),
                "counts": np.round(content.counts, 3).tolist(),
                "below": content.below,
                "above": content.above,
            }
        else:
            plain[name] = content
    return plain


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
