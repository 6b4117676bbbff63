"""The numbers of an evaluation as a tree, as ``metrics.json`` with the definition of each key, as a table on screen."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pflow.config import versions
from pflow.errors import ConfigError, check_type
from pflow.event.events import Events
from pflow.event.truth import STABLE_STATUS, Targets, select_targets
from pflow.metrics.match import HitMatching, Matching
from pflow.metrics.oracle import ORACLE
from pflow.metrics.stats import N_RESAMPLES, Number, Series, Tree, difference, leaves
from pflow.show import html_table

REFERENCE = "reference"
"""Name in the results of the algorithm whose particles are in the truth file (`Events.reference`)."""

SCHEMA = "pflow-metrics-5"
"""Changes when a key is renamed, removed or redefined, not when one is added."""

MIN_EVENTS = 30
"""Fewest events whose resampling gives errors that are large enough, of widths too; with 5 events 60% of the intervals
of an efficiency hold the true one."""

DEFINITIONS = {
    "count.exact_fraction": "events with exactly as many reconstructed particles as targets / events",
    "count.one_vs_two_accuracy": "events with exactly as many particles as photons / events of one or two photons",
    "count.one_vs_two_accuracy_above_30_mrad": "the same, without the pairs of photons closer than 30 mrad",
    "count.two_photons_found.efficiency": "events with exactly two particles / events of two photons, by opening angle",
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
    "class.*.efficiency": "targets with a match of cost <= {close} (of shared hits: 1 - overlap) / targets, by class",
    "class.*.efficiency_loose": "matched targets, by the matching's own largest cost / targets, of true class *",
    "class.*.fake_rate": "without a match up to the matching's own largest cost / reconstructed ones, by class",
    "class.*.purity": "matched to a target of the same class / all reconstructed particles, of class *",
    "class.*.identified": "matched to a particle of the same class / matched targets, of true class *",
    "class.*.response_median": "as energy.response_median, of matched pairs of true class *",
    "class.*.resolution_68": "as energy.resolution_68, of matched pairs of true class *",
    "class.*.resolution_68_over_median": "class.*.resolution_68 / class.*.response_median",
    "class.*.pull_width": "half the narrowest interval with 68.3% of ln(E_reco / E_true) over its stated standard "
    "deviation (covariance), of matched pairs of the same class *; 1 if the stated errors are right",
    "class.*.median_deg": "as angle.median_deg, of matched pairs of true class *",
    "class.*.q68_deg": "as angle.q68_deg, of matched pairs of true class *",
    "fake_energy_fraction": "energy of unmatched (as of class.*.fake_rate) / of all reconstructed particles",
    "energy_weighted_efficiency": "energy of targets with a match of cost <= {close} / of all targets",
    "energy_weighted_efficiency_loose": "energy of matched / of all targets",
    "event.*.response_median": "median of reconstructed / true visible energy or mass: plain sums of all particles",
    "event.*.resolution_68": "half the narrowest interval with 68.3% of that response",
    "event.*.resolution_68_over_median": "that resolution_68 / response_median",
    "event.*.rms90": "smallest root mean square of any 90% of that response (M. Thomson, NIM A 611 (2009) 25)",
    "event.*.mean90": "mean of these 90%",
    "event.*.rms90_over_mean90": "rms90 / mean90",
    "track_momentum.in_neutral": "momentum of tracks in neutral reconstructed particles / of all tracks",
    "track_momentum.in_none": "momentum of tracks in no (without links from tracks: in no charged) particle / of all",
    "confusion_budget.resolution.*": "rms90 / mean90 of the visible energy's response with particles of this kind, and "
    "of the steps before, from truth: the oracle's (perfect pattern recognition), then (measurement_*) true energies; "
    "as ILDConfig's PerfectPhoton, PerfectPhotonNeutronK0L and PerfectPFA",
    "confusion_budget.gain.*": "root of the difference of squares of the resolutions before and after the step",
    "confusion_budget.confusion": "that root from measured to charged: what perfect pattern recognition would gain",
    "confusion_budget.measurement": "resolution.charged: all particles are found, with the energies of the oracle",
    "photon_pairs.opening_response": "median of reconstructed / true opening angle of pairs of photons, both matched",
    "photon_pairs.mass_response": "median of reconstructed / true mass of these pairs, of massless photons",
    "photon_pairs.mass_width": "half the narrowest interval with 68.3% of that ratio",
    "photon_pairs.angle_*_mean_deg": "mean angle of the harder (1) and the softer (2) photon of these pairs",
    "photon_pairs.binned.*": "the same in bins of the true opening angle",
    "jet_energy.*.resolution": "sqrt(2) RMS90 / Mean90 of the plain sum of energies of events of two jets at rest, "
    "by sqrt(s) in GeV (ILDPerformance, UdsAnalysis; M. Thomson, NIM A 611 (2009) 25)",
    "jet_energy.*.scale": "Mean90 of that sum / sqrt(s), which is the energy of all visible true particles",
    "jet_energy.*.resolution_barrel": "that resolution for |cos theta| < 0.7 of the quarks or the thrust axis",
    "jet_energy.*.scale_barrel": "that scale for |cos theta| < 0.7",
    "jet_energy.*.resolution_endcap": "that resolution for |cos theta| >= 0.7",
    "jet_energy.*.scale_endcap": "that scale for |cos theta| >= 0.7",
    "jet_energy.*.binned.*": "the same in bins of |cos theta|",
    "taus.mode_right": "taus whose reconstructed charged particles and photons are of their decay mode, one or "
    "two photons for a pi0, more for several / taus; matched particles count for their tau, others for the nearest",
    "hadronic_mass.*.median_gev": "median mass of the two jets (Durham) of a hadronic Z, W or H, nearest to it in "
    "angle; particles matched to a true one of no boson, such as leptons, are left out; 0 without jets",
    "hadronic_mass.*.response_median": "median of that mass / the mass of the boson's targets",
    "hadronic_mass.*.resolution_68": "half the narrowest interval with 68.3% of that ratio",
    "hadronic_mass.*.resolution_68_over_median": "that resolution_68 / response_median",
    "jets.*.efficiency": "true jets with a reconstructed jet within 0.1 rad / all true jets of at least 10 GeV",
    "jets.*.response_median": "median of E_reco / E_true of matched jets",
    "jets.*.iqr_over_median": "interquartile range / median of E_reco / E_true of matched jets",
    "jets.*.rms90_over_mean90": "rms90 / mean90 of E_reco / E_true of matched jets",
    "jets.*.median_deg": "median angle between the directions of matched jets",
    "jets.*.q68_deg": "68% quantile of the angle between the directions of matched jets",
    "jets.*.theta_rms90_mrad": "rms90 of the polar angle, reconstructed minus true, of matched jets",
    "jets.*.phi_rms90_mrad": "rms90 of the azimuth, reconstructed minus true, of matched jets",
    "binned.*.*.efficiency": "as class.*.efficiency, in bins of the true quantity",
    "binned.*.*.fake_rate": "as class.*.fake_rate, in bins of the reconstructed quantity",
    "binned.*.*.response_median": "as class.*.response_median, in bins of the true quantity",
    "binned.*.*.resolution_68": "as class.*.resolution_68, in bins of the true quantity",
    "binned.*.*.resolution_68_over_median": "resolution_68 / response_median, in bins of the true quantity",
    "binned.*.*.median_deg": "as class.*.median_deg, in bins of the true quantity",
    "binned.*.*.q68_deg": "as class.*.q68_deg, in bins of the true quantity",
}
"""Meaning of keys (patterns in which * stands for a name), in the order of the results; `definitions` fills it in."""


def definitions(matching: Matching | HitMatching) -> dict[str, str]:
    """`DEFINITIONS` with the largest cost of a match that counts for the efficiencies."""
    return {key: text.format(close=f"{matching.close.cut:g}") for key, text in DEFINITIONS.items()}


UNITS = {"deg": "deg", "mrad": "mrad", "gev": "GeV", "mm": "mm", "ns": "ns"}
"""Units by the last word of a key."""


def unit_of(key: str) -> str:
    """The unit of a key or pattern, by its last word, unless a number stands before it; "1" for none.

    >>> unit_of("angle.mean_deg"), unit_of("event.visible_energy.lost_gev"), unit_of("charge.accuracy")
    ('deg', 'GeV', '1')
    """
    # In `above_30_mrad` the number makes the word a limit and not the unit.
    *_, before, last = ("", *key.split("_"))
    return "1" if before.isdigit() else UNITS.get(last, "1")


TABLE_ROWS = {
    "count.exact_fraction": "exact count",
    "count.one_vs_two_accuracy": "one photon or two",
    "energy_weighted_efficiency": "efficiency by E",
    "energy_weighted_efficiency_loose": "efficiency by E, loose",
    "fake_energy_fraction": "fake energy",
    "class.all.efficiency": "efficiency",
    "class.all.efficiency_loose": "efficiency, loose",
    "class.all.fake_rate": "fake rate",
    "energy.mean_abs_rel_error": "mean |dE|/E",
    "energy.response_median": "response",
    "energy.resolution_68": "resolution",
    "class.all.pull_width": "energy, width of pull",
    "angle.mean_deg": "angle, mean",
    "angle.median_deg": "angle, median",
    "angle.q68_deg": "angle, 68%",
    "charge.accuracy": "charge right",
    "pdg.accuracy": "|PDG| right",
    "pdg.class_accuracy": "class right",
    "event.visible_energy.response_median": "visible E, response",
    "event.visible_energy.resolution_68": "visible E, resolution",
    "event.visible_energy.resolution_68_over_median": "visible E, res./response",
    "event.visible_energy.rms90_over_mean90": "visible E, RMS90/Mean90",
    "event.visible_mass.resolution_68_over_median": "visible mass, res./resp.",
    "photon_pairs.opening_response": "pairs: opening / true",
    "photon_pairs.mass_response": "pairs: mass / true",
    "photon_pairs.mass_width": "pairs: width of mass",
    "photon_pairs.angle_1_mean_deg": "pairs: angle, harder",
    "photon_pairs.angle_2_mean_deg": "pairs: angle, softer",
    "taus.mode_right": "tau decay mode right",
    "hadronic_mass.Z.resolution_68_over_median": "Z -> jets, mass res./resp.",
    "hadronic_mass.W.resolution_68_over_median": "W -> jets, mass res./resp.",
    "hadronic_mass.H.resolution_68_over_median": "H -> jets, mass res./resp.",
    "track_momentum.in_neutral": "track momentum in neutrals",
    "track_momentum.in_none": "track momentum in no particle",
    "jets.durham_2.efficiency": "Durham jets, efficiency",
    "jets.durham_2.response_median": "Durham jets, response",
    "jets.durham_2.iqr_over_median": "Durham jets, IQR/response",
    "jets.durham_2.q68_deg": "Durham jets, 68%",
    "jets.genkt_r04.iqr_over_median": "R=0.4 jets, IQR/response",
    "jet_energy.*.resolution": "jets, {} GeV: resolution",
    "jet_energy.*.scale": "jets, {} GeV: scale",
    "jet_energy.*.resolution_barrel": "jets, {} GeV barrel: resolution",
    "jet_energy.*.scale_barrel": "jets, {} GeV barrel: scale",
    "class.*.efficiency": "{}: efficiency",
    "class.*.efficiency_loose": "{}: eff., loose",
    "class.*.fake_rate": "{}: fake rate",
    "class.*.purity": "{}: purity",
    "class.*.response_median": "{}: response",
    "class.*.resolution_68": "{}: resolution",
    "class.*.pull_width": "{}: width of pull",
}
"""Keys in the table on screen, as patterns in the order of its rows, and labels with the name that * stands for."""


def pattern_of(key: str, patterns: Iterable[str]) -> str | None:
    """The first pattern, in which * stands for a name, that a key has."""
    # The * of fnmatch also matches dots, so that the numbers of parts have to agree.
    return next((p for p in patterns if p.count(".") == key.count(".") and fnmatchcase(key, p)), None)


def label_of(key: str) -> str:
    """A key in words.

    >>> label_of("class.photon.efficiency"), label_of("confusion_budget.gain.neutral_hadrons")
    ('photon: efficiency', 'confusion budget, gain: neutral hadrons')
    """
    *heads, last = key.replace("_", " ").split(".")
    pattern = pattern_of(key, TABLE_ROWS)
    return f"{', '.join(heads)}: {last}" if pattern is None else TABLE_ROWS[pattern].format(*heads[1:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Options that the numbers of an evaluation depend on.

    `rule` to `invisible` are options of `pflow.select_targets`, `e_min` in GeV. For `matching` by hits, all
    reconstructions must have links from hits to their particles; the files' reference, which has none, is left out.

    >>> EvaluationSettings(rule="calo", e_min=0.5).matching.cut
    3.0
    """

    rule: str = "stable"
    e_min: float = 0.1
    use_tracks: bool = True
    stable_status: tuple[int, ...] = STABLE_STATUS
    invisible: tuple[int, ...] = ()
    matching: Matching | HitMatching = dataclasses.field(default_factory=Matching)

    def __post_init__(self) -> None:
        check_type(self.matching, Matching | HitMatching, "matching, a pflow.Matching(...) or pflow.HitMatching(...)")

    @property
    def chosen_by(self) -> dict[str, Any]:
        """The options of `select_targets`."""
        return {name: getattr(self, name) for name in ("rule", "e_min", "use_tracks", "stable_status", "invisible")}

    def targets(self, events: Events) -> Targets:
        """The targets of the events."""
        return select_targets(events, **self.chosen_by)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class EvaluationResult:
    """The numbers of an evaluation.

    Parameters
    ----------
    n_events, n_bad_input, n_max_particles, n_truth_tracks
        Numbers of all events; of events left out for bad input; of events that reached the maximum number of particles;
        of events whose tracks were made from Monte Carlo particles, in the truth file or for a reconstruction.
    algorithms
        Results by algorithm: `name` first; ``oracle`` on request; ``reference`` if the truth file has a reference.
    titles
        Name of each algorithm for tables and plots.
    sample, detector, energy
        Texts for tables and plots: names of the truth files, of the detector, and the events' true visible energies.
    warnings
        What is said of implausible particles and events, for ``metrics.json`` and the report.
    """

    settings: EvaluationSettings
    n_events: int
    n_bad_input: int
    n_max_particles: int
    n_truth_tracks: int = 0
    name: str
    algorithms: dict[str, Tree]
    titles: dict[str, str]
    sample: str = ""
    detector: str = ""
    energy: str = ""
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        numbers = {name: tree["class"]["all"]["efficiency"].value for name, tree in self.algorithms.items()}
        texts = (f"{self.titles.get(name, name)} {value:.3f}" for name, value in numbers.items())
        return f"<EvaluationResult: {self.n_events} events, efficiency: {', '.join(texts)}>"

    def _repr_html_(self) -> str:
        """The table of `pflow evaluate`, for notebooks."""
        return html(self, caption=summary(self))

    @property
    def baseline(self) -> str | None:
        """The baseline of comparisons: the file's reference, else the first further algorithm."""
        others = [name for name in self.algorithms if name not in (self.name, ORACLE)]
        return REFERENCE if REFERENCE in others else next(iter(others), None)


