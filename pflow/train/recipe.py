"""Recipes: trainings in stages from one YAML file, each beginning with the weights of the one before."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from pflow.checkpoint.load import read_checkpoint
from pflow.errors import ConfigError, InputError, nearest
from pflow.io.atomic import replacing
from pflow.resources import config_dir

__all__ = ["TrainingRecipe", "load_recipe", "run_recipe", "training_summary"]

SUMMARY = "training.json"

SKIPPED = 3
"""Exit code of a command that is done but skipped entries; the recipe goes on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """What a recipe's file says.

    Parameters
    ----------
    stages
        Configurations of `pflow fit`; each holds what it changes of those before it.
    samples
        Names of samples by split (``train``, ``val``), whose files are ``NAME_SPLIT.root``; none: the data are given
        as options of `pflow fit`.
    variants
        Named changes of all stages, of which one is chosen.
    calibrate
        Options of `pflow calibrate` for the last stage's model; None: it is not calibrated.

    Raises
    ------
    ConfigError
        No stages.
    """

    stages: Sequence[Mapping[str, Any]]
    samples: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    calibrate: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError("a recipe needs at least one stage")

    def configurations(self, stage: int, variant: str | None = None) -> list[Mapping[str, Any]]:
        """Configurations of a stage, counted from 0: each changes those before it.

        Raises
        ------
        ConfigError
            A variant that the recipe does not have, or none where it has some.
        """
        chosen = list(self.stages[: stage + 1])
        if self.variants or variant is not None:
            if variant is None or variant not in self.variants:
                raise ConfigError(f"no variant '{variant}': expected one of {', '.join(self.variants) or 'none'}")
            chosen.append(self.variants[variant])
        return chosen

    def write(self, folder: str | Path, stage: int, variant: str | None = None) -> list[str]:
        """Write the configurations of a stage to a folder; returns the options of `pflow fit` that name them.

        Raises
        ------
        ConfigError
            As of `configurations`.
        """
        words = []
        for number, configuration in enumerate(self.configurations(stage, variant), 1):
            path = Path(folder) / f"{number}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
            words += ["--config", str(path)]
        return words

    def files(self, data_dir: str | Path) -> dict[str, list[str]]:
        """Files of each split.

        Raises
        ------
        InputError
            A file is missing; names it.
        """
        found = {
            split: [str(Path(data_dir) / f"{name}_{split}.root") for name in names]
            for split, names in self.samples.items()
        }
        for path in (path for paths in found.values() for path in paths):
            if not Path(path).is_file():
                raise InputError("no such file: --data-dir takes the folder of the samples", file=path)
        return found


def load_recipe(source: str | Path) -> TrainingRecipe:
    """Read a recipe.

    Parameters
    ----------
    source
        Path of a YAML file, or name of a recipe that comes with pflow.

    Raises
    ------
    InputError
        No such recipe (with the nearest names), or a file that is not one.
    """
    path = Path(source)
    if not path.is_file():
        known = {found.stem: found for found in sorted((config_dir() / "recipes").glob("*.yaml"))}
        if str(source) not in known:
            raise InputError("no such recipe", file=source, suggestions=nearest(str(source), known) or known)
        path = known[str(source)]
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return TrainingRecipe(**content)
    except (yaml.YAMLError, TypeError, ConfigError) as error:
        raise InputError(f"not a recipe: {error}", file=path) from error


def run_recipe(
    recipe: TrainingRecipe,
    *,
    output: str | Path,
    pflow: Callable[[list[str]], int],
    data_dir: str | Path | None = None,
    variant: str | None = None,
    options: Sequence[str] = (),
    ship: str | Path | None = None,
) -> int:
    """Run a recipe: its stages in ``stage_1``, ``stage_2`` ..., then the calibrated model in ``weights``.

    What is finished is not run again, and an interrupted stage goes on from its last checkpoint, with the same batches
    and random numbers as in one go.

    Parameters
    ----------
    recipe
        From `load_recipe`.
    output
        Folder of all that is written.
    pflow
        Runs a command, e.g. `pflow.cli.main.main`; returns its exit code.
    data_dir
        Folder of the samples, where the recipe names some.
    variant
        Which variant, where the recipe has some.
    options
        More options of `pflow fit`, for every stage.
    ship
        Folder to copy the files of the final model to; what else is in it stays.

    Returns
    -------
    int
        Exit code of the command that failed, else 0, or 3 if one of them skipped entries.

    Raises
    ------
    ConfigError
        The recipe needs a folder of samples, or has no such variant.
    InputError
        A file of the samples is missing.
    """
    if recipe.samples and data_dir is None:
        raise ConfigError("the recipe names samples: say where they are with --data-dir")
    files = {} if data_dir is None else recipe.files(data_dir)
    data = [word for split, paths in files.items() for word in (f"--data.{split}", json.dumps(paths))]
    before: Path | None = None
    skipped = False
    for number in range(len(recipe.stages)):
        folder = Path(output) / f"stage_{number + 1}"
        words = ["fit", *recipe.write(folder / "recipe", number, variant), *data, *options, "--output", str(folder)]
        if before is not None:
            words += ["--start-from", str(before / "last.ckpt")]
        if (folder / SUMMARY).exists():
            print(f"== stage {number + 1}: finished, see {folder / SUMMARY}")
        else:
            print(f"== stage {number + 1}: training in {folder}")
            if (folder / "last.ckpt").exists():
                words += ["--checkpoint", str(folder / "last.ckpt")]
            code = pflow(words)
            if code not in (0, SKIPPED):
                return code
            skipped |= code == SKIPPED
            summary = training_summary(folder)
            if before is not None:
                summary["before"] = json.loads((before / SUMMARY).read_text("utf-8"))
            with replacing(folder / SUMMARY) as partial:
                partial.write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
        before = folder
    assert before is not None  # a recipe has stages
    if recipe.calibrate is None:
        return SKIPPED if skipped else 0
    weights = Path(output) / "weights"
    print(f"== weights to {weights}")
    shutil.rmtree(weights, ignore_errors=True)
    chosen = [word for name, value in recipe.calibrate.items() for word in (f"--{name}", str(value))]
    words = ["calibrate", *files["val"], "--checkpoint", str(before / "last.ckpt"), "--output", str(weights), *chosen]
    code = pflow(words)
    if code not in (0, SKIPPED):
        return code
    shutil.copy(before / SUMMARY, weights)
    if ship is not None:
        shutil.copytree(weights, ship, dirs_exist_ok=True)
    return SKIPPED if skipped or code else 0


def training_summary(run: str | Path) -> dict[str, Any]:
    """Time, steps and machine of a finished training, for ``training.json``; to be called where it was trained.

    A training that was continued has a log for each part. The time is the sum over the logs, each from its first to its
    last entry; work after the last entry, which an interruption lost, does not count.
    """
    logs = sorted(Path(run).glob("logs/version_*/events.out.tfevents.*"))
    seconds = [part for log in logs if (part := _duration(log)) > 0]
    return {
        "wall_s": round(sum(seconds)),
        "parts": len(seconds),
        "steps": read_checkpoint(Path(run) / "last.ckpt").header.provenance["step"],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
        "threads": torch.get_num_threads(),
    }


def _duration(log: Path) -> float:
    """Seconds from the first to the last entry of a TensorBoard log."""
    times = [event.wall_time for event in EventFileLoader(str(log)).Load()]
    return max(times) - min(times) if times else 0.0
