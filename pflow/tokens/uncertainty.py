"""Uncertainty calibration: predicted standard deviations rescaled to the errors on validation events."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_choice
from pflow.physics.arrays import constant, namespace
from pflow.physics.pdg import CLASSES

CHARGED, WITHOUT_TRACK = ("charged_hadron", "electron", "muon"), "_without_track"

CURVES = (*CLASSES, *(name + WITHOUT_TRACK for name in CHARGED))
"""Names of curves: classes, and charged classes of particles whose momentum is not a track's."""

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Curve:
    """Factor on a standard deviation: `log_factor` at each increasing `log_sigma`, linear between, constant outside."""

    log_sigma: tuple[float, ...]
    log_factor: tuple[float, ...]

    def __post_init__(self) -> None:
        x, y = np.array(self.log_sigma, dtype=np.float64), np.array(self.log_factor, dtype=np.float64)
        if x.shape != y.shape or not len(x) or not np.isfinite([x, y]).all() or (np.diff(x) <= 0).any():
            raise ConfigError(
                f"uncertainty calibration: expected increasing log_sigma and as many log_factor, found "
                f"{self.log_sigma} and {self.log_factor}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class UncertaintyCalibration:
    """Curves by name (`CURVES`); classes without a curve stay as predicted.

    Charged particles with a track are measured a hundred times better than those without: in one curve of both, the
    factor would rise so steeply between them that rounding becomes a visible change. Where those without a track have
    no curve, they have the one of their class.

    `energy` is for the standard deviation of ln E, `direction` for each tangent-plane angle.
    """

    energy: Mapping[str, Curve] = dataclasses.field(default_factory=dict)
    direction: Mapping[str, Curve] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.energy, *self.direction):
            check_choice(name, CURVES, "uncertainty curve")

    def apply(self, energy_sigma: Any, direction_sigma: Any, classes: Any, by_track: Any = None) -> tuple[Any, Any]:
        """Calibrated sigmas of ln E and of each angle, rad, float64 [N]; arrays or tensors.

        `classes` int64 [N] are as of `pflow.physics.pdg.class_index`; `by_track` bool [N], None: all are by a track.
        """
        index = curve_index(classes, by_track)
        return _apply(self.energy, energy_sigma, index), _apply(self.direction, direction_sigma, index)


def curve_index(classes: Any, by_track: Any) -> Any:
    """Index into `CURVES`, int64 [N]; parameters as of `UncertaintyCalibration.apply`."""
    if by_track is None:
        return classes
    without = [CURVES.index(name + WITHOUT_TRACK if name in CHARGED else name) for name in CLASSES]
    return namespace(classes).where(by_track, classes, constant(np.array(without), like=classes)[classes])


def _apply(by_name: Mapping[str, Curve], sigma: Any, index: Any) -> Any:
    xp = namespace(sigma)
    curves = [by_name.get(name, by_name.get(name.removesuffix(WITHOUT_TRACK))) for name in CURVES]
    begin, end, slope, first = (constant(part, like=sigma)[index] for part in _pieces(curves))  # [N, pieces]
    with np.errstate(divide="ignore"):
        beyond = xp.maximum(xp.minimum(xp.log(sigma)[:, None], end), begin) - begin
    return sigma * xp.exp(first[:, 0] + (slope * beyond).sum(1))


def _pieces(curves: Sequence[Curve | None]) -> tuple[Floats, Floats, Floats, Floats]:
    """Pieces of curves: where each begins and ends, its slope, [curve, piece], and the first value, [curve, 1]."""
    longest = max([2, *(len(curve.log_sigma) for curve in curves if curve)])
    rows = []
    for curve in curves:
        points = ((0.0,), (0.0,)) if curve is None else (curve.log_sigma, curve.log_factor)
        x, y = (np.pad(np.array(values), (0, longest - len(values)), mode="edge") for values in points)
        length = np.diff(x)
        rows.append((x[:-1], x[1:], np.diff(y) / np.where(length > 0, length, 1.0), y[:1]))
    begin, end, slope, first = (np.stack(part) for part in zip(*rows, strict=True))
    return begin, end, slope, first
