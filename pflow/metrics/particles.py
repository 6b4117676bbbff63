"""Metrics of matched particles: efficiency, fakes, purity, confusion, response and angle, by class and in bins."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.metrics.match import Matches
from pflow.metrics.stats import Axis, Chunks, Distribution, Number, Series, Tree, WeightedFraction, fraction, fractions
from pflow.metrics.table import ParticleTable
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
        self.n_truth, self.n_reco = np.zeros((2, n), dtype=np.int64)
        self.confusion = np.zeros((n, n), dtype=np.int64)  # [true class, reconstructed class] of matched pairs
        # Numbers of true, matched, reconstructed and fake particles by class and bin.
        self.binned = {axis.name: np.zeros((4, n, len(axis) + 1), dtype=np.int64) for axis in axes}
        self.pairs = {name: Chunks() for name in ("class", "response", "angle", *self.binned)}
        self.fake_energy, self.matched_energy = WeightedFraction(), WeightedFraction()
        self.n_charge = self.n_pdg = 0

    def update(
        self, truth: ParticleTable, reco: ParticleTable, matches: Matches, expected: ParticleTable | None = None
    ) -> None:
        """Count events; true energies must be above 0. `expected`: particles of `reco` with energies for sums."""
        n, i, j = len(CLASSES), matches.truth, matches.reco
        is_fake = ~np.isin(np.arange(len(reco)), j)
        self.n_truth += np.bincount(truth.classes, minlength=n)
        self.n_reco += np.bincount(reco.classes, minlength=n)
        self.confusion += _count(truth.classes[i], reco.classes[j], (n, n))
        self.fake_energy.add((reco if expected is None else expected).energy, is_fake)
        self.matched_energy.add(truth.energy, np.isin(np.arange(len(truth)), i))
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
            true, measured = (truth.classes, true_bin), (reco.classes, reco_bin)
            rows = ((*true, slice(None)), (*true, i), (*measured, slice(None)), (*measured, is_fake))
            counts = [_count(classes[row], bins[row], (n, len(axis) + 1)) for classes, bins, row in rows]
            self.binned[axis.name] += counts
            self.pairs[axis.name].append(true_bin[i].astype(np.int8))

    def result(self) -> Tree:
        """Keys of an algorithm's tree: energy, angle, charge, pdg, class, confusion, binned."""
        pairs = {name: np.concatenate(parts) if parts else np.empty(0) for name, parts in self.pairs.items()}
        response, angle = Distribution(pairs["response"]), Distribution(pairs["angle"])
        error = Distribution(response.values - 1)
        n_matched, same_class = int(self.confusion.sum()), int(np.trace(self.confusion))
        binned: dict[str, Tree] = {axis.name: {"edges": axis.edges.tolist(), "unit": axis.unit} for axis in self.axes}
        classes: Tree = {}
        for name, row in {"all": slice(None), **{name: slice(c, c + 1) for c, name in enumerate(CLASSES)}}.items():
            of_class = np.isin(pairs["class"], np.arange(len(CLASSES))[row])
            columns = {key: values[of_class] for key, values in pairs.items()}
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

    def _binned_result(self, axis: Axis, row: slice, pairs: dict[str, npt.NDArray[Any]]) -> Tree:
        n_truth, n_matched, n_reco, n_fake = self.binned[axis.name][:, row, :-1].sum(axis=1)
        bins = [pairs[axis.name] == i for i in range(len(axis))]
        response, angle = ([Distribution(pairs[name][of_bin]) for of_bin in bins] for name in ("response", "angle"))
        return {
            "n_truth": n_truth.tolist(),
            "n_reco": n_reco.tolist(),
            "efficiency": fractions(n_matched, n_truth),
            "fake_rate": fractions(n_fake, n_reco),
            "response_median": Series.of(d.median() for d in response),
            "resolution_68": Series.of(d.resolution_68() for d in response),
            "median_deg": Series.of(d.median() for d in angle),
            "q68_deg": Series.of(d.quantile(0.68) for d in angle),
        }


def _count(row: Index, column: Index, shape: tuple[int, int]) -> Index:
    """Frequency of each pair (row, column), int64 of the given shape."""
    return np.bincount(row * shape[1] + column, minlength=shape[0] * shape[1]).reshape(shape)


def _response_numbers(response: Distribution) -> dict[str, Number]:
    return {
        "response_median": response.median(),
        "resolution_68": response.resolution_68(),
        "resolution_68_over_median": response.resolution_68_over_median(),
    }


def _angle_numbers(angle: Distribution) -> dict[str, Number]:
    return {"median_deg": angle.median(), "q68_deg": angle.quantile(0.68)}
