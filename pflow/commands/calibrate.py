"""Make the uncertainties that a model states as large as its errors on validation files (not its training files)."""

from __future__ import annotations

import argparse

from pflow.commands.options import add_checkpoint_option

__all__ = ["add_arguments", "run"]

UNITS = {"energy": "ln E", "direction": "an angle across the direction (rad)"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow calibrate`."""
    parser.add_argument("inputs", nargs="+", metavar="VAL.root", help="event files with truth; not the test files")
    add_checkpoint_option(parser)
    parser.add_argument("--chunk", type=int, default=256, metavar="N", help="entries read at once (default: 256)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ... (default: auto)")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="DIR",
        help="folder to make: the model's weights and its header with the calibration, as of `pflow export --format "
        "weights`",
    )


def run(args: argparse.Namespace) -> int:
    """Reconstruct the files, fit the widths, and write the model with them.

    Raises
    ------
    ConfigError
        The folder cannot be made there, or a model that states no uncertainties.
    """
    import dataclasses

    import numpy as np

    from pflow.errors import ConfigError
    from pflow.export.weights import write_weights
    from pflow.io.atomic import check_folder
    from pflow.io.read import iterate_events
    from pflow.metrics.widths import WidthFit
    from pflow.reco.load import load_model
    from pflow.reco.reconstruct import reconstruct

    check_folder(args.output)
    model = load_model(args.checkpoint)
    model = dataclasses.replace(model, tokeniser=dataclasses.replace(model.tokeniser, widths=None))
    recipe = model.tokeniser.recipe
    fit = WidthFit()
    for path in args.inputs:
        for events in iterate_events(path, step=args.chunk):
            found = reconstruct(events, model, device=args.device)
            try:
                fit.update(events, found, rule=recipe.rule, e_min=recipe.e_min)
            except ValueError as error:
                raise ConfigError(f"{args.checkpoint}: {error}; there is nothing to calibrate") from error
    widths = fit.result()
    for quantity, by_class in widths.curves.items():
        for name, curve in by_class.items():
            stated = np.exp(curve.log_sigma)
            points = (f"{before:.3g} -> {after:.3g}" for before, after in zip(stated, curve(stated), strict=True))
            print(f"sigma of {UNITS[quantity]}, {name.replace('_', ' ')}: {', '.join(points)}")
    for path in write_weights(args.checkpoint, args.output, widths=widths):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0
