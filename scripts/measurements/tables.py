"""Tables of RESULTS.md, the README and the cards, from results.csv."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measurements.paper import paper_tables
from measurements.rows import REPORT, ROOT, Row, fill, read_rows, table
from measurements.shipped import (
    BUDGET,
    BY_CLASS,
    CLASSES,
    DURHAM,
    EFFICIENCY,
    FAKES,
    GENERAL,
    OF_CLASS,
    PHOTON,
    QUANTITIES,
    RESOLUTION,
    TRANSLATION,
    UDS,
)
from pflow.checkpoint import Header, read_header
from pflow.config import weights_dir

JETS = "translation of jets"
"""Name in results.csv of a model that does not come with pflow."""
FINE_TUNED = {30: "general, 30 events of tiles", 100: "general, 100 events of tiles"}
"""The same of models fine-tuned for a detector, by their events."""
PHOTON_SAMPLES = ("gamma1", "gammasep")
ILD_SAMPLES = ("single", "multi", "zqq", "zh", *UDS, "tau10")
CLD_SAMPLES = ("gammasep", "single", "multi", "zqq", "zh", *UDS)
MAIN = (EFFICIENCY, FAKES, "class right, of matched [%]", RESOLUTION)
"""Quantities in the tables of disturbed events."""
LEFT_OUT = (
    "jets (kt R = 0.4): IQR / median [%]",
    "jets (kt R = 0.7): IQR / median [%]",
    "photons: efficiency by number, cost <= 0.5 [%]",
    "electrons: class right, of matched [%]",
    *BY_CLASS,
    *BUDGET,
)
"""Quantities that the tables by sample leave out."""
OF_MANY_EVENTS = (EFFICIENCY, "efficiency by energy, cost <= 3 [%]", FAKES)
"""Quantities whose errors are too large for a table of four events."""
CARD = ("energy, resolution_68 / median [%]", "exactly the right number of photons [%]", *MAIN, DURHAM)
"""Quantities on the cards."""
VARIED = {
    "efficiency [%]": EFFICIENCY,
    "fakes [%]": FAKES,
    "class right [%]": MAIN[2],
    "sum of energies [%]": RESOLUTION,
}
"""Short names of quantities in the tables of disturbed and of moved events."""
SPEED = ("mean [ms]", "p50 [ms]", "p99 [ms]", "loading [ms]", "memory [MB]")
SHORT = (
    ("g4/gamma1", "energy, resolution_68 / median [%]"),
    ("g4/gammasep", "exactly the right number of photons [%]"),
    ("g4/tau10", EFFICIENCY),
    ("g4/zqq", EFFICIENCY),
    ("g4/zqq", FAKES),
    ("g4/zqq", RESOLUTION),
    ("g4/zqq", DURHAM),
    ("g4/zh", RESOLUTION),
    ("cld_g4/zqq", RESOLUTION),
    ("cld_g4/zh", DURHAM),
)
"""Samples and quantities of the README, with one in which Pandora is better."""
DETECTORS = {"g4": "ILD", "cld_g4": "CLD"}
"""By the folder of their samples."""
NAMES = {
    "gamma1": "one photon",
    "gammasep": "one or two photons",
    "tau10": "ten taus",
    "zqq": "Z -> qq, 91 GeV",
    "zh": "ZH, 240 GeV",
}

Rows = Mapping[tuple[str, str, str], Row]
"""Rows by their keys: model, sample and quantity."""


def write_tables() -> None:
    """Fill all tables."""
    every = read_rows()
    rows = {row.key: row for row in every}
    fill(REPORT, report_tables(rows))
    fill(ROOT / "README.md", {"results": short_table(rows)})
    photons = [f"g4/{name}" for name in PHOTON_SAMPLES]
    rest = [*(f"g4/{name}" for name in ILD_SAMPLES), *(f"cld_g4/{name}" for name in CLD_SAMPLES)]
    for model, samples in {PHOTON: photons, TRANSLATION: photons, GENERAL: photons + rest}.items():
        folder = weights_dir() / model
        training = training_table(read_header(model), folder / "training.json")
        fill(folder / "README.md", {"training": training, "results": card_table(rows, model, samples)})


def report_tables(rows: Rows) -> dict[str, str]:
    """The tables of RESULTS.md by the name of their place."""
    quoted = {f"`{name}`": name for name in (PHOTON, GENERAL, TRANSLATION)}
    general, full = {"pflow": GENERAL}, ("cld_rec", "cld_jettags", "cld_zuds100_sim")
    jets = {JETS: JETS, f"`{GENERAL}`": GENERAL}
    measured = {model for model, *_ in rows}
    tuned = general | {f"fine-tuned, {n} events": name for n, name in FINE_TUNED.items() if name in measured}
    return {
        "photons": samples_table(rows, quoted, "g4", PHOTON_SAMPLES),
        "budget": budget_table(rows),
        "ild": samples_table(rows, general, "g4", ILD_SAMPLES),
        "cld": samples_table(rows, general, "cld_g4", CLD_SAMPLES),
        "classes": class_table(rows),
        "zero_shot": samples_table(rows, tuned, "edm4hep", ("tiles_zqq",)),
        "full": samples_table(rows, general, "edm4hep", full, left_out=OF_MANY_EVENTS),
        "robustness": variations_table(rows, "disturbed"),
        "moved": variations_table(rows, "moved"),
        "speed": speed_table(rows.values()),
        **paper_tables(rows.values()),
        "jets": samples_table(rows, jets, "g4", ("multi", "zqq")),
    }


def samples_table(
    rows: Rows, models: Mapping[str, str], folder: str, samples: Sequence[str], left_out: Sequence[str] = LEFT_OUT
) -> str:
    """Samples of a folder, a column for each model, by its head; the oracle reads what the first model does."""
    first, lines = next(iter(models.values())), []
    for name in samples:
        for quantity in QUANTITIES[name]:
            if (key := (first, f"{folder}/{name}", quantity)) in rows and quantity not in left_out:
                texts = [cell(rows, model, *key[1:]) for model in models.values()]
                lines.append([name, quantity, *texts, *rows[key].others, rows[key].difference_text])
    head = ["sample", "quantity", *models, "Pandora", "oracle", f"{next(iter(models))} - Pandora"]
    return table(head, lines, left=2)


def cell(rows: Rows, model: str, sample: str, quantity: str) -> str:
    """The text of a row, or "-" if it was not measured."""
    row = rows.get((model, sample, quantity))
    return "-" if row is None else row.text


def budget_table(rows: Rows) -> str:
    """Contributions to the resolution of the sum of energies, for the model, Pandora and the oracle."""
    places = itertools.product(DETECTORS.items(), ("zqq", "zh"), BUDGET)
    lines = [
        [f"{detector}, {sample}", quantity, row.text, *row.others, row.difference_text]
        for (folder, detector), sample, quantity in places
        if (row := rows.get((GENERAL, f"{folder}/{sample}", quantity)))
    ]
    return table(["sample", "part", "pflow", "Pandora", "oracle", "pflow - Pandora"], lines, left=2)


def class_table(rows: Rows) -> str:
    """Each class of particles in full events: response, width and fakes, with Pandora's beside."""
    lines = []
    for folder, detector in DETECTORS.items():
        for sample in ("zqq", "zh"):
            for name in CLASSES:
                of_class = [rows.get((GENERAL, f"{folder}/{sample}", f"{name}: {quantity}")) for quantity in OF_CLASS]
                cells = [text for row in of_class for text in ((row.text, row.others[0]) if row else "--")]
                lines.append([f"{detector}, {sample}", name, *cells])
    head = [cell for name in ("response [%]", "width [%]", "fakes [%]") for cell in (name, "Pandora")]
    return table(["sample", "class", *head], lines, left=2)


