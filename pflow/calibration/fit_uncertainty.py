"""Fit of the uncertainty calibration: width of the pulls as a function of the predicted standard deviation."""

from __future__ import annotations

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.metrics.match import Matches
from pflow.metrics.stats import Distribution, Floats, Ints
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import tangent_basis
from pflow.tokens.uncertainty import CURVES, Curve, UncertaintyCalibration, curve_index

MIN_PULLS = 40
"""Fewest pulls for a curve."""

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
        """Add matched targets and particles of a model without calibration; nothing without covariances.

        `records` [event, particle] have the covariances of the particles of `reco`; `by_track` [all particles].
        """
        covariance = _covariances(records)
        if covariance is None:
            return
        values = _pulls(truth, reco, covariance, matches)
        known = np.isfinite(values).all(axis=1)
        row = matches.reco[known]
        energy, momentum = reco.energy[row], np.linalg.norm(reco.momentum[row], axis=1)
        # The trace minus the variance along the direction is the sum of the variances along two axes across it.
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
            of_curve = index == number
            for i, (quantity, columns) in enumerate((("energy", slice(0, 1)), ("direction", slice(1, None)))):
                curve = fit_curve(sigma[of_curve, i], values[of_curve, columns])
                if curve is not None:
                    curves[quantity][name] = curve
        return UncertaintyCalibration(**curves)


def _covariances(particles: ak.Array) -> Floats | None:
    """Covariance of (px, py, pz, E) of all particles, float64 [N, 4, 4], GeV^2; None if the records have no field."""
    if "covariance" not in particles.fields:
        return None
    stored = ak.to_numpy(ak.flatten(particles["covariance"], axis=1))  # [N, 10], the lower triangle by rows
    full = np.zeros((len(stored), 4, 4))
    rows, columns = np.tril_indices(4)
    full[:, rows, columns] = stored
    full[:, columns, rows] = stored
    return full


def _pulls(truth: ParticleTable, reco: ParticleTable, covariance: Floats, matches: Matches) -> Floats:
    """(reconstructed - true) / sigma of ln E, polar angle and azimuth of matched pairs, float64 [M, 3].

    sigma(ln E) = sqrt(cov(E, E)) / E. For a unit vector e across the direction, sigma = sqrt(e^T cov(p, p) e) / p, and
    the error is the component along e of the difference between the directions. Not finite for a sigma of 0 or NaN.
    """
    i, j = matches.truth, matches.reco
    energy, momentum = reco.energy[j], reco.momentum[j]
    size = np.linalg.norm(momentum, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        direction = momentum / size[:, None]
        true = truth.momentum[i] / np.linalg.norm(truth.momentum[i], axis=1)[:, None]
        columns = [(np.log(energy) - np.log(truth.energy[i])) * energy / np.sqrt(covariance[j, 3, 3])]
        for axis in tangent_basis(direction):
            variance = np.einsum("ma,mab,mb->m", axis, covariance[j, :3, :3], axis)
            columns.append(np.sum((direction - true) * axis, axis=1) * size / np.sqrt(variance))
    return np.stack(columns, axis=1)


def fit_curve(sigma: Floats, values: Floats) -> Curve | None:
    """Half the narrowest interval with 68.3% of pulls [N, K] in up to `MAX_BINS` bins of sigma; None for too few."""
    if len(sigma) < MIN_PULLS:
        return None
    order = np.argsort(sigma, kind="stable")
    points: dict[float, float] = {}
    for part in np.array_split(order, min(max(len(sigma) // PULLS_PER_BIN, 1), MAX_BINS)):
        width = Distribution(values[part]).resolution_68().value
        if width > 0:
            points[float(np.log(np.median(sigma[part])))] = float(np.log(width))
    return Curve(tuple(points), tuple(points.values())) if points else None
