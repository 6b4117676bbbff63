"""Calibrate a model on validation files, not its training files: decoding options, photon energies, uncertainties."""

from __future__ import annotations

import argparse
from typing import Any

from pflow.cli.options import OTHER_DETECTOR, add_file_options, add_option, add_options, read_options
from pflow.errors import ConfigError

CHOICES = {
    "eos_threshold": "probabilities of the end of the sequence from which decoding stops",
    "existence_threshold": "existence probabilities above which the refinement keeps a particle",
}
"""Decoding options that are compared; the second of models with a refinement alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow calibrate`."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="VAL.root",
        help="event files with truth, not the test files; patterns may be quoted",
    )
    add_option(parser, "checkpoint")
    for name, text in CHOICES.items():
        option, text = f"--{name.replace('_', '-')}", f"{text} (default: the model's own)"
        parser.add_argument(option, nargs="+", type=float, metavar="P", help=text)
    parser.add_argument(
        "--choose-by",
        choices=("energy", "number", "reference"),
        default="energy",
        help="which of all combinations is kept (all are means over the files): energy: largest energy-weighted "
        "efficiency less fake energy fraction; number: most events with the right number of particles; reference: "
        "fewest fakes where the files' reconstructed particles are not more efficient (default: "
        "%(default)s)",
    )
    add_file_options(parser, detector=OTHER_DETECTOR)
    add_options(parser, "on-error", "batch-size", "chunk-size", "device")
    add_option(
        parser,
        "output",
        metavar="DIR",
        help="folder to make: weights and header with the calibration, as of `pflow export --format weights`",
    )
    add_option(parser, "force")


def run(args: argparse.Namespace) -> int:
    """Compare the decoding options, fit the calibration of the best, and write the model."""
    from pflow.calibration import best, calibrate, decoding_grid
    from pflow.checkpoint import FILES, load_model, write_weights
    from pflow.io.atomic import check_output
    from pflow.io.open import matching

    check_output(args.output, inputs=[args.checkpoint], force=args.force, holds=FILES)
    model = load_model(args.checkpoint)
    if args.existence_threshold and not model.reconstructor.first_stage_modules:
        raise ConfigError(f"--existence-threshold: {args.checkpoint} has no refinement")
    choices = {name: getattr(args, name) for name in CHOICES}
    decodings = decoding_grid(model.reconstructor.decoding, **choices)
    options = {name: getattr(args, name) for name in ("batch_size", "chunk_size", "device")}
    trials = calibrate(model, matching(args.inputs), decodings, read_options(args), **options)
    for trial in trials:
        values = [f"{name} {getattr(trial.decoding, name):g}" for name in CHOICES if hasattr(trial.decoding, name)]
        print(
            f"{', '.join(values)}: energy-weighted efficiency {trial.efficiency:.4f} (reference: "
            f"{trial.reference:.4f}), fake energy fraction {trial.fakes:.4f}, right number of particles in "
            f"{trial.number_right:.4f} of the events"
        )
    chosen = best(trials, args.choose_by)
    changes: dict[str, Any] = {"calibration": chosen.calibration, "decoding": chosen.decoding}
    for path in write_weights(args.checkpoint, args.output, **changes, force=args.force):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0