def card_table(rows: Rows, model: str, samples: Sequence[str]) -> str:
    """The quantities of `CARD` of one model, a line a sample, with Pandora in brackets."""
    quantities = [name for name in CARD if any((model, sample, name) in rows for sample in samples)]
    lines = []
    for sample in samples:
        of_sample = [rows.get((model, sample, name)) for name in quantities]
        folder, _, name = sample.partition("/")
        cells = (f"{row.text} ({row.others[0]})" if row else "-" for row in of_sample)
        lines.append([f"{DETECTORS[folder]}, {name}", *cells])
    return table(["pflow (Pandora)", *quantities], lines)


def short_table(rows: Rows) -> str:
    """The table of the README: telling quantities, of the best model for each sample."""
    lines = []
    for key in SHORT:
        if row := rows.get((PHOTON, *key)) or rows.get((GENERAL, *key)):
            folder, _, name = row.sample.partition("/")
            texts = (row.text, *row.others, row.difference_text)
            lines.append([f"{DETECTORS[folder]}, {NAMES[name]}", row.quantity, *texts])
    return table(["sample", "quantity", "pflow", "Pandora", "oracle", "pflow - Pandora"], lines, left=2)


def variations_table(rows: Rows, kind: str) -> str:
    """Events of both detectors, `kind` disturbed or moved, a line for each variation."""
    names = dict.fromkeys(sample.partition(", ")[2] for _, sample, _ in rows if f"zqq {kind}, " in sample)
    columns = [(folder, quantity) for folder in DETECTORS for quantity in VARIED.values()]
    lines = (
        [name, *(cell(rows, GENERAL, f"{folder}/zqq {kind}, {name}", quantity) for folder, quantity in columns)]
        for name in names
    )
    return table(["events", *(f"{detector}: {name}" for detector in DETECTORS.values() for name in VARIED)], lines)


