"""Adjust a trained model on validation files, not its training files: stated uncertainties, where sentences end."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pflow.commands.options import add_checkpoint_option

if TYPE_CHECKING:
    from pflow.reco.load import Model
    from pflow.reco.widths import WidthFit

__all__ = ["add_arguments", "run"]

UNITS = {"energy": "ln E", "direction": "an angle across the direction (rad)"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow calibrate`."""
    parser.add_argument("inputs", nargs="+", metavar="VAL.root", help="event files with truth; not the test files")
    add_checkpoint_option(parser)
    parser.add_argument(
        "--end",
        nargs="+",
        type=float,
        metavar="P",
        help="probabilities of the end from which a sentence may end; the one with the largest energy-weighted "
        "efficiency less the fake energy fraction (a mean over the files) is kept (default: the model's own)",
    )
    parser.add_argument(
        "--leftovers",
        action=argparse.BooleanOptionalAction,
        help="whether neutral particles get what is left of their hits (default: as the model does)",
    )
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
    """Reconstruct the files, choose and fit, and write the model.

    Raises
    ------
    ConfigError
        The folder cannot be made there, or a model that states no uncertainties or has no such options.
    """
    import dataclasses

    import numpy as np

    from pflow.errors import ConfigError
    from pflow.export.weights import write_weights
    from pflow.io.atomic import check_folder
    from pflow.model.pointing.network import PointingTransformer
    from pflow.reco.load import load_model

    check_folder(args.output)
    model = load_model(args.checkpoint)
    model = dataclasses.replace(model, tokeniser=dataclasses.replace(model.tokeniser, widths=None))
    if not isinstance(model.network, PointingTransformer):
        raise ConfigError(f"{args.checkpoint}: the model states no uncertainties; there is nothing to calibrate")
    network = model.network
    if args.leftovers is not None:
        network.leftovers = args.leftovers
    ends = sorted(args.end or [network.end])
    if not all(0 < end <= 1 for end in ends):
        raise ConfigError(f"--end: expected probabilities in (0, 1], found {ends}")
    best: tuple[float, float, WidthFit] | None = None
    for end in ends:
        network.end = end
        score, fit = _reconstructed(args, model)
        print(f"end {end:g}: energy-weighted efficiency less fake energy fraction {score:.4f}")
        if best is None or score > best[0]:
            best = score, end, fit
    assert best is not None
    widths = best[2].result()
    for quantity, by_class in widths.curves.items():
        for name, curve in by_class.items():
            stated = np.exp(curve.log_sigma)
            points = (f"{before:.3g} -> {after:.3g}" for before, after in zip(stated, curve(stated), strict=True))
            print(f"sigma of {UNITS[quantity]}, {name.replace('_', ' ')}: {', '.join(points)}")
    options = {"end": best[1], "leftovers": network.leftovers}
    for path in write_weights(args.checkpoint, args.output, widths=widths, network=options):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0


def _reconstructed(args: argparse.Namespace, model: Model) -> tuple[float, WidthFit]:
    """How much of the energy is found less what is fake, a mean over the files; and the pulls."""
    import numpy as np

    from pflow.io.read import iterate_events
    from pflow.metrics.match import Matching, match
    from pflow.metrics.particles import ParticleMetrics
    from pflow.metrics.table import ParticleTable
    from pflow.reco.reconstruct import reconstruct
    from pflow.reco.widths import WidthFit
    from pflow.truth import select_targets

    recipe = model.tokeniser.recipe
    fit, scores = WidthFit(), []
    for path in args.inputs:
        metrics = ParticleMetrics()
        for events in iterate_events(path, step=args.chunk):
            found = reconstruct(events, model, device=args.device)
            targets = select_targets(events, rule=recipe.rule, e_min=recipe.e_min)
            truth, reco = ParticleTable.from_records(targets.particles), ParticleTable.from_records(found.particles)
            matches = match(truth, reco, Matching())
            metrics.update(truth, reco, matches)
            fit.update(truth, reco, found.particles, matches)
        result = metrics.result()
        fake = result["fake_energy_fraction"].value
        scores.append(result["energy_weighted_efficiency"].value - (0.0 if np.isnan(fake) else fake))  # of none at all
    return sum(scores) / len(scores), fit
