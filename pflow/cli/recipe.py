"""Run a recipe: train a model in stages, calibrate it, and write its weights; an interrupted one is resumed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from pflow.cli.options import add_option
from pflow.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow recipe`."""
    from pflow.config import builtin_names, load_yaml, resolve

    names, listed = ", ".join(builtin_names("recipes")), []
    for name in builtin_names("recipes"):
        variants = load_yaml(resolve("recipes", name)).get("variants", {})
        # A variant with stages is itself a recipe; its variants are named by both (`pflow.train.recipe`).
        nested = [f"{variant}_{part}" for variant, changes in variants.items() for part in changes.get("variants", {})]
        if shown := [variant for variant in variants if "variants" not in variants[variant]] + nested:
            listed.append(f"{name}: {', '.join(shown)}")
    parser.add_argument("recipe", metavar="RECIPE", help=f"{names}, or a YAML file of the same form")
    parser.add_argument(
        "options", nargs="*", metavar="-- OPTION", help="options of `pflow fit` for all stages, after a --"
    )
    add_option(parser, "output", metavar="DIR", help="folder for all that is written")
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the samples that the recipe names (without calibration also: files of your own, as options of "
        "`pflow fit`)",
    )
    text = f"which variant, where the recipe has some ({'; '.join(listed)})"
    parser.add_argument("--variant", metavar="NAME", help=text)


def run(args: argparse.Namespace) -> int:
    """Run the recipe; returns 0, or the exit code of the command that failed."""
    from pflow.cli.main import main
    from pflow.train.recipe import load_recipe, run_recipe

    recipe = load_recipe(args.recipe).variant(args.variant)
    words = {"output": args.output, "data_dir": args.data_dir, "options": args.options}
    return run_recipe(recipe, **words, pflow=main, check=check)


def check(commands: Mapping[str, Sequence[str]]) -> None:
    """Refuse what would be an error after hours only: wrong options of a later stage or of the calibration.

    `commands` are the words of `pflow fit` for each stage that is to be run, in order, and of `pflow calibrate`, by the
    names that messages give them. Only the model that the first stage starts from must exist.
    """
    from pflow.cli import calibrate
    from pflow.cli.fit import TrainingCLI
    from pflow.config import to_plain
    from pflow.data.datamodule import differences

    first = None
    for name, (verb, *words) in commands.items():
        try:
            if verb == "calibrate":
                parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
                calibrate.add_arguments(parser)
                _, unknown = parser.parse_known_args(words)
                if unknown:
                    raise ConfigError(f"unrecognized arguments: {' '.join(unknown)}")
            elif first is None:
                first = TrainingCLI("fit", words, run=False)
            else:
                # The model of the stage before does not exist yet: take the one that the first stage starts from. Their
                # options differ only by those that stages set, which `words` sets again.
                stage = TrainingCLI("fit", [*words, "--start-from", first.config["start_from"] or "null"], run=False)
                ours, theirs = (to_plain(cli.datamodule.token_config) for cli in (stage, first))
                if changed := differences("data", ours, theirs, whose="the stages before"):
                    raise ConfigError("; ".join(changed))
        except (ConfigError, argparse.ArgumentError) as error:
            raise ConfigError(f"{name}: {error}") from error
