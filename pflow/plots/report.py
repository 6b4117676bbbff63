"""Self-contained HTML pages of an evaluation or a scan: numbers, figures, definitions, provenance; a scan's figures.

Figures of a scan have a curve for each quantity, against each parameter.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from html import escape
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pflow.metrics.event import OPENING_ANGLE
from pflow.metrics.match import HitMatching, Matching
from pflow.metrics.oracle import ORACLE
from pflow.metrics.report import REFERENCE, EvaluationResult, definitions, html, label_of, method, summary, unit_of
from pflow.metrics.scan import DIFFERENCES, MODEL, PointResult, ScanResult, change_text, value_text
from pflow.metrics.stats import Number, Series
from pflow.plots import COLORS, MARK, MARKERS, plain, styled
from pflow.plots.evaluation import caption, plot_binned
from pflow.show import html_table

CSS = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1200px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; margin-bottom: 0; } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; } th, td { padding: .2em .8em; text-align: left; }
thead th { border-bottom: 2px solid #888; }
.numbers :is(td, th):not(:first-child) { padding: .2em .5em; text-align: right; }
.numbers td { font-variant-numeric: tabular-nums; } @media print { .numbers { font-size: 75%; } }
tbody tr:hover { background: #f3f6fa; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(360px, 1fr)); gap: 1em; }
figure { margin: 0; } figure img { width: 100%; } figcaption { font-size: .85em; color: #555; text-align: center; }
.wide { grid-column: 1 / -1; }
pre { background: #f6f6f6; padding: 1em; overflow-x: auto; font-size: .85em; }
.note { color: #555; } summary { margin-top: 1.5em; font-weight: bold; cursor: pointer; }
""".strip()


