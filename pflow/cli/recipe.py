"""Run a recipe: train a model in stages, calibrate it, and write its weights. An interrupted recipe is resumed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pflow.cli.main import add_options, main
from pflow.config import builtin_names, from_plain, load_yaml, resolve, to_plain
from pflow.errors import ConfigError, InputError, check_choice, check_fields
from pflow.io.atomic import check_output, disk_errors, replacing

SUMMARY = "training.json"
"""Written last into the folder of a stage or of weights: how they were made."""
SKIPPED = 3
"""Exit code of a command that is done but skipped entries; the recipe continues."""
READING = ("detector", "schema", "layout", "truth_tracks", "on_error")
"""Options of a stage's data with which its calibration reads the files, too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """What a recipe's file says; ConfigError names the missing or wrong field."""

    stages: tuple[Mapping[str, Any], ...]
    """Configurations of `pflow fit`; each holds what it changes of those before it, and begins with their weights."""
    samples: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Names of samples by split (``train``, ``val``), whose files are ``NAME_SPLIT.root``; none: the data are
    options of `pflow fit`."""
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Named changes of all stages; a run chooses one. One with ``stages`` is a recipe of its own, with the samples of
    this one unless it names others; one with ``of`` changes another variant."""
    calibrate: Mapping[str, Any] | None = None
    """Options of `pflow calibrate` for the last stage's model: values, lists of values, or true for an option that
    takes none. Its files are the last stage's validation files, read as this stage reads them (`READING`) unless these
    options say otherwise. None: it is not calibrated."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError("a recipe needs at least one stage")
        check_fields(self.samples, ("train", "val"), "samples")
        if self.calibrate is not None and not self.samples.get("val"):
            raise ConfigError(
                "'calibrate' needs validation files: name their samples under 'samples' as 'val', or leave out "
                "'calibrate' and run `pflow calibrate` on the last stage's model"
            )
        if given := {"checkpoint", "output"}.intersection(self.calibrate or {}):
            raise ConfigError(f"calibrate: leave out '{min(given)}', which the recipe gives itself")
        known: list[str] = []
        for name, changes in self.variants.items():
            # Only variants above it in the file, so that none can be a change of itself.
            if "of" in changes:
                check_choice(changes["of"], known, f"variant before '{name}' called")
            self.variant(name)
            known.append(name)

    def variant(self, name: str | None) -> TrainingRecipe:
        """The recipe of a variant, or this one if it has none; ConfigError: no such variant."""
        if name is None:
            if self.variants:
                raise ConfigError(f"the recipe has variants: choose one with --variant: {', '.join(self.variants)}")
            return self
        check_choice(name, self.variants, "variant")
        changes = dict(self.variants[name])
        if "stages" in changes:
            return from_plain(TrainingRecipe, {"samples": self.samples, **changes}, f"variant {name}")
        of = changes.pop("of", None)
        base = self if of is None else self.variant(of)
        stages = tuple(merged(stage, changes) for stage in base.stages)
        return dataclasses.replace(base, stages=stages, variants={})

    def write(self, path: Path, stage: int, options: Sequence[str] = ()) -> list[str]:
        """Write the whole configuration of a stage (from 0) and `options`; returns all as options of `pflow fit`.

        ConfigError: the file is of a stage of another recipe or variant, or of other options.
        """
        configuration: dict[str, Any] = {}
        for changes in self.stages[: stage + 1]:
            configuration = merged(configuration, changes)
        plain, given = yaml.safe_dump(configuration, sort_keys=False), f"# with {shlex.join(options)}"
        # Otherwise finished stages of one recipe, or with other files, would be followed by stages of another.
        if path.exists() and (path.parent / "last.ckpt").exists():
            first, _, rest = path.read_text("utf-8").partition("\n")
            if plain != rest:
                raise ConfigError(f"{path.parent} is of another recipe or variant: choose another --output")
            if first != given:
                text = f"{path.parent} was made {first[2:]}, and not {given[2:]}"
                raise ConfigError(f"{text}: give the same options, or choose another --output")
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{given}\n{plain}", encoding="utf-8")
        return ["--config", str(path), *options]

    def calibration(self, stage: Path, files: Sequence[str]) -> list[str]:
        """Files and options of `pflow calibrate` for the model of the last `stage`.

        A stage that began has a configuration, whose validation files may be other ones than the recipe's `files`.
        """
        config = stage / "config.yaml"
        data = load_yaml(config)["data"] if config.exists() else {}
        val = data.get("val") or files
        words = [val] if isinstance(val, str) else [*val]
        read = {name.replace("_", "-"): data[name] for name in READING if data.get(name)}
        for name, value in {**read, **(self.calibrate or {})}.items():
            if value is not False:
                values = value if isinstance(value, list | tuple) else [] if value is True else [value]
                words += [f"--{name}", *map(str, values)]
        return words


