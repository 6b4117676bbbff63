"""Metrics of matched particles: efficiency, fakes, purity, confusion, response and angle, by class and in bins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pflow.metrics.distribution import Distribution
from pflow.metrics.grid import DistributionGrid
from pflow.metrics.intervals import fraction
from pflow.metrics.match import Matches
from pflow.metrics.number import Axis, Floats, Histogram, Number, Series, Tree
from pflow.metrics.sums import Mean, WeightedFraction
from pflow.metrics.table import Ints, ParticleTable
from pflow.physics.kinematics import angle_between
from pflow.physics.pdg import CLASSES

__all__ = ["ENERGY", "THETA", "ParticleMetrics"]

ENERGY = Axis(
    name="energy",
    label="True energy",
    unit="GeV",
    edges=np.array([0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 250.0]),
    log=True,
)
THETA = Axis(name="theta", label="True polar angle", unit="deg", edges=np.linspace(0, 180, 13))

DEGREES = float(np.degrees(1))
RESPONSE_EDGES = np.linspace(0.5, 1.5, 101)
ANGLE_EDGES_DEG = np.logspace(-4, 2, 91)


class ParticleMetrics:
    """Everything that follows from a one-to-one assignment.

    A class is that of the true particle for efficiency, response and angle, and that of the reconstructed one for
    fake rate and purity. Bins are in true energy and angle, and in the reconstructed ones for the fake rate, which has
    no true particle; particles outside the bins are in no bin, but in every number that is not binned.

    Parameters
    ----------
    axes
        Energy [GeV] and polar angle [deg], in this order.
    """

    def __init__(self, *, axes: tuple[Axis, Axis] = (ENERGY, THETA)) -> None:
        n = len(CLASSES)
        self.axes = axes
        self.n_truth = np.zeros(n, dtype=np.int64)
        self.n_reco = np.zeros(n, dtype=np.int64)
        self.confusion = np.zeros((n, n), dtype=np.int64)  # [true class, reconstructed class] of matched pairs
        self.binned = {
            name: [np.zeros((n, len(axis) + 1), dtype=np.int64) for axis in axes]
            for name in ("truth", "matched", "reco", "fake")
        }
        self.response = [DistributionGrid(n, len(axis) + 1) for axis in axes]
        self.angle = [DistributionGrid(n, len(axis) + 1) for axis in axes]
        self.abs_rel_error = Mean()
        self.rel_error = Mean()
        self.mean_angle = Mean()
        self.fake_energy = WeightedFraction()
        self.matched_energy = WeightedFraction()
        self.n_charge = 0
        self.n_pdg = 0

    def update(self, truth: ParticleTable, reco: ParticleTable, matches: Matches) -> None:
        """Count events; true energies must be above 0."""
        n = len(CLASSES)
        i, j = matches.truth, matches.reco
        is_matched = np.zeros(len(truth), dtype=np.bool_)
        is_matched[i] = True
        is_fake = np.ones(len(reco), dtype=np.bool_)
        is_fake[j] = False

        self.n_truth += np.bincount(truth.classes, minlength=n)
        self.n_reco += np.bincount(reco.classes, minlength=n)
        self.confusion += _count(truth.classes[i], reco.classes[j], (n, n))
        self.fake_energy.add(reco.energy, is_fake)
        self.matched_energy.add(truth.energy, is_matched)
        self.n_charge += int(np.sum(np.rint(truth.charge[i]) == np.rint(reco.charge[j])))
        self.n_pdg += int(np.sum(np.abs(truth.pdg[i]) == np.abs(reco.pdg[j])))

        response = reco.energy[j] / truth.energy[i]
        angle = angle_between(truth.momentum[i], reco.momentum[j])
        relative = (reco.energy[j] - truth.energy[i]) / truth.energy[i]
        self.abs_rel_error.add(np.abs(relative))
        self.rel_error.add(relative)
        self.mean_angle.add(angle)

        for k, axis in enumerate(self.axes):
            shape = (n, len(axis) + 1)
            true_bin, reco_bin = axis.index(_coordinate(truth, k)), axis.index(_coordinate(reco, k))
            self.binned["truth"][k] += _count(truth.classes, true_bin, shape)
            self.binned["matched"][k] += _count(truth.classes[i], true_bin[i], shape)
            self.binned["reco"][k] += _count(reco.classes, reco_bin, shape)
            self.binned["fake"][k] += _count(reco.classes[is_fake], reco_bin[is_fake], shape)
            self.response[k].add(truth.classes[i], true_bin[i], response)
            self.angle[k].add(truth.classes[i], true_bin[i], angle)

    def merge(self, other: ParticleMetrics) -> None:
        """Count what another one has counted in the same bins.

        Raises
        ------
        ValueError
            The bins differ.
        """
        for mine, theirs in zip(self.axes, other.axes, strict=True):
            if not np.array_equal(mine.edges, theirs.edges):
                raise ValueError(f"cannot merge: bins of {mine.name} differ")
        self.n_truth += other.n_truth
        self.n_reco += other.n_reco
        self.confusion += other.confusion
        self.n_charge += other.n_charge
        self.n_pdg += other.n_pdg
        for name, arrays in self.binned.items():
            for k, array in enumerate(arrays):
                array += other.binned[name][k]
        for k in range(len(self.axes)):
            self.response[k].merge(other.response[k])
            self.angle[k].merge(other.angle[k])
        for name in ("abs_rel_error", "rel_error", "mean_angle", "fake_energy", "matched_energy"):
            getattr(self, name).merge(getattr(other, name))

    def result(self) -> Tree:
        """Keys at the top of a line's tree: energy, angle, charge, pdg, class, confusion, binned."""
        n_matched = int(self.confusion.sum())
        response, angle = self.response[0].total(), self.angle[0].total()
        same_class = int(np.trace(self.confusion))
        return {
            "n_truth": int(self.n_truth.sum()),
            "n_reco": int(self.n_reco.sum()),
            "n_matched": n_matched,
            "energy": {
                "mean_abs_rel_error": self.abs_rel_error.result(),
                "mean_rel_error": self.rel_error.result(),
                **_response_numbers(response),
            },
            "angle": {"mean_deg": self.mean_angle.result() * DEGREES, **_angle_numbers(angle)},
            "charge": {"accuracy": fraction(self.n_charge, n_matched)},
            "pdg": {
                "accuracy": fraction(self.n_pdg, n_matched),
                "class_accuracy": fraction(same_class, n_matched),
            },
            "class": {
                "all": self._class_result(None),
                **{name: self._class_result(c) for c, name in enumerate(CLASSES)},
            },
            "fake_energy_fraction": self.fake_energy.result(),
            "energy_weighted_efficiency": self.matched_energy.result(),
            "confusion": {
                "true_classes": [*CLASSES, "fake"],
                "reco_classes": [*CLASSES, "missed"],
                "counts": self.confusion_with_unmatched().tolist(),
            },
            "binned": {axis.name: self._binned_result(k) for k, axis in enumerate(self.axes)},
            "histograms": {
                "response": response.histogram(RESPONSE_EDGES),
                "angle_deg": _scaled(angle.histogram(ANGLE_EDGES_DEG / DEGREES), DEGREES),
            },
        }

    def confusion_with_unmatched(self) -> npt.NDArray[np.int64]:
        """int64 [true classes + fake, reconstructed classes + missed]."""
        n = len(CLASSES)
        full = np.zeros((n + 1, n + 1), dtype=np.int64)
        full[:n, :n] = self.confusion
        full[:n, n] = self.n_truth - self.confusion.sum(axis=1)
        full[n, :n] = self.n_reco - self.confusion.sum(axis=0)
        return full

    def _class_result(self, c: int | None) -> Tree:
        rows = slice(None) if c is None else slice(c, c + 1)
        n_truth, n_reco = int(self.n_truth[rows].sum()), int(self.n_reco[rows].sum())
        n_matched_truth, n_matched_reco = int(self.confusion[rows].sum()), int(self.confusion[:, rows].sum())
        same = int(np.trace(self.confusion)) if c is None else int(self.confusion[c, c])
        return {
            "n_truth": n_truth,
            "n_reco": n_reco,
            "efficiency": fraction(n_matched_truth, n_truth),
            "fake_rate": fraction(n_reco - n_matched_reco, n_reco),
            "purity": fraction(same, n_reco),
            "identified": fraction(same, n_matched_truth),
            **_response_numbers(self.response[0].total(c)),
            **_angle_numbers(self.angle[0].total(c)),
        }

    def _binned_result(self, k: int) -> Tree:
        axis = self.axes[k]
        rows = [("all", slice(None), None), *((name, slice(c, c + 1), c) for c, name in enumerate(CLASSES))]
        result: Tree = {"edges": axis.edges.tolist(), "unit": axis.unit}
        for name, where, c in rows:
            n = {key: arrays[k][where].sum(axis=0)[: len(axis)] for key, arrays in self.binned.items()}
            response = [self.response[k].bin(c, b) for b in range(len(axis))]
            angle = [self.angle[k].bin(c, b) for b in range(len(axis))]
            result[name] = {
                "n_truth": n["truth"].tolist(),
                "n_reco": n["reco"].tolist(),
                "efficiency": _fractions(n["matched"], n["truth"]),
                "fake_rate": _fractions(n["fake"], n["reco"]),
                "response_median": Series.of(d.median() for d in response),
                "resolution_68": Series.of(d.resolution_68() for d in response),
                "median_deg": Series.of(d.median() * DEGREES for d in angle),
                "q68_deg": Series.of(d.quantile(0.68) * DEGREES for d in angle),
            }
        return result


def _coordinate(table: ParticleTable, k: int) -> Floats:
    return table.energy if k == 0 else np.degrees(table.theta)


def _count(row: Ints, column: Ints, shape: tuple[int, int]) -> npt.NDArray[np.int64]:
    """How often each pair (row, column) occurs, int64 of the given shape."""
    return np.bincount(row * shape[1] + column, minlength=shape[0] * shape[1]).reshape(shape)


def _fractions(passed: Ints, total: Ints) -> Series:
    return Series.of(fraction(p, n) for p, n in zip(passed.tolist(), total.tolist(), strict=True))


def _response_numbers(response: Distribution) -> dict[str, Number]:
    return {
        "response_median": response.median(),
        "resolution_68": response.resolution_68(),
        "resolution_68_over_median": response.resolution_68_over_median(),
        "resolution_iqr": response.resolution_iqr(),
    }


def _angle_numbers(angle: Distribution) -> dict[str, Number]:
    return {"median_deg": angle.median() * DEGREES, "q68_deg": angle.quantile(0.68) * DEGREES}


def _scaled(histogram: Histogram, factor: float) -> Histogram:
    return Histogram(
        edges=histogram.edges * factor, counts=histogram.counts, below=histogram.below, above=histogram.above
    )
