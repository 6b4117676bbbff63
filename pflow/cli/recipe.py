"""Run a recipe: train a model in stages, calibrate it, and write its weights; goes on where it was interrupted."""

from __future__ import annotations

import argparse

from pflow.cli.options import add_option

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow recipe`."""
    parser.add_argument("recipe", metavar="RECIPE", help="photon, general, paper, or a YAML file of the same form")
    parser.add_argument(
        "options", nargs="*", metavar="-- OPTION", help="options of `pflow fit` for all stages, after a --"
    )
    add_option(parser, "output", metavar="DIR", help="folder for all that is written")
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the samples that the recipe names")
    parser.add_argument("--variant", metavar="NAME", help="which variant, where the recipe has some")
    parser.add_argument("--ship", metavar="DIR", help="copy the final model to this folder; what else is in it stays")


def run(args: argparse.Namespace) -> int:
    """Run the recipe; its exit code is that of the command that failed."""
    from pflow.cli.main import main
    from pflow.train.recipe import load_recipe, run_recipe

    return run_recipe(
        load_recipe(args.recipe),
        output=args.output,
        pflow=main,
        data_dir=args.data_dir,
        variant=args.variant,
        options=args.options,
        ship=args.ship,
    )
