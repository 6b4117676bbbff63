"""Calibration of a model on validation files: the best decoding configuration, photon energies, and uncertainties."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.checkpoint import TrainedModel
from pflow.errors import ConfigError, InputError, check_choice
from pflow.event import jagged
from pflow.event.checks import Expected
from pflow.event.events import Flag, without_refused
from pflow.inference.events import MAX_HITS, Engine, finite_events, usable_events, with_detector
from pflow.io.open import ReadOptions
from pflow.metrics.event import CountMetrics
from pflow.metrics.match import Matches, Matching, ParticleMetrics, ParticleTable, match_tables
from pflow.metrics.stats import LEVEL, Columns, Floats
from pflow.model.api import DecodingConfig
from pflow.physics.detector import calibration_digest
from pflow.physics.kinematics import tangent_basis
from pflow.physics.pdg import CLASSES
from pflow.tokens.particles import CHARGED, CURVES, Calibration, Curve, Response, curve_index
from pflow.tokens.tokens import targets_of

CRITERIA = ("energy", "number", "reference")  # for the best configuration, see `best`

MATCHINGS = (Matching(), Matching().close)  # for all matches, and for the headline efficiency
PHOTON, TRACKS = CLASSES.index("photon"), [CLASSES.index(name) for name in CHARGED]

MIN_PULLS, MIN_REPLACING = 40, 300  # fewest pulls for a curve, and for one that replaces a curve of an earlier one

PHOTON_EDGES = (0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
"""Bins of a photon's true energy, GeV."""
MIN_PHOTONS = 60  # fewest photons of a bin
FEW_NAMED = 0.5  # share of photons reconstructed as such below which more events calibrate no more of them
TRACK_EDGES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 70.0, 110.0, 170.0, 300.0)
"""Bins of a charged particle's energy, GeV, for what its class's curve leaves of the deviation of its pulls from 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A decoding configuration with its results, and the calibration fitted for it.

    Averages over files: `efficiency`, energy-weighted, `fakes`, fake energy fraction, `number_right`, fraction of
    events with the right number of particles, and `reference`, the efficiency of the files' reconstructed particles
    (Pandora's), NaN without such. `detectors`: digests of the events' calorimeters, by the detectors' names; None for
    different ones of one name. `photons_named`: share of the matched true photons that are reconstructed as photons,
    whose energies alone are calibrated; NaN without any.
    """

    decoding: DecodingConfig
    detectors: Mapping[str, str | None]
    efficiency: float
    fakes: float
    number_right: float
    reference: float
    photons_named: float
    calibration: Calibration

    @property
    def score(self) -> float:
        """Energy-weighted efficiency minus fake energy fraction."""
        return self.efficiency - self.fakes


def decoding_grid(decoding: DecodingConfig, **choices: Sequence[float] | None) -> list[DecodingConfig]:
    """Configurations with all combinations of `choices` by field, those nearest to `decoding` first.

    ConfigError names an unknown or invalid field.
    """

    def nearest_first(name: str, values: Sequence[float]) -> list[Any]:
        own = getattr(decoding, name)  # None: no threshold
        return sorted(set(values), key=lambda value: (0.0 if own is None else abs(value - own), value))

    try:
        # `best` takes the first of equal ones: files that tell none apart change the model least.
        given = {name: nearest_first(name, values) for name, values in choices.items() if values}
        grid = [dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())]
        return [dataclasses.replace(decoding, **values) for values in grid]
    except (AttributeError, TypeError, ValueError) as error:  # another name, or value, of an option
        raise ConfigError(str(error)) from error


