"""How many events of CLD a model needs: trained from random weights and from those of the ILD, learning_curves.json.

Every training is the first stage of recipe `cld` on the first N events of one sample, with the same number of steps,
and so the same CPU time; it is evaluated on the test file beside Pandora. One that was measured is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from measurements.commands import revision, run_pflow
from measurements.evaluation import CLASSICAL, evaluate_file
from measurements.figures import save
from measurements.files import DATA, FIGURES, RESULTS, intervals, read_json, write_json
from measurements.quantities import VISIBLE
from pflow.plots.style import COLORS, MARKERS, styled
from pflow.train.recipe import load_recipe

EVENTS = (100, 300, 1800)
MODEL = "model"
STARTS = {"random": "random weights", "ild": "weights of the ILD"}
DECODING = {"eos_threshold": 0.97, "existence_threshold": 0.12}
"""As calibrated for the shipped models."""
QUANTITIES = {
    "visible_energy": ("visible energy, resolution_68 / median [%]", VISIBLE),
    "class": ("class right, of matched [%]", "pdg.class_accuracy"),
    "efficiency": ("energy-weighted efficiency [%]", "energy_weighted_efficiency"),
    "fakes": ("fake energy fraction [%]", "fake_energy_fraction"),
}
"""Title and key in an evaluation."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=DATA.parent / "cld_g4", help="default: %(default)s")
    parser.add_argument("--sample", default="zqq", help="default: %(default)s")
    parser.add_argument("--split", choices=("test", "val"), default="test", help="evaluated files")
    parser.add_argument("--steps", type=int, default=300, help="of each training (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--events", type=int, nargs="+", default=EVENTS, metavar="N")
    parser.add_argument("--output", type=Path, default=Path("runs/learning_curves"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Train, reconstruct and evaluate each; write `args.results`/learning_curves.json and its figure."""
    os.environ["OMP_NUM_THREADS"] = "1"
    budget = {"sample": args.sample, "split": args.split, "steps": args.steps, "batch_size": args.batch_size}
    rows = []
    for n_events in args.events:
        for start in STARTS:
            folder = args.output / f"{start}_{n_events}"
            if not (folder / "result.json").exists() or read_json(folder / "result.json")["budget"] != budget:
                _measure(folder, budget, start=start, n_events=n_events, data=args.data_dir)
            rows.append(read_json(folder / "result.json"))
    content = {"budget": budget, "pandora": rows[0]["numbers"][CLASSICAL], "rows": rows}
    write_json(args.results / "learning_curves.json", content)
    save({"learning_curves": figure(content)}, args.results / FIGURES.name)


def fit_options(folder: Path, *, start: str) -> list[str]:
    """Options of `pflow fit` for one start; both train the same network, from the same features."""
    options = load_recipe("cld").write(folder / "cld", 0)
    if start == "random":
        options = [*load_recipe("general").write(folder / "general", 1), *options]
        options += ["--start-from=null", "--trainer.callbacks=null", "--data.augment.overlay=null"]
    for name, value in DECODING.items():
        options.append(f"--model.reconstructor.init-args.decoding.{name}={value}")
    return options


def _measure(folder: Path, budget: dict[str, Any], *, start: str, n_events: int, data: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = {split: json.dumps([str(data / f"{budget['sample']}_{split}.root")]) for split in ("train", "val")}
    seconds, cpu, _ = run_pflow(
        folder / "fit.log",
        "fit",
        *fit_options(folder, start=start),
        *(f"--data.{split}={paths}" for split, paths in files.items()),
        f"--data.max-train-events={n_events}",
        "--data.repeat={}",
        f"--data.batch-size={budget['batch_size']}",
        f"--trainer.max-steps={budget['steps']}",
        f"--trainer.val-check-interval={budget['steps']}",
        "--trainer.max-epochs=-1",
        "--trainer.enable-progress-bar=false",
        f"--output={folder / 'run'}",
    )
    truth, reco = data / f"{budget['sample']}_{budget['split']}.root", folder / "reco.root"
    options = (f"--checkpoint={folder / 'run' / 'last.ckpt'}", "-q", "-o", reco)
    run_pflow(folder / "reconstruct.log", "reconstruct", truth, *options)
    content = {
        "budget": budget,
        "start": start,
        "n_events": n_events,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "revision": revision(),
        "numbers": _numbers(truth, reco),
    }
    write_json(folder / "result.json", content)


def _numbers(truth: Path, reco: Path) -> dict[str, dict[str, list[float]]]:
    """Value and interval of each quantity in percent, of the model and of Pandora."""
    evaluated = evaluate_file(truth, {MODEL: reco}, rule="stable")
    keys = {key: path for key, (_, path) in QUANTITIES.items()}
    return {name: intervals(evaluated["algorithms"][name], keys, 100.0) for name in (MODEL, CLASSICAL)}


def figure(results: dict[str, Any]) -> Figure:
    """A panel a quantity, against the number of training events."""
    with styled():
        drawn = Figure(figsize=(12.0, 8.0), layout="constrained")
        for panel, (key, (title, _)) in zip(drawn.subplots(2, 2).flat, QUANTITIES.items(), strict=True):
            value, low, high = results["pandora"][key]
            panel.axhline(value, color=COLORS[2], linestyle="--", label="PandoraPFA")
            panel.axhspan(low, high, color=COLORS[2], alpha=0.2, linewidth=0)
            for k, (start, label) in enumerate(STARTS.items()):
                rows = [row for row in results["rows"] if row["start"] == start]
                values, lows, highs = np.array([row["numbers"][MODEL][key] for row in rows]).T
                n_events = [row["n_events"] for row in rows]
                errors = np.stack([values - lows, highs - values])
                panel.errorbar(
                    n_events, values, yerr=errors, fmt=f"{MARKERS[k]}-", color=COLORS[k], label=f"from {label}"
                )
            panel.set(xscale="log", xlabel="Training events", ylabel=title)
        drawn.axes[0].legend()
        return drawn
