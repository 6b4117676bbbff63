"""The tables of RESULTS.md, each from one JSON file of scripts/results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measurements.both_detectors import both_detectors_table
from measurements.engine_tables import (
    engines_table,
    latency_by_hits_table,
    latency_by_particles_table,
    latency_table,
)
from measurements.evaluation import ALWAYS_ONE, CLASSICAL, ORACLE, ORACLE_NO_TRACKS
from measurements.files import number, read_json
from measurements.gpu_tables import gpu_memory_table, gpu_precision_table, gpu_waits_table
from measurements.io_tables import io_gpu_table, io_table
from measurements.markdown import table
from measurements.quantities import QUANTITIES, VISIBLE, Quantity, judge
from measurements.robustness import attack_table, disk_table, interrupt_table
from measurements.sameness import sameness_table
from measurements.setups import ABLATION, COLUMNS, EXPERIMENTS, Column, Experiment
from pflow.metrics.pulls import QUANTITIES as PULLS
from pflow.metrics.report import number_text
from pflow.metrics.stats import Number
from pflow.physics.pdg import CLASSES

Results = dict[str, Any]
CLASS_TITLES = {name: name.replace("_", " ") for name in CLASSES}
ORACLE_COLUMNS = (
    "count.exact_fraction",
    "count.one_vs_two_accuracy",
    "class.all.efficiency",
    "energy.mean_abs_rel_error",
    "energy.resolution_68",
    "angle.mean_deg",
    "angle.median_deg",
    "event.visible_energy.response_median",
    VISIBLE,
)
QUANTITY_COLUMNS = ("sample", "quantity", "paper", "Pandora", "oracle", "model", "pflow", "target", "met")
SHORT = {
    ("gamma1", "energy.mean_abs_rel_error"),
    ("gamma1", "angle.median_deg"),
    ("gammasep", "extra.separation.separated"),
    ("single", "extra.class_right.above_2_gev.of_matched"),
    ("zqq", "fake_energy_fraction"),
    ("zqq", VISIBLE),
    ("zqq", "jets.durham_2.iqr_over_median"),
}
"""Sample and key of what the README shows."""
REFERENCES = {ALWAYS_ONE: "always one photon", CLASSICAL: "PandoraPFA", ORACLE: "oracle (perfect particle flow)"}
"""Algorithms that need no training, beside the set-ups."""


def report_tables(results: Path) -> dict[str, str]:
    """All tables by the name of their place in RESULTS.md.

    Parameters
    ----------
    results
        Folder of the JSON files; tables without their file are left out.
    """
    flagship = {
        "models": model_table,
        "flagship": quantity_table,
        "generator": generator_table,
        "pulls": pull_table,
        "losses": loss_table,
        "confusions": confusion_table,
        "worst": worst_table,
        "oracle": oracle_table,
    }
    makers: dict[str, dict[str, Callable[[Results], str]]] = {
        "flagship": flagship,
        "speed": {"speed": speed_table},
        "large_events": {"large_events": large_events_table},
        "both_detectors": {"both_detectors": both_detectors_table},
        "sameness": {"sameness": sameness_table},
        "attack": {"attack": attack_table},
        "interrupt": {"interrupt": interrupt_table},
        "full_disk": {"full_disk": disk_table},
        "engines": {"engines": engines_table},
        "latency": {"latency": latency_table, "latency_by_particles": latency_by_particles_table},
        "latency_by_hits": {"latency_by_hits": latency_by_hits_table},
        "io": {"io": io_table, "io_gpu": io_gpu_table},
        "io_mixture": {"io_mixture": io_gpu_table},
        "gpu": {
            "gpu_waits": gpu_waits_table,
            "gpu_precision": gpu_precision_table,
            "gpu_memory": gpu_memory_table,
        },
    }
    for name, experiment in EXPERIMENTS.items():
        makers[name] = {name: experiment_table(experiment), f"{name}_cost": cost_table(experiment)}
    found = {}
    for file, tables in makers.items():
        if (results / f"{file}.json").is_file():
            content = read_json(results / f"{file}.json")
            found.update({name: make(content) for name, make in tables.items()})
    if (results / "refinement.json").is_file():
        found["refinement"] = refinement_table(
            read_json(results / "refinement.json"), read_json(results / "flagship.json")
        )
    return found


def model_table(results: Results) -> str:
    rows = (
        [
            role,
            f"`{model['source']}`",
            f"{model['parameters']:,}",
            "yes" if model["reads_tracks"] else "no",
            f"`{model['sha256'][:12]}`",
        ]
        for role, model in results["models"].items()
    )
    return table(["model", "name", "parameters", "reads tracks", "SHA-256"], rows, left=(0, 1, 3, 4))


def quantity_table(
    results: Results, columns: tuple[str, ...] = QUANTITY_COLUMNS, quantities: Sequence[Quantity] = QUANTITIES
) -> str:
    """Quantities for every model that reconstructed their sample, beside Pandora and the oracle."""
    rows = []
    for quantity in quantities:
        sample = results["samples"].get(quantity.sample, {"models": ()})
        for role in sample["models"]:
            oracle = ORACLE if results["models"][role]["reads_tracks"] else ORACLE_NO_TRACKS
            ours, pandora, best = (
                number(sample["algorithms"].get(name), quantity.key) * quantity.factor
                for name in (role, CLASSICAL, oracle)
            )
            cells = {
                "sample": quantity.sample,
                "quantity": quantity.title,
                "paper": quantity.paper,
                "Pandora": number_text(pandora),
                "oracle": number_text(best),
                "model": role,
                "pflow": number_text(ours),
                "target": quantity.target,
                "met": judge(quantity, ours, pandora),
            }
            rows.append([cells[column] for column in columns])
    left = tuple(k for k, column in enumerate(columns) if column in ("sample", "quantity", "model", "target", "met"))
    return table(list(columns), rows, left=left)


def short_table(results: Results) -> str:
    """The table of the README: the most telling quantity of each sample."""
    samples = {name: {**sample, "models": sample["models"][:1]} for name, sample in results["samples"].items()}
    chosen = [quantity for quantity in QUANTITIES if (quantity.sample, quantity.key) in SHORT]
    columns = ("sample", "quantity", "model", "pflow", "Pandora", "oracle")
    return quantity_table({**results, "samples": samples}, columns, chosen)


def generator_table(results: Results) -> str:
    keys = ("energy_weighted_efficiency", "fake_energy_fraction", "class_accuracy")
    rows = [
        [name, title, *(number_text(number(tree, f"extra.generator.{key}") * 100) for key in keys)]
        for name, title, tree in _algorithms(results)
        if name in ("single", "multi", "zqq")
    ]
    head = ["sample", "algorithm", "energy-weighted efficiency [%]", "fake energy fraction [%]", "class right [%]"]
    return table(head, rows, left=(0, 1))


def pull_table(results: Results) -> str:
    rows = []
    for name, title, tree in _algorithms(results):
        pulls = tree["extra"].get("pulls", {})
        for key, found in ((key, pulls[key]) for key in CLASSES if key in pulls):
            numbers = [number_text(number(found, f"{q}.{what}")) for q in PULLS for what in ("mean", "width")]
            rows.append([name, title, CLASS_TITLES[key], str(found["log_energy"]["n"]), *numbers])
    head = ["sample", "algorithm", "class", "particles"]
    head += [f"{title}, {what}" for title in ("ln E", "polar angle", "azimuth") for what in ("mean", "width")]
    return table(head, rows, left=(0, 1, 2))


def loss_table(results: Results) -> str:
    rows = []
    for name, title, tree in _algorithms(results):
        for what in ("missed", "fake"):
            shares = (tree["extra"]["losses"][what][key] for key in CLASSES)
            rows.append([name, title, what, *("-" if x is None else f"{x:.2%}" for x in shares)])
    return table(["sample", "algorithm", "energy", *CLASS_TITLES.values()], rows, left=(0, 1, 2))


def confusion_table(results: Results) -> str:
    """For each sample, the most frequent wrong class of the model made for it."""
    rows = []
    for name, sample in results["samples"].items():
        role = sample["models"][0]
        confusion = sample["algorithms"][role]["confusion"]
        wrong: Counter[tuple[str, str, int]] = Counter()
        for true, counts in zip(CLASSES, confusion["counts"][: len(CLASSES)], strict=True):
            for found, n in zip(confusion["reco_classes"], counts, strict=True):
                if found != true and n:
                    wrong[CLASS_TITLES[true], found.replace("_", " "), sum(counts)] = n
        rows += [[name, role, true, found, str(n), str(of)] for (true, found, of), n in wrong.most_common(1)]
    head = ["sample", "model", "true class", "found as", "targets", "of"]
    return table(head, rows, left=(0, 1, 2, 3))


def worst_table(results: Results) -> str:
    rows = []
    for name, sample in results["samples"].items():
        for role in sample["models"]:
            for event in sample["algorithms"][role]["extra"]["losses"]["worst"]:
                counts = (str(event[key]) for key in ("entry", "n_true", "n_reco"))
                energies = (f"{event[key]:.1f}" for key in ("true_energy", "missed_energy", "fake_energy"))
                rows.append([name, role, *counts, *energies, f"{event['share']:.1%}"])
    head = ["sample", "model", "entry", "targets", "found", "energy [GeV]", "missed [GeV]", "fake [GeV]", "share"]
    return table(head, rows, left=(0, 1))


def oracle_table(results: Results) -> str:
    rows = [
        [name, algorithm, *(number_text(number(sample["algorithms"][key], column)) for column in ORACLE_COLUMNS)]
        for name, sample in results["samples"].items()
        for algorithm, key in (("oracle", ORACLE), ("Pandora", CLASSICAL))
    ]
    return table(["sample", "algorithm", *ORACLE_COLUMNS], rows, left=(0, 1))


def refinement_table(decoded: Results, flagship: Results) -> str:
    """The shipped models without refinement and with it (as in the main table)."""
    rows = []
    for quantity in QUANTITIES:
        for role, tree in decoded.get(quantity.sample, {}).items():
            refined = flagship["samples"][quantity.sample]["algorithms"][role]
            numbers = (number_text(number(found, quantity.key) * quantity.factor) for found in (tree, refined))
            rows.append([quantity.sample, quantity.title, role, *numbers])
    return table(["sample", "quantity", "model", "decoding alone", "with refinement"], rows, left=(0, 1, 2))


def experiment_table(experiment: Experiment) -> Callable[[Results], str]:
    """The maker of a table of set-ups and of the algorithms that need no training."""
    columns = tuple(c for c in COLUMNS if experiment is not ABLATION or c.key != "angle_all")

    def make(results: Results) -> str:
        measured = results["rows"]
        parts = next(iter(measured.values()))["samples"]
        rows = [
            _row(experiment.setups[name].title, result["samples"], "model", columns)
            for name, result in measured.items()
        ]
        rows += [_row(title, parts, name, columns) for name, title in REFERENCES.items()]
        return table(["set-up", *(column.title for column in columns)], rows)

    return make


def _row(title: str, samples: Mapping[str, Any], algorithm: str, columns: tuple[Column, ...]) -> list[str]:
    cells = [title]
    for at in columns:
        figure = samples[at.sample]["algorithms"].get(algorithm, {}).get(at.key)
        missing = figure is None or figure[0] is None
        cells.append("-" if missing else number_text(Number(*figure) * at.factor))
    return cells


def cost_table(experiment: Experiment) -> Callable[[Results], str]:
    def make(results: Results) -> str:
        rows = [
            [
                experiment.setups[name].title,
                f"{result['parameters']:,}",
                *(f"{result[key] / 60:.1f}" for key in ("seconds", "cpu_seconds")),
                *(f"{part['events_per_second']:.0f}" for part in result["samples"].values()),
            ]
            for name, result in results["rows"].items()
        ]
        head = ["set-up", "parameters", "training [min]", "its CPU time [min]"]
        return table([*head, "one photon: events/s", "one or two: events/s"], rows)

    return make


def speed_table(results: Results) -> str:
    stages = list(results["rows"][0]["ms"])
    rows = []
    for row in results["rows"]:
        total = sum(row["ms"].values())
        sizes = [str(row["batch_size"]), f"{row['hits']:.0f}", f"{row['tokens']:.0f}", f"{row['particles']:.1f}"]
        times = [f"{row['ms'][stage]:.1f} ({row['ms'][stage] / total:.0%})" for stage in stages]
        rows.append([f"`{row['file']}`", *sizes, *times, f"{total:.1f}"])
    for file, ms in results["processes_ms"].items():
        rows.append([f"`{file}`, {results['threads']} processes", *["-"] * (len(stages) + 4), f"{ms:.1f}"])
    return table(["file", "batch size", "hits", "tokens", "particles", *stages, "all"], rows)


def large_events_table(results: Results) -> str:
    rows = []
    for row in results["rows"]:
        sizes = [str(row["hits"]), str(row["tokens"]), str(row["particles"])]
        times = [f"{row['s'][stage]:.2f}" for stage in ("encoder", "decoder", "whole")]
        memory = [f"{row['added_mb']['encoder']:.0f}", f"{row['peak_mb']:.0f}"]
        rows.append([f"`{row['file']}`", row["cells"], *sizes, *times, *memory])
    sizes = ["hits", "tokens", "particles"]
    head = ["file", "tokens of", *sizes, "encoder", "decoder", "whole", "encoder adds", "process"]
    return table(head, rows, left=(0, 1))


def _algorithms(results: Results) -> Iterator[tuple[str, str, Results]]:
    """Name of the sample, title of the algorithm and its numbers: Pandora and the models."""
    for name, sample in results["samples"].items():
        for algorithm in (CLASSICAL, *sample["models"]):
            if algorithm in sample["algorithms"]:
                title = "Pandora" if algorithm == CLASSICAL else algorithm
                yield name, title, sample["algorithms"][algorithm]
