"""Uncertainty calibration: predicted standard deviations rescaled to the errors on validation events."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_choice
from pflow.physics.pdg import CLASSES

__all__ = ["Curve", "UncertaintyCalibration"]

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Curve:
    """A factor on a standard deviation, as a function of it.

    Parameters
    ----------
    log_sigma
        Increasing logarithms of the predicted standard deviation.
    log_factor
        Logarithm of the factor at each: linear in between, constant outside.

    Raises
    ------
    ConfigError
        The numbers are not finite, not increasing, or not as many of both.
    """

    log_sigma: tuple[float, ...]
    log_factor: tuple[float, ...]

    def __post_init__(self) -> None:
        x, y = np.array(self.log_sigma, dtype=np.float64), np.array(self.log_factor, dtype=np.float64)
        if x.shape != y.shape or not len(x) or not np.isfinite([x, y]).all() or (np.diff(x) <= 0).any():
            raise ConfigError(
                f"uncertainty calibration: expected increasing log_sigma and as many log_factor, found "
                f"{self.log_sigma} and {self.log_factor}"
            )

    def __call__(self, sigma: Floats) -> Floats:
        """Calibrated standard deviations; 0 stays 0."""
        with np.errstate(divide="ignore"):
            return sigma * np.exp(np.interp(np.log(sigma), self.log_sigma, self.log_factor))


@dataclasses.dataclass(frozen=True, kw_only=True)
class UncertaintyCalibration:
    """Curves by particle class (`pflow.physics.pdg.CLASSES`); classes without a curve stay as predicted.

    Parameters
    ----------
    energy
        For the standard deviation of ln E.
    direction
        For that of each of the two angles across the direction.

    Raises
    ------
    ConfigError
        An unknown class.
    """

    energy: Mapping[str, Curve] = dataclasses.field(default_factory=dict)
    direction: Mapping[str, Curve] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.energy, *self.direction):
            check_choice(name, CLASSES, "particle class")

    def apply(
        self, energy_sigma: Floats, direction_sigma: Floats, classes: npt.NDArray[np.int64]
    ) -> tuple[Floats, Floats]:
        """Calibrated standard deviations.

        Parameters
        ----------
        energy_sigma : float64 [N], of ln E
        direction_sigma : float64 [N], rad
        classes : int64 [N], index into `pflow.physics.pdg.CLASSES` of the predicted class
        """
        return _apply(self.energy, energy_sigma, classes), _apply(self.direction, direction_sigma, classes)


def _apply(curves: Mapping[str, Curve], sigma: Floats, classes: npt.NDArray[np.int64]) -> Floats:
    calibrated = np.array(sigma, dtype=np.float64)
    for name, curve in curves.items():
        mine = classes == CLASSES.index(name)
        calibrated[mine] = curve(calibrated[mine])
    return calibrated
