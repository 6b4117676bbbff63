"""Recipes: trainings in stages from one YAML file, each beginning with the weights of the one before."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from pflow.checkpoint.load import read_checkpoint
from pflow.config import from_plain, load_yaml, resolve
from pflow.errors import ConfigError, InputError, check_fields, nearest
from pflow.io.atomic import replacing

SUMMARY = "training.json"
SKIPPED = 3
"""Exit code of a command that is done but skipped entries; the recipe continues."""
INTERRUPTED = (130, 143)
"""Exit codes of a command that a signal stopped."""
SPLITS = ("train", "val")
"""Splits that `pflow fit` reads files of."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """What a recipe's file says; ConfigError names the missing or wrong field."""

    stages: tuple[Mapping[str, Any], ...]
    """Configurations of `pflow fit`; each holds what it changes of those before it."""
    samples: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Names of samples by split (``train``, ``val``), whose files are ``NAME_SPLIT.root``; none: the data are
    options of `pflow fit`."""
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Named changes of all stages; a run chooses one. One with ``stages`` is a recipe of its own, with the samples of
    this one unless it names others; `named_variants` has its variants, by both names."""
    calibrate: Mapping[str, Any] | None = None
    """Options of `pflow calibrate` for the last stage's model: values, lists of values, or true for an option that
    takes none. Its files are the samples of ``val``. None: it is not calibrated."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError("a recipe needs at least one stage")
        _ = self.named_variants  # checks those with stages
        check_fields(self.samples, SPLITS, "samples")
        if self.calibrate is None:
            return
        if not self.samples.get("val"):
            raise ConfigError(
                "'calibrate' needs validation files: name their samples under 'samples' as 'val', or leave out "
                "'calibrate' and run `pflow calibrate` on the last stage's model"
            )
        for name in ("checkpoint", "output"):
            if name in self.calibrate:
                raise ConfigError(f"calibrate: leave out '{name}', which the recipe gives itself")

    @functools.cached_property
    def named_variants(self) -> dict[str, TrainingRecipe]:
        """The recipe of each variant, with its changes in each stage, by its name."""
        named = {}
        for name, changes in self.variants.items():
            if "stages" not in changes:
                stages = tuple(merged(stage, changes) for stage in self.stages)
                named[name] = dataclasses.replace(self, stages=stages, variants={})
                continue
            inner = from_plain(TrainingRecipe, {"samples": self.samples, **changes}, f"variant {name}")
            named |= {f"{name}_{part}": recipe for part, recipe in inner.named_variants.items()} or {name: inner}
        return named

    def variant(self, name: str | None) -> TrainingRecipe:
        """The recipe of a variant, or this one if it has none; ConfigError: no such variant."""
        named = self.named_variants
        if name is None and not named:
            return self
        if name is not None and name in named:
            return named[name]
        message = f"no variant '{name}': expected one of {', '.join(named) or 'none'}"
        raise ConfigError(message, suggestions=nearest(name or "", named))

    def write(self, folder: str | Path, stage: int) -> list[str]:
        """Write a stage's (from 0) configurations; returns options of `pflow fit`.

        ConfigError: the folder is of a stage of another recipe or variant.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        words = []
        for number, configuration in enumerate(self.stages[: stage + 1], 1):
            path = Path(folder) / f"{number}.yaml"
            text = yaml.safe_dump(configuration, sort_keys=False)
            if path.exists() and path.read_text("utf-8") != text:
                raise ConfigError(f"{path.parent.parent} is of another recipe or variant: choose another --output")
            path.write_text(text, encoding="utf-8")
            words += ["--config", str(path)]
        return words

    def calibrate_words(self) -> list[str]:
        """The options of `pflow calibrate` that `calibrate` names, with their values."""
        words = []
        for name, value in (self.calibrate or {}).items():
            if value is not False:
                values = value if isinstance(value, list | tuple) else [] if value is True else [value]
                words += [f"--{name}", *map(str, values)]
        return words

    def files(self, data_dir: str | Path) -> dict[str, list[str]]:
        """Files of each split; InputError names one that is missing."""
        files: dict[str, list[str]] = {split: [] for split in self.samples}
        for split, names in self.samples.items():
            for path in (Path(data_dir) / f"{name}_{split}.root" for name in names):
                if not path.is_file():
                    raise InputError("no such file: --data-dir takes the folder of the samples", file=path)
                files[split].append(str(path))
        return files


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
    content = load_yaml(path)
    try:
        return from_plain(TrainingRecipe, content, "top level")
    except ConfigError as error:
        raise ConfigError(f"{path}: not a recipe: {error}") from error


