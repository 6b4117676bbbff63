"""Scans: compare a sample in several variants of its detector, or samples of several detectors, with the nominal point.

All points are resampled together (`pflow.metrics.stats.Bootstrap`), so that ratios of the same events have the errors
of a paired comparison; events in only one of two samples are resampled independently.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from rich.console import Console
from rich.table import Table

from pflow.errors import ConfigError, check_choice, nearest, warn
from pflow.event import jagged
from pflow.event.events import Events, ImplausibleWarning
from pflow.event.move import Move
from pflow.event.schema import PXYZ
from pflow.metrics import report
from pflow.metrics.oracle import ORACLE
from pflow.metrics.report import EvaluationResult
from pflow.metrics.stats import Floats, Ints, Number, difference, leaves, ratio
from pflow.physics.detector import Detector
from pflow.show import html_table

MODEL = "PFlow"
"""Name of the model's particles among the algorithms of a point."""
NULL_SCALE = 1.25
"""Factor on all lengths and times in the null test; or its inverse, where that is nearer to the model's training."""
MAX_PULL = 2.5
"""Largest deviation of the null test from 1, in its errors."""


class Parameter(NamedTuple):
    """A quantity that a scan may vary by moving events: `fields` of `Move` that it sets, `label` of its axis."""

    fields: tuple[str, ...]
    kind: type
    label: str


PARAMETERS = {
    "cells": Parameter(("ecal_cells", "hcal_cells"), int, "Cell size / the sample's"),
    "ecal_cells": Parameter(("ecal_cells",), int, "ECAL cell size / the sample's"),
    "hcal_cells": Parameter(("hcal_cells",), int, "HCAL cell size / the sample's"),
    "layers": Parameter(("layers",), int, "Every n-th layer is read, n ="),
    "hcal_layers": Parameter(("hcal_layers",), int, "Layers of the HCAL"),
    "ecal_threshold": Parameter(("ecal_threshold",), float, "Threshold of an ECAL cell [GeV],\n0: the sample's"),
    "hcal_threshold": Parameter(("hcal_threshold",), float, "Threshold of an HCAL cell [GeV],\n0: the sample's"),
    "time": Parameter(("time",), float, "Resolution of times [ns]"),
}
"""Parameters of ``--vary``."""

_SIMULATE = (
    "tracks and showers were simulated in this detector, and moving them there would not be exact: simulate the other "
    "detector, and give its file beside this one"
)
REFUSED = {
    "scale": "densities and the field would change with the lengths, which changes no physics: the null test, which "
    "every scan has",
    **dict.fromkeys(("radius", "length", "sides", "field", "b_field", "material", "absorber", "pitch"), _SIMULATE),
    "digital": "the energy of a digital hit depends on a calibration by the whole sample: digitise the hits, and give "
    "the file beside this one",
}
"""What cannot be varied by moving events, and why."""


