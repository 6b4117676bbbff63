"""Calibrate a model on validation files, not its training files: decoding options and predicted uncertainties."""

from __future__ import annotations

import argparse
import dataclasses

from pflow.calibration.decoding_options import CRITERIA, best, calibrate, decoding_grid
from pflow.checkpoint.load import load_model
from pflow.checkpoint.save import FILES, write_weights
from pflow.cli.options import add_file_options, add_option, add_options, read_options
from pflow.errors import ConfigError
from pflow.io.atomic import check_folder
from pflow.io.open import matching

CHOICES: dict[str, tuple[type, str, str]] = {
    "eos_threshold": (float, "P", "probabilities of the end of the sequence from which decoding stops"),
    "existence_threshold": (float, "P", "existence probabilities above which the refinement keeps a particle"),
    "min_photon_existence": (float, "P", "existence probabilities above which it keeps a photon"),
    "min_trackless_energy": (float, "GEV", "energies above which it keeps a charged particle without a track"),
    "energy_cut": (str, "WHICH", "which energy must be at least the smallest of a target: expected, predicted"),
    "electron_log_odds": (float, "X", "numbers to add to the logit of electrons"),
    "min_direction_change": (float, "RAD", "smallest changes of directions that the refinement makes"),
    "photon_depth": (float, "MM", "depths over which the weights of hits fall in the directions of photons of 1 GeV"),
}
"""Decoding options that are compared; except for the first, only models with a refinement have them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow calibrate`."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="VAL.root",
        help="event files with truth, not the test files; patterns may be quoted",
    )
    add_option(parser, "checkpoint")
    for name, (kind, metavar, text) in CHOICES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            nargs="+",
            type=kind,
            metavar=metavar,
            help=f"{text} (default: the model's own)",
        )
    parser.add_argument(
        "--choose-by",
        choices=CRITERIA,
        default="energy",
        help="which of all combinations is kept (all are means over the files): energy: largest energy-weighted "
        "efficiency less fake energy fraction; number: most events with the right number of particles; angle: smallest "
        "68%% quantile of angles; class: largest mean of the classes' fractions with the right class where at most "
        "0.1%% of all particles lose theirs (default: %(default)s)",
    )
    add_file_options(
        parser,
        detector="read the files as this detector (built-in name or YAML file) even if the model was trained on "
        "another; without it, files of another detector are refused",
    )
    add_options(parser, "on-error", "batch-size", "chunk-size", "device")
    add_option(
        parser,
        "output",
        metavar="DIR",
        help="folder to make: weights and header with the calibration, as of `pflow export --format weights`",
    )
    add_option(parser, "force", help="replace a folder of weights of an earlier command")


def run(args: argparse.Namespace) -> int:
    """Compare the decoding options, fit the uncertainties of the best, and write the model."""
    check_folder(args.output, inputs=[args.checkpoint], replace=FILES, force=args.force)
    model = load_model(args.checkpoint)
    choices = {name: getattr(args, name) for name in CHOICES}
    for name in CHOICES:
        if name != "eos_threshold" and choices[name] and not model.reconstructor.first_stage_modules:
            raise ConfigError(f"--{name.replace('_', '-')}: {args.checkpoint} has no refinement")
    decodings = decoding_grid(model.reconstructor.decoding, **choices)
    options = {name: getattr(args, name) for name in ("batch_size", "chunk_size", "device")}
    trials = calibrate(model, matching(args.inputs), decodings, read_options(args), **options)
    shown = [name for name in CHOICES if choices[name] or name in ("eos_threshold", "existence_threshold")]
    for trial in trials:
        plain = dataclasses.asdict(trial.decoding)
        values = [f"{name} {plain[name]}" for name in shown if name in plain]
        print(f"{', '.join(values)}: energy-weighted efficiency less fake energy fraction {trial.score:.4f}")
        print(f"    right number of particles: {trial.number_right:.4f} of the events")
        print(
            f"    68% of angles below {trial.angle:.4g} degrees; right class: {trial.class_right:.4f} of all, "
            f"{trial.class_right_mean:.4f} in the mean over the classes"
        )
    chosen = best(trials, args.choose_by)
    written = write_weights(
        args.checkpoint, args.output, calibration=chosen.uncertainty, decoding=chosen.decoding, force=args.force
    )
    for path in written:
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0