def paired(first: Tree, second: Tree) -> dict[str, Number]:
    """Differences of the numbers of two trees, first minus second, with errors of the paired comparison, by key.

    The trees come from `EvaluationResult.algorithms` of one evaluation or of two. Events at the same place of the input
    are paired, also if two detectors saw them. ValueError: the trees are of different events.

    >>> events = pflow.read_events("gammasep_test_small.root")
    >>> result = pflow.evaluate(pflow.reconstruct(events, "general"), events, oracle=False)
    >>> change = paired(result.algorithms["PFlow"], result.algorithms["reference"])
    >>> change["energy_weighted_efficiency"].value > 0
    True
    """
    if first["places"] != second["places"]:
        raise ValueError(
            f"numbers of {first['n_events']} and of {second['n_events']} events are not of the same events: evaluate "
            "both reconstructions together (compare), so that events which one of them lacks are left out of both"
        )
    others = dict(leaves(second))
    if _without_track_links(first) != _without_track_links(second):
        others.pop("track_momentum.in_none", None)  # of an algorithm without links from tracks something else
    return {
        key: difference(number, others[key])
        for key, number in leaves(first)
        if isinstance(number, Number) and isinstance(others.get(key), Number)
    }


def _without_track_links(tree: Tree) -> bool:
    # The momentum in neutral particles is then unknown, as it is without tracks.
    return math.isnan(tree.get("track_momentum", {}).get("in_neutral", Number.undefined()).value)


