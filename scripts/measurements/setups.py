"""Set-ups side by side: each is trained, run on the test files and evaluated by the same commands.

The first paper's set-ups, and the ablation: what each part of the shipped models brings, one change from row to row.
Each set-up is one `pflow fit` on gamma1_train and gammasep_train together and one `pflow reconstruct` for each test
file. Logs and files are in OUT/NAME; a set-up that was measured with the same budget is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from measurements.commands import revision, run_pflow
from measurements.evaluation import evaluate_file
from measurements.files import DATA, RESULTS, intervals, read_json, write_json
from pflow.checkpoint.load import load_model, read_checkpoint
from pflow.train.recipe import load_recipe

SAMPLES = ("gamma1", "gammasep")


class Column(NamedTuple):
    """A column of the table: sample, name in the results, title, factor to the title's unit."""

    sample: str
    key: str
    title: str
    factor: float


COLUMNS = (
    Column("gamma1", "exact", "one photon: exactly one [%]", 100.0),
    Column("gamma1", "efficiency", "matched [%]", 100.0),
    Column("gamma1", "energy_error", "mean \\|dE\\|/E [%]", 100.0),
    Column("gamma1", "angle_mean", "mean angle [deg]", 1.0),
    Column("gamma1", "angle_median", "median angle [deg]", 1.0),
    Column("gamma1", "angle_all", "mean angle, unmatched too [deg]", 1.0),
    Column("gammasep", "separated", "one or two photons: right number [%]", 100.0),
    Column("gammasep", "separated_above", "above 30 mrad [%]", 100.0),
)
KEYS = {
    "exact": "count.exact_fraction",
    "separated": "extra.separation.separated",
    "separated_above": "extra.separation.separated_above",
    "energy_error": "energy.mean_abs_rel_error",
    "response": "energy.response_median",
    "angle_mean": "angle.mean_deg",
    "angle_median": "angle.median_deg",
    "angle_all": "legacy.angle_mean_deg",
    "efficiency": "class.all.efficiency",
}
"""Where the numbers of the columns are in an evaluation."""


@dataclass(frozen=True)
class Setup:
    """A row: title, recipe (RECIPE or RECIPE/VARIANT; its first stage), and options of `pflow fit` (KEY=VALUE)."""

    title: str
    config: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """Set-ups by name, what all have in common (options of `pflow fit`, which win over the set-ups'), and epochs."""

    setups: Mapping[str, Setup]
    common: tuple[str, ...]
    epochs: int


SMALL = (
    "model.reconstructor.network.width=64",
    "model.reconstructor.network.heads=2",
    "model.reconstructor.network.encoder_layers=2",
    "model.reconstructor.network.decoder_layers=2",
    "model.reconstructor.network.feedforward=128",
    "data.batch_size=8",
    "model.reconstructor.decoding.max_particles=20",
)
"""Networks that a CPU trains in minutes."""
PARTS = {
    "proxies": ("model.reconstructor.network.use_proxies=false",),
    "coverage": (
        "model.reconstructor.network.coverage=false",
        "model.reconstructor.training.scheduled_sampling_prob=0.0",
    ),
    "augmentation": ("data.augment=null",),
    "merging": ("data.merge=null",),
}
"""Parts of the shipped photon model in the order in which the rows add them, and the options that take each away."""


def _ablation_setups() -> dict[str, Setup]:
    features = f"data.hit_features={json.dumps(load_recipe('photon').stages[0]['data']['hit_features'])}"
    options = list(PARTS.values())

    def pointing(title: str, n_parts: int) -> Setup:
        return Setup(title, "photon", sum(options[n_parts:], ()))

    return {
        "paper_v1": Setup("paper v1", "paper/v1_flags"),
        "paper_v2": Setup("paper v2", "paper/v2_kind"),
        "features": Setup("v1 + features", "paper/v1_flags", (features,)),
        "pointing": pointing("pointing", 0),
        **{name: pointing(f"+ {name}", k + 1) for k, name in enumerate(PARTS)},
    }


