"""Calibration of the oracle's showers: factors by kind of shower and calorimeter, and the dependence on the angle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pflow.config import builtin_names, from_plain, load_yaml, resolve
from pflow.errors import ConfigError
from pflow.metrics.stats import Floats, Ints
from pflow.physics.detector import Detector

__all__ = ["KINDS", "ShowerCalibration", "ShowerCalibrationFit", "load_calibration", "shower_kind"]

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowerCalibration:
    """Energy of a shower from the energies in the calorimeters: sum of factor x energy, times an angular correction.

    Parameters
    ----------
    origin
        What it was fitted on, for reports.
    factors
        For each of `KINDS`, the factor of each calorimeter by its name, in the order of the detector's.
    cos_edges
        Edges of bins of |cos theta|.
    angular
        For each of `KINDS`, the correction in each bin, linear between their middles.

    Raises
    ------
    ValueError
        A kind is missing, or the numbers of edges and corrections do not fit.
    """

    origin: str
    factors: Mapping[str, Mapping[str, float]]
    cos_edges: tuple[float, ...]
    angular: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        for kind in KINDS:
            if kind not in self.factors or len(self.angular.get(kind, ())) != len(self.cos_edges) - 1:
                raise ValueError(f"{kind} showers need factors and a correction for each bin of cos_edges")

    @classmethod
    def unit(cls, detector: Detector) -> ShowerCalibration:
        """No correction, for detectors without a fit."""
        return cls(
            origin="none: energies as in the file",
            factors={kind: {calorimeter.name: 1.0 for calorimeter in detector.calorimeters} for kind in KINDS},
            cos_edges=(0.0, 1.0),
            angular=dict.fromkeys(KINDS, (1.0,)),
        )

    def energy(self, *, kind: Ints, energy: Floats, abs_cos_theta: Floats) -> Floats:
        """Calibrated energies in GeV, float64 [N], of showers with `energy` float64 [N, calorimeters] in GeV."""
        factors = np.array([list(self.factors[name].values()) for name in KINDS])  # [kinds, calorimeters]
        middles = 0.5 * (np.array(self.cos_edges[:-1]) + np.array(self.cos_edges[1:]))
        corrections = np.stack([np.interp(abs_cos_theta, middles, self.angular[name]) for name in KINDS], axis=1)
        return np.asarray(np.sum(factors[kind] * energy, axis=1) * corrections[np.arange(len(kind)), kind])


def load_calibration(detector: Detector) -> ShowerCalibration:
    """The built-in calibration for a detector by its name (``configs/oracle/*.yaml``), or the unit one.

    Raises
    ------
    ConfigError
        The built-in file is for other calorimeters than this detector's, or describes no calibration.
    """
    if detector.name not in builtin_names("oracle"):
        return ShowerCalibration.unit(detector)
    path = resolve("oracle", detector.name)
    calibration = from_plain(ShowerCalibration, load_yaml(path), str(path))
    names = [calorimeter.name for calorimeter in detector.calorimeters]
    if any(list(factors) != names for factors in calibration.factors.values()):
        raise ConfigError(f"{path}: expected factors for the calorimeters of {detector.name}: {', '.join(names)}")
    return calibration


class ShowerCalibrationFit:
    """Fits a `ShowerCalibration` to showers in one pass and constant memory.

    The factors minimise the sum over showers of (sum_c f_c E_c - E_true)^2 / E_true, the weights of a resolution that
    goes as sqrt(E). The angular correction then sets the summed energy of each bin to the true one, which also removes
    the bias of least squares where the spread is large.
    """

    def __init__(self, detector: Detector) -> None:
        self._names = [calorimeter.name for calorimeter in detector.calorimeters]
        n = len(self._names)
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

    def result(self, *, origin: str) -> ShowerCalibration:
        """The calibration so far, to four digits; kinds without showers have factors 1."""
        factors, angular = {}, {}
        for k, kind in enumerate(KINDS):
            n = len(self._vector[k])
            pull = RIDGE * max(float(np.trace(self._matrix[k])), 1e-12)
            solved = np.linalg.solve(self._matrix[k] + pull * np.eye(n), self._vector[k] + pull)
            measured = self._measured[k] @ solved
            total = self._true[k].sum() / measured.sum() if measured.sum() > 0 else 1.0
            enough = (self._count[k] >= MIN_SHOWERS) & (measured > 0)
            corrections = np.where(enough, self._true[k] / np.where(enough, measured, 1.0), total)
            factors[kind] = dict(zip(self._names, solved.round(4).tolist(), strict=True))
            angular[kind] = tuple(corrections.round(4).tolist())
        edges = tuple(COS_EDGES.round(4).tolist())
        return ShowerCalibration(origin=origin, factors=factors, cos_edges=edges, angular=angular)