def calibrate(
    model: TrainedModel,
    inputs: Sequence[str | Path],
    decodings: Sequence[DecodingConfig],
    reading: ReadOptions = ReadOptions(),  # noqa: B008
    *,
    batch_size: int | None = None,
    chunk_size: int = 256,
    device: str = "auto",
    on_progress: Callable[[int], None] | None = None,
) -> list[Calibrated]:
    """Score decoding configurations, and fit the calibration of each, in the order of `decodings`.

    `inputs` are validation files with truth, neither training nor test files, read as `reading` says;
    without ``detector``, files of another detector than the model's are refused. With its `on_error` ``skip``,
    entries that cannot be used are left out, with a warning. An event for which the model gives numbers that are not
    finite has no particles. Energies and deviations are compared without an earlier calibration of the model;
    `Calibration.over` takes from it what these files have too few particles for. `on_progress` is called with the
    number of events reconstructed, of all configurations. InputError: a file or entry that cannot be used.
    """
    trials = [
        (decoding, CalibrationFit(), [ParticleMetrics(axes=()) for _ in inputs], [CountMetrics() for _ in inputs])
        for decoding in decodings
    ]
    references, n_done = [ParticleMetrics(axes=()) for _ in inputs], 0
    detectors: dict[str, str | None] = {}
    encode = functools.partial(model.tokeniser.encode, truth=False)
    choose = functools.partial(targets_of, config=model.tokeniser.config)
    expected = Expected(targets=model.tokeniser.config.chosen_by, sample=model.tokeniser.sample)
    reading, on_error = dataclasses.replace(reading, expected=expected), reading.on_error
    for number, path in enumerate(inputs):
        for chunk in reading.iterate(path, chunk_size):
            usable = usable_events(chunk, model.tokeniser.config, MAX_HITS, on_error)
            # The truth rule needs the geometry of the file's detector.
            targets, usable = without_refused(usable, choose, on_error)
            # A model that reads the geometry takes each detector as it is described.
            as_read = reading.detector is None or model.tokeniser.config.geometry
            events = usable if as_read else with_detector(usable, model.tokeniser.detector)
            name, description = events.detector.name, calibration_digest(events.detector)
            detectors[name] = description if detectors.get(name, description) == description else None
            tokens, events = without_refused(events, encode, on_error)
            # An event that is left out would have the right number of particles, 0.
            good = (events.flags & Flag.BAD_INPUT) == 0
            truth = ParticleTable.from_records(targets.particles[good])
            if usable.reference is not None:
                others = ParticleTable.from_records(usable.reference[good])
                references[number].update(truth, others, *(match_tables(truth, others, rule) for rule in MATCHINGS))
            # All configurations share one reading and encoding of the chunk.
            for decoding, fit, particles, counts in trials:
                engine = Engine(model, decoding=decoding, batch_size=batch_size, device=device)
                generated = engine.collect(tokens).tokens()
                # Decoded without a calibration: the fit needs the model's own energies and deviations.
                is_finite, by_track = generated.finite(), generated.by_track
                finite = finite_events(model.tokeniser.decode(generated), ~is_finite, events, model.path, on_error)
                if by_track is not None:
                    by_track = by_track[np.repeat(is_finite, generated.counts)]
                records = finite.particles[good]
                reco = ParticleTable.from_records(records)
                matches, close = (match_tables(truth, reco, rule) for rule in MATCHINGS)
                particles[number].update(truth, reco, matches, close)
                fit.update(truth, reco, records, matches, by_track)
                counts[number].update(truth, reco)
                n_done += len(events)
                if on_progress is not None:
                    on_progress(n_done)
    for path, of_file in zip(inputs, trials[0][2], strict=True):
        # Its efficiency and all scores would be NaN, and `best` would take the first.
        if not len(of_file.truth["energy"]):
            raise InputError(
                "no true particle is a target under the model's truth rule: leave this file out", file=path
            )
    reference = _scores(references)["efficiency"]
    calibrated = []
    for decoding, fit, particles, counts in trials:
        right = float(np.mean([of_file.result()["exact_fraction"].value for of_file in counts]))
        scores = {**_scores(particles), "number_right": right, "reference": reference}
        scores["photons_named"] = fit.n_named / fit.n_photons if fit.n_photons else math.nan
        made = fit.result(model.calibration)
        calibrated.append(Calibrated(decoding=decoding, detectors=detectors, calibration=made, **scores))
    return calibrated


def best(trials: Sequence[Calibrated], by: str = "energy") -> Calibrated:
    """The first best configuration by a criterion.

    ``energy``: largest score; ``number``: most events with the right number of particles; ``reference``: fewest fakes
    where the efficiency is at least the reference's, or the largest efficiency. ConfigError: there is no reference.
    """
    check_choice(by, CRITERIA, "criterion")
    if by != "reference":
        return max(trials, key=lambda trial: trial.score if by == "energy" else trial.number_right)
    # No efficiency is at least NaN: without this error, the largest efficiency would be taken silently.
    if any(math.isnan(trial.reference) for trial in trials):
        raise ConfigError("criterion 'reference': not all files have reconstructed particles of another algorithm")
    if efficient := [trial for trial in trials if trial.efficiency >= trial.reference]:
        return min(efficient, key=lambda trial: trial.fakes)
    return max(trials, key=lambda trial: trial.efficiency)


def _scores(metrics: Sequence[ParticleMetrics]) -> dict[str, float]:
    """Energy-weighted efficiency and fake energy fraction, means over files."""
    results = [particles.result() for particles in metrics]
    return {
        "efficiency": float(np.mean([result["energy_weighted_efficiency"].value for result in results])),
        "fakes": float(np.mean([np.nan_to_num(result["fake_energy_fraction"].value) for result in results])),
    }


