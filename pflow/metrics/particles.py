"""Metrics of matched particles: efficiency, fakes, purity, confusion, response and angle, by class and in bins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.metrics.match import Matches, ParticleTable
from pflow.metrics.stats import (
    Axis,
    Bootstrap,
    Columns,
    Distribution,
    Floats,
    Number,
    Series,
    Tree,
    mean,
    median,
    quantile_68,
    quantile_by_rank,
    ratio,
    resolution_68,
    resolution_by_rank,
)
from pflow.physics.arrays import Index
from pflow.physics.kinematics import angle_between
from pflow.physics.pdg import CLASSES

ENERGY = Axis(
    name="energy",
    label="True energy",
    unit="GeV",
    edges=np.array([0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 250.0]),
    log=True,
)
THETA = Axis(name="theta", label="True polar angle", unit="deg", edges=np.linspace(0, 180, 13))

DISTANCE = Axis(
    name="distance",
    label="Angle to the next charged particle",
    unit="mrad",
    edges=np.array([1.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0, 3142.0]),
    log=True,
)
AXES = (ENERGY, THETA, DISTANCE)

UNITS = {"GeV": 1.0, "deg": np.degrees(1.0), "mrad": 1e3}
"""Units of the axes in units of a table: GeV and rad."""

RESPONSE_EDGES = np.linspace(0.5, 1.5, 101)
ANGLE_EDGES_DEG = np.logspace(-4, 2, 91)


class ParticleMetrics:
    """Metrics of matched particles, also in bins of energy [GeV], polar angle [deg] and distance [mrad].

    `distance` is the angle to the next charged particle of the same list. Efficiency, response and angle are by the
    true particle's class and bin; fake rate and purity by the reconstructed particle's. Particles outside the bins
    count in all numbers without bins.
    """

    def __init__(self, *, axes: tuple[Axis, ...] = AXES) -> None:
        self.axes = axes
        self.n_events = 0
        self.truth, self.reco, self.pairs = Columns(), Columns(), Columns()

    def update(self, truth: ParticleTable, reco: ParticleTable, matches: Matches, close: Matches) -> None:
        """Count events; true energies must be above 0. `close`: the matches of the headline efficiency."""
        i, j = matches.truth, matches.reco
        true, measured = self._columns(truth), self._columns(reco)
        is_found, is_close = (np.isin(np.arange(len(truth)), of.truth) for of in (matches, close))
        self.truth.add(**true, found=is_found, close=is_close)
        self.reco.add(**measured, fake=~np.isin(np.arange(len(reco)), j))
        self.pairs.add(
            **{name: values[i] for name, values in true.items() if name != "energy"},
            reco_class=measured["class"][j],
            response=reco.energy[j] / truth.energy[i],
            angle=np.degrees(angle_between(truth.momentum[i], reco.momentum[j])),
            same_charge=np.rint(truth.charge[i]) == np.rint(reco.charge[j]),
            same_pdg=np.abs(truth.pdg[i]) == np.abs(reco.pdg[j]),
        )
        self.n_events += len(truth.counts)

    def _columns(self, table: ParticleTable) -> dict[str, npt.NDArray[Any]]:
        """Event, class, energy, and the bin on each axis (named as a property of the table) of its particles."""
        columns: dict[str, npt.NDArray[Any]] = {
            "event": (self.n_events + table.event).astype(np.int32),
            "class": table.classes.astype(np.int8),
        }
        for axis in self.axes:
            values = getattr(table, axis.name) * UNITS[axis.unit]
            columns[f"{axis.name}_bin"] = axis.index(values).astype(np.int8)
        return {**columns, "energy": table.energy}

    def result(self, bootstrap: Bootstrap | None = None) -> Tree:
        """Keys of an algorithm's tree: energy, angle, charge, pdg, class, confusion, binned; without: no intervals."""
        bootstrap = bootstrap or Bootstrap(self.n_events, n=0)
        event, response, angle = (self.pairs[name] for name in ("event", "response", "angle"))
        responses, angles = (Distribution(values, event, bootstrap) for values in (response, angle))
        n, true, measured = len(CLASSES), self.truth["class"], self.reco["class"]
        confusion = _count((self.pairs["class"], self.pairs["reco_class"]), (n + 1, n + 1))
        confusion[:-1, -1] = np.bincount(true, minlength=n) - confusion[:-1].sum(axis=1)
        confusion[-1, :-1] = np.bincount(measured, minlength=n) - confusion[:, :-1].sum(axis=0)

        def of_pairs(right: npt.NDArray[Any]) -> Number:
            return bootstrap.fraction(self._sums(self.pairs, right)[:, 0, 0], self._sums(self.pairs)[:, 0, 0])

        def of_energy(particles: Columns, passed: str) -> Number:
            weights = particles["energy"]
            columns = (weights * particles[passed], weights, weights**2)
            return bootstrap.fraction(*(np.bincount(particles["event"], w, self.n_events) for w in columns))

        return {
            "n_truth": len(true),
            "n_reco": len(measured),
            "n_matched": len(event),
            "energy": {
                "mean_abs_rel_error": Distribution(np.abs(response - 1), event, bootstrap).number(mean),
                "mean_rel_error": Distribution(response - 1, event, bootstrap).number(mean),
                **response_numbers(responses),
            },
            "angle": angles.numbers(mean_deg=mean, median_deg=median, q68_deg=quantile_68),
            "charge": {"accuracy": of_pairs(self.pairs["same_charge"])},
            "pdg": {
                "accuracy": of_pairs(self.pairs["same_pdg"]),
                "class_accuracy": of_pairs(self.pairs["class"] == self.pairs["reco_class"]),
            },
            "class": self._by_class(bootstrap),
            "fake_energy_fraction": of_energy(self.reco, "fake"),
            "energy_weighted_efficiency": of_energy(self.truth, "close"),
            "energy_weighted_efficiency_loose": of_energy(self.truth, "found"),
            "confusion": {
                "true_classes": [*CLASSES, "fake"],
                "reco_classes": [*CLASSES, "missed"],
                "counts": confusion.tolist(),
            },
            "binned": {axis.name: self._binned(bootstrap, axis) for axis in self.axes},
            "histograms": {
                "response": responses.histogram(RESPONSE_EDGES),
                "angle_deg": angles.histogram(ANGLE_EDGES_DEG),
            },
        }

    def _by_class(self, bootstrap: Bootstrap) -> Tree:
        right = self.pairs["class"] == self.pairs["reco_class"]
        true, measured, matched = (self._sums(of)[:, :, 0] for of in (self.truth, self.reco, self.pairs))
        fractions = {
            "efficiency": (self._sums(self.truth, self.truth["close"]), true),
            "efficiency_loose": (self._sums(self.truth, self.truth["found"]), true),
            "fake_rate": (self._sums(self.reco, self.reco["fake"]), measured),
            "purity": (self._sums(self.pairs, right), measured),
            "identified": (self._sums(self.pairs, right), matched),
        }
        numbers = {name: bootstrap.fractions(passed[:, :, 0], total) for name, (passed, total) in fractions.items()}
        classes: Tree = {}
        for k, (name, rows) in enumerate(self._groups()):
            classes[name] = {
                "n_truth": int(true[:, k].sum()),
                "n_reco": int(measured[:, k].sum()),
                **{key: values[k] for key, values in numbers.items()},
            }
            response, angle = (
                Distribution(self.pairs[column][rows], self.pairs["event"][rows], bootstrap)
                for column in ("response", "angle")
            )
            classes[name] |= response_numbers(response) | angle.numbers(median_deg=median, q68_deg=quantile_68)
        return classes

    def _binned(self, bootstrap: Bootstrap, axis: Axis) -> Tree:
        true, measured = (self._sums(of, axis=axis) for of in (self.truth, self.reco))
        passed = self._sums(self.truth, self.truth["close"], axis), self._sums(self.reco, self.reco["fake"], axis)
        binned: Tree = {"edges": axis.edges.tolist(), "unit": axis.unit}
        for k, (name, rows) in enumerate(self._groups()):
            binned[name] = {
                "n_truth": true[:, k].sum(axis=0).astype(int).tolist(),
                "n_reco": measured[:, k].sum(axis=0).astype(int).tolist(),
                "efficiency": Series.of(bootstrap.fractions(passed[0][:, k], true[:, k])),
                "fake_rate": Series.of(bootstrap.fractions(passed[1][:, k], measured[:, k])),
            }
            in_bins = [np.flatnonzero(rows & (self.pairs[f"{axis.name}_bin"] == i)) for i in range(len(axis))]
            response, angle = ([np.sort(self.pairs[of][i]) for i in in_bins] for of in ("response", "angle"))
            medians, widths = [quantile_by_rank(x, 0.5) for x in response], [resolution_by_rank(x) for x in response]
            numbers = {
                "response_median": medians,
                "resolution_68": widths,
                "resolution_68_over_median": [w * (1 / m.value) for w, m in zip(widths, medians, strict=True)],
                "median_deg": [quantile_by_rank(x, 0.5) for x in angle],
                "q68_deg": [quantile_by_rank(x, 0.68) for x in angle],
            }
            binned[name] |= {key: Series.of(of_bins) for key, of_bins in numbers.items()}
        return binned

    def _groups(self) -> list[tuple[str, npt.NDArray[np.bool_]]]:
        """Names, and the matched pairs, of all classes and of each true class."""
        classes = self.pairs["class"]
        return [("all", classes >= 0), *((name, classes == k) for k, name in enumerate(CLASSES))]

    def _sums(self, particles: Columns, passed: npt.NDArray[Any] | None = None, axis: Axis | None = None) -> Floats:
        """Number of particles that pass: float64 [event, all and each class, bins of the axis or 1]."""
        rows = slice(None) if passed is None else np.flatnonzero(passed)
        n_bins = 1 if axis is None else len(axis)
        event, classes = particles["event"][rows], particles["class"][rows]
        bins = 0 * event if axis is None else particles[f"{axis.name}_bin"][rows]
        counts = _count((event, classes, bins), (self.n_events, len(CLASSES), n_bins + 1))[:, :, :n_bins]
        return np.concatenate([counts.sum(axis=1, keepdims=True), counts], axis=1).astype(np.float64)


def response_numbers(response: Distribution) -> dict[str, Number]:
    """Median, width, and width over median of a response."""
    numbers = response.numbers(response_median=median, resolution_68=resolution_68)
    return {**numbers, "resolution_68_over_median": ratio(numbers["resolution_68"], numbers["response_median"])}


def _count(index: tuple[npt.NDArray[Any], ...], shape: tuple[int, ...]) -> Index:
    """Frequency of each combination of indices, int64 of the given shape."""
    return np.bincount(np.ravel_multi_index(index, shape), minlength=math.prod(shape)).reshape(shape)