def speed_table(rows: Iterable[Row]) -> str:
    """CPU time of a `zqq` event by engine, ms."""
    times = {row.quantity: row.value for row in rows if row.sample == "g4/zqq, one event at a time"}
    lines = []
    for engine in ("torch", "C++"):
        values = [times.get(f"{engine}, {quantity}") for quantity in SPEED]
        cells = ("-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in values)
        lines.append([engine, *cells])
    return table(["engine", *SPEED], lines)


def training_table(header: Header, summary: Path) -> str:
    """How weights were made, with the time of each stage from the `summary` ``training.json``, if there is one."""
    made, config = header.provenance, header.tokeniser.config
    merge = config.merge
    cells = "as read"
    if merge is not None:
        deep = f"{merge.depth:g} X0 or {merge.depth / 10:g} lambda deep" if merge.depth else f"{merge.layers} layers"
        sizes = f", in training {min(merge.ecal_sizes):g} to {max(merge.ecal_sizes):g}" if merge.ecal_sizes else ""
        cells = f"{merge.ecal_mm:g} mm{sizes} (ECAL), {merge.hcal_mm:g} mm (HCAL), {deep}"
    files, sample = dict.fromkeys(made["train"]), header.tokeniser.sample
    detectors = (sample and sample.detectors) or (header.tokeniser.detector.name,)
    lines = {
        "training files": f"{', '.join(f'`{name}`' for name in files)}: {made['n_events']:,} events",
        "detectors": ", ".join(f"`{name}`" for name in detectors),
        "targets": f"rule `{config.rule}`, from {config.e_min:g} GeV, order `{config.order}`",
        "cells": cells,
        "network": f"`{header.model['class_path'].rpartition('.')[2]}`, width "
        f"{header.model['init_args']['network']['width']}; all options: `model.json`",
        "last stage": f"{made['step']:,} steps of at most {made['batch_size']} events, "
        f"{made.get('optimiser', 'adamw')}, learning rate "
        f"{made['lr']:g}, {'constant' if made.get('final_lr') == 1.0 else 'schedule `cosine`'}, seed {made['seed']}",
        "started from": ", ".join(f"`{digest[:12]}`" for digest in _ancestors(made)) or "random weights",
    }
    if summary.is_file():
        stages = json.loads(summary.read_text("utf-8"))
        lines["stages, the last first"] = f"{'; '.join(_stages(stages))}; on a machine with {stages['device']}"
    return table(["training", ""], lines.items(), left=2)


def _ancestors(made: dict[str, Any]) -> list[str]:
    """Digests of the weights that a training started from, and those from theirs."""
    before = made.get("began_with")
    return [before["sha256"], *_ancestors(before)] if before else []


def _stages(summary: dict[str, Any]) -> list[str]:
    text = f"{summary['steps']:,} steps in {summary['wall_s'] / 60:.0f} minutes"
    return [text, *(_stages(summary["before"]) if "before" in summary else [])]
