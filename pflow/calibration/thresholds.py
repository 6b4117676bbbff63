"""Calibration of a model on validation files: the decoding thresholds with the best score, and its uncertainties."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflow.calibration.fit import UncertaintyFit
from pflow.calibration.uncertainty import UncertaintyCalibration
from pflow.checkpoint.load import Model
from pflow.errors import ConfigError
from pflow.inference.events import reconstruct
from pflow.io.open import iterate_events
from pflow.metrics.match import Matching, match
from pflow.metrics.particles import ParticleMetrics
from pflow.metrics.table import ParticleTable
from pflow.model.api import DecodingConfig
from pflow.tokens.encode import target_particles

__all__ = ["Calibrated", "best", "calibrate", "decoding_grid"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A decoding configuration with its score, and the uncertainties calibrated for it.

    Parameters
    ----------
    decoding
        The configuration.
    score
        Energy-weighted efficiency less fake energy fraction, averaged over the files; no particles count as no fakes.
    uncertainty
        Calibration of the uncertainties of its particles.
    """

    decoding: DecodingConfig
    score: float
    uncertainty: UncertaintyCalibration


def decoding_grid(decoding: DecodingConfig, **choices: Sequence[float] | None) -> list[DecodingConfig]:
    """All combinations of values of some fields; a field without values keeps its own.

    Raises
    ------
    ConfigError
        This decoding has no such field, or a value is out of range; names the field.
    """
    given = {name: sorted(values) for name, values in choices.items() if values}
    known = {field.name for field in dataclasses.fields(decoding)}
    for name in given:
        if name not in known:
            raise ConfigError(f"{name}: the model's decoding has no such option, only {', '.join(sorted(known))}")
    try:
        grid: list[dict[str, Any]] = [
            dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())
        ]
        return [dataclasses.replace(decoding, **values) for values in grid]
    except ValueError as error:
        raise ConfigError(str(error)) from error


def calibrate(
    model: Model,
    inputs: Sequence[str | Path],
    decodings: Sequence[DecodingConfig],
    *,
    truth_tracks: bool = False,
    chunk_size: int = 256,
    device: str = "auto",
) -> list[Calibrated]:
    """Score decoding configurations, and fit the uncertainties of each.

    Parameters
    ----------
    model
        An earlier calibration is not used.
    inputs
        Validation files with truth: neither training nor test files.
    decodings
        Configurations to compare.
    truth_tracks
        As for `pflow.open_events`.
    chunk_size
        Events in memory at a time.
    device
        As for `pflow.reconstruct`.

    Returns
    -------
    list of Calibrated
        In the order of `decodings`.

    Raises
    ------
    ConfigError
        The model predicts no uncertainties.
    InputError
        A file that cannot be used.
    """
    model = dataclasses.replace(model, calibration=None)
    fits = [UncertaintyFit() for _ in decodings]
    metrics = [[ParticleMetrics() for _ in inputs] for _ in decodings]
    for number, path in enumerate(inputs):
        for events in iterate_events(path, truth_tracks=truth_tracks, chunk_size=chunk_size):
            truth = ParticleTable.from_records(target_particles(events, model.tokeniser.recipe))
            for decoding, fit, of_files in zip(decodings, fits, metrics, strict=True):
                particles = reconstruct(events, model, decoding=decoding, device=device).particles
                reco = ParticleTable.from_records(particles)
                matches = match(truth, reco, Matching())
                of_files[number].update(truth, reco, matches)
                try:
                    fit.update(truth, reco, particles, matches)
                except ValueError as error:
                    raise ConfigError(f"{model.path}: {error}; there is nothing to calibrate") from error
    return [
        Calibrated(decoding=decoding, score=_score(of_files), uncertainty=fit.result())
        for decoding, of_files, fit in zip(decodings, metrics, fits, strict=True)
    ]


def best(trials: Sequence[Calibrated]) -> Calibrated:
    """The configuration with the largest score, the first of equal ones."""
    return max(trials, key=lambda trial: trial.score)


def _score(metrics: Sequence[ParticleMetrics]) -> float:
    results = [one.result() for one in metrics]
    found = [result["energy_weighted_efficiency"].value for result in results]
    fake = [np.nan_to_num(result["fake_energy_fraction"].value) for result in results]
    return float(np.mean(np.subtract(found, fake)))
