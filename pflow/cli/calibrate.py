"""Calibrate a model on validation files, not its training files: decoding thresholds and predicted uncertainties."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pflow.cli.options import add_option, add_options

if TYPE_CHECKING:
    from pflow.calibration.uncertainty import UncertaintyCalibration

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow calibrate`."""
    parser.add_argument("inputs", nargs="+", metavar="VAL.root", help="event files with truth; not the test files")
    add_option(parser, "checkpoint")
    parser.add_argument(
        "--eos-threshold",
        nargs="+",
        type=float,
        metavar="P",
        help="probabilities of the end of the sequence from which decoding stops (default: the model's own)",
    )
    parser.add_argument(
        "--existence-threshold",
        nargs="+",
        type=float,
        metavar="P",
        help="existence probabilities above which the refinement keeps a particle (default: the model's own). Of all "
        "pairs of thresholds, the one with the largest energy-weighted efficiency less the fake energy fraction is "
        "kept (mean over the files)",
    )
    add_options(parser, "truth-tracks", "chunk-size", "device")
    add_option(
        parser,
        "output",
        metavar="DIR",
        help="folder to make: weights and header with the calibration, as of `pflow export --format weights`",
    )


def run(args: argparse.Namespace) -> int:
    """Compare the thresholds, fit the uncertainties of the best, and write the model.

    Raises
    ------
    ConfigError
        The folder cannot be made there, or the model has no such thresholds or predicts no uncertainties.
    """
    from pflow.calibration.thresholds import best, calibrate, decoding_grid
    from pflow.checkpoint.load import load_model
    from pflow.checkpoint.save import write_weights
    from pflow.errors import ConfigError
    from pflow.io.atomic import check_folder

    check_folder(args.output)
    model = load_model(args.checkpoint)
    if args.existence_threshold and not model.reconstructor.first_stage_modules:
        raise ConfigError(f"--existence-threshold: {args.checkpoint} has no refinement")
    thresholds = {name: getattr(args, name) for name in ("eos_threshold", "existence_threshold")}
    decodings = decoding_grid(model.reconstructor.decoding, **thresholds)
    options = {name: getattr(args, name) for name in ("truth_tracks", "chunk_size", "device")}
    trials = calibrate(model, args.inputs, decodings, **options)
    for trial in trials:
        values = [f"{name} {getattr(trial.decoding, name):g}" for name in thresholds if hasattr(trial.decoding, name)]
        print(f"{', '.join(values)}: energy-weighted efficiency less fake energy fraction {trial.score:.4f}")
    chosen = best(trials)
    _print_curves(chosen.uncertainty)
    for path in write_weights(args.checkpoint, args.output, calibration=chosen.uncertainty, decoding=chosen.decoding):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0


def _print_curves(calibration: UncertaintyCalibration) -> None:
    import numpy as np

    for quantity, curves in (("ln E", calibration.energy), ("the direction (rad)", calibration.direction)):
        for name, curve in curves.items():
            sigma = np.exp(curve.log_sigma)
            points = (f"{before:.3g} -> {after:.3g}" for before, after in zip(sigma, curve(sigma), strict=True))
            print(f"sigma of {quantity}, {name.replace('_', ' ')}: {', '.join(points)}")
