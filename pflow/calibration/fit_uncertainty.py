"""Fit of the uncertainty calibration: the width of the pulls as a function of the predicted standard deviation."""

from __future__ import annotations

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.metrics.match import Matches
from pflow.metrics.pulls import covariances, pulls
from pflow.metrics.stats import Distribution, Floats, Ints
from pflow.metrics.table import ParticleTable
from pflow.tokens.uncertainty import CURVES, Curve, UncertaintyCalibration, curve_index

__all__ = ["MIN_PULLS", "UncertaintyFit", "fit_curve"]

MIN_PULLS = 40
"""Fewest pulls from which a factor is computed."""

PULLS_PER_BIN = 150
MAX_BINS = 8


class UncertaintyFit:
    """Collects the pulls of matched particles with their predicted standard deviations; for validation files."""

    def __init__(self) -> None:
        self._curve: list[Ints] = []
        self._sigma: list[Floats] = []
        self._pulls: list[Floats] = []

    def update(
        self,
        truth: ParticleTable,
        reco: ParticleTable,
        records: ak.Array,
        matches: Matches,
        by_track: npt.NDArray[np.bool_] | None,
    ) -> None:
        """Add matched targets and particles of a model without calibration; none without covariances are added."""
        covariance = covariances(records)
        if covariance is None:
            return
        values = pulls(truth, reco, covariance, matches)
        known = np.isfinite(values).all(axis=1)
        row = matches.reco[known]
        energy, momentum = reco.energy[row], np.linalg.norm(reco.momentum[row], axis=1)
        # Of the trace, what is not along the direction belongs to the two axes across it.
        unit = reco.momentum[row] / momentum[:, None]
        spatial = covariance[row, :3, :3]
        along = np.einsum("ma,mab,mb->m", unit, spatial, unit)
        across = np.sqrt(np.maximum(np.trace(spatial, axis1=1, axis2=2) - along, 0.0) / 2) / momentum
        self._curve.append(curve_index(reco.classes[row], None if by_track is None else by_track[row]))
        self._sigma.append(np.stack([np.sqrt(covariance[row, 3, 3]) / energy, across], axis=1))
        self._pulls.append(values[known])

    def result(self) -> UncertaintyCalibration:
        """The curves with at least `MIN_PULLS` pulls."""
        if not self._curve:
            return UncertaintyCalibration()
        index = np.concatenate(self._curve)
        sigma, values = np.concatenate(self._sigma), np.concatenate(self._pulls)
        curves: dict[str, dict[str, Curve]] = {"energy": {}, "direction": {}}
        for number, name in enumerate(CURVES):
            mine = index == number
            for i, (quantity, columns) in enumerate((("energy", slice(0, 1)), ("direction", slice(1, None)))):
                curve = fit_curve(sigma[mine, i], values[mine, columns])
                if curve is not None:
                    curves[quantity][name] = curve
        return UncertaintyCalibration(**curves)


def fit_curve(sigma: Floats, values: Floats) -> Curve | None:
    """Half the narrowest interval of 68.3% of pulls [N, K] in up to `MAX_BINS` bins of sigma; None for too few."""
    if len(sigma) < MIN_PULLS:
        return None
    order = np.argsort(sigma, kind="stable")
    points: dict[float, float] = {}
    for part in np.array_split(order, min(max(len(sigma) // PULLS_PER_BIN, 1), MAX_BINS)):
        spread = Distribution()
        spread.add(values[part])
        width = spread.resolution_68().value
        if width > 0:
            points[float(np.log(np.median(sigma[part])))] = float(np.log(width))
    return Curve(tuple(points), tuple(points.values())) if points else None
