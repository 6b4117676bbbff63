"""Trained set-ups side by side: each is trained and tried by the same commands, and its figures are put in tables.

What `compare_setups.py` and `ablation.py` share. A set-up is one `pflow fit` on gamma1_train and gammasep_train
together, one `pflow reconstruct` and one `pflow evaluate` for each test file; logs and files are in one folder, with
all that was measured in its result.json.
"""

from __future__ import annotations

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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sections import replace_section
from separation import always_one, told_apart

from pflow.checkpoint.format import read_checkpoint
from pflow.checkpoint.load import load_model
from pflow.event.truth import select_targets
from pflow.io.atomic import replacing
from pflow.io.open import iterate_events
from pflow.io.particles_root import iterate_reco
from pflow.metrics.counting import CountMetrics
from pflow.metrics.evaluation import CLASSICAL, LIMIT
from pflow.metrics.number import Number
from pflow.metrics.report import number_text
from pflow.metrics.table import ParticleTable

__all__ = [
    "ALWAYS_ONE",
    "COLUMNS",
    "LINE_TITLES",
    "ROOT",
    "SAMPLES",
    "Column",
    "Figure",
    "cell",
    "collect",
    "machine_text",
    "measure",
    "model_figures",
    "reference_lines",
    "result_row",
    "table",
    "tests_text",
    "write_json",
    "write_section",
]

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ("gamma1", "gammasep")
ALWAYS_ONE = "always_one"
LINE_TITLES = {ALWAYS_ONE: "always one photon", CLASSICAL: "PandoraPFA", LIMIT: "limit (perfect pattern recognition)"}
"""Lines to compare with, which need no training."""

Figure = list[float | None]
"""Value, low and high end of the interval; null where nothing was tried."""


class Column(NamedTuple):
    """A figure of a table: of which sample, its name in `figures`, and how it is shown."""

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
    Column("gammasep", "separated", "one or two photons: told right [%]", 100.0),
    Column("gammasep", "separated_above", "above 30 mrad [%]", 100.0),
)
"""Columns of the results."""


def measure(
    name: str, folder: Path, budget: Mapping[str, Any], *, options: Sequence[str], data: Path, force: bool
) -> None:
    """Train, reconstruct and evaluate one set-up; leaves `folder`/result.json.

    Parameters
    ----------
    name
        What is printed of it.
    folder
        Where all goes.
    budget
        Plain data that decides, with `data`, what comes out: a set-up that was measured with the same is not trained
        again, and one that was interrupted in its training starts anew.
    options
        Of `pflow fit`, but for files and output.
    data
        Folder with the files of `SAMPLES`.
    force
        Train again what is already measured.
    """
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
        write_json(fitted, {"budget": budget, **fit(options, data, folder)})
    (checkpoint,) = (folder / "run").rglob("best.ckpt")
    provenance = read_checkpoint(checkpoint).header["provenance"]
    write_json(
        result,
        {
            **json.loads(fitted.read_text("utf-8")),
            "parameters": sum(parameter.numel() for parameter in load_model(checkpoint).network.parameters()),
            "best_epoch": provenance["epoch"] + 1,
            "training_events": provenance["n_events"],
            "events_an_epoch": events_an_epoch(provenance),
            "samples": {sample: test(data / f"{sample}_test.root", checkpoint, folder) for sample in SAMPLES},
        },
    )


def events_an_epoch(provenance: Mapping[str, Any]) -> int:
    """Events that an epoch saw, at most: all, or fewer where the number of its batches was limited."""
    steps = provenance["step"] // (provenance["epoch"] + 1)
    return min(int(provenance["n_events"]), int(steps * provenance["batch_size"]))


def fit(options: Sequence[str], data: Path, folder: Path) -> dict[str, Any]:
    """Train one set-up; return what it took."""
    files = {split: [str(data / f"{sample}_{split}.root") for sample in SAMPLES] for split in ("train", "val")}
    seconds, cpu, _ = pflow(
        folder / "fit.log",
        "fit",
        *options,
        *(f"--data.{split}={json.dumps(paths)}" for split, paths in files.items()),
        "--trainer.enable_progress_bar=false",
        f"--output={folder / 'run'}",
    )
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "revision": revision(),
        "machine": {
            "processor": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }


