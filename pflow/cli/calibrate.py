"""Adjust a trained model on validation files, not its training files: stated uncertainties, where sentences end."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from pflow.cli.options import add_option, add_options

if TYPE_CHECKING:
    from pflow.calibration.fit import UncertaintyFit
    from pflow.checkpoint.load import Model
    from pflow.metrics.particles import ParticleMetrics

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow calibrate`."""
    parser.add_argument("inputs", nargs="+", metavar="VAL.root", help="event files with truth; not the test files")
    add_option(parser, "checkpoint")
    parser.add_argument(
        "--end",
        nargs="+",
        type=float,
        metavar="P",
        help="probabilities of the end from which a sentence may end (default: the model's own)",
    )
    parser.add_argument(
        "--keep",
        nargs="+",
        type=float,
        metavar="P",
        help="probabilities from which what is written may be a particle, where there is a second reading; of all "
        "pairs of P, that with the largest energy-weighted efficiency less the fake energy fraction (a mean over the "
        "files) is kept (default: the model's own)",
    )
    add_options(parser, "chunk-size", "device")
    add_option(
        parser,
        "output",
        metavar="DIR",
        help="folder to make: the model's weights and its header with the calibration, as of `pflow export --format "
        "weights`",
    )


def run(args: argparse.Namespace) -> int:
    """Reconstruct the files, choose and fit, and write the model.

    Raises
    ------
    ConfigError
        The folder cannot be made there, or a model that states no uncertainties or has no such options.
    """
    import numpy as np

    from pflow.checkpoint.load import load_model
    from pflow.checkpoint.save import write_weights
    from pflow.errors import ConfigError
    from pflow.io.atomic import check_folder

    check_folder(args.output)
    model = load_model(args.checkpoint)
    model = dataclasses.replace(model, calibration=None)
    if not hasattr(model.reconstructor.decoding, "eos_threshold"):
        raise ConfigError(f"{args.checkpoint}: the model states no uncertainties; there is nothing to calibrate")
    if args.keep and not model.reconstructor.first_stage_modules:
        raise ConfigError(f"--keep: {args.checkpoint} has no second reading")
    trials = _trials(args, model.reconstructor.decoding)
    _reconstruct(args, model, trials)
    scores = [trial.score() for trial in trials]
    for trial, score in zip(trials, scores, strict=True):
        print(f"{trial}: energy-weighted efficiency less fake energy fraction {score:.4f}")
    best = trials[int(np.argmax(scores))]
    calibration = best.fit.result()
    for quantity, curves in (("ln E", calibration.energy), ("the direction (rad)", calibration.direction)):
        for name, curve in curves.items():
            sigma = np.exp(curve.log_sigma)
            points = (f"{before:.3g} -> {after:.3g}" for before, after in zip(sigma, curve(sigma), strict=True))
            print(f"sigma of {quantity}, {name.replace('_', ' ')}: {', '.join(points)}")
    options = {"end": best.end, "keep": best.keep}
    for path in write_weights(args.checkpoint, args.output, calibration=calibration, network=options):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0


@dataclasses.dataclass
class _Trial:
    """A choice of when sentences end and of what is a particle, and what came of it: metrics of each file, pulls."""

    end: float
    keep: float
    fit: UncertaintyFit
    metrics: list[ParticleMetrics]

    def __str__(self) -> str:
        return f"end {self.end:g}, keep {self.keep:g}"

    def score(self) -> float:
        """How much of the energy is found less what is fake, a mean over the files; of nothing, nothing is fake."""
        import numpy as np

        results = [metrics.result() for metrics in self.metrics]
        found = [result["energy_weighted_efficiency"].value for result in results]
        fake = [np.nan_to_num(result["fake_energy_fraction"].value) for result in results]
        return float(np.mean(np.subtract(found, fake)))


def _trials(args: argparse.Namespace, decoding: Any) -> list[_Trial]:
    from pflow.calibration.fit import UncertaintyFit
    from pflow.errors import ConfigError
    from pflow.metrics.particles import ParticleMetrics

    ends, keeps = sorted(args.end or [decoding.eos_threshold]), sorted(args.keep or [decoding.existence_threshold])
    if not all(0 < end <= 1 for end in ends):
        raise ConfigError(f"--end: expected probabilities in (0, 1], found {ends}")
    if not all(0 <= keep < 1 for keep in keeps):
        raise ConfigError(f"--keep: expected probabilities in [0, 1), found {keeps}")
    return [
        _Trial(end, keep, UncertaintyFit(), [ParticleMetrics() for _ in args.inputs])
        for end, keep in itertools.product(ends, keeps)
    ]


def _reconstruct(args: argparse.Namespace, model: Model, trials: list[_Trial]) -> None:
    """Reconstruct the files with each choice."""
    from pflow.inference.events import reconstruct
    from pflow.io.open import iterate_events
    from pflow.metrics.match import Matching, match
    from pflow.metrics.table import ParticleTable
    from pflow.tokens.encode import target_particles

    for number, path in enumerate(args.inputs):
        for events in iterate_events(path, step=args.chunk_size):
            truth = ParticleTable.from_records(target_particles(events, model.tokeniser.recipe))
            for trial in trials:
                thresholds: Any = {"eos_threshold": trial.end, "existence_threshold": trial.keep}
                model.reconstructor.decoding = dataclasses.replace(model.reconstructor.decoding, **thresholds)
                found = reconstruct(events, model, device=args.device).particles
                reco = ParticleTable.from_records(found)
                matches = match(truth, reco, Matching())
                trial.metrics[number].update(truth, reco, matches)
                trial.fit.update(truth, reco, found, matches)