class CalibrationFit:
    """Collects the pulls of matched particles with their predicted standard deviations; for validation files."""

    def __init__(self) -> None:
        self._pulls, self._photons = Columns(), Columns()
        self.n_photons = self.n_named = 0  # matched true photons, and those of them that are reconstructed as photons

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
        photons = truth.classes[i] == PHOTON
        self.n_photons += int(photons.sum())
        photons &= reco.classes[j] == PHOTON
        self.n_named += int(photons.sum())
        self._photons.add(true=truth.energy[i[photons]], measured=reco.energy[j[photons]])
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
        # A particle at rest has no direction, and a predicted deviation of 0 gives infinite pulls.
        known = np.isfinite(values).all(axis=1)
        sigma = np.stack([sigma_energy, np.sqrt(np.mean(sigma_angles**2, axis=1))], axis=1)
        curve = curve_index(reco.classes[j], None if by_track is None else by_track[j])
        self._pulls.add(curve=curve[known], sigma=sigma[known], pull=values[known], energy=energy[known])

    def result(self, earlier: Calibration | None = None) -> Calibration:
        """The photons' response, and the curves with at least `MIN_PULLS` pulls; with `MIN_REPLACING` where `earlier`
        has one, which few pulls would replace by one factor for all deviations."""
        curves: dict[str, dict[str, Curve]] = {"energy": {}, "direction": {}}
        for number, name in enumerate(CURVES):
            of_curve = np.flatnonzero(self._pulls["curve"] == number)
            if len(of_curve) < (MIN_REPLACING if earlier is not None and name in earlier.energy else MIN_PULLS):
                continue
            sigma, pulls = self._pulls["sigma"][of_curve], self._pulls["pull"][of_curve]
            for i, (quantity, columns) in enumerate((("energy", slice(0, 1)), ("direction", slice(1, None)))):
                if (curve := fit_curve(sigma[:, i], pulls[:, columns])) is not None:
                    curves[quantity][name] = curve
        response = fit_response(self._photons["true"], self._photons["measured"])
        of_track = np.flatnonzero(np.isin(self._pulls["curve"], TRACKS))
        factor = None
        if len(of_track):
            index, sigma, energy, pulls = (self._pulls[name][of_track] for name in ("curve", "sigma", "energy", "pull"))
            # The number of a curve of particles with a track is the one of their class.
            curved, _ = Calibration(energy=curves["energy"]).over(earlier).apply(sigma[:, 0], sigma[:, 1], index)
            factor = fit_widths(energy, pulls[:, 0] * sigma[:, 0] / curved)
        return Calibration(
            energy=curves["energy"], direction=curves["direction"], photon_response=response, track_energy=factor
        )


def fit_response(true: Floats, measured: Floats) -> Response | None:
    """Factor that makes the median of measured over true energies, GeV, 1 in each bin of the true energy.

    The response by true energy is put at the measured energies that belong to it (numerical inversion, as of jet energy
    scales: ATLAS, Eur. Phys. J. C 73, 2304), so that the shape of the spectrum does not matter. None: too few photons.
    """
    of_bin = np.digitize(true, PHOTON_EDGES)
    bins = [rows for i in range(1, len(PHOTON_EDGES)) if len(rows := np.flatnonzero(of_bin == i)) >= MIN_PHOTONS]
    if not bins:
        return None
    log_true, log_measured = np.log(true), np.log(measured)
    x = np.array([np.median(log_measured[rows]) for rows in bins])
    # `np.interp` needs rising points, and medians of neighbouring bins may be equal or fall.
    x, factor = np.maximum.accumulate(x) + 1e-9 * np.arange(len(x)), np.zeros(len(x))
    # Between points the factor is interpolated, so that one pass does not bring the medians to 1; the fourth one
    # changed `general` by less than 0.7%.
    for _ in range(4):
        corrected = log_measured + np.interp(log_measured, x, factor)
        factor -= [np.median(corrected[rows] - log_true[rows]) for rows in bins]
    return Response(tuple(x.tolist()), tuple(factor.tolist()))


def fit_widths(energy: Floats, pulls: Floats) -> Response | None:
    """Width of pulls [N] in bins of the energy [N], GeV; None: too few of them."""
    of_bin = np.digitize(energy, TRACK_EDGES)
    bins = (np.flatnonzero(of_bin == number) for number in range(1, len(TRACK_EDGES)))
    points = _widths(energy, pulls, [rows for rows in bins if len(rows) >= MIN_PULLS])
    return Response(tuple(points), tuple(points.values())) if points else None


def fit_curve(sigma: Floats, values: Floats) -> Curve | None:
    """Width of pulls [N, K] in a bin of sigma for each 150 pulls, 1 to 8 bins; None if all are 0."""
    order, n_bins = np.argsort(sigma, kind="stable"), min(max(len(sigma) // 150, 1), 8)
    points = _widths(sigma, values, np.array_split(order, n_bins))
    return Curve(tuple(points), tuple(points.values())) if points else None


def _widths(x: Floats, pulls: Floats, bins: Iterable[npt.NDArray[np.intp]]) -> dict[float, float]:
    """Half the central interval with 68.3% of pulls by the median of `x`, of each bin of rows; logarithms of both.

    The narrowest interval would lie low by 5% with 150 pulls.
    """
    points: dict[float, float] = {}
    for rows in bins:
        low, high = np.quantile(pulls[rows], [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
        width = float(high - low) / 2
        # Pulls that are all equal have width 0, which has no logarithm.
        if width > 0:
            points[float(np.log(np.median(x[rows])))] = math.log(width)
    return points