PAPER = Experiment(
    setups={
        name: Setup(f"`{name}`", f"paper/{name.removeprefix('paper_')}")
        for name in ("paper_v1_flags", "paper_v1_kind", "paper_v2_kind", "tracks_cross", "tracks_typed")
    },
    common=(*SMALL, "data.hit_energy_min=0.02"),
    epochs=4,
)
"""The half of the hits above 20 MeV holds about nine tenths of the energy."""
ABLATION = Experiment(
    setups=_ablation_setups(),
    common=(
        *SMALL,
        "seed_everything=1",
        "trainer.accelerator=cpu",
        "data.hit_energy_min=0.0",
        "data.chunk_size=512",
        "data.buffer=4096",
        "model.lr=1.0e-3",
        "ema.decay=null",
    ),
    epochs=1,
)
EXPERIMENTS = {"setups": PAPER, "ablation": ABLATION}
"""By the name of their file in scripts/results and of their tables."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=DATA, help="folder of the samples (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/setups"), help="folder of the runs (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the set-ups")
    parser.add_argument("--epochs", type=int, help="another number of epochs for each")
    parser.add_argument("--override", nargs="*", default=(), metavar="KEY=VALUE", help="further options for all")
    parser.add_argument("--force", action="store_true", help="train again what is already measured")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")


def run(args: argparse.Namespace, name: str) -> None:
    """Measure the set-ups of an experiment and write `args.results`/NAME.json."""
    experiment = EXPERIMENTS[name]
    os.environ["OMP_NUM_THREADS"] = "1"
    budget = {"epochs": args.epochs or experiment.epochs, "common": [*experiment.common, *args.override]}
    measured = {}
    for key, setup in experiment.setups.items():
        folder = args.output / name / key
        own = {**budget, "config": setup.config, "changes": list(setup.changes)}
        if args.only is None or key in args.only:
            _measure(key, folder, own, data=args.data_dir, force=args.force)
        if (folder / "result.json").exists():
            result = read_json(folder / "result.json")
            if result.pop("budget") == own:
                measured[key] = result
    write_json(args.results / f"{name}.json", {"budget": budget, "rows": measured})


def fit_options(budget: Mapping[str, Any], folder: Path) -> list[str]:
    """Options of `pflow fit`, whose configurations are written to a folder; the common ones come last and win."""
    recipe, _, variant = budget["config"].partition("/")
    options = [*load_recipe(recipe).write(folder, 0, variant or None), f"--trainer.max-epochs={budget['epochs']}"]
    return options + [f"--{option}" for option in (*budget["changes"], *budget["common"])]


def _measure(name: str, folder: Path, budget: Mapping[str, Any], *, data: Path, force: bool) -> None:
    """Train, reconstruct and evaluate one set-up; leaves `folder`/result.json."""
    result = folder / "result.json"
    if result.exists() and not force:
        if read_json(result)["budget"] != budget:
            sys.exit(f"{folder} holds a result with another budget: choose another --output, or --force")
        print(f"{name}: already measured")
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = {split: [str(data / f"{sample}_{split}.root") for sample in SAMPLES] for split in ("train", "val")}
    seconds, cpu, _ = run_pflow(
        folder / "fit.log",
        "fit",
        *fit_options(budget, folder / "recipe"),
        *(f"--data.{split}={json.dumps(paths)}" for split, paths in files.items()),
        "--trainer.enable-progress-bar=false",
        f"--output={folder / 'run'}",
    )
    (checkpoint,) = (folder / "run").rglob("best.ckpt")
    provenance = read_checkpoint(checkpoint).header.provenance
    steps = provenance["step"] // (provenance["epoch"] + 1)
    content = {
        "budget": dict(budget),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "revision": revision(),
        "machine": {
            "processor": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
            "cores": os.cpu_count(),
            "threads": 1,
            "torch": torch.__version__,
        },
        "parameters": sum(parameter.numel() for parameter in load_model(checkpoint).reconstructor.parameters()),
        "best_epoch": provenance["epoch"] + 1,
        "training_events": provenance["n_events"],
        "events_an_epoch": min(provenance["n_events"], steps * provenance["batch_size"]),
        "samples": {sample: _test(data / f"{sample}_test.root", checkpoint, folder) for sample in SAMPLES},
    }
    write_json(result, content)


def _test(truth: Path, checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Reconstruct and evaluate one test file."""
    reco = folder / truth.name
    _, _, text = run_pflow(
        folder / f"{truth.stem}.log", "reconstruct", truth, f"--checkpoint={checkpoint}", "-q", "-o", reco
    )
    said = re.search(r": (\d+) events, .*; ([\d.]+) s", text)
    assert said is not None
    events, seconds = said.groups()
    evaluated = evaluate_file(truth, {"model": reco}, rule="stable")["algorithms"]
    return {
        "events": int(events),
        "events_per_second": int(events) / float(seconds),
        "algorithms": {name: intervals(tree, KEYS) for name, tree in evaluated.items()},
    }