def run_recipe(
    recipe: TrainingRecipe,
    *,
    output: str | Path,
    pflow: Callable[[list[str]], int],
    check: Callable[[Mapping[str, list[str]]], None] | None = None,
    data_dir: str | Path | None = None,
    options: Sequence[str] = (),
) -> int:
    """Run a recipe below `output`: stages in ``stage_1``, ``stage_2`` ..., then the calibrated model in ``weights``.

    Finished stages are not run again, and an interrupted stage is resumed from its last checkpoint, with the same
    batches and random numbers as in one go. `pflow` runs a command and returns its exit code; `check` gets all commands
    by the names that messages give them, before the first one runs, and raises a ConfigError for a wrong option. The
    `options` are more ones of `pflow fit`; without `data_dir` they may name files of their own. Returns the exit code
    of the command that failed, else 0, or 3 if one of them skipped entries. ConfigError: a variant is to be chosen
    first, or there are no files. InputError: a file of the samples is missing.
    """
    recipe = recipe.variant(None)
    files_given = {word.partition("=")[0] for word in options}.issuperset(f"--data.{split}" for split in recipe.samples)
    if recipe.samples and data_dir is None and (recipe.calibrate is not None or not files_given):
        choice = "" if recipe.calibrate else ", or give files of your own: -- --data.train FILE --data.val FILE"
        raise ConfigError(f"the recipe names samples: say where they are with --data-dir{choice}")
    files = {} if data_dir is None else recipe.files(data_dir)
    data = [word for split, paths in files.items() for word in (f"--data.{split}", json.dumps(paths))]
    folders = [Path(output) / f"stage_{number}" for number in range(1, len(recipe.stages) + 1)]
    last, weights = folders[-1] / "last.ckpt", Path(output) / "weights"
    commands = {}
    for number, folder in enumerate(folders):
        configurations = recipe.write(folder / "recipe", number)
        if (folder / SUMMARY).exists():
            continue
        words = ["fit", *configurations, *data, *options, "--output", str(folder)]
        if number > 0:
            words += ["--start-from", str(folders[number - 1] / "last.ckpt")]
        if (folder / "last.ckpt").exists():
            words += ["--checkpoint", str(folder / "last.ckpt")]
        commands[f"stage {number + 1}"] = words
    if recipe.calibrate is not None and not (weights / SUMMARY).exists():
        # A folder without its summary is left from an interrupted command.
        words = ["calibrate", *files["val"], "--checkpoint", str(last), "--output", str(weights), "--force"]
        commands["calibrate"] = [*words, *recipe.calibrate_words()]
    if check is not None:
        check(commands)
    codes = [0]
    for number, folder in enumerate(folders):
        name = f"stage {number + 1}"
        if name not in commands:
            print(f"== {name}: finished, see {folder / SUMMARY}")
            continue
        print(f"== {name}: training in {folder}")
        codes.append(pflow(commands[name]))
        if codes[-1] in INTERRUPTED:
            print(f"== {name}: interrupted; the same pflow recipe command resumes it", file=sys.stderr, flush=True)
        if codes[-1] not in (0, SKIPPED):
            return codes[-1]
        summary = training_summary(folder)
        if number > 0:
            summary["before"] = json.loads((folders[number - 1] / SUMMARY).read_text("utf-8"))
        with replacing(folder / SUMMARY, force=True) as partial:
            partial.write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    if recipe.calibrate is not None and "calibrate" not in commands:
        print("== weights: finished; remove the folder to calibrate again")
    elif recipe.calibrate is not None:
        print(f"== weights to {weights}")
        codes.append(pflow(commands["calibrate"]))
        if codes[-1] not in (0, SKIPPED):
            return codes[-1]
        with replacing(weights / SUMMARY, force=True) as partial:
            shutil.copy(folders[-1] / SUMMARY, partial)
    return max(codes)


def training_summary(run: str | Path) -> dict[str, Any]:
    """Time, steps and machine of a finished training, for ``training.json``; the time sums all its parts."""
    provenance = read_checkpoint(Path(run) / "last.ckpt").header.provenance
    return {
        "wall_s": round(provenance["wall_s"]),
        "parts": provenance["parts"],
        "steps": provenance["step"],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
        "threads": torch.get_num_threads(),
    }
