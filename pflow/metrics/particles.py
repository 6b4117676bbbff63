"""Metrics of matched particles: efficiency, fakes, purity, confusion, response and angle, by class and in bins."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pflow.metrics.match import Matches
from pflow.metrics.stats import (
    Axis,
    Chunks,
    Distribution,
    Floats,
    Ints,
    Number,
    Series,
    Tree,
    WeightedFraction,
    fraction,
    fractions,
)
from pflow.metrics.table import ParticleTable
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

RESPONSE_EDGES = np.linspace(0.5, 1.5, 101)
ANGLE_EDGES_DEG = np.logspace(-4, 2, 91)


class ParticleMetrics:
    """Metrics of a one-to-one assignment, also in bins of energy [GeV] and polar angle [deg], the two `axes`.

    Efficiency, response and angle are by the true particle's class, energy and polar angle; fake rate and purity by the
    reconstructed particle's. Particles outside the bins count in all numbers without bins.
    """

    def __init__(self, *, axes: tuple[Axis, Axis] = (ENERGY, THETA)) -> None:
        n = len(CLASSES)
        self.axes = axes
        self.n_truth = np.zeros(n, dtype=np.int64)
        self.n_reco = np.zeros(n, dtype=np.int64)
        self.confusion = np.zeros((n, n), dtype=np.int64)  # [true class, reconstructed class] of matched pairs
        kinds = ("truth", "matched", "reco", "fake")
        self.binned = {
            axis.name: {kind: np.zeros((n, len(axis) + 1), dtype=np.int64) for kind in kinds} for axis in axes
        }
        self.pairs = {name: Chunks() for name in ("class", "response", "angle", *self.binned)}
        self.fake_energy = WeightedFraction()
        self.matched_energy = WeightedFraction()
        self.n_charge = 0
        self.n_pdg = 0

    def update(
        self, truth: ParticleTable, reco: ParticleTable, matches: Matches, expected: ParticleTable | None = None
    ) -> None:
        """Count events; true energies must be above 0.

        `expected` are the same reconstructed particles with energies for sums (`Reconstruction.expected`).
        """
        n = len(CLASSES)
        i, j = matches.truth, matches.reco
        is_matched = np.zeros(len(truth), dtype=np.bool_)
        is_matched[i] = True
        is_fake = np.ones(len(reco), dtype=np.bool_)
        is_fake[j] = False

        self.n_truth += np.bincount(truth.classes, minlength=n)
        self.n_reco += np.bincount(reco.classes, minlength=n)
        self.confusion += _count(truth.classes[i], reco.classes[j], (n, n))
        self.fake_energy.add((reco if expected is None else expected).energy, is_fake)
        self.matched_energy.add(truth.energy, is_matched)
        self.n_charge += int(np.sum(np.rint(truth.charge[i]) == np.rint(reco.charge[j])))
        self.n_pdg += int(np.sum(np.abs(truth.pdg[i]) == np.abs(reco.pdg[j])))

        self.pairs["class"].append(truth.classes[i].astype(np.int8))
        self.pairs["response"].append(reco.energy[j] / truth.energy[i])
        self.pairs["angle"].append(np.degrees(angle_between(truth.momentum[i], reco.momentum[j])))
        for axis in self.axes:
            true_bin, reco_bin = (
                axis.index(table.energy if axis.name == "energy" else np.degrees(table.theta))
                for table in (truth, reco)
            )
            shape = (n, len(axis) + 1)
            counts = self.binned[axis.name]
            counts["truth"] += _count(truth.classes, true_bin, shape)
            counts["matched"] += _count(truth.classes[i], true_bin[i], shape)
            counts["reco"] += _count(reco.classes, reco_bin, shape)
            counts["fake"] += _count(reco.classes[is_fake], reco_bin[is_fake], shape)
            self.pairs[axis.name].append(true_bin[i].astype(np.int8))

    def result(self) -> Tree:
        """Keys of an algorithm's tree: energy, angle, charge, pdg, class, confusion, binned."""
        pairs = {name: np.concatenate(parts) if parts else np.empty(0) for name, parts in self.pairs.items()}
        response, angle = Distribution(pairs["response"]), Distribution(pairs["angle"])
        error = Distribution(response.values - 1)
        n_matched, same_class = int(self.confusion.sum()), int(np.trace(self.confusion))
        rows = {"all": slice(None), **{name: slice(c, c + 1) for c, name in enumerate(CLASSES)}}
        of_class = {name: pairs["class"] == c for c, name in enumerate(CLASSES)}
        of_class["all"] = np.ones(len(pairs["class"]), dtype=np.bool_)
        binned: dict[str, Tree] = {axis.name: {"edges": axis.edges.tolist(), "unit": axis.unit} for axis in self.axes}
        classes: Tree = {}
        for name, row in rows.items():
            columns = {key: values[of_class[name]] for key, values in pairs.items()}
            classes[name] = self._class_result(row, Distribution(columns["response"]), Distribution(columns["angle"]))
            for axis in self.axes:
                binned[axis.name][name] = self._binned_result(axis, row, columns)
        full = np.pad(self.confusion, ((0, 1), (0, 1)))
        full[:-1, -1] = self.n_truth - self.confusion.sum(axis=1)
        full[-1, :-1] = self.n_reco - self.confusion.sum(axis=0)
        return {
            "n_truth": int(self.n_truth.sum()),
            "n_reco": int(self.n_reco.sum()),
            "n_matched": n_matched,
            "energy": {
                "mean_abs_rel_error": Distribution(np.abs(error.values)).mean(),
                "mean_rel_error": error.mean(),
                **_response_numbers(response),
            },
            "angle": {"mean_deg": angle.mean(), **_angle_numbers(angle)},
            "charge": {"accuracy": fraction(self.n_charge, n_matched)},
            "pdg": {"accuracy": fraction(self.n_pdg, n_matched), "class_accuracy": fraction(same_class, n_matched)},
            "class": classes,
            "fake_energy_fraction": self.fake_energy.result(),
            "energy_weighted_efficiency": self.matched_energy.result(),
            "confusion": {
                "true_classes": [*CLASSES, "fake"],
                "reco_classes": [*CLASSES, "missed"],
                "counts": full.tolist(),
            },
            "binned": binned,
            "histograms": {
                "response": response.histogram(RESPONSE_EDGES),
                "angle_deg": angle.histogram(ANGLE_EDGES_DEG),
            },
        }

    def _class_result(self, row: slice, response: Distribution, angle: Distribution) -> Tree:
        n_truth, n_reco = int(self.n_truth[row].sum()), int(self.n_reco[row].sum())
        n_matched, n_right = int(self.confusion[row].sum()), int(np.diagonal(self.confusion)[row].sum())
        return {
            "n_truth": n_truth,
            "n_reco": n_reco,
            "efficiency": fraction(n_matched, n_truth),
            "fake_rate": fraction(n_reco - int(self.confusion[:, row].sum()), n_reco),
            "purity": fraction(n_right, n_reco),
            "identified": fraction(n_right, n_matched),
            **_response_numbers(response),
            **_angle_numbers(angle),
        }

    def _binned_result(self, axis: Axis, row: slice, pairs: dict[str, Floats]) -> Tree:
        n_bins = len(axis)
        n = {kind: counts[row].sum(axis=0)[:n_bins] for kind, counts in self.binned[axis.name].items()}
        response, angle = (_by_bin(pairs[name], pairs[axis.name], n_bins) for name in ("response", "angle"))
        return {
            "n_truth": n["truth"].tolist(),
            "n_reco": n["reco"].tolist(),
            "efficiency": fractions(n["matched"], n["truth"]),
            "fake_rate": fractions(n["fake"], n["reco"]),
            "response_median": Series.of(d.median() for d in response),
            "resolution_68": Series.of(d.resolution_68() for d in response),
            "median_deg": Series.of(d.median() for d in angle),
            "q68_deg": Series.of(d.quantile(0.68) for d in angle),
        }


def _by_bin(values: Floats, bins: Floats, n_bins: int) -> list[Distribution]:
    order = np.argsort(bins, kind="stable")
    ends = np.searchsorted(bins[order], np.arange(n_bins + 1))
    return [Distribution(values[order[first:last]]) for first, last in pairwise(ends)]


def _count(row: Ints, column: Ints, shape: tuple[int, int]) -> Ints:
    """Frequency of each pair (row, column), int64 of the given shape."""
    return np.bincount(row * shape[1] + column, minlength=shape[0] * shape[1]).reshape(shape)


def _response_numbers(response: Distribution) -> dict[str, Number]:
    return {
        "response_median": response.median(),
        "resolution_68": response.resolution_68(),
        "resolution_68_over_median": response.resolution_68_over_median(),
        "resolution_iqr": response.resolution_iqr(),
    }


def _angle_numbers(angle: Distribution) -> dict[str, Number]:
    return {"median_deg": angle.median(), "q68_deg": angle.quantile(0.68)}
