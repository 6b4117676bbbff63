"""Results as ``metrics.json``, with the definition and unit of each key, and as a table on screen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pflow.config import versions
from pflow.metrics.evaluation import REFERENCE, EvaluationResult, paired
from pflow.metrics.oracle import ORACLE
from pflow.metrics.stats import N_RESAMPLES, Histogram, Number, Series, leaves
from pflow.physics.pdg import CLASSES
from pflow.show import html_table

SCHEMA = "pflow-metrics-5"
"""Changes when a key is renamed, removed or redefined, not when one is added."""

VERSIONS = ("pflow", "numpy", "scipy", "awkward", "uproot", "fastjet")

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
    "class.*.efficiency": "targets with a match of cost <= 0.5 (of shared hits: overlap >= 0.5) / targets, of class *",
    "class.*.efficiency_loose": "matched targets, by the matching's own largest cost / targets, of true class *",
    "class.*.fake_rate": "unmatched / all reconstructed particles, of reconstructed class *",
    "class.*.purity": "matched to a target of the same class / all reconstructed particles, of class *",
    "class.*.identified": "matched to a particle of the same class / matched targets, of true class *",
    "class.*.response_median": "as energy.response_median, of matched pairs of true class *",
    "class.*.resolution_68": "as energy.resolution_68, of matched pairs of true class *",
    "class.*.resolution_68_over_median": "class.*.resolution_68 / class.*.response_median",
    "class.*.median_deg": "as angle.median_deg, of matched pairs of true class *",
    "class.*.q68_deg": "as angle.q68_deg, of matched pairs of true class *",
    "fake_energy_fraction": "energy of unmatched / of all reconstructed particles",
    "energy_weighted_efficiency": "energy of targets with a match of cost <= 0.5 / of all targets",
    "energy_weighted_efficiency_loose": "energy of matched / of all targets",
    "event.*.response_median": "median of reconstructed / true visible energy or mass: plain sums of all particles",
    "event.*.resolution_68": "half the narrowest interval with 68.3% of that response",
    "event.*.resolution_68_over_median": "that resolution_68 / response_median",
    "event.*.rms90": "smallest root mean square of any 90% of that response (M. Thomson, NIM A 611 (2009) 25)",
    "event.*.mean90": "mean of these 90%",
    "event.*.rms90_over_mean90": "rms90 / mean90",
    "track_momentum.in_neutral": "momentum of tracks in neutral reconstructed particles / of all tracks",
    "track_momentum.in_none": "momentum of tracks in no (without links from tracks: in no charged) particle / of all",
    "confusion_budget.resolution.*": "rms90 / mean90 of the visible energy's response, with particles of *, and of the "
    "steps before, from truth: the oracle's (perfect pattern recognition), then (measurement_*) true energies; as "
    "ILDConfig's PerfectPhoton, PerfectPhotonNeutronK0L and PerfectPFA",
    "confusion_budget.gain.*": "root of the difference of squares of the resolutions before and after the step *",
    "photon_pairs.opening_response": "median of reconstructed / true opening angle of pairs of photons, both matched",
    "photon_pairs.mass_response": "median of reconstructed / true mass of these pairs, of massless photons",
    "photon_pairs.mass_width": "half the narrowest interval with 68.3% of that ratio",
    "photon_pairs.angle_*_mean_deg": "mean angle of the harder (1) and the softer (2) photon of these pairs",
    "photon_pairs.binned.*": "the same in bins of the true opening angle",
    "jet_energy.*.resolution": "sqrt(2) RMS90 / Mean90 of the plain sum of energies of events of two jets at rest, "
    "at sqrt(s) of * GeV (ILDPerformance, UdsAnalysis; M. Thomson, NIM A 611 (2009) 25)",
    "jet_energy.*.scale": "Mean90 of that sum / sqrt(s), which is the energy of all visible true particles",
    "jet_energy.*.resolution_barrel": "that resolution for |cos theta| < 0.7 of the quarks or the thrust axis",
    "jet_energy.*.scale_barrel": "that scale for |cos theta| < 0.7",
    "jet_energy.*.resolution_endcap": "that resolution for |cos theta| >= 0.7",
    "jet_energy.*.scale_endcap": "that scale for |cos theta| >= 0.7",
    "jet_energy.*.binned.*": "the same in bins of |cos theta|",
    "taus.mode_right": "taus whose reconstructed charged particles and photons are of their decay mode / taus",
    "hadronic_mass.*.median_gev": "median mass of the two jets of a hadronic Z, W or H (Durham, no leptons)",
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
"""Meaning of keys (patterns in which * stands for a name), in the order of the results."""


UNITS = {"deg": "deg", "mrad": "mrad", "gev": "GeV", "mm": "mm", "ns": "ns"}
"""Units by the last word of a key."""


def unit_of(key: str) -> str:
    """The unit of a key or pattern, by its last word, unless a number stands before it; "1" for none.

    >>> unit_of("angle.mean_deg"), unit_of("event.visible_energy.lost_gev"), unit_of("charge.accuracy")
    ('deg', 'GeV', '1')
    """
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
    "track_momentum.in_none": "track momentum in none",
    "jets.durham_2.response_median": "Durham jets, response",
    "jets.durham_2.iqr_over_median": "Durham jets, IQR/response",
    "jets.durham_2.q68_deg": "Durham jets, 68%",
    "jets.genkt_r04.iqr_over_median": "R=0.4 jets, IQR/response",
}
"""Keys in the table on screen and their labels; the classes follow."""
CLASS_ROWS = {
    "efficiency": "efficiency",
    "efficiency_loose": "eff., loose",
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
        "sample": result.sample,
        "detector": result.detector,
        "energy": result.energy,
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
            "interval": f"68.3%, by {N_RESAMPLES} resamples of the events; of counts of events by Clopper and Pearson",
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
        "differences": differences(result),
    }


def differences(result: EvaluationResult) -> dict[str, Any]:
    """Paired differences of all algorithms to the baseline, ``to``, as plain data by name and key."""
    plain: dict[str, Any] = {"to": result.baseline}
    if result.baseline is not None:
        baseline = result.algorithms[result.baseline]
        for name, tree in result.algorithms.items():
            if name != result.baseline and tree["n_events"] == baseline["n_events"]:
                plain[name] = _plain(paired(tree, baseline))
    return plain


def _sections(result: EvaluationResult) -> list[list[tuple[str, ...]]]:
    """Label and texts of each row with a number for any algorithm, for all particles, then by class.

    The last text is the difference of the algorithm under evaluation to the baseline, if there is one.
    """
    flat = [dict(leaves(tree)) for tree in result.algorithms.values()]
    labels = [TABLE_ROWS, dict(_jet_energy_rows(result))]
    for name in CLASSES:
        if any(tree[f"class.{name}.{n}"] for tree in flat for n in ("n_truth", "n_reco")):
            title = name.replace("_", " ")
            labels.append({f"class.{name}.{key}": f"{title}: {label}" for key, label in CLASS_ROWS.items()})
    change = _change(result)
    sections: list[list[tuple[str, ...]]] = []
    for part in labels:
        sections.append([])
        for key, label in part.items():
            numbers = [tree.get(key, Number.undefined()) for tree in flat]
            if not all(math.isnan(number.value) for number in numbers):
                unit = "" if unit_of(key) == "1" else f" [{unit_of(key)}]"
                further = [] if change is None else [number_text(change.get(key, Number.undefined()), sign=True)]
                sections[-1].append((label + unit, *map(number_text, numbers), *further))
    return sections


def _jet_energy_rows(result: EvaluationResult) -> Iterator[tuple[str, str]]:
    """Keys and labels of the jet energy resolution at each energy that an algorithm has."""
    energies = dict.fromkeys(energy for tree in result.algorithms.values() for energy in tree.get("jet_energy", ()))
    for energy, part in itertools.product(energies, ("", "_barrel")):
        yield f"jet_energy.{energy}.resolution{part}", f"{energy} GeV{part.replace('_', ' ')}: resolution"
        yield f"jet_energy.{energy}.scale{part}", f"{energy} GeV{part.replace('_', ' ')}: scale"


def _change(result: EvaluationResult) -> dict[str, Number] | None:
    """Paired differences of the algorithm under evaluation to the baseline; None without."""
    if result.baseline is None or result.name not in result.algorithms:
        return None
    first, second = result.algorithms[result.name], result.algorithms[result.baseline]
    return paired(first, second) if first["n_events"] == second["n_events"] else None


def _heads(result: EvaluationResult) -> list[str]:
    """Heads of the columns of numbers."""
    titles = {name: result.titles.get(name, name) for name in result.algorithms}
    heads = list(titles.values())
    return heads if _change(result) is None else [*heads, f"{titles[result.name]} - {titles[str(result.baseline)]}"]


def table(result: EvaluationResult, *, width: int | None = None, short: bool = False) -> Table:
    """The table for a terminal: a row for each metric, a column for each algorithm, and one for the difference.

    In a terminal too narrow for it, of `width` characters, it is `short`: 0.936(18) stands for 0.936 ±0.018, labels are
    wrapped, and numbers stay whole.
    """
    title, caption = Text(summary(result), "table.title"), Text(method(result), "table.caption")
    style: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)} if short else {}
    caption = Text("0.936(18) is 0.936 ±0.018. ", "table.caption").append(caption) if short else caption
    made = Table(title=title, title_justify="left", caption=caption, caption_justify="left", **style)
    made.add_column("metric", no_wrap=not short)
    for head in _heads(result):
        made.add_column(Text(head), justify="right")
    for section in _sections(result):
        made.add_section()
        for label, *numbers in section:
            made.add_row(
                Text(label), *(Text(short_text(number) if short else number, no_wrap=True) for number in numbers)
            )
    too_wide = width is not None and Console(width=10 * width).measure(made).maximum > width
    return table(result, short=True) if too_wide and not short else made


def short_text(number: str) -> str:
    """A text of `number_text` with its error in units of the last digit: 0.936(18)."""
    value, _, error = number.partition(" ")
    return f"{value}({error[0].strip('±')}{error[1:].lstrip('0.') or '0'})" if error else number


def html(result: EvaluationResult, *, caption: str = "") -> str:
    """The same as an HTML table."""
    rows = itertools.chain.from_iterable(_sections(result))
    return html_table(("metric", *_heads(result)), rows, caption=caption)


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
    """Number of events, and of events with a flag."""
    numbers = {
        "of them left out (bad input)": result.n_bad_input,
        "stopped at the maximum number of particles": result.n_max_particles,
        "with tracks made from Monte Carlo particles": result.n_truth_tracks,
    }
    texts = [f"{result.n_events} events", *(f"{n} {text}" for text, n in numbers.items() if n)]
    return ", ".join([*texts, *filter(None, (result.sample, result.detector, result.energy))])


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
    jet_energy = ""
    if any("jet_energy" in tree for tree in result.algorithms.values()):
        jet_energy = "Events of two jets at rest: resolution is sqrt(2) RMS90 / Mean90, scale Mean90 / sqrt(s). "
    return (
        f"Truth: rule '{settings.rule}', energy above {settings.e_min:g} GeV{tracks}. "
        f"Matching: {settings.matching.definition}.{otherwise} "
        f"Efficiency: matches of cost at most {settings.matching.close.cut:g}; loose: {settings.matching.cut:g}. "
        f"{jet_energy}"
        "Sums are of the particles as they stand. Errors: half the 68.3% interval, by resampling events; differences "
        f"are of the same events. All numbers: metrics.json.{jets}"
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