def revision() -> str:
    """The commit of this checkout, with ``-dirty`` if files differ from it; ``unknown`` outside of a repository."""
    if shutil.which("git") is None:
        return "unknown"
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() or "unknown"


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


def lines(truth: Path, folder: Path) -> dict[str, dict[str, Figure]]:
    """The figures of the table, for the model and for each other line of its evaluation."""
    stem = truth.stem.removesuffix("_test")
    metrics = json.loads((folder / stem / "metrics.json").read_text("utf-8"))
    trees = {"model": metrics, **{line: metrics[line] for line in (CLASSICAL, LIMIT) if line in metrics}}
    found = {line: figures(tree) for line, tree in trees.items()}
    for line, counts in separation(truth, folder / f"{stem}.root").items():
        found.setdefault(line, {}).update(counts)
    return found


def figures(tree: dict[str, Any]) -> dict[str, Figure]:
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


def separation(truth: Path, reco: Path) -> dict[str, dict[str, Figure]]:
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
    found: dict[str, dict[str, Figure]] = {}
    for line, count in counted.items():
        found[line] = {name: plain(number) for name, number in told_apart(count).items()}
        found[ALWAYS_ONE] = {name: plain(number) for name, number in always_one(count).items()}
    return found


def plain(number: Number) -> Figure:
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


def collect(folders: Mapping[str, Path], budgets: Mapping[str, Mapping[str, Any]], data: Path) -> dict[str, Any]:
    """The results of the set-ups that were measured with these budgets, by name, with their figures."""
    found = {}
    for name, folder in folders.items():
        path = folder / "result.json"
        result: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if result.pop("budget", None) == budgets[name]:
            for sample, part in result["samples"].items():
                part["lines"] = lines(data / f"{sample}_test.root", folder)
            found[name] = result
    return found


def model_figures(result: Mapping[str, Any]) -> dict[str, dict[str, Figure]]:
    """Of one of the results that `collect` returns, the figures of its model by sample."""
    return {sample: part["lines"]["model"] for sample, part in result["samples"].items()}


def reference_lines(result: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Figure]]]:
    """The same of the lines that need no training, by name."""
    parts = result["samples"]
    found = {
        line: {sample: part["lines"][line] for sample, part in parts.items() if line in part["lines"]}
        for line in LINE_TITLES
    }
    return {line: samples for line, samples in found.items() if samples}


def tests_text(result: Mapping[str, Any]) -> str:
    """How many events of which files a result is of."""
    return " and ".join(f"{part['events']} of `{sample}_test`" for sample, part in result["samples"].items())


def machine_text(result: Mapping[str, Any]) -> str:
    """On what a result was measured."""
    machine = result["machine"]
    return f"{machine['processor']}, {machine['threads']} of {machine['cores']} cores, torch {machine['torch']}"


def write_section(report: Path, name: str, body: str) -> None:
    """Replace a section of RESULTS.md."""
    document = report.read_text("utf-8") if report.exists() else "# Results\n"
    with replacing(report) as partial:
        partial.write_text(replace_section(document, name, body), "utf-8")
    print(f"wrote {report}")


def result_row(
    title: str, samples: Mapping[str, Mapping[str, Figure]], columns: Sequence[Column] = COLUMNS
) -> list[str]:
    """A line of the evaluation as cells."""
    return [title, *(cell(samples.get(at.sample, {}).get(at.key), at.factor) for at in columns)]


def cell(figure: Figure | None, factor: float) -> str:
    """A figure with half its interval, in the unit of its column."""
    if figure is None or figure[0] is None:
        return "-"
    return number_text(Number(*(float("nan") if value is None else value for value in figure)) * factor)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    separator = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, separator, *rows])
