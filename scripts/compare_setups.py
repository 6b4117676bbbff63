"""The set-ups of the first paper side by side: the same training files and budget, the same test files.

    python scripts/compare_setups.py --data ../shared/data/g4 --out runs/compare --epochs 4
    python scripts/compare_setups.py --data ../shared/data/g4 --out runs/full --epochs 50 --override    # full sizes
    python scripts/compare_setups.py --only-report        # RESULTS.md anew from scripts/results/setups.json

Each set-up is one `pflow fit` on gamma1_train and gammasep_train together (the best of its epochs by the loss on both
validation files), one `pflow reconstruct` and one `pflow evaluate` for each test file. By default `--override` shrinks
networks and events to what a CPU can train; it is written into the table. A set-up that was measured is not trained
again, unless --force is given; one that was interrupted starts anew. Logs and files are in OUT/SETUP.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from sections import replace_section
from separation import always_one, told_apart

from pflow.io.atomic import replacing
from pflow.io.read import iterate_events
from pflow.io.reco import iterate_reco
from pflow.metrics.counting import CountMetrics
from pflow.metrics.evaluation import CLASSICAL, LIMIT
from pflow.metrics.number import Number
from pflow.metrics.report import number_text
from pflow.metrics.table import ParticleTable
from pflow.reco.load import load_model
from pflow.tokens.checkpoint import read_checkpoint
from pflow.truth import select_targets

ROOT = Path(__file__).resolve().parent.parent
SETUPS = ("paper_v1_flags", "paper_v1_kind", "paper_v2_kind", "tracks_cross", "tracks_typed")
SAMPLES = ("gamma1", "gammasep")
SMALL = (
    "network.width=64",
    "network.heads=2",
    "network.encoder_layers=2",
    "network.decoder_layers=2",
    "network.feedforward=128",
    "data.hit_energy_min=0.02",
    "data.batch_size=8",
    "model.max_particles=20",
)
"""What a CPU trains in minutes: small networks, and the half of the hits that holds about nine tenths of the energy."""
COLUMNS = (
    ("gamma1", "exact", "one photon: exactly one [%]", 100.0),
    ("gamma1", "efficiency", "matched [%]", 100.0),
    ("gamma1", "energy_error", "mean \\|dE\\|/E [%]", 100.0),
    ("gamma1", "angle_mean", "mean angle [deg]", 1.0),
    ("gamma1", "angle_median", "median angle [deg]", 1.0),
    ("gamma1", "angle_all", "mean angle, unmatched too [deg]", 1.0),
    ("gammasep", "separated", "one or two photons: told right [%]", 100.0),
    ("gammasep", "separated_above", "above 30 mrad [%]", 100.0),
)
"""Sample, figure, title and factor of each column of the results."""
COST = [
    "set-up",
    "parameters",
    "best epoch",
    "training [min]",
    "its CPU time [min]",
    "one photon: events/s",
    "one or two: events/s",
]
ALWAYS_ONE = "always_one"
LINE_TITLES = {ALWAYS_ONE: "always one photon", CLASSICAL: "PandoraPFA", LIMIT: "limit (perfect pattern recognition)"}
TEXT = """\
## The first paper's set-ups side by side

What `configs/paper_v1_flags.yaml`, `paper_v1_kind`, `paper_v2_kind`, `tracks_cross` and `tracks_typed` find on the test
files after the same budget: {epochs} epochs of the {events:,} events of `gamma1_train` and `gammasep_train` together
({seen:,} events seen), with
{overrides}.
The weights are those of the epoch with the least loss on both validation files. Tests: {tests}
events.

{results}

"Matched" is the fraction of true photons with a partner (cost `angle_energy`, cut 3: within 17 degrees); energy error
and the first two angles are of these. The third angle pairs by rank in energy, however far apart. "Told right" is one
particle for one photon and two or more for two; "above 30 mrad" leaves out pairs that open by less. A set-up that tells
no more right than the line "always one photon" has not learned to count, and its "exactly one" means nothing. Errors
are half the 68.3% interval of the test's statistics and say nothing of another seed. PandoraPFA and the limit read all
hits; PandoraPFA's energy scale is not tuned to this detector, which is part of its energy error.