def merged(configuration: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with other values, or more, in the places where `changes` has them."""
    result = dict(configuration)
    for name, value in changes.items():
        old = result.get(name)
        result[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def load_recipe(source: str | Path) -> TrainingRecipe:
    """Read a recipe from a YAML file, or by the name of one that comes with pflow; ConfigError if it is not valid."""
    path = resolve("recipes", source)
    return from_plain(TrainingRecipe, load_yaml(path), f"{path}: not a recipe")


def recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow recipe`."""
    names = builtin_names("recipes")
    variants = {name: load_yaml(resolve("recipes", name)).get("variants", {}) for name in names}
    listed = "; ".join(f"{name}: {', '.join(some)}" for name, some in variants.items() if some)
    parser.add_argument("recipe", metavar="RECIPE", help=f"{', '.join(names)}, or a YAML file of the same form")
    parser.add_argument(
        "options", nargs="*", metavar="-- OPTION", help="options of `pflow fit` for all stages, after a --"
    )
    add_options(parser, "output", metavar="DIR", help="folder for all outputs")
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the samples that the recipe names (a recipe without calibration also takes your own files, as "
        "options of `pflow fit`)",
    )
    parser.add_argument("--variant", metavar="NAME", help=f"variant of the recipe ({listed})")


def recipe(args: argparse.Namespace) -> int:
    """Run a recipe: train a model in stages, calibrate it, and write its weights; an interrupted one is resumed."""
    recipe = load_recipe(args.recipe).variant(args.variant)
    return run_recipe(recipe, output=args.output, data_dir=args.data_dir, options=args.options)


def run_recipe(
    recipe: TrainingRecipe,
    *,
    output: str | Path,
    data_dir: str | Path | None = None,
    options: Sequence[str] = (),
    pflow: Callable[[list[str]], int] = main,
) -> int:
    """Run a recipe below `output`: stages in ``stage_1``, ``stage_2`` ..., then the calibrated model in ``weights``.

    Finished stages are not run again, and an interrupted stage is resumed from its last checkpoint, with the same
    batches and random numbers as in one go. All commands are checked before the first one runs (`check`). `pflow` runs
    one and returns its exit code. The `options` are more ones of `pflow fit`; without `data_dir` they may name files of
    their own. Returns the exit code of the command that failed, else 0, or 3 if one of them skipped entries.
    The weights are made again from another last stage, or with other options. ConfigError: a variant is to be chosen
    first, there are no files, an option is wrong, or a stage began with another model than that of the stage before it.
    InputError: a file of the samples is missing.
    """
    recipe = recipe.variant(None)
    for word in options:
        if (name := word.partition("=")[0].replace("_", "-")) in ("-o", "--output", "--checkpoint"):
            raise ConfigError(f"{name} is given by the recipe to each stage: leave it out (pflow recipe has -o)")
    files_given = {word.partition("=")[0] for word in options}.issuperset(f"--data.{split}" for split in recipe.samples)
    if recipe.samples and data_dir is None and (recipe.calibrate is not None or not files_given):
        choice = "" if recipe.calibrate else ", or give files of your own: -- --data.train FILE --data.val FILE"
        raise ConfigError(f"the recipe names samples: say where they are with --data-dir{choice}")
    files: dict[str, list[str]] = {}
    for split, names in recipe.samples.items() if data_dir is not None else ():
        for path in (Path(data_dir or "", f"{name}_{split}.root") for name in names):
            if not path.is_file():
                raise InputError("no such file: --data-dir takes the folder of the samples", file=path)
            files.setdefault(split, []).append(str(path))
    given = [word for split, paths in files.items() for word in (f"--data.{split}", json.dumps(paths))]
    commands: dict[str, tuple[Path, list[str]]] = {}
    before: Path | None = None
    for number in range(len(recipe.stages)):
        folder = Path(output) / f"stage_{number + 1}"
        words = ["fit", *recipe.write(folder / "recipe.yaml", number, [*given, *options]), "--output", str(folder)]
        words += [] if before is None else ["--start-from", str(before / "last.ckpt")]
        words += ["--checkpoint", str(folder / "last.ckpt")] if (folder / "last.ckpt").exists() else []
        if before is not None and (folder / "last.ckpt").exists():
            made, earlier = read_summary(folder), read_summary(before)
            # An interrupted stage has no summary, and the one before it has one unless it was removed since.
            if not earlier or made.get("before", earlier) != earlier:
                text = f"{folder} began with another model than that of {before}"
                raise ConfigError(f"{text}: remove it to train it again, or choose another --output")
        commands[f"stage {number + 1}"], before = (folder, words), folder
    last, weights = before or Path(output), Path(output) / "weights"
    if recipe.calibrate is not None:
        words = ["--checkpoint", str(last / "last.ckpt"), "--output", str(weights), "--force"]
        commands["calibrate"] = weights, words

    def is_finished(folder: Path) -> bool:
        made = read_summary(folder)
        if folder != weights:
            return bool(made)
        return made == {**read_summary(last), "calibrate": recipe.calibration(last, files["val"])}

    to_run = {name: words for name, (folder, words) in commands.items() if not is_finished(folder)}
    if "calibrate" in to_run:
        to_run["calibrate"] = ["calibrate", *recipe.calibration(last, files["val"]), *to_run["calibrate"]]
        from pflow.checkpoint import FILES

        check_output(weights, force=True, holds=(*FILES, SUMMARY))  # now, and not after the trainings
    check(to_run)
    codes, before = [0], None
    for name, (folder, words) in commands.items():
        if is_finished(folder):
            print(f"== {name}: finished, see {folder / SUMMARY}; remove {folder} to run it again")
        else:
            print(f"== {name}: in {folder}")
            summary: dict[str, Any] = {}
            if folder == weights:
                summary = {**read_summary(last), "calibrate": recipe.calibration(last, files["val"])}
                words = ["calibrate", *summary["calibrate"], *words]
                # A folder without it is of an interrupted command; `pflow calibrate` replaces its own files alone.
                (folder / SUMMARY).unlink(missing_ok=True)
            codes.append(pflow(words))
            if codes[-1] in (129, 130, 143):  # a signal stopped it
                print(f"== {name}: interrupted; the same pflow recipe command resumes it", file=sys.stderr, flush=True)
            if codes[-1] not in (0, SKIPPED):
                return codes[-1]
            if folder != weights:
                summary = training_summary(folder) | ({} if before is None else {"before": read_summary(before)})
            # After all else, and whole: a stage whose folder has a summary is not run again.
            with replacing(folder / SUMMARY, force=True) as partial:
                partial.write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
        before = folder
    # All are 0 or `SKIPPED` here: one command that skipped entries is enough.
    return max(codes)


def read_summary(folder: Path) -> dict[str, Any]:
    """How a finished stage, or weights, were made; empty if the folder is not finished."""
    path = folder / SUMMARY
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def check(commands: Mapping[str, Sequence[str]]) -> None:
    """Validate all commands before the first one runs; ConfigError: a wrong option of a stage or of the calibration.

    `commands` are the words of `pflow fit` for each stage that is to be run, in order, and of `pflow calibrate`, by the
    names that messages give them. Only the model that the first stage starts from must exist.
    """
    from pflow.cli.fit import TrainingCLI
    from pflow.cli.models import calibrate_arguments
    from pflow.data.datamodule import differences

    first = None
    for name, (verb, *words) in commands.items():
        try:
            if verb == "calibrate":
                parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
                calibrate_arguments(parser)
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


def training_summary(run: str | Path) -> dict[str, Any]:
    """Time, steps and machine of a finished training, for ``training.json``; the time sums all its parts."""
    import torch

    from pflow.checkpoint import read_checkpoint

    checkpoint = read_checkpoint(Path(run) / "last.ckpt")
    provenance = checkpoint.header.provenance
    return {
        "sha256": checkpoint.digest,  # by which what was made from another training is known
        "wall_s": round(provenance["wall_s"]),
        "parts": provenance["parts"],
        "steps": provenance["step"],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
        "threads": torch.get_num_threads(),
    }
