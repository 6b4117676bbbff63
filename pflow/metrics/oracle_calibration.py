"""Calibration of the oracle's showers: factors by kind of shower and calorimeter, and the dependence on the angle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.metrics.stats import Floats, Ints
from pflow.physics.detector import Detector
from pflow.resources import builtin_names, load_yaml, resolve

__all__ = ["KINDS", "Calibration", "CalibrationFit", "load_calibration", "shower_kind"]

KINDS = ("electromagnetic", "hadronic")
"""Kinds of showers, in the order of their index."""

COS_EDGES = np.linspace(0.0, 1.0, 26)
"""Bins of |cos theta| in which the angular dependence is fitted."""
MIN_ENERGY = 0.5
"""True energy that a shower needs for the fit, GeV."""
MIN_SHOWERS = 20
"""Showers that a bin of the angle needs for a correction of its own."""
RIDGE = 1e-3
"""Ridge term that pulls every factor towards 1, relative to the trace of the normal matrix; matters only for
calorimeters with next to no energy."""


def shower_kind(pdg: npt.ArrayLike) -> Ints:
    """Index into `KINDS` of the shower that a particle of this code makes, int64, same shape."""
    return np.where(np.isin(np.abs(np.asarray(pdg)), (11, 22)), 0, 1)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Calibration:
    """Energy of a shower from the energies in the calorimeters: sum of factor x energy, times an angular correction.

    Parameters
    ----------
    factors
        float64 [kinds, calorimeters], in the order of `KINDS` and of the detector's calorimeters.
    cos_edges
        float64 [bins + 1]: |cos theta|.
    angular
        float64 [kinds, bins]: correction in each bin, linear between their middles.
    origin
        What it was fitted on, for reports.
    """

    factors: Floats
    cos_edges: Floats
    angular: Floats
    origin: str

    @classmethod
    def unit(cls, detector: Detector) -> Calibration:
        """No correction, for detectors without a fit."""
        return cls(
            factors=np.ones((len(KINDS), len(detector.calorimeters))),
            cos_edges=np.array([0.0, 1.0]),
            angular=np.ones((len(KINDS), 1)),
            origin="none: energies as in the file",
        )

    def energy(self, *, kind: Ints, energy: Floats, abs_cos_theta: Floats) -> Floats:
        """Calibrated energies in GeV, float64 [N], of showers with `energy` float64 [N, calorimeters] in GeV."""
        summed = np.sum(self.factors[kind] * energy, axis=1)
        middles = 0.5 * (self.cos_edges[:-1] + self.cos_edges[1:])
        corrections = np.stack([np.interp(abs_cos_theta, middles, row) for row in self.angular], axis=1)
        return np.asarray(summed * corrections[np.arange(len(kind)), kind])

    def to_dict(self, detector: Detector) -> dict[str, Any]:
        """Plain data, as in ``configs/oracle/*.yaml``."""
        names = [calorimeter.name for calorimeter in detector.calorimeters]
        return {
            "origin": self.origin,
            "factors": {
                kind: {name: round(float(f), 4) for name, f in zip(names, row, strict=True)}
                for kind, row in zip(KINDS, self.factors, strict=True)
            },
            "cos_edges": [round(float(edge), 4) for edge in self.cos_edges],
            "angular": {kind: [round(float(c), 4) for c in row] for kind, row in zip(KINDS, self.angular, strict=True)},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], detector: Detector, *, where: str = "calibration") -> Calibration:
        """Inverse of `to_dict`.

        Raises
        ------
        ConfigError
            A part is missing, has another length, or is for other calorimeters; names `where`.
        """
        names = [calorimeter.name for calorimeter in detector.calorimeters]
        try:
            factors = np.array([[content["factors"][kind][name] for name in names] for kind in KINDS], dtype=np.float64)
            angular = np.array([content["angular"][kind] for kind in KINDS], dtype=np.float64)
            edges = np.array(content["cos_edges"], dtype=np.float64)
            origin = str(content["origin"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: no calibration for the calorimeters of {detector.name}: {error!r}") from error
        if angular.shape != (len(KINDS), len(edges) - 1):
            raise ConfigError(f"{where}: {len(edges)} edges of cos theta do not fit corrections {angular.shape}")
        return cls(factors=factors, cos_edges=edges, angular=angular, origin=origin)


def load_calibration(detector: Detector) -> Calibration:
    """The built-in calibration for a detector by its name, or the unit one.

    Raises
    ------
    ConfigError
        The built-in file is for other calorimeters than this detector's.
    """
    if detector.name not in builtin_names("oracle"):
        return Calibration.unit(detector)
    path = resolve("oracle", detector.name)
    return Calibration.from_dict(load_yaml(path), detector, where=str(path))


class CalibrationFit:
    """Fits a `Calibration` to showers in one pass and constant memory.

    The factors minimise the sum over showers of (sum_c f_c E_c - E_true)^2 / E_true, the weights of a resolution that
    goes as sqrt(E). The angular correction then sets the summed energy of each bin to the true one, which also removes
    the bias of least squares where the spread is large.
    """

    def __init__(self, detector: Detector) -> None:
        n = len(detector.calorimeters)
        n_bins = len(COS_EDGES) - 1
        self._matrix = np.zeros((len(KINDS), n, n))
        self._vector = np.zeros((len(KINDS), n))
        self._measured = np.zeros((len(KINDS), n_bins, n))
        self._true = np.zeros((len(KINDS), n_bins))
        self._count = np.zeros((len(KINDS), n_bins), dtype=np.int64)

    def update(self, *, kind: Ints, energy: Floats, abs_cos_theta: Floats, true_energy: Floats) -> None:
        """Add showers: energies float64 [N, calorimeters] and true energies float64 [N], GeV."""
        bins = np.clip(np.searchsorted(COS_EDGES, abs_cos_theta, side="right") - 1, 0, len(COS_EDGES) - 2)
        for k in range(len(KINDS)):
            used = (kind == k) & (true_energy > MIN_ENERGY)
            e, t, b = energy[used], true_energy[used], bins[used]
            self._matrix[k] += (e / t[:, None]).T @ e
            self._vector[k] += e.sum(axis=0)
            np.add.at(self._measured[k], b, e)
            np.add.at(self._true[k], b, t)
            np.add.at(self._count[k], b, 1)

    def result(self, *, origin: str) -> Calibration:
        """The calibration so far; kinds without showers have factors 1.

        Parameters
        ----------
        origin
            What it was fitted on, for reports.
        """
        factors, angular = [], []
        for k in range(len(KINDS)):
            n = len(self._vector[k])
            pull = RIDGE * max(float(np.trace(self._matrix[k])), 1e-12)
            factors.append(np.linalg.solve(self._matrix[k] + pull * np.eye(n), self._vector[k] + pull))
            measured = self._measured[k] @ factors[-1]
            total = self._true[k].sum() / measured.sum() if measured.sum() > 0 else 1.0
            enough = (self._count[k] >= MIN_SHOWERS) & (measured > 0)
            angular.append(np.where(enough, self._true[k] / np.where(enough, measured, 1.0), total))
        return Calibration(
            factors=np.array(factors), cos_edges=COS_EDGES.copy(), angular=np.array(angular), origin=origin
        )
