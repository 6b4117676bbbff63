"""Run a recipe: train a model in stages, calibrate it, and write its weights; an interrupted one is resumed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from pflow.cli.options import add_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow recipe`."""
    from pflow.config import builtin_names

    names = ", ".join(builtin_names("recipes"))
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
    parser.add_argument("--variant", metavar="NAME", help="which variant, where the recipe has some")
    parser.add_argument(
        "--stages", type=int, metavar="N", help="only the first N stages, without calibration (default: all)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the recipe; its exit code is that of the command that failed."""
    from pflow.cli.main import main
    from pflow.train.recipe import load_recipe, run_recipe

    recipe = load_recipe(args.recipe).variant(args.variant)
    return run_recipe(
        recipe if args.stages is None else recipe.first(args.stages),
        output=args.output,
        pflow=main,
        check=check,
        data_dir=args.data_dir,
        options=args.options,
    )


def check(commands: Mapping[str, Sequence[str]]) -> None:
    """Refuse what would be an error after hours only: wrong options of a later stage or of the calibration.

    `commands` are the words of `pflow fit` for each stage that is to be run, in order, and of `pflow calibrate`, by the
    names that messages give them. Of the models that they take, only that of the first one need be there.
    """
    from pflow.cli import calibrate
    from pflow.cli.fit import TrainingCLI
    from pflow.config import to_plain
    from pflow.errors import ConfigError
    from pflow.train.model_spec import differences

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
                first = TrainingCLI(verb, words)
            else:
                # In place of the model of the stage before, which is not there yet: its options are those of the model
                # that the first stage begins with, but for those that stages set, and these come again here.
                stage = TrainingCLI(verb, [*words, "--start-from", first.config["start_from"] or "null"])
                ours, theirs = (to_plain(one.datamodule.token_config) for one in (stage, first))
                if changed := differences("data", ours, theirs, whose="the stages before"):
                    raise ConfigError("; ".join(changed))
        except (ConfigError, argparse.ArgumentError) as error:
            raise ConfigError(f"{name}: {error}") from error