def html_page(
    title: str,
    facts: Sequence[tuple[str, str]],
    notes: Iterable[str],
    table: str,
    figures: Iterable[str],
    definitions: str,
    provenance: Mapping[str, Any],
) -> str:
    """A page of a title, facts with the date, HTML of notes, table, `embedded` figures and definitions, provenance."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{MARK}">',
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        html_table(("", ""), [("date", datetime.now(UTC).date().isoformat()), *facts]),
        *notes,
        f'<h2>Results</h2><div class="numbers">{table}</div>',
        '<h2>Figures</h2><div class="figures">',
        *figures,
        f"</div><details><summary>Definitions</summary>{definitions}</details>",
        "<details><summary>Provenance in full</summary>",
        f"<pre>{escape(json.dumps(provenance, indent=2))}</pre></details></body></html>",
    ]
    return "\n".join(parts) + "\n"


def report_page(result: EvaluationResult, content: Mapping[str, Any], images: Mapping[str, bytes]) -> str:
    """HTML of a result with its `content` of ``metrics.json`` and PNG `images` by name."""
    inputs, matching = content.get("inputs", {}), result.settings.matching
    facts = []
    for name, paths in inputs.get("reco", {}).items():
        known = [paths if isinstance(paths, str) else f"{len(paths)} files"]
        with suppress(KeyError, TypeError):  # plain data of any algorithm
            made = inputs["provenance"][name]
            known.append(f"model {made['checkpoint']['path']}")
            known.append(f"detector {made['configuration']['tokeniser']['detector']['name']}")
        facts.append((result.titles.get(name, name), ", ".join(known)))
    return html_page(
        f"pflow evaluation: {result.titles.get(result.name, result.name)} on {result.sample or 'events in memory'}",
        facts,
        [
            f"<p>{escape(summary(result))}.</p>",
            *(f"<p><b>Warning:</b> {escape(text)}</p>" for text in result.warnings),
            f'<p class="note">{escape(method(result))}</p>',
        ],
        html(result),
        [embedded(name, png, caption(name, matching), wide=name.endswith("_by_class")) for name, png in images.items()],
        definition_table("key in metrics.json", matching),
        {key: content[key] for key in ("inputs", "settings", "versions") if key in content},
    )


def definition_table(head: str, matching: Matching | HitMatching) -> str:
    """HTML of all keys with units and definitions."""
    rows = ((key, unit_of(key), text) for key, text in definitions(matching).items())
    return html_table((head, "unit", "definition"), rows)


def embedded(name: str, png: bytes, text: str, *, wide: bool = False) -> str:
    """HTML of a picture with its name and caption, over the whole width of the page if `wide`."""
    data, text = base64.b64encode(png).decode("ascii"), escape(text)
    image = f'<img alt="{text}" src="data:image/png;base64,{data}">'
    style = ' class="wide"' if wide else ""
    return f'<figure id="{escape(name)}"{style}>{image}<figcaption>{text}</figcaption></figure>'


ROLES = {MODEL: 0, ORACLE: 1, REFERENCE: 2}
"""Index of the colour of each algorithm, as in the figures of an evaluation."""

CAVEATS = {
    "outside": ("o", "the detector or the nominal one is outside of its training"),
    "merged": ("m", "it merges cells or layers before the encoder"),
    "null test": ("n", "the change is within the null test's, or its error"),
}
"""Sign beside an open marker, and words below the figure, of each reason of `ScanResult.marks`."""


@styled()
def scan_figures(result: ScanResult) -> dict[str, Figure]:
    """Matplotlib figures by the name of their file: each headline quantity, and pairs of photons by opening angle."""
    drawn = {key.replace(".", "_"): plot_scan(result, key) for key in result.headlines}
    panel, seen = {}, dict[str, None]()
    for result_of, name in itertools.product(result.points, result.algorithms):
        # The null test's curve would cover the nominal one, and the oracle's curves each other.
        if result_of.point.kind == "null test" or name == ORACLE or name not in result_of.pairs:
            continue
        marks = result.marks(result_of, "count.two_photons_found.efficiency") if name == MODEL else []
        signs = f" ({''.join(CAVEATS[mark][0] for mark in marks)})" if marks else ""
        title = f"{result.algorithms[name]}, {result_of.point.name}{signs}"
        panel[title] = Series(**{of: np.array(result_of.pairs[name][of], float) for of in ("value", "low", "high")})
        seen |= dict.fromkeys(marks)
    if panel:
        text = f"{plain(result.nominal.point.sample)}, {result.events}"
        figure = plot_binned(OPENING_ANGLE, {text: panel}, label="Exactly two particles found")
        _note(figure, "Bars: error of each value alone.", seen)
        drawn["two_photons_found"] = figure
    return drawn


@styled()
def plot_scan(result: ScanResult, key: str) -> Figure:
    """A quantity against each parameter, in a panel each.

    Bars: errors of the paired comparison with the nominal point. Band: error of the nominal point, common to all.
    Open markers: the change may be the model's, for the reasons (`ScanResult.marks`) of the signs beside them. A note
    below the panels says so, since a figure is shown without its report.
    """
    panels, nominal = list(result.labels), result.nominal
    figure = Figure(figsize=(7.0, 5.8) if len(panels) == 1 else (5.0 * len(panels), 5.6))
    all_axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
    shades: dict[str, int] = {}
    for axes, parameter in zip(all_axes, panels, strict=True):
        _draw(axes, result, key, parameter, shades)
    label = label_of(key)
    if key.startswith("jet_energy."):
        label = label.replace("resolution", r"$\sqrt{2}\ RMS_{90}\,/\,Mean_{90}$")
    all_axes[0].set_ylabel(label)
    title = f"{plain(nominal.point.sample)}, {result.events}"
    if result.null_test:
        change = change_text(key, result.change(result.null_test, key))
        title += f"; null test{' not passed' if key in result.failed else ''}: {change}"
    all_axes[0].set_title(title, loc="left")
    # A curve may be in one panel only.
    shown = {name: of for axes in all_axes for of, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    titles = tuple(result.algorithms.values())
    names = sorted(shown, key=lambda name: [*(not name.startswith(title) for title in titles), name])
    figure.legend([shown[name] for name in names], names, loc="outside upper center", ncols=min(3, len(names)))
    drawn = [point for point in result.points if point.point.kind not in ("null test", "tuned")]
    marks = {mark for point in drawn for mark in result.marks(point, key)}
    _note(figure, " ".join(["Bars: errors of the change; bands: of the nominal value.", *result.caveats]), marks)
    return figure


def _note(figure: Figure, text: str, marks: Collection[str]) -> None:
    """A text below the panels, and why changes may be the model's, by sign."""
    reasons = "; ".join(f"{sign}: {reason}" for mark, (sign, reason) in CAVEATS.items() if mark in marks)
    text += f" The change may be the model's: {reasons}." if marks else ""
    figure.supxlabel(textwrap.fill(text, int(16 * figure.get_figwidth())), x=0.01, ha="left", fontsize=10)