def document(result: EvaluationResult, *, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All numbers of a result as plain data for JSON, with the keys of ``metrics.json``.

    The algorithm under evaluation is at the top level, ``oracle`` and ``reference`` under their names, others under
    ``compare``; a number `x` has its 68.3% interval in ``x_interval``: [low, high]. NaN becomes null.
    """
    settings = result.settings
    trees = {name: _plain(tree) for name, tree in result.algorithms.items()}
    top = trees.pop(result.name, {})
    known = {name: trees.pop(name) for name in (ORACLE, REFERENCE) if name in trees}
    content = {
        "schema": SCHEMA,
        "versions": versions("pflow", "numpy", "scipy", "awkward", "uproot", "fastjet"),
        "inputs": dict(inputs or {}),
        "sample": result.sample,
        "detector": result.detector,
        "visible_energy": result.energy,
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
            },
            "interval": f"68.3%, by {N_RESAMPLES} resamples of the events; of counts of events by Clopper and Pearson",
        },
        "definitions": {
            key: {"unit": unit_of(key), "definition": text} for key, text in definitions(settings.matching).items()
        },
        "titles": result.titles,
        "n_events_read": result.n_events,
        "n_bad_input": result.n_bad_input,
        "n_max_particles": result.n_max_particles,
        "n_truth_tracks": result.n_truth_tracks,
        "warnings": list(result.warnings),
        "name": result.name,
        **top,
        **known,
        **({"compare": trees} if trees else {}),
        "differences": {"to": result.baseline, **_plain(differences(result))},
    }
    plain: dict[str, Any] = without_nan(content)
    return plain


def differences(result: EvaluationResult) -> dict[str, dict[str, Number]]:
    """Paired differences of all algorithms to the baseline by name and key; none without a baseline."""
    trees = dict(result.algorithms)
    baseline = trees.pop(result.baseline or "", None)
    if baseline is None:
        return {}
    return {name: paired(tree, baseline) for name, tree in trees.items() if tree["places"] == baseline["places"]}


def _cells(result: EvaluationResult) -> tuple[list[str], list[list[list[str]]]]:
    """Heads, and label and texts of each row with a number for any algorithm: all particles, jets, each class.

    The last column is the difference of the algorithm under evaluation to the baseline, if there is one.
    """
    flat = [dict(leaves(tree)) for tree in result.algorithms.values()]
    heads = ["metric", *(result.titles.get(name, name) for name in result.algorithms)]
    change = differences(result).get(result.name)
    if change is not None:
        heads.append(f"{result.titles.get(result.name, result.name)} - {result.titles.get(result.baseline or '', '')}")
    sections: dict[str, list[list[str]]] = {}
    of_pattern: dict[str | None, list[str]] = {}
    for key in dict.fromkeys(itertools.chain.from_iterable(flat)):
        # The patterns of classes would show the class `all` again, which has rows of its own.
        if key in TABLE_ROWS or not key.startswith("class.all."):
            of_pattern.setdefault(pattern_of(key, TABLE_ROWS), []).append(key)
    for pattern in TABLE_ROWS:
        for key in of_pattern.get(pattern, ()):
            numbers = [tree.get(key, Number.undefined()) for tree in flat]
            if not all(math.isnan(number.value) for number in numbers):
                unit = "" if unit_of(key) == "1" else f" [{unit_of(key)}]"
                texts = [*map(number_text, numbers)]
                if change is not None:
                    texts.append(number_text(change.get(key, Number.undefined()), sign=True))
                rows = sections.setdefault(key.rpartition(".")[0] if "*" in pattern else "", [])
                rows.append([label_of(key) + unit, *texts])
    return heads, list(sections.values())


def table(result: EvaluationResult, *, width: int | None = None) -> Table:
    """The table for a terminal: a row for each metric, a column for each algorithm, and one for the difference.

    In a terminal too narrow for it, of `width` characters, 0.936(18) stands for 0.936 ±0.018, and labels are wrapped.
    """
    cells, texts = _cells(result), dict[str, Any](title=summary(result), caption=method(result))
    made = terminal_table(*cells, **texts)
    # Measured on a far wider console: on its own, rich would squeeze the columns until they fit.
    too_wide = width is not None and Console(width=10 * width).measure(made).maximum > width
    return terminal_table(*cells, **texts, short=True) if too_wide else made


def terminal_table(
    heads: Sequence[str], sections: Iterable[Iterable[Sequence[str]]], *, title: str, caption: str, short: bool = False
) -> Table:
    """A table of texts with the first column, and one of limits, to the left, for a terminal.

    `short`: narrow, with errors as in 0.936(18), while texts of the first column are broken.
    """
    style: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)} if short else {}
    caption = f"0.936(18) is 0.936 ±0.018, 1.00(-31) has a lower error of 0.31. {caption}" if short else caption
    # As Text, because rich takes brackets in plain strings for markup.
    texts = Text(title, "table.title"), Text(caption, "table.caption")
    made = Table(title=texts[0], title_justify="left", caption=texts[1], caption_justify="left", **style)
    made.add_column(heads[0], no_wrap=not short)
    for head in heads[1:]:
        made.add_column(Text(head), justify="left" if head == "limits" else "right")
    for section in sections:
        made.add_section()
        for name, *cells in section:
            made.add_row(Text(name), *(Text(short_text(cell) if short else cell, no_wrap=True) for cell in cells))
    return made


def short_text(text: str) -> str:
    """A text of `number_text` with its error in units of the last digit: 0.936(18); a mark behind it stays."""
    pattern = r" ([±+-])([\d.]+)"
    short = re.sub(pattern, lambda error: f"({error[1].strip('±')}{error[2].lstrip('0.') or '0'})", text)
    return short.replace(" ~", "~")


def html(result: EvaluationResult, *, caption: str = "") -> str:
    """The same as an HTML table."""
    heads, sections = _cells(result)
    return html_table(heads, itertools.chain.from_iterable(sections), caption=caption)


def number_text(number: Number, *, sign: bool = False) -> str:
    """Value and half the length of its interval, with two digits; an interval that ends at the value has one sign.

    `sign` writes a plus before a positive value.

    >>> number_text(Number(0.93421, 0.92219, 0.94412))
    '0.934 ±0.011'
    >>> number_text(Number(1.0, 0.9963, 1.0))
    '1.0000 -0.0037'
    """
    if math.isnan(number.value):
        return "-"
    below, above = number.value - number.low, number.high - number.value
    plus = "+" if sign else ""
    if math.isnan(below) or math.isnan(above):
        return f"{number.value:{plus}.4f}"
    error = 0.5 * (below + above) if below and above else below + above
    digits = min(6, max(0, 1 - math.floor(math.log10(error)))) if error else 4
    to = "±" if (below > 0) == (above > 0) else ("-" if below > 0 else "+")
    return f"{number.value:{plus}.{digits}f} {to}{error:.{digits}f}"


def summary(result: EvaluationResult) -> str:
    """Number of events, of events with a flag, of an algorithm that not all have, and of events without particles."""
    numbers = {
        "of them left out (bad input)": result.n_bad_input,
        "stopped at the maximum number of particles": result.n_max_particles,
        "with tracks made from Monte Carlo particles": result.n_truth_tracks,
    }
    texts = [f"{result.n_events} events", *(f"{n} {text}" for text, n in numbers.items() if n)]
    # Of a reference that some files lack: its numbers are of other events than those beside them.
    n_used = result.n_events - result.n_bad_input
    for name, tree in result.algorithms.items():
        if (n := tree["n_events"]) != n_used:
            texts.append(f"{result.titles.get(name, name)} in {n} of them alone (not the same events: no differences)")
        # Medians and the widths of matched jets hardly change by some such events.
        if n := tree["n_empty"]:
            texts.append(f"{result.titles.get(name, name)} without particles in {n} of them")
    return ", ".join([*texts, *filter(None, (result.sample, result.detector, result.energy))])


def fakes_below(settings: EvaluationSettings) -> list[str]:
    """A sentence on fakes where targets have more energy than usual, else none."""
    text = f"Fakes are of any energy: right particles below {settings.e_min:g} GeV have no target and count."
    return [text] if settings.e_min > EvaluationSettings.e_min else []


def too_few(n_events: int) -> list[str]:
    """A sentence on errors of few events, none for enough."""
    return [f"Errors from fewer than {MIN_EVENTS} events are too small."] if n_events < MIN_EVENTS else []


def method(result: EvaluationResult) -> str:
    """Sentences on truth rule, matching, errors and missing jets."""
    settings, rule = result.settings, result.settings.matching
    tracks = "" if settings.use_tracks else ", tracks not used"
    sentences = [
        f"Truth: rule '{settings.rule}', energy above {settings.e_min:g} GeV{tracks}.",
        f"Matching: {rule.definition}.",
    ]
    if isinstance(rule, HitMatching):
        sentences.append("References in files assign no hits, and are left out.")
    unlinked = [result.titles.get(name, name) for name, tree in result.algorithms.items() if _without_track_links(tree)]
    if 0 < len(unlinked) < len(result.algorithms):
        sentences.append(f"Tracks in none, of {', '.join(unlinked)} without links from tracks: in no charged particle.")
    costs = f"cost at most {rule.close.cut:g}; loose efficiency, fakes and all else: {rule.cut:g}"
    sentences.append(f"Efficiency: matches of {costs}.")
    if any("jet_energy" in tree for tree in result.algorithms.values()):
        sentences.append("Events of two jets at rest: resolution is sqrt(2) RMS90 / Mean90, scale Mean90 / sqrt(s).")
    sentences += [
        *fakes_below(settings),
        "Sums are of the particles as they stand. Errors: half the 68.3% interval, by resampling events; differences "
        "are of the same events.",
        *too_few(result.n_events - result.n_bad_input),
        "All numbers: metrics.json.",
    ]
    if not any("jets" in tree for tree in result.algorithms.values()):
        sentences.append("Jets are left out: fastjet is not installed (pip install 'pflow[jets]').")
    return " ".join(sentences)


def _plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, content in tree.items():
        if isinstance(content, Mapping):
            plain[name] = _plain(content)
        elif isinstance(content, Number | Series):
            plain[name] = np.asarray(content.value).tolist()
            plain[f"{name}_interval"] = np.stack([content.low, content.high], axis=-1).tolist()
        else:
            plain[name] = content
    return plain


def without_nan(content: Any) -> Any:
    """Plain data with None for numbers that are not finite, which JSON does not have."""
    return json.loads(json.dumps(content), parse_constant=lambda _: None)


def check_figures(folder: Path, *, force: bool) -> None:
    """ConfigError: a folder holds figures and `force` is not given; which ones a report has is known at its end."""
    pictures = sorted(path.name for kind in ("png", "pdf") for path in folder.glob(f"*.{kind}"))
    if pictures and not force:
        there = f"{folder} holds {pictures[0]}, and a figure may have the same name"
        raise ConfigError(f"{there}: choose another folder, or replace it with --force")


def remove_report(folder: Path, title: str) -> None:
    """Remove an earlier report whose title begins so, and its figures: those not written again are of other numbers."""
    report = folder / "report.html"
    text = report.read_text("utf-8", errors="replace") if report.is_file() else ""
    if f"<title>{title}" in text:
        for name in re.findall(r'<figure id="(\w+)"', text):
            for kind in ("png", "pdf"):
                (folder / f"{name}.{kind}").unlink(missing_ok=True)
        report.unlink()