{cost}

Measured on {machine}, a machine shared with other work: compare CPU times, the rest is
rough. Events per second are those of `pflow reconstruct` with its defaults.
{missing}
{caution}

    # these tables
    python scripts/compare_setups.py --data ../shared/data/g4 --out runs/compare --epochs {epochs}{option}
    # the configurations as they are, full sizes and all hits
    python scripts/compare_setups.py --data ../shared/data/g4 --out runs/compare_full --epochs 50 --override

All numbers are in `scripts/results/setups.json`.
"""
SHORT = "This is a short training, for a CPU: small networks, part of the hits"
CAUTION = """\
**{what}, and one seed each.**
It hints at which set-up learns first, not at which is best; what a larger budget changes in the order is not known.
Better than "always one photon" in telling one from two, outside of both errors: {counting}. The samples are photons,
with tracks from conversions only, so the two set-ups with tracks cannot show here what tracks are for. The best model
of the paper, on samples and with a training of its own: 5% energy error, 2.98 degrees, 99.6% of one or two photons told
right."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with gamma1_*.root and gammasep_*.root")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="folder for runs (default: %(default)s)")
    parser.add_argument("--setups", nargs="+", choices=SETUPS, default=SETUPS, metavar="NAME", help="some of the five")
    parser.add_argument("--epochs", type=int, default=4, help="for each set-up (default: %(default)s)")
    parser.add_argument(
        "--override", nargs="*", default=SMALL, metavar="KEY=VALUE", help="changes to every configuration; none: as is"
    )
    parser.add_argument("--force", action="store_true", help="train again what is already measured")
    parser.add_argument("--only-report", action="store_true", help="run nothing, write RESULTS.md anew")
    parser.add_argument("--json", type=Path, default=ROOT / "scripts" / "results" / "setups.json", help="results")
    parser.add_argument("--report", type=Path, default=ROOT / "RESULTS.md", help="document with the table")
    args = parser.parse_args()
    if not args.only_report:
        if args.data is None:
            parser.error("--data is needed to train")
        budget = {"epochs": args.epochs, "override": list(args.override)}
        for name in args.setups:
            measure(name, args.data, args.out / name, budget, force=args.force)
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, collect(args.out, args.data, budget))
    results = json.loads(args.json.read_text("utf-8"))
    document = args.report.read_text("utf-8") if args.report.exists() else "# Results\n"
    with replacing(args.report) as partial:
        partial.write_text(replace_section(document, "setups", section(results)), "utf-8")
    print(f"wrote {args.report}")


def measure(name: str, data: Path, folder: Path, budget: dict[str, Any], *, force: bool) -> None:
    """Train, reconstruct and evaluate one set-up; leaves `folder`/result.json."""
    result = folder / "result.json"
    if result.exists() and not force:
        if json.loads(result.read_text("utf-8"))["budget"] != budget:
            sys.exit(f"{folder} holds a result with another budget: choose another --out, or --force")
        print(f"{name}: already measured")
        return
    result.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    fitted = folder / "fit.json"
    if force or not fitted.exists() or json.loads(fitted.read_text("utf-8"))["budget"] != budget:
        fitted.unlink(missing_ok=True)
        shutil.rmtree(folder / "run", ignore_errors=True)
        write_json(fitted, {"budget": budget, **fit(name, data, folder, budget)})
    (checkpoint,) = (folder / "run").rglob("best.ckpt")
    provenance = read_checkpoint(checkpoint).header["provenance"]
    write_json(
        result,
        {
            **json.loads(fitted.read_text("utf-8")),
            "parameters": sum(parameter.numel() for parameter in load_model(checkpoint).network.parameters()),
            "best_epoch": provenance["epoch"] + 1,
            "training_events": provenance["n_events"],
            "samples": {sample: test(data / f"{sample}_test.root", checkpoint, folder) for sample in SAMPLES},
        },
    )


