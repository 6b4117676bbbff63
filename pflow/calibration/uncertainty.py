"""Calibrated uncertainties: what a model states, made as large as its errors on events that it was not trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.physics.pdg import CLASSES

__all__ = ["QUANTITIES", "Curve", "UncertaintyCalibration"]

QUANTITIES = ("energy", "direction")
"""Standard deviations of ln E, and of each of the two angles across the direction in rad."""

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Curve:
    """A factor on a standard deviation, as a function of it.

    Parameters
    ----------
    log_sigma
        Rising logarithms of the standard deviation as stated.
    log_factor
        Logarithm of the factor at each: linear in between, constant beyond.

    Raises
    ------
    ConfigError
        Numbers that make no curve.
    """

    log_sigma: tuple[float, ...]
    log_factor: tuple[float, ...]

    def __post_init__(self) -> None:
        x, y = np.array(self.log_sigma, dtype=np.float64), np.array(self.log_factor, dtype=np.float64)
        if x.ndim != 1 or x.shape != y.shape or not len(x) or not np.isfinite([x, y]).all() or (np.diff(x) <= 0).any():
            raise ConfigError(
                f"widths: expected rising log_sigma and as many log_factor, found {self.log_sigma} and "
                f"{self.log_factor}"
            )

    def __call__(self, sigma: Floats) -> Floats:
        """Calibrated standard deviations; 0 stays 0."""
        with np.errstate(divide="ignore"):
            return sigma * np.exp(np.interp(np.log(sigma), self.log_sigma, self.log_factor))


@dataclasses.dataclass(frozen=True, kw_only=True)
class UncertaintyCalibration:
    """Curves by quantity (`QUANTITIES`) and particle class (`pflow.physics.pdg.CLASSES`); where there is none, no change.

    Parameters
    ----------
    curves
        Mapping of both names.

    Raises
    ------
    ConfigError
        A quantity or class that does not exist.
    """

    curves: Mapping[str, Mapping[str, Curve]]

    def __post_init__(self) -> None:
        for quantity, by_class in self.curves.items():
            unknown = set(by_class) - set(CLASSES)
            if quantity not in QUANTITIES or unknown:
                raise ConfigError(f"widths: '{quantity}' of {sorted(by_class)} is none of {QUANTITIES} of {CLASSES}")

    def apply(self, quantity: str, sigma: Floats, classes: npt.NDArray[np.int64]) -> Floats:
        """Calibrated standard deviations.

        Parameters
        ----------
        quantity
            One of `QUANTITIES`.
        sigma : float64 [N]
        classes : int64 [N], index into `pflow.physics.pdg.CLASSES` of what each particle is said to be
        """
        out = np.array(sigma, dtype=np.float64)
        for name, curve in self.curves.get(quantity, {}).items():
            mine = classes == CLASSES.index(name)
            out[mine] = curve(out[mine])
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain data from which `from_dict` builds equal widths."""
        return {
            quantity: {name: [list(curve.log_sigma), list(curve.log_factor)] for name, curve in by_class.items()}
            for quantity, by_class in self.curves.items()
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> UncertaintyCalibration:
        """Build from plain data.

        Raises
        ------
        ConfigError
            It makes no widths.
        """
        try:
            return cls(
                curves={
                    quantity: {
                        name: Curve(tuple(map(float, x)), tuple(map(float, y))) for name, (x, y) in by_class.items()
                    }
                    for quantity, by_class in content.items()
                }
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"widths: {error}") from error
