"""Results as ``metrics.json``, with the definition and unit of each key, and as a table on screen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pflow.config import versions
from pflow.metrics.evaluation import REFERENCE, EvaluationResult
from pflow.metrics.oracle import ORACLE
from pflow.metrics.stats import Histogram, Number, Series, leaves
from pflow.physics.pdg import CLASSES
from pflow.show import html_table

SCHEMA = "pflow-metrics-4"
"""Changes when a key is renamed, removed or redefined, not when one is added."""

VERSIONS = ("pflow", "numpy", "scipy", "awkward", "uproot", "fastjet")

DEFINITIONS = {
    "count.exact_fraction": "events with as many reconstructed particles as targets / events",
    "count.one_vs_two_accuracy": "correct events (one particle for one, more for two) / events of one or two photons",
    "count.one_vs_two_accuracy_above_30_mrad": "the same, without the pairs of photons closer than 30 mrad",
    "count.two_photons_found.efficiency": "events with two or more particles / events of two photons, by opening angle",
    "energy.mean_abs_rel_error": "mean of |E_reco - E_true| / E_true of matched pairs",
    "energy.mean_rel_error": "mean of (E_reco - E_true) / E_true of matched pairs",
    "energy.response_median": "median of E_reco / E_true of matched pairs",
    "energy.resolution_68": "half the narrowest interval that holds 68.3% of E_reco / E_true of matched pairs",
    "energy.resolution_68_over_median": "energy.resolution_68 / energy.response_median",
    "angle.mean_deg": "mean angle between the directions of matched pairs",
    "angle.median_deg": "median angle between the directions of matched pairs",
    "angle.q68_deg": "68% quantile of the angle between the directions of matched pairs",
    "charge.accuracy": "matched pairs of equal charge / matched pairs",
    "pdg.accuracy": "matched pairs of equal |PDG| / matched pairs",
    "pdg.class_accuracy": "matched pairs of the same class / matched pairs",
    "class.*.efficiency": "matched targets / targets, of true class *",
    "class.*.fake_rate": "unmatched / all reconstructed particles, of reconstructed class *",
    "class.*.purity": "matched to a target of the same class / all reconstructed particles, of class *",
    "class.*.identified": "matched to a particle of the same class / matched targets, of true class *",
    "class.*.response_median": "as energy.response_median, of matched pairs of true class *",
    "class.*.resolution_68": "as energy.resolution_68, of matched pairs of true class *",
    "class.*.resolution_68_over_median": "class.*.resolution_68 / class.*.response_median",
    "class.*.median_deg": "as angle.median_deg, of matched pairs of true class *",
    "class.*.q68_deg": "as angle.q68_deg, of matched pairs of true class *",
    "fake_energy_fraction": "energy of unmatched / of all reconstructed particles, times existence",
    "energy_weighted_efficiency": "energy of matched / of all targets",
    "event.*.response_median": "median of reconstructed / true visible energy or mass of events",
    "event.*.resolution_68": "half the narrowest interval with 68.3% of that response",
    "event.*.resolution_68_over_median": "that resolution_68 / response_median",
    "event.*.rms90": "standard deviation of that response in its narrowest interval with 90%",
    "track_momentum.in_neutral": "momentum of tracks in neutral reconstructed particles / of all tracks",
    "track_momentum.in_none": "momentum of tracks in no (without links from tracks: in no charged) particle / of all",
    "jets.*.efficiency": "true jets with a reconstructed jet within 0.1 rad / all true jets of at least 10 GeV",
    "jets.*.response_median": "median of E_reco / E_true of matched jets",
    "jets.*.iqr_over_median": "interquartile range / median of E_reco / E_true of matched jets",
    "binned.*.*.efficiency": "as class.*.efficiency, in bins of the true quantity",
    "binned.*.*.fake_rate": "as class.*.fake_rate, in bins of the reconstructed quantity",
    "binned.*.*.response_median": "as class.*.response_median, in bins of the true quantity",
    "binned.*.*.resolution_68": "as class.*.resolution_68, in bins of the true quantity",
    "binned.*.*.median_deg": "as class.*.median_deg, in bins of the true quantity",
    "binned.*.*.q68_deg": "as class.*.q68_deg, in bins of the true quantity",
}
"""Meaning of keys (patterns in which * stands for a name), in the order of the results."""


UNITS = {"deg": "deg", "mrad": "mrad", "gev": "GeV", "mm": "mm", "ns": "ns"}
"""Units by the last word of a key."""


def unit_of(key: str) -> str:
    """The unit of a key or pattern, by its last word, unless a number stands before it; "1" for none.

    >>> unit_of("angle.mean_deg"), unit_of("event.visible_energy.lost_gev"), unit_of("charge.accuracy")
    ('deg', 'GeV', '1')
    """
    before, _, last = key.rpartition("_")
    return "1" if before[-1:].isdigit() else UNITS.get(last, "1")


TABLE_ROWS = {
    "count.exact_fraction": "exact count",
    "count.one_vs_two_accuracy": "one photon or two",
    "class.all.efficiency": "efficiency",
    "class.all.fake_rate": "fake rate",
    "energy_weighted_efficiency": "energy-weighted efficiency",
    "fake_energy_fraction": "fake energy",
    "energy.mean_abs_rel_error": "mean |dE|/E",
    "energy.response_median": "response",
    "energy.resolution_68": "resolution",
    "angle.mean_deg": "angle, mean",
    "angle.median_deg": "angle, median",
    "angle.q68_deg": "angle, 68%",
    "charge.accuracy": "charge right",
    "pdg.accuracy": "|PDG| right",
    "pdg.class_accuracy": "class right",
    "event.visible_energy.response_median": "visible E, response",
    "event.visible_energy.resolution_68": "visible E, resolution",
    "event.visible_energy.resolution_68_over_median": "visible E, res./response",
    "event.visible_mass.resolution_68_over_median": "visible mass, res./resp.",
    "track_momentum.in_neutral": "track momentum in neutrals",
    "track_momentum.in_none": "track momentum in none",
    "jets.durham_2.response_median": "Durham jets, response",
    "jets.durham_2.iqr_over_median": "Durham jets, IQR/response",
    "jets.genkt_r04.iqr_over_median": "R=0.4 jets, IQR/response",
}
"""Keys in the table on screen and their labels; the classes follow."""
CLASS_ROWS = {
    "efficiency": "efficiency",
    "fake_rate": "fake rate",
    "purity": "purity",
    "response_median": "response",
    "resolution_68": "resolution",
}


def document(result: EvaluationResult, *, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All numbers of a result as plain data for JSON, with the keys of ``metrics.json``.

    The algorithm under evaluation is at the top level, ``oracle`` and ``reference`` under their names, others under
    ``compare``; a number `x` has its 68.3% interval in ``x_interval``: [low, high]. NaN becomes null.
    """
    settings = result.settings
    trees = {name: _plain(tree) for name, tree in result.algorithms.items()}
    top = trees.pop(result.name, {})
    known = {name: trees.pop(name) for name in (ORACLE, REFERENCE) if name in trees}
    return {
        "schema": SCHEMA,
        "versions": versions(*VERSIONS),
        "inputs": dict(inputs or {}),
        "settings": {
            "truth_rule": settings.rule,
            "e_min_gev": settings.e_min,
            "use_tracks": settings.use_tracks,
            "stable_status": list(settings.stable_status),
            "invisible": list(settings.invisible),
            "matching": {
                "cost": settings.matching.cost,
                "cut": settings.matching.cut,
                "definition": settings.matching.definition,
                "algorithms_matched_otherwise": result.matched_otherwise,
            },
            "interval": "68.3%; Clopper-Pearson for fractions, ranks for quantiles, standard error for means",
        },
        "definitions": {key: {"unit": unit_of(key), "definition": text} for key, text in DEFINITIONS.items()},
        "titles": result.titles,
        "n_events_read": result.n_events,
        "n_bad_input": result.n_bad_input,
        "n_max_particles": result.n_max_particles,
        "n_truth_tracks": result.n_truth_tracks,
        "name": result.name,
        **top,
        **known,
        **({"compare": trees} if trees else {}),
    }