def parse_variations(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Values by parameter from NAME=VALUE,... ; ConfigError says why a parameter cannot be varied.

    >>> parse_variations(["cells=1,2,4", "time=0.1,none"])
    {'cells': (1, 2, 4), 'time': (0.1, inf)}
    """
    values: dict[str, tuple[float, ...]] = {}
    for text in texts:
        name, _, given = text.partition("=")
        if name in values:
            raise ConfigError(f"--vary: {name} is given twice")
        if name in REFUSED:
            raise ConfigError(f"cannot vary {name}: {REFUSED[name]}")
        check_choice(name, PARAMETERS, "parameter of --vary")
        kind = PARAMETERS[name].kind
        for word in map(str.strip, given.split(",")):
            try:
                number = math.inf if name == "time" and word.casefold() == "none" else kind(word)
            except ValueError:
                found = f"expected {'whole ' * (kind is int)}numbers, with commas between them, found '{word}'"
                raise ConfigError(f"--vary {name}: {found}") from None
            values[name] = (*values.get(name, ()), number)
    return values


POINTS = ("nominal", "null test", "tuned model")
"""Names of points of the first sample that are not of `--vary`."""
Kind = Literal["nominal", "point", "null test", "tuned"]
"""`null test`: `Move.scale`; `tuned`: the nominal point by a model that is tuned to it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanPoint:
    """A point: the events of a sample, moved; `values` of all parameters of the scan, NaN where unknown."""

    name: str
    kind: Kind = "point"
    sample: str
    move: Move = Move()  # noqa: RUF009
    values: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """Of its numbers in the folder ``points``."""
        return f"{re.sub(r'[^A-Za-z0-9.+-]+', '_', self.name)}.json"

    @property
    def texts(self) -> dict[str, str]:
        """The values as ``--vary`` takes them."""
        return {name: value_text(value) for name, value in self.values.items()}


def scan_points(
    samples: Mapping[str, Detector],
    vary: Mapping[str, Sequence[float]],
    *,
    grid: bool = False,
    null_scale: float | None = NULL_SCALE,
    tuned: bool = False,
) -> list[ScanPoint]:
    """The points of a scan, the nominal one first: the first sample as simulated.

    Parameters are varied one at a time, or with `grid` in all combinations; each sample, by its name and detector, in
    the same way. ConfigError: a value out of range, a move that would not be exact in a detector, or a grid of two
    parameters for the same thing. `null_scale`: factor on lengths of the null test; None: without it.
    """
    points: list[ScanPoint] = []
    for one, other in itertools.combinations(vary, 2) if grid else ():
        if both := set(PARAMETERS[one].fields) & set(PARAMETERS[other].fields):
            raise ConfigError(f"--vary {one} and --vary {other} both set {both.pop()}: no --grid has both")
    for sample, detector in samples.items():
        n_layers = [sum(layers.count for layers in c.layers) for c in detector.calorimeters if c.kind == "hcal"]
        # Thresholds and resolutions of 0 and factors of 1 leave the sample as it is.
        nominal = {name: 0.0 if PARAMETERS[name].kind is float else 1.0 for name in vary}
        nominal |= {"hcal_layers": float(max(n_layers, default=0))} if "hcal_layers" in vary else {}
        steps = {
            name: [value for value in dict.fromkeys(values) if value != nominal[name]] for name, values in vary.items()
        }
        if grid:
            all_values = ([nominal[name], *steps[name]] for name in vary)
            combinations = [dict(zip(vary, values, strict=True)) for values in itertools.product(*all_values)]
        else:
            combinations = [{}, *({name: value} for name, values in steps.items() for value in values)]
        first = not points
        for values in combinations:
            chosen = {name: value for name, value in values.items() if value != nominal[name]}
            fields = {field: PARAMETERS[p].kind(v) for p, v in chosen.items() for field in PARAMETERS[p].fields}
            label = " ".join(f"{p}={value_text(v)}" for p, v in chosen.items())
            try:
                move = Move(**fields)
            except ConfigError as error:
                raise ConfigError(f"--vary {label}: {str(error).removeprefix('scan: ')}") from None
            # Raises for a move that would not be exact, before any event is reconstructed.
            move.detector(detector)
            is_nominal = first and not chosen
            name = "nominal" if is_nominal else label if first else f"{sample} {label}".strip()
            kind: Kind = "nominal" if is_nominal else "point"
            points.append(ScanPoint(name=name, kind=kind, sample=sample, move=move, values=nominal | chosen))
        if first and null_scale:
            move = Move(scale=null_scale)
            points.append(ScanPoint(name="null test", kind="null test", sample=sample, move=move, values=nominal))
        if first and tuned:
            points.append(ScanPoint(name="tuned model", kind="tuned", sample=sample, values=nominal))
    # Rows and files of numbers are found by the points' names, which have those of the samples.
    for point, later in itertools.combinations(points, 2):
        if point.file_name == later.file_name:
            names = f"'{point.name}' of sample '{point.sample}' and '{later.name}' of sample '{later.sample}'"
            raise ConfigError(f"points {names} would have one file, {point.file_name}: rename a file of events")
    return points


def value_text(value: float) -> str:
    """A value as ``--vary`` takes it.

    >>> value_text(2.0), value_text(math.inf)
    ('2', 'none')
    """
    return "none" if math.isinf(value) else f"{value:g}"


HEADLINES = {
    "jet_energy.*.resolution": "jets, {} GeV",
    "event.visible_energy.rms90_over_mean90": "visible E, RMS90",
    "event.visible_energy.response_median": "E response",
    "confusion_budget.confusion": "confusion",
    "class.photon.efficiency": "photons found",
    "class.neutral_hadron.efficiency": "neutral h. found",
    "fake_energy_fraction": "fake energy",
    "count.one_vs_two_accuracy_above_30_mrad": "1 or 2 photons",
    "photon_pairs.mass_width": "pairs, mass",
}
"""Keys of an evaluation in the table and figures, as patterns in the order of the columns, and their heads."""
MEASURED = re.compile(
    r"^energy\.|^angle\.|^confusion_budget.*measurement|^class\..*resolution"
    r"|^(?!photon_pairs).*(response|scale|\.mean90$|_(deg|gev)$)"
)
"""Keys that depend on energies and angles of what is found; widths of jets and events, and pairs, on confusion, too."""
OF_PHOTONS = re.compile(r"^class\.photon\.|^photon_pairs\.|^count\.(one|two)_")
"""Keys of photons, which the HCAL hardly sees."""
DIFFERENCES = ("confusion_budget.gain.", "confusion_budget.confusion", "energy.mean_rel_error")
"""Beginnings of keys whose change is a difference, since the value may be 0 or negative."""


def by_finding(key: str, calorimeter: str = "ecal") -> bool:
    """Whether a number depends on finding particles in a kind of calorimeter.

    >>> by_finding("class.photon.efficiency"), by_finding("class.photon.efficiency", "hcal")
    (True, False)
    """
    return not MEASURED.search(key) and (calorimeter != "hcal" or not OF_PHOTONS.search(key))


def head_of(key: str) -> str:
    """A headline key in two or three words; "" for others."""
    return HEADLINES.get(report.pattern_of(key, HEADLINES) or "", "").format(*key.split(".")[1:])


def change_text(key: str, number: Number) -> str:
    """A ratio, or a difference with its sign, and its error."""
    return report.number_text(number, sign=key.startswith(DIFFERENCES))


class Limit(NamedTuple):
    """Why the change at a point may be the model's and not the detector's: `kind` is outside or merged.

    `calorimeter`: the kind whose cells or layers are merged.
    """

    kind: str
    text: str
    calorimeter: str = ""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PointResult:
    """The numbers of a point.

    Parameters
    ----------
    algorithms
        All numbers by algorithm (`MODEL`; ``oracle`` on request; ``reference`` if the sample has one) and key.
    titles
        Name of each algorithm.
    places
        Places in the input of the events that count, int64 [event]; equal for the same event of two points.
    n_bad
        Number of events that are left out, since they cannot be used.
    hits, tokens
        Mean numbers of hits of an event, and of tokens that the encoder sees.
    pairs
        ``count.two_photons_found`` by algorithm as plain data: edges and unit of the opening angle, number of
        events, and value, low and high of the efficiency; {} without pairs of photons.
    limits
        Caveats of this point.
    """

    point: ScanPoint
    algorithms: dict[str, dict[str, Number]]
    titles: dict[str, str]
    places: Ints
    n_bad: int = 0
    hits: float
    tokens: float
    pairs: dict[str, Any] = dataclasses.field(default_factory=dict)
    limits: tuple[Limit, ...] = ()

    @property
    def n_events(self) -> int:
        """Number of events that count."""
        return len(self.places)

    @property
    def events(self) -> str:
        """Their number in words, such as 8 of 20."""
        return f"{self.n_events} of {self.n_events + self.n_bad}" if self.n_bad else str(self.n_events)

    @classmethod
    def of(cls, result: EvaluationResult, **facts: Any) -> Self:
        """The numbers of an evaluation."""
        algorithms: dict[str, dict[str, Number]] = {}
        pairs: dict[str, Any] = {}
        for name, tree in result.algorithms.items():
            if tree["places"] != (mine := result.algorithms[result.name])["places"]:
                text = f"{result.titles[name]} has particles in {tree['n_events']} of {mine['n_events']} events"
                warn(f"{facts['point'].name}: {text}, and is left out", ImplausibleWarning)
                continue
            numbers = ((key, leaf) for key, leaf in leaves(tree) if isinstance(leaf, Number))
            # The oracle has no confusion.
            shown = ((key, of) for key, of in numbers if name != ORACLE or not key.startswith("confusion_budget"))
            algorithms[name] = {key: number for key, number in shown if math.isfinite(number.value)}
            found = dict(tree["count"]["two_photons_found"])
            if any(found["n_events"]):
                found |= vars(found.pop("efficiency"))
                pairs[name] = {key: np.asarray(values).tolist() for key, values in found.items()}
        titles = {name: result.titles[name] for name in algorithms}
        return cls(algorithms=algorithms, titles=titles, pairs=pairs, **facts)

    def to_plain(self) -> dict[str, Any]:
        """All numbers, with their resamples, as plain data; `of_plain` makes an equal result."""

        def values(n: Number) -> list[float]:
            # Resamples to six digits: the intervals of ratios have an error of 6% (`N_RESAMPLES`).
            resamples = () if n.replicas is None else n.replicas
            return [n.value, n.low, n.high, *(float(f"{value:.6g}") for value in resamples)]

        algorithms = {
            name: {key: values(number) for key, number in numbers.items()} for name, numbers in self.algorithms.items()
        }
        names = "titles", "n_bad", "hits", "tokens", "pairs"
        given = {name: getattr(self, name) for name in names} | {"places": self.places.tolist()}
        plain: dict[str, Any] = report.without_nan(given | {"algorithms": algorithms})
        return plain

    @classmethod
    def of_plain(cls, point: ScanPoint, content: Mapping[str, Any], limits: Sequence[Limit]) -> Self:
        """From `to_plain`."""

        def number(values: Sequence[float | None]) -> Number:
            value, low, high, *resamples = (math.nan if v is None else v for v in values)
            return Number(value, low, high, np.array(resamples) if resamples else None)

        algorithms = {
            name: {key: number(values) for key, values in numbers.items()}
            for name, numbers in content["algorithms"].items()
        }
        places = np.array(content["places"], dtype=np.int64)
        return cls(point=point, **{**content, "places": places, "algorithms": algorithms, "limits": tuple(limits)})


def primary_sums(events: Events) -> Floats:
    """Sums over the generator's stable particles that identify the primaries of events, float64 [event, 6].

    Number of particles, and sums of PDG codes, |px|, |py|, |pz| and energies [GeV].
    """
    if events.truth is None:
        raise events.error("no truth particles, by which events of several samples are matched", field="truth")
    columns, event = jagged.columns(events.truth), jagged.event_index(jagged.count(events.truth))
    stable = columns["status"] == 1
    # Signed components sum up to 0 in every event at rest and would identify none.
    momenta = [np.abs(columns[axis]) for axis in PXYZ]
    weights = (np.ones(len(event)), columns["pdg"], *momenta, columns["energy"])
    sums = [np.bincount(event[stable], weight[stable].astype(np.float64), len(events)) for weight in weights]
    return np.stack(sums, axis=1).astype(np.float64)


def shared_places(nominal: Floats, other: Floats) -> Ints:
    """Place in the nominal sample of each event of another one with the same primaries, -1 for none, int64 [event].

    Both from `primary_sums`. Events whose primaries occur twice in one sample are not matched.
    """
    from scipy.spatial import cKDTree

    places = np.full(len(other), -1)
    # Each column by its largest sum: numbers, PDG codes and energies differ by orders of magnitude.
    size = np.abs(np.concatenate([nominal, other])).max(axis=0)
    mine, theirs = (sums / np.where(size > 0, size, 1.0) for sums in (nominal, other))
    tree, same = cKDTree(mine), {"r": 1e-5, "p": np.inf}  # sums of the same primaries differ by rounding alone
    n_mine, n_theirs = (cKDTree(of).query_ball_point(theirs, return_length=True, **same) for of in (mine, theirs))
    alone = (n_mine == 1) & (n_theirs == 1)
    places[alone] = tree.query(theirs[alone], p=np.inf)[1]
    return places


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ScanResult:
    """The points of a scan, the nominal one first, and its limits.

    `labels`: the parameters with the labels of their axes; `notes`: limits of the whole scan, in sentences;
    `provenance`: what the numbers were made from.
    """

    points: list[PointResult]
    labels: dict[str, str]
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        names = ", ".join(result.point.name for result in self.points)
        return f"<ScanResult: {len(self.points)} points: {names}>"

    def _repr_html_(self) -> str:
        """The table of `pflow scan`, for notebooks."""
        heads, rows = self.cells()
        return html_table(heads, itertools.chain.from_iterable(rows), caption=self.verdict)

    def __getitem__(self, name: str) -> PointResult:
        """A point by its name."""
        named = {result.point.name: result for result in self.points}
        if name not in named:
            raise KeyError(f"no point '{name}' (nearest matches: {', '.join(nearest(name, named))})")
        return named[name]

    @property
    def nominal(self) -> PointResult:
        """The sample as simulated."""
        return self.points[0]

    @property
    def algorithms(self) -> dict[str, str]:
        """Names and titles of all algorithms, the model first."""
        kinds = MODEL, ORACLE, report.REFERENCE
        titles = {name: dict.fromkeys(of.titles[name] for of in self.points if name in of.titles) for name in kinds}
        # Samples may hold particles of different algorithms as their reference.
        return {name: " and ".join(names) for name, names in titles.items() if names}

    @property
    def headlines(self) -> list[str]:
        """Keys for the table and the figures; visible energy only if there are no jets."""
        known = self.nominal.algorithms[MODEL]
        keys = [key for pattern in HEADLINES for key in known if report.pattern_of(key, [pattern])]
        jets = any(key.startswith("jet_energy") for key in keys)
        return [key for key in keys if not (jets and key == "event.visible_energy.rms90_over_mean90")]

    def n_shared(self, result: PointResult) -> int:
        """Number of events that a point shares with the nominal one."""
        return int(np.isin(result.places, self.nominal.places).sum())

    def change(self, result: PointResult, key: str, algorithm: str = MODEL, to: str | None = None) -> Number:
        """Ratio of a number to the nominal point's, of the same algorithm or of `to`; difference for `DIFFERENCES`.

        Events that the points share enter its error as a paired comparison. NaN: one of them lacks the number.
        KeyError: all points do, with the nearest matches. ConfigError: no such algorithm.
        """
        first = result.algorithms.get(algorithm, {}).get(key)
        second = self.nominal.algorithms.get(to or algorithm, {}).get(key)
        # Oracles with and without a fit of their energies are not compared, nor is confusion by one and by the other.
        oracles = algorithm == ORACLE or key.startswith("confusion_budget")
        of_two = oracles and result.titles.get(ORACLE) != self.nominal.titles.get(ORACLE)
        if first is None or second is None or of_two:
            for name in (algorithm, to or algorithm):
                check_choice(name, self.algorithms, "algorithm of the scan")
            known = [numbers for of in self.points for numbers in of.algorithms.values()]
            if not any(key in numbers for numbers in known):
                close = nearest(key, itertools.chain(*known))
                raise KeyError(f"no point has '{key}' (nearest matches: {', '.join(close)})")
            return Number.undefined()
        change = (difference if key.startswith(DIFFERENCES) else ratio)(first, second)
        return change if math.isfinite(change.value) else Number.undefined()  # nominal value 0

    def deviation(self, result: PointResult, key: str) -> float:
        """Size of the model's change at a point, relative or (`DIFFERENCES`) absolute."""
        return abs(self.change(result, key).value - (0.0 if key.startswith(DIFFERENCES) else 1.0))

    def marks(self, result: PointResult, key: str) -> list[str]:
        """Reasons why a change may come from the model and not the detector: outside, merged, null test."""
        # A ratio to a nominal point outside of the training is not of the detectors alone, either. Cells merged before
        # the encoder hide what they do to finding particles, and not to energies.
        limits = (*self.nominal.limits, *result.limits)
        kinds = (of.kind for of in limits if of.kind != "merged" or by_finding(key, of.calorimeter))
        marks = list(dict.fromkeys(kinds))
        if (null := self.null_test) and result.point.kind == "point" and key in null.algorithms[MODEL]:
            number = self.change(null, key)
            # Its value alone may be 1 by luck.
            limit = np.fmax(self.deviation(null, key), 0.5 * (number.high - number.low))
            if self.deviation(result, key) < limit:
                marks.append("null test")
        return marks

    @property
    def null_test(self) -> PointResult | None:
        """The sample with all lengths and times scaled; None if it was left out."""
        return next((result for result in self.points if result.point.kind == "null test"), None)

    @property
    def failed(self) -> dict[str, Number]:
        """Headline numbers whose null test is off by more than `MAX_PULL` errors, with its ratio."""
        if (null := self.null_test) is None or null.n_events < report.MIN_EVENTS:
            return {}
        # A change without an interval never fails: comparisons with NaN are False.
        changes = {key: self.change(null, key) for key in self.headlines}
        return {
            key: number
            for key, number in changes.items()
            if self.deviation(null, key) > MAX_PULL * 0.5 * (number.high - number.low)
        }

    @property
    def verdict(self) -> str:
        """Whether the null test gives 1 within errors, in a sentence."""
        if (null := self.null_test) is None:
            return "Null test: left out."
        result = "not passed, changes of this size come from the model" if self.failed else "passed"
        if null.n_events < report.MIN_EVENTS:
            result = f"without a result, since it needs {report.MIN_EVENTS} events"
        texts = (
            f"{head_of(key)} {change_text(key, self.change(null, key))}{' (!)' if key in self.failed else ''}"
            for key in self.headlines
        )
        what = f"with lengths and times multiplied by {null.point.move.scale:g}, densities and field divided by it"
        must = f"ratios must be 1 and differences 0 within {MAX_PULL:g} errors"
        return f"Null test {result}: {what}, {must}; {', '.join(texts)}."

    @property
    def caveats(self) -> list[str]:
        """Sentences on errors of few events, and on points that have other events than the nominal one."""
        others = [
            f"{r.point.name} {r.events} ({self.n_shared(r)} are the same)"
            for r in self.points
            if self.n_shared(r) < max(r.n_events, self.nominal.n_events)
        ]
        text = f"Partly or not paired, and ratios of other events, too: nominal has {self.nominal.events}"
        few = report.too_few(min(result.n_events for result in self.points))
        return [*few, *([f"{text}, {', '.join(others)}."] if others else [])]

    @property
    def events(self) -> str:
        """The nominal point's events in words, for titles."""
        marked = any(entry.get("truth_tracks") for entry in self.provenance.get("inputs", ()))
        one = self.nominal.events == "1"
        return f"{self.nominal.events} event{'' if one else 's'}{', tracks from Monte Carlo particles' * marked}"

    @property
    def sentences(self) -> list[str]:
        """Limits of the scan as sentences: the verdict, notes, and the limits of points."""
        texts: dict[str, list[str]] = {}
        for result in self.points:
            for limit in result.limits:
                texts.setdefault(limit.text, []).append(result.point.name)
        return [
            self.verdict,
            *self.notes,
            *(f"{', '.join(names)}: {text}." for text, names in texts.items()),
            "Errors of ratios are of paired comparisons, by resampling the same events together.",
            *self.caveats,
        ]

    def cells(self) -> tuple[list[str], list[list[list[str]]]]:
        """Heads, and texts of each row, by algorithm: the nominal point, then ratios to it."""
        shown, sections = self.headlines, []
        for name, title in self.algorithms.items():
            rows = []
            for result in self.points:
                # A tuned model sees the nominal events: oracle and reference would repeat their first row.
                if name not in result.algorithms or (name != MODEL and result.point.kind == "tuned"):
                    continue
                numbers = result.algorithms[name]
                marks = [self.marks(result, key) if name == MODEL else [] for key in shown]
                texts = [report.number_text(numbers.get(key, Number.undefined())) for key in shown]
                if result is not self.nominal:
                    texts = [change_text(key, self.change(result, key, name)) for key in shown]
                texts = [f"{text}{' ~' * ('null test' in of)}" for text, of in zip(texts, marks, strict=True)]
                limits = ", ".join(dict.fromkeys(mark for of_key in marks for mark in of_key if mark != "null test"))
                facts = (f"{result.hits:.0f}", f"{result.tokens:.0f}") if name == MODEL else ("", "")
                rows.append([f"{title}, {result.point.name}", *facts, *texts, limits])
                if result is self.nominal and name != MODEL:
                    to_model = [change_text(key, self.change(result, key, name, to=MODEL)) for key in shown]
                    rows.append([f"{title} / {self.algorithms[MODEL]}", "", "", *to_model, ""])
            sections.append(rows)
        return ["point", "hits", "tokens", *map(head_of, shown), "limits"], sections

    def tables(self, width: int = 200) -> list[Table]:
        """The table for a terminal of `width` characters.

        A narrow terminal gets it without hits, tokens and limits, with 1.014(12) for 1.014 ±0.012, and with further
        tables of the quantities that do not fit.
        """
        title = f"{self.events}; first row: values, others: ratios to it (confusion: differences)"
        style: dict[str, Any] = {"title": title, "caption": "~: within the null test or its error"}
        heads, sections = self.cells()
        made = report.terminal_table(heads, sections, **style)
        if Console(width=10 * width).measure(made).maximum <= width:
            return [made]
        n = max(1, (width - 30) // 13)  # characters of names, which are wrapped, and of a number
        tables = []
        for start in range(3, len(heads) - 1, n):
            shown = slice(start, min(start + n, len(heads) - 1))
            part = [[[row[0], *row[shown]] for row in rows] for rows in sections]
            tables.append(report.terminal_table([heads[0], *heads[shown]], part, **style, short=True))
        return tables

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each point, algorithm and key: ``scan.csv``. `change`: to nominal; `to_model`: to its nominal."""
        for result, (name, title) in itertools.product(self.points, self.algorithms.items()):
            for key, number in result.algorithms.get(name, {}).items():
                compared = result is self.nominal and name != MODEL
                to_model = self.change(result, key, name, to=MODEL) if compared else Number.undefined()
                yield {
                    "point": result.point.name,
                    "kind": result.point.kind,
                    "sample": result.point.sample,
                    **result.point.texts,
                    "algorithm": title,
                    "quantity": key,
                    "unit": report.unit_of(key),
                    "events": result.n_events,
                    "paired": f"{self.n_shared(result) / max(1, result.n_events, self.nominal.n_events):.4g}",
                    "hits": f"{result.hits:.6g}",
                    "tokens": f"{result.tokens:.6g}",
                    **_columns("value", number),
                    **_columns("change", self.change(result, key, name)),
                    "change_is": "difference" if key.startswith(DIFFERENCES) else "ratio",
                    **_columns("to_model", to_model),
                    "limits": "; ".join(self.marks(result, key)) if name == MODEL else "",
                }

    def csv(self) -> str:
        """All numbers as a table of comma-separated values; intervals are of 68.3%."""
        rows, text = list(self.rows()), io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def document(self) -> dict[str, Any]:
        """Points, limits and provenance as plain data for JSON: ``scan.json``."""
        points = [
            {
                "name": result.point.name,
                "kind": result.point.kind,
                "sample": result.point.sample,
                "values": result.point.texts,
                **{name: getattr(result, name) for name in ("n_events", "n_bad", "hits", "tokens")},
                "n_shared": self.n_shared(result),
                "limits": [limit._asdict() for limit in result.limits],
                "two_photons_found": result.pairs,
            }
            for result in self.points
        ]
        plain: dict[str, Any] = report.without_nan(
            {
                "schema": "pflow-scan-3",
                "points": points,
                "limits": self.sentences,
                "null_test_failed": {key: [n.value, n.low, n.high] for key, n in self.failed.items()},
                "provenance": self.provenance,
            }
        )
        return plain


def _columns(name: str, number: Number) -> dict[str, str]:
    names, values = (name, f"{name}_low", f"{name}_high"), (number.value, number.low, number.high)
    return {key: "" if math.isnan(value) else f"{value:.6g}" for key, value in zip(names, values, strict=True)}