def fit(name: str, data: Path, folder: Path, budget: dict[str, Any]) -> dict[str, Any]:
    """Train one set-up; return what it took."""
    files = {split: [str(data / f"{sample}_{split}.root") for sample in SAMPLES] for split in ("train", "val")}
    seconds, cpu, _ = pflow(
        folder / "fit.log",
        "fit",
        f"--config={ROOT / 'configs' / name}.yaml",
        *(f"--{option}" for option in budget["override"]),
        *(f"--data.{split}={json.dumps(paths)}" for split, paths in files.items()),
        f"--trainer.max_epochs={budget['epochs']}",
        "--trainer.enable_progress_bar=false",
        f"--output={folder / 'run'}",
    )
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "machine": {
            "processor": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }


def test(truth: Path, checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Reconstruct and evaluate one test file; return how fast."""
    stem = truth.stem.removesuffix("_test")
    log, reco = folder / f"{stem}.log", folder / f"{stem}.root"
    _, _, text = pflow(log, "reconstruct", truth, f"--checkpoint={checkpoint}", "-q", "-o", reco)
    pflow(log, "evaluate", reco, "--truth", truth, "-o", folder / stem, "--no-plots", "-q")
    said = re.search(r": (\d+) events, .*; ([\d.]+) s", text)
    assert said is not None
    events, seconds = said.groups()
    return {"events": int(events), "events_per_second": int(events) / float(seconds)}


def lines(truth: Path, folder: Path) -> dict[str, dict[str, list[float | None]]]:
    """The figures of the table, for the model and for each other line of its evaluation."""
    stem = truth.stem.removesuffix("_test")
    metrics = json.loads((folder / stem / "metrics.json").read_text("utf-8"))
    trees = {"model": metrics, **{line: metrics[line] for line in (CLASSICAL, LIMIT) if line in metrics}}
    found = {line: figures(tree) for line, tree in trees.items()}
    for line, counts in separation(truth, folder / f"{stem}.root").items():
        found.setdefault(line, {}).update(counts)
    return found


def figures(tree: dict[str, Any]) -> dict[str, list[float | None]]:
    """Value, low and high of the figures of the table, of one line of a metrics.json."""
    keys = {
        "exact": ("count", "exact_fraction"),
        "separated": ("count", "one_vs_two_accuracy"),
        "energy_error": ("energy", "mean_abs_rel_error"),
        "response": ("energy", "response_median"),
        "angle_mean": ("angle", "mean_deg"),
        "angle_median": ("angle", "median_deg"),
        "angle_all": ("legacy", "angle_mean_deg"),
        "efficiency": ("class", "all", "efficiency"),
    }
    found = {}
    for name, (*path, key) in keys.items():
        at = tree
        for step in path:
            at = at[step]
        found[name] = [at[key], *at[f"{key}_interval"]]
    return found


def separation(truth: Path, reco: Path) -> dict[str, dict[str, list[float | None]]]:
    """One photon told from two, in all events and where pairs open by more than 30 mrad (`separation.ABOVE`).

    Of the model, of the classical line, and of always answering one.
    """
    counted: dict[str, CountMetrics] = {}
    for events, answer in zip(iterate_events(truth, step=500), iterate_reco(reco, step=500), strict=True):
        targets = ParticleTable.from_records(select_targets(events, rule="stable", e_min=0.1).particles)
        answers = {"model": answer.particles}
        if events.reference is not None:
            answers[CLASSICAL] = events.reference
        for line, particles in answers.items():
            counted.setdefault(line, CountMetrics()).update(targets, ParticleTable.from_records(particles))
    found: dict[str, dict[str, list[float | None]]] = {}
    for line, count in counted.items():
        found[line] = {name: plain(number) for name, number in told_apart(count).items()}
        found[ALWAYS_ONE] = {name: plain(number) for name, number in always_one(count).items()}
    return found


def plain(number: Number) -> list[float | None]:
    """A fraction as value, low and high; the value is null where nothing was tried."""
    return [None if math.isnan(number.value) else number.value, number.low, number.high]


def pflow(log: Path, *arguments: object) -> tuple[float, float, str]:
    """Run a verb, with its output in a file; return seconds, CPU seconds and that output."""
    start, used = time.perf_counter(), cpu_seconds()
    print(f"pflow {' '.join(map(str, arguments))}", flush=True)
    command = [sys.executable, "-m", "pflow", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(done.stdout)
    if done.returncode:
        sys.exit(f"pflow {arguments[0]} failed, see {log}:\n{done.stdout[-2000:]}")
    return time.perf_counter() - start, cpu_seconds() - used, done.stdout


def cpu_seconds() -> float:
    """CPU time of all finished child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def write_json(path: Path, content: Any) -> None:
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")


def collect(folder: Path, data: Path, budget: dict[str, Any]) -> dict[str, Any]:
    """The results in a folder that have this budget, with their figures."""
    paths = {name: folder / name / "result.json" for name in SETUPS}
    measured = {name: json.loads(path.read_text("utf-8")) for name, path in paths.items() if path.exists()}
    found = {name: result for name, result in measured.items() if result["budget"] == budget}
    for name, result in found.items():
        del result["budget"]
        for sample, part in result["samples"].items():
            part["lines"] = lines(data / f"{sample}_test.root", folder / name)
    return {"budget": budget, "setups": found}


def section(results: dict[str, Any]) -> str:
    """The text and tables of RESULTS.md."""
    budget, setups = results["budget"], results["setups"]
    some = next(iter(setups.values()))
    machine = some["machine"]
    named = {
        name: (f"`{name}`", {sample: part["lines"]["model"] for sample, part in result["samples"].items()})
        for name, result in setups.items()
    }
    for line, title in LINE_TITLES.items():
        found = {sample: part["lines"][line] for sample, part in some["samples"].items() if line in part["lines"]}
        if found:
            named[line] = (title, found)
    overrides = " ".join(budget["override"])
    missing = [f"`{name}`" for name in SETUPS if name not in setups]
    return TEXT.format(
        epochs=budget["epochs"],
        events=some["training_events"],
        seen=budget["epochs"] * some["training_events"],
        overrides=f"`{overrides}`" if overrides else "nothing changed in the configurations",
        option=f" --override {overrides}" if tuple(budget["override"]) != SMALL else "",
        tests=" and ".join(f"{part['events']} of `{sample}_test`" for sample, part in some["samples"].items()),
        machine=f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores, torch {machine['torch']}",
        results=table(["set-up", *(column[2] for column in COLUMNS)], (result_row(*line) for line in named.values())),
        cost=table(COST, (cost_row(name, result) for name, result in setups.items())),
        caution=CAUTION.format(
            what=SHORT if tuple(budget["override"]) == SMALL else f"{budget['epochs']} epochs",
            counting=", ".join(f"`{name}`" for name, result in setups.items() if counts(result)) or "none",
        ),
        missing=f"\nNo result: {', '.join(missing)}.\n" if missing else "",
    )


def counts(result: dict[str, Any]) -> bool:
    """Whether a set-up tells one photon from two better than always answering one."""
    found = result["samples"]["gammasep"]["lines"]
    return bool(found["model"]["separated"][1] > found[ALWAYS_ONE]["separated"][2])


def result_row(title: str, samples: dict[str, dict[str, list[float | None]]]) -> list[str]:
    """A line of the evaluation as cells."""
    return [title, *(cell(samples.get(sample, {}).get(key), factor) for sample, key, _, factor in COLUMNS)]


def cost_row(name: str, result: dict[str, Any]) -> list[str]:
    """What a set-up costs, as cells."""
    speeds = (f"{part['events_per_second']:.0f}" for part in result["samples"].values())
    minutes = (f"{result[key] / 60:.1f}" for key in ("seconds", "cpu_seconds"))
    return [f"`{name}`", f"{result['parameters']:,}", str(result["best_epoch"]), *minutes, *speeds]


def cell(figure: list[float | None] | None, factor: float) -> str:
    """A figure with half its interval, in the unit of its column."""
    if figure is None or figure[0] is None:
        return "-"
    return number_text(Number(*(float("nan") if value is None else value for value in figure)) * factor)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    separator = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, separator, *rows])


if __name__ == "__main__":
    main()