def _sections(result: EvaluationResult) -> list[list[tuple[str, ...]]]:
    """Label and texts of each row with a number for any algorithm, for all particles, then by class."""
    flat = [dict(leaves(tree)) for tree in result.algorithms.values()]
    labels = [TABLE_ROWS]
    for name in CLASSES:
        if any(tree[f"class.{name}.{n}"] for tree in flat for n in ("n_truth", "n_reco")):
            title = name.replace("_", " ")
            labels.append({f"class.{name}.{key}": f"{title}: {label}" for key, label in CLASS_ROWS.items()})

    sections: list[list[tuple[str, ...]]] = []
    for part in labels:
        sections.append([])
        for key, label in part.items():
            numbers = [tree.get(key, Number.undefined()) for tree in flat]
            if not all(math.isnan(number.value) for number in numbers):
                unit = "" if unit_of(key) == "1" else f" [{unit_of(key)}]"
                sections[-1].append((label + unit, *map(number_text, numbers)))
    return sections


def table(result: EvaluationResult, *, width: int | None = None, short: bool = False) -> Table:
    """The table for a terminal: a row for each metric, a column for each algorithm.

    In a terminal too narrow for it, of `width` characters, it is `short`: 0.936(18) stands for 0.936 ±0.018, labels are
    wrapped, and numbers stay whole.
    """
    title, caption = Text(summary(result), "table.title"), Text(method(result), "table.caption")
    style: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)} if short else {}
    caption = Text("0.936(18) is 0.936 ±0.018. ", "table.caption").append(caption) if short else caption
    made = Table(title=title, title_justify="left", caption=caption, caption_justify="left", **style)
    made.add_column("metric", no_wrap=not short)
    for name in result.algorithms:
        made.add_column(Text(result.titles.get(name, name)), justify="right")
    for section in _sections(result):
        made.add_section()
        for label, *numbers in section:
            made.add_row(Text(label), *(Text(_short(number) if short else number, no_wrap=True) for number in numbers))
    too_wide = width is not None and Console(width=10 * width).measure(made).maximum > width
    return table(result, short=True) if too_wide and not short else made


