"""Calibration of a model on validation files: its best decoding configuration, and its uncertainties."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pflow.calibration.fit_uncertainty import UncertaintyFit
from pflow.checkpoint.load import TrainedModel
from pflow.errors import ConfigError, check_choice
from pflow.event.events import Flag
from pflow.event.skipped import without_refused
from pflow.inference.engine import BATCH_SIZE, Engine
from pflow.inference.events import MAX_HITS, finite_events, usable_events, with_detector
from pflow.io.checks import Expected
from pflow.io.open import iterate_events
from pflow.metrics.event import CountMetrics
from pflow.metrics.match import Matching, match
from pflow.metrics.particles import ParticleMetrics
from pflow.metrics.table import ParticleTable
from pflow.model.api import DecodingConfig
from pflow.physics.pdg import CLASSES
from pflow.tokens.encode import target_particles
from pflow.tokens.uncertainty import UncertaintyCalibration

CRITERIA = ("energy", "number", "angle", "class")
"""By what the best configuration can be chosen; see `best`."""

MAX_CLASS_LOSS = 0.001
"""Largest fraction of particles with a right class that may be given up for equal rights of the classes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A decoding configuration with its score, and the uncertainties calibrated for it.

    All are averages over files: `score`, energy-weighted efficiency less fake energy fraction; `number_right`, fraction
    of events with the right number of particles; `angle`, 68% quantile, degrees; `class_right`, fraction of matched
    particles with the right class, and `class_right_mean`, its mean over the classes.
    """

    decoding: DecodingConfig
    score: float
    number_right: float = math.nan
    angle: float = math.nan
    class_right: float = math.nan
    class_right_mean: float = math.nan
    uncertainty: UncertaintyCalibration


def decoding_grid(decoding: DecodingConfig, **choices: Sequence[float] | Sequence[str] | None) -> list[DecodingConfig]:
    """All combinations of values of some fields; a field without values keeps its own. Errors name the field."""
    given: dict[str, list[Any]] = {name: sorted(values) for name, values in choices.items() if values}
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
    model: TrainedModel,
    inputs: Sequence[str | Path],
    decodings: Sequence[DecodingConfig],
    *,
    on_error: Literal["raise", "skip"] = "raise",
    batch_size: int = BATCH_SIZE,
    chunk_size: int = 256,
    device: str = "auto",
    **reading: Any,
) -> list[Calibrated]:
    """Score decoding configurations, and fit the uncertainties of each, in the order of `decodings`.

    `inputs` are validation files with truth, neither training nor test files, read with options of `pflow.open_events`
    (`reading`); without ``detector``, files of another than the model's are refused. With `on_error` ``skip``,
    entries that cannot be used are left out, with a warning. Particles of events for which the model gives numbers that
    are not finite count as not found. An earlier calibration of the model is not used. ConfigError: one configuration
    of a model that predicts no uncertainties, nothing to calibrate; InputError: a file or entry that cannot be used.
    """
    fits = [UncertaintyFit() for _ in decodings]
    metrics = [[ParticleMetrics() for _ in inputs] for _ in decodings]
    numbers = [[CountMetrics() for _ in inputs] for _ in decodings]
    encode = functools.partial(model.tokeniser.encode, truth=False)
    reading["expected"] = Expected(targets=model.tokeniser.config.chosen_by, sample=model.tokeniser.sample)
    for number, path in enumerate(inputs):
        for chunk in iterate_events(path, **reading, chunk_size=chunk_size, on_error=on_error):
            usable = usable_events(chunk, MAX_HITS, on_error)
            events = usable if reading.get("detector") is None else with_detector(usable, model.tokeniser.detector)
            tokens, events = without_refused(events, encode, on_error)
            # The truth rule takes the geometry of the detector that the file is read as.
            with_truth = usable.emptied((events.flags & Flag.BAD_INPUT) > 0)
            truth = ParticleTable.from_records(target_particles(with_truth, model.tokeniser.config))
            for decoding, fit, of_files, counts in zip(decodings, fits, metrics, numbers, strict=True):
                engine = Engine(model, decoding=decoding, batch_size=batch_size, device=device)
                generated = engine.collect(tokens).tokens()
                if len(decodings) == 1 and generated.energy_sigma is None:
                    raise ConfigError(
                        f"{model.path}: the model predicts no uncertainties, and no decoding options are compared; "
                        f"there is nothing to calibrate"
                    )
                found = model.tokeniser.decode(generated)
                particles = finite_events(found, ~generated.finite(), events, model.path, on_error).particles
                reco = ParticleTable.from_records(particles)
                matches = match(truth, reco, Matching())
                of_files[number].update(truth, reco, matches)
                fit.update(truth, reco, particles, matches, generated.by_track)
                counts[number].update(truth, reco)
    return [
        Calibrated(decoding=decoding, uncertainty=fit.result(), **_scores(of_files, counts))
        for decoding, of_files, counts, fit in zip(decodings, metrics, numbers, fits, strict=True)
    ]


def best(trials: Sequence[Calibrated], by: str = "energy") -> Calibrated:
    """The best configuration, the first of equal ones.

    By ``energy``: the largest score; ``number``: the most events with the right number of particles; ``angle``: the
    smallest 68% quantile of angles; ``class``: the largest mean over the classes of the fraction with the right class,
    where the fraction of all particles is at most `MAX_CLASS_LOSS` below the largest.
    """
    check_choice(by, CRITERIA, "criterion")
    if by == "angle":
        return min(trials, key=lambda trial: trial.angle)
    if by == "class":
        enough = max(trial.class_right for trial in trials) - MAX_CLASS_LOSS
        trials = [trial for trial in trials if not trial.class_right < enough]
    field = {"energy": "score", "number": "number_right", "class": "class_right_mean"}[by]
    return max(trials, key=lambda trial: float(getattr(trial, field)))


def _scores(metrics: Sequence[ParticleMetrics], numbers: Sequence[CountMetrics]) -> dict[str, float]:
    rows = []
    for one, counts in zip(metrics, numbers, strict=True):
        result = one.result()
        found, fake = result["energy_weighted_efficiency"].value, result["fake_energy_fraction"].value
        of_classes = [result["class"][name]["identified"].value for name in CLASSES]
        rows.append(
            {
                "score": found - float(np.nan_to_num(fake)),
                "number_right": counts.result()["exact_fraction"].value,
                "angle": result["angle"]["q68_deg"].value,
                "class_right": result["pdg"]["class_accuracy"].value,
                "class_right_mean": _mean([value for value in of_classes if not math.isnan(value)]),
            }
        )
    return {name: _mean([row[name] for row in rows]) for name in rows[0]}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
