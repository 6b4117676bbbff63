"""Calibration of a model on validation files: the best decoding configuration, photon energies, and uncertainties."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflow.calibration.fit import CalibrationFit
from pflow.checkpoint.load import TrainedModel
from pflow.errors import ConfigError, check_choice
from pflow.event.events import Flag, without_refused
from pflow.inference.events import MAX_HITS, Engine, finite_events, usable_events, with_detector
from pflow.io.checks import Expected
from pflow.io.open import ReadOptions
from pflow.metrics.event import CountMetrics
from pflow.metrics.match import Matching, match
from pflow.metrics.particles import ParticleMetrics
from pflow.metrics.table import ParticleTable
from pflow.model.api import DecodingConfig
from pflow.tokens.particles import Calibration
from pflow.tokens.tokens import targets_of

CRITERIA = ("energy", "number", "reference")  # for the best configuration, see `best`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A decoding configuration with its results, and the calibration fitted for it.

    Averages over files: `efficiency`, energy-weighted, `fakes`, fake energy fraction, `number_right`, fraction of
    events with the right number of particles, and `reference`, the efficiency of the files' reconstructed particles
    (Pandora's), NaN without such.
    """

    decoding: DecodingConfig
    efficiency: float
    fakes: float
    number_right: float
    reference: float
    calibration: Calibration

    @property
    def score(self) -> float:
        """Energy-weighted efficiency minus fake energy fraction."""
        return self.efficiency - self.fakes


def decoding_grid(decoding: DecodingConfig, **choices: Sequence[float] | Sequence[str] | None) -> list[DecodingConfig]:
    """Configurations with all combinations of `choices` by field; ConfigError names an unknown or invalid field."""
    given: dict[str, list[Any]] = {name: sorted(values) for name, values in choices.items() if values}
    grid = [dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())]
    try:
        return [dataclasses.replace(decoding, **values) for values in grid]
    except (TypeError, ValueError) as error:  # another name, or value, of an option
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
) -> list[Calibrated]:
    """Score decoding configurations, and fit the calibration of each, in the order of `decodings`.

    `inputs` are validation files with truth, neither training nor test files, read as `reading` says;
    without ``detector``, files of another detector than the model's are refused. With its `on_error` ``skip``,
    entries that cannot be used are left out, with a warning. An event for which the model gives numbers that are not
    finite has no particles. An earlier calibration of the model is not used. InputError: a file or entry that cannot be
    used.
    """
    trials = [
        (decoding, CalibrationFit(), [ParticleMetrics() for _ in inputs], [CountMetrics() for _ in inputs])
        for decoding in decodings
    ]
    references = [ParticleMetrics() for _ in inputs]
    encode = functools.partial(model.tokeniser.encode, truth=False)
    expected = Expected(targets=model.tokeniser.config.chosen_by, sample=model.tokeniser.sample)
    reading, on_error = dataclasses.replace(reading, expected=expected), reading.on_error
    for number, path in enumerate(inputs):
        for chunk in reading.iterate(path, chunk_size):
            usable = usable_events(chunk, MAX_HITS, on_error)
            events = usable if reading.detector is None else with_detector(usable, model.tokeniser.detector)
            tokens, events = without_refused(events, encode, on_error)
            # The truth rule needs the geometry of the file's detector.
            with_truth = usable.emptied((events.flags & Flag.BAD_INPUT) > 0)
            truth = ParticleTable.from_records(targets_of(with_truth, model.tokeniser.config).particles)
            if usable.reference is not None:
                others = ParticleTable.from_records(usable.reference)
                references[number].update(truth, others, match(truth, others, Matching()))
            for decoding, fit, particles, counts in trials:
                engine = Engine(model, decoding=decoding, batch_size=batch_size, device=device)
                generated = engine.collect(tokens).tokens()
                finite = finite_events(
                    model.tokeniser.decode(generated), ~generated.finite(), events, model.path, on_error
                )
                reco, for_sums = (ParticleTable.from_records(part) for part in (finite.particles, finite.expected))
                matches = match(truth, reco, Matching())
                particles[number].update(truth, reco, matches, for_sums)
                fit.update(truth, reco, finite.particles, matches, generated.by_track)
                counts[number].update(truth, reco)
    reference = _scores(references)["efficiency"]
    calibrated = []
    for decoding, fit, particles, counts in trials:
        right = float(np.mean([of_file.result()["exact_fraction"].value for of_file in counts]))
        scores = {**_scores(particles), "number_right": right, "reference": reference}
        calibrated.append(Calibrated(decoding=decoding, calibration=fit.result(), **scores))
    return calibrated


def best(trials: Sequence[Calibrated], by: str = "energy") -> Calibrated:
    """The first best configuration by a criterion.

    ``energy``: largest score; ``number``: most events with the right number of particles; ``reference``: fewest fakes
    where the efficiency is at least the reference's, or the largest efficiency. ConfigError: there is no reference.
    """
    check_choice(by, CRITERIA, "criterion")
    if by != "reference":
        return max(trials, key=lambda trial: trial.score if by == "energy" else trial.number_right)
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