def _short(number: str) -> str:
    """A text of `number_text` with its error in units of the last digit: 0.936(18)."""
    value, _, error = number.partition(" ")
    return f"{value}({error[0].strip('±')}{error[1:].lstrip('0.') or '0'})" if error else number


def html(result: EvaluationResult, *, caption: str = "") -> str:
    """The same as an HTML table."""
    heads = ("metric", *(result.titles.get(name, name) for name in result.algorithms))
    return html_table(heads, itertools.chain.from_iterable(_sections(result)), caption=caption)


def number_text(number: Number) -> str:
    """Value and half the length of its interval, with two digits; an interval that ends at the value has one sign.

    >>> number_text(Number(0.93421, 0.92219, 0.94412))
    '0.934 ±0.011'
    >>> number_text(Number(1.0, 0.9963, 1.0))
    '1.0000 -0.0037'
    """
    if math.isnan(number.value):
        return "-"
    below, above = number.value - number.low, number.high - number.value
    if math.isnan(below) or math.isnan(above):
        return f"{number.value:.4f}"
    error = 0.5 * (below + above) if below and above else below + above
    digits = min(6, max(0, 1 - math.floor(math.log10(error)))) if error else 4
    sign = "±" if (below > 0) == (above > 0) else ("-" if below > 0 else "+")
    return f"{number.value:.{digits}f} {sign}{error:.{digits}f}"


def summary(result: EvaluationResult) -> str:
    """Number of events, and of events with a flag."""
    numbers = {
        "of them left out (bad input)": result.n_bad_input,
        "stopped at the maximum number of particles": result.n_max_particles,
        "with tracks made from Monte Carlo particles": result.n_truth_tracks,
    }
    return ", ".join([f"{result.n_events} events", *(f"{n} {text}" for text, n in numbers.items() if n)])


def method(result: EvaluationResult) -> str:
    """Sentences on truth rule, matching, errors and missing jets."""
    settings = result.settings
    tracks = "" if settings.use_tracks else ", tracks not used"
    otherwise = "".join(
        f" {result.titles.get(name, name)} assigns no hits and is matched by another rule: {definition}."
        for name, definition in result.matched_otherwise.items()
    )
    with_jets = any("jets" in tree for tree in result.algorithms.values())
    jets = "" if with_jets else " Jets are left out: fastjet is not installed (pip install 'pflow[jets]')."
    return (
        f"Truth: rule '{settings.rule}', energy above {settings.e_min:g} GeV{tracks}. "
        f"Matching: {settings.matching.definition}.{otherwise} "
        f"Errors: half the 68.3% interval; all numbers: metrics.json.{jets}"
    )


def _plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, content in tree.items():
        if isinstance(content, Mapping):
            plain[name] = _plain(content)
        elif isinstance(content, Number | Series):
            plain[name] = _finite(content.value)
            plain[f"{name}_interval"] = _finite(np.stack([content.low, content.high], axis=-1))
        elif isinstance(content, Histogram):
            plain[name] = {field: np.asarray(value).tolist() for field, value in vars(content).items()}
        else:
            plain[name] = content
    return plain


def _finite(values: npt.ArrayLike) -> Any:
    """Numbers as plain data, with None for NaN."""
    plain = np.array(values, dtype=np.object_)
    plain[~np.isfinite(values)] = None
    return plain.tolist()
