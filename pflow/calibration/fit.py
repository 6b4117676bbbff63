"""Fit of a calibration: the photons' response, and the width of the pulls by the predicted standard deviation."""

from __future__ import annotations

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.metrics.match import Matches
from pflow.metrics.stats import Distribution, Floats, Ints
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import tangent_basis
from pflow.physics.pdg import CLASSES
from pflow.tokens.particles import CURVES, Calibration, Curve, Response, curve_index

PHOTON = CLASSES.index("photon")

MIN_PULLS = 40  # fewest pulls for a curve
PULLS_PER_BIN = 150
MAX_BINS = 8

RESPONSE_EDGES = (0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
"""Bins of a photon's true energy, GeV."""
MIN_PHOTONS = 60  # fewest photons of a bin
PASSES = 4
"""Times that the response is measured with what is corrected so far; the last changed `general` by less than 0.7%."""


class CalibrationFit:
    """Collects the pulls of matched particles with their predicted standard deviations; for validation files."""

    def __init__(self) -> None:
        self._pulls: list[tuple[Ints, Floats, Floats]] = []  # index of the curve, sigmas [M, 2], pulls [M, 3]
        self._photons: list[Floats] = []

    def update(
        self,
        truth: ParticleTable,
        reco: ParticleTable,
        records: ak.Array,
        matches: Matches,
        by_track: npt.NDArray[np.bool_] | None,
    ) -> None:
        """Add matched particles of a model without calibration: photons' energies, and pulls if there are covariances.

        `records` [event, particle] have the covariances of the particles of `reco`; `by_track` [all particles]. Pulls
        are (reconstructed - true) / sigma of ln E and of the angles along the two axes across the direction.
        """
        i, j = matches.truth, matches.reco
        photons = (truth.classes[i] == PHOTON) & (reco.classes[j] == PHOTON)
        self._photons.append(np.stack([truth.energy[i[photons]], reco.energy[j[photons]]]))
        if "covariance" not in records.fields:
            return
        energy, momentum = reco.energy[j], reco.momentum[j]
        covariance, (rows, columns) = np.zeros((len(j), 4, 4)), np.tril_indices(4)  # of (px, py, pz, E), GeV^2
        stored = jagged.columns(records)["covariance"][j]
        covariance[:, rows, columns] = covariance[:, columns, rows] = stored
        size = np.linalg.norm(momentum, axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            direction = momentum / size
            true = truth.momentum[i] / np.linalg.norm(truth.momentum[i], axis=1, keepdims=True)
            axes = np.stack(tangent_basis(direction), axis=1)  # [M, 2, 3]
            sigma_angles = np.sqrt(np.einsum("mka,mab,mkb->mk", axes, covariance[:, :3, :3], axes)) / size  # rad
            sigma_energy = np.sqrt(covariance[:, 3, 3]) / energy  # of ln E
            pulls = [
                (np.log(energy) - np.log(truth.energy[i])) / sigma_energy,
                *(np.einsum("ma,mka->km", direction - true, axes) / sigma_angles.T),
            ]
        values = np.stack(pulls, axis=1)  # [M, 3]
        known = np.isfinite(values).all(axis=1)
        sigma = np.stack([sigma_energy, np.sqrt(np.mean(sigma_angles**2, axis=1))], axis=1)
        curve = curve_index(reco.classes[j], None if by_track is None else by_track[j])
        self._pulls.append((curve[known], sigma[known], values[known]))

    def result(self) -> Calibration:
        """The photons' response, and the curves with at least `MIN_PULLS` pulls."""
        response = fit_response(*np.concatenate(self._photons, axis=1)) if self._photons else None
        if not self._pulls:
            return Calibration(photon_response=response)
        index, sigma, values = (np.concatenate(parts) for parts in zip(*self._pulls, strict=True))
        curves: dict[str, dict[str, Curve]] = {"energy": {}, "direction": {}}
        for number, name in enumerate(CURVES):
            of_curve = index == number
            for i, (quantity, columns) in enumerate((("energy", slice(0, 1)), ("direction", slice(1, None)))):
                if (curve := fit_curve(sigma[of_curve, i], values[of_curve, columns])) is not None:
                    curves[quantity][name] = curve
        return Calibration(**curves, photon_response=response)


def fit_response(true: Floats, measured: Floats) -> Response | None:
    """Factor that makes the median of measured over true energies, GeV, 1 in each bin of the true energy.

    The response by true energy is put at the measured energies that belong to it (numerical inversion, as of jet energy
    scales: ATLAS, Eur. Phys. J. C 73, 2304), so that the shape of the spectrum does not matter. None: too few photons.
    """
    of_bin = np.digitize(true, RESPONSE_EDGES)
    bins = [rows for i in range(1, len(RESPONSE_EDGES)) if len(rows := np.flatnonzero(of_bin == i)) >= MIN_PHOTONS]
    if not bins:
        return None
    log_true, log_measured = np.log(true), np.log(measured)
    x = np.array([np.median(log_measured[rows]) for rows in bins])
    x, factor = np.maximum.accumulate(x) + 1e-9 * np.arange(len(x)), np.zeros(len(x))
    for _ in range(PASSES):
        corrected = log_measured + np.interp(log_measured, x, factor)
        factor -= [np.median(corrected[rows] - log_true[rows]) for rows in bins]
    return Response(tuple(x.tolist()), tuple(factor.tolist()))


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