def _draw(axes: Axes, result: ScanResult, key: str, parameter: str, shades: dict[str, int]) -> None:
    """One panel; `shades`: numbers of the curves at other values of the other parameters, the same in all panels."""
    ticks: dict[float, str] = {}
    place_of, to_scale = _places(result, parameter)
    for name, title in result.algorithms.items():
        nominal = result.nominal.algorithms.get(name, {}).get(key)
        if nominal is None:
            continue
        color = COLORS[ROLES[name]]
        if not math.isnan(nominal.low):
            axes.axhspan(nominal.low, nominal.high, color=color, alpha=0.15, linewidth=0)
        if name == REFERENCE and not any(name in point.algorithms for point in result.points[1:]):
            axes.axhline(nominal.value, color=color, linestyle="--", linewidth=1.2, label=f"{title}, nominal")
            continue
        for others, points in _curves(result, parameter, name).items():
            drawn = [point for point in points if key in point.algorithms[name]]
            places = [place_of[point.point.values[parameter]] for point in drawn]
            texts = [plain(p.point.sample) if parameter == "detector" else p.point.texts[parameter] for p in drawn]
            ticks |= dict(zip(places, texts, strict=True))
            free, number = COLORS[len(ROLES) :], shades.setdefault(others, len(shades)) if others else 0
            shade = free[number % len(free)] if others else color
            # The same colour once more gets other markers.
            marker = MARKERS[(ROLES[name] + number // len(free) * len(ROLES)) % len(MARKERS)]
            style: dict[str, Any] = {"color": shade, "marker": marker}
            values = [point.algorithms[name][key].value for point in drawn]
            low, high = zip(*(_paired_bar(result, point, key, name, nominal) for point in drawn), strict=True)
            # Detectors have no order that a line could show.
            style |= {"linestyle": "none" if parameter == "detector" else "-"}
            axes.errorbar(
                places, values, yerr=[low, high], elinewidth=1.4, linewidth=1.0, **style, label=f"{title}{others}"
            )
            for place, value, point in zip(places, values, drawn, strict=True):
                if name == MODEL and (marks := result.marks(point, key)):
                    style |= {"linestyle": "none", "markerfacecolor": "white", "zorder": 5}
                    axes.plot([place], [value], **style, label="may be the model's")
                    signs = "".join(CAVEATS[mark][0] for mark in marks)
                    axes.annotate(signs, (place, value), (5, 5), textcoords="offset points", fontsize=12, color=shade)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.margins(x=0.15)  # three marks stand beside the last point
    axes.set_xlabel(f"{result.labels[parameter]}{'' if to_scale else ' (not to scale)'}", fontsize=13)


def _curves(result: ScanResult, parameter: str, algorithm: str) -> dict[str, list[PointResult]]:
    """Points in the order of a parameter, one curve for each combination of the other values in words ("": nominal)."""
    by_others: dict[str, list[PointResult]] = {"": []}
    nominal = result.nominal.point.values
    for point in result.points:
        if point.point.kind in ("null test", "tuned") or algorithm not in point.algorithms:
            continue
        others = {name: value for name, value in point.point.values.items() if name != parameter}
        texts = {name: plain(point.point.sample) if name == "detector" else value_text(others[name]) for name in others}
        changed = [f"{name}={texts[name]}" for name, value in others.items() if value != nominal[name]]
        by_others.setdefault(f", {' '.join(changed)}" if changed else "", []).append(point)
    # Where parameters vary one at a time, the points of the others would be lone markers in this panel.
    curves = {name: points for name, points in by_others.items() if len(points) > 1 or not name}
    return {name: sorted(points, key=lambda p: p.point.values[parameter]) for name, points in curves.items() if points}


def _places(result: ScanResult, parameter: str) -> tuple[dict[float, float], bool]:
    """Place on the axis of each value: the value, inf to the right of the largest one; and whether it is to scale.

    Values are evenly spaced where labels, less than 12% of the axis apart, would lie on each other.
    """
    values = sorted({point.point.values[parameter] for point in result.points})
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) > 1 and np.diff(finite).min() < 0.12 * np.ptp(finite):
        return {value: float(number) for number, value in enumerate(values)}, False
    beyond = max(finite, default=0.0) + max(0.25 * np.ptp([0.0, *finite]), 1e-3)
    return {value: value if math.isfinite(value) else beyond for value in values}, True


def _paired_bar(
    result: ScanResult, point: PointResult, key: str, algorithm: str, nominal: Number
) -> tuple[float, float]:
    """Lengths of the bar below and above a point: the interval of its change, at the nominal value."""
    if point is result.nominal:
        return 0.0, 0.0
    change = result.change(point, key, algorithm)
    size = 1.0 if key.startswith(DIFFERENCES) else abs(nominal.value)
    below, above = (change.value - change.low) * size, (change.high - change.value) * size
    return (0.0, 0.0) if math.isnan(below + above) else (max(0.0, below), max(0.0, above))


def scan_page(result: ScanResult, images: Mapping[str, bytes]) -> str:
    """HTML of a scan with PNG `images` by name: limits, table, figures, definitions, provenance."""
    made: Mapping[str, Any] = result.provenance
    samples = dict.fromkeys(point.point.sample for point in result.points)
    heads, sections = result.cells()
    captions = {key.replace(".", "_"): label_of(key) for key in result.headlines}
    note = (
        "The first row of each algorithm gives the values at the nominal point, the other rows ratios to it (for the "
        "confusion, which may be 0, differences). Errors are those of the comparison, paired for shared events. "
        "In the figures bars are these errors, and the band is the nominal point's own error. Open markers, ~ and the "
        "last column mark changes that may come from the model and not from the detector. outside: beyond the model's "
        "training; merged: the model merges cells or layers first, which hides their effect on finding particles; ~: "
        "smaller than the change in the null test, or than its error."
    )
    limits = "".join(f"<li>{escape(text)}</li>" for text in result.sentences)
    return html_page(
        f"pflow scan of {', '.join(samples)}",
        [
            ("model", made.get("checkpoint", {}).get("path", "")),
            ("events", result.events),
            ("detector", made.get("options", {}).get("detector", "")),
        ],
        [f"<h2>Limits</h2><ul>{limits}</ul>", f'<p class="note">{escape(note)}</p>'],
        html_table(heads, itertools.chain.from_iterable(sections)),
        [embedded(name, png, captions.get(name, name.replace("_", " "))) for name, png in images.items()],
        definition_table("quantity in scan.csv", Matching()),
        made,
    )
