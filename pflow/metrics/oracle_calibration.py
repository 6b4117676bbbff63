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

__all__ = ["KINDS", "ShowerCalibration", "load_calibration", "shower_kind"]

KINDS = ("electromagnetic", "hadronic")
"""Kinds of showers, in the order of their index."""


def shower_kind(pdg: npt.ArrayLike) -> Ints:
    """Index into `KINDS` of the shower that a particle of this code makes, int64, same shape."""
    return np.where(np.isin(np.abs(np.asarray(pdg)), (11, 22)), 0, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowerCalibration:
    """Energy of a shower from the energies in the calorimeters: sum of factor x energy, times an angular correction.

    For each of `KINDS`, `factors` has the factor of each calorimeter by its name, in the order of the detector's, and
    `angular` the correction in each bin of |cos theta| (`cos_edges`), linear between their middles. `origin` says what
    it was fitted on.
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
    """The built-in calibration for a detector by its name (``configs/oracle/*.yaml``), or the unit one."""
    if detector.name not in builtin_names("oracle"):
        return ShowerCalibration.unit(detector)
    path = resolve("oracle", detector.name)
    calibration = from_plain(ShowerCalibration, load_yaml(path), str(path))
    names = [calorimeter.name for calorimeter in detector.calorimeters]
    if any(list(factors) != names for factors in calibration.factors.values()):
        raise ConfigError(f"{path}: expected factors for the calorimeters of {detector.name}: {', '.join(names)}")
    return calibration
