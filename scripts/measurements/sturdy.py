"""What dead cells, noise, a wrong scale and lost or false tracks do to a model's figures: sturdy.json.

The same test events are reconstructed as they are and with one disturbance at a time (`pflow.event.disturb`), the same
for all models of a detector. Targets are those of the disturbed events.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from measurements.files import RESULTS, intervals, read_json, rounded, write_json
from measurements.flagship import about
from measurements.markdown import table
from measurements.quantities import VISIBLE
from pflow.checkpoint.load import Model, load_model
from pflow.event.disturb import Disturbance, disturb
from pflow.inference.events import reconstruct
from pflow.io.open import iterate_events
from pflow.metrics.evaluation import Evaluation, Settings
from pflow.metrics.report import document, number_text
from pflow.metrics.stats import Number

DISTURBANCES = {
    "none": Disturbance(),
    "1% of the cells dead": Disturbance(dead_cells=0.01),
    "scale of each subdetector off by 2%": Disturbance(energy_scale=0.02),
    "10 hits of noise an event": Disturbance(noise_hits=10.0),
    "2% of the tracks lost": Disturbance(lost_tracks=0.02),
    "2% false tracks": Disturbance(fake_tracks=0.02),
}
QUANTITIES = {
    "energy-weighted efficiency [%]": "energy_weighted_efficiency",
    "fake energy fraction [%]": "fake_energy_fraction",
    "class right [%]": "pdg.class_accuracy",
    "visible energy, resolution_68 / median [%]": VISIBLE,
    "visible energy, median [%]": "event.visible_energy.response_median",
}
CHUNK_SIZE = 100
SEED = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="name of the model in the table, e.g. 'cld-general'")
    parser.add_argument("--checkpoint", "--model", required=True, help="what `pflow.load_model` takes")
    parser.add_argument("--file", type=Path, required=True, help="test file")
    parser.add_argument("--events", "--n-events", type=_number, metavar="N", help="the first N of it (default: all)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of events, found '{text}'; --file takes the file")
    return int(text)


def run(args: argparse.Namespace) -> None:
    """Measure one model on one file, and add it to `args.results`/sturdy.json."""
    model = load_model(args.checkpoint)
    path = args.results / "sturdy.json"
    rows = read_json(path) if path.is_file() else {}
    numbers = {name: _measure(args.file, model, how, args.events) for name, how in DISTURBANCES.items()}
    sample = f"{args.file.parent.name}/{args.file.name}"
    rows[args.name] = {"model": about(model), "sample": sample, "numbers": rounded(numbers)}
    write_json(path, rows)
    print(sturdy_table(rows))


def _measure(path: Path, model: Model, how: Disturbance, n_events: int | None) -> dict[str, Any]:
    generator = np.random.default_rng(SEED)
    evaluation = Evaluation(name="pflow", settings=Settings(rule="stable"))
    for events in iterate_events(path, chunk_size=CHUNK_SIZE):
        events = disturb(events[: None if n_events is None else n_events - evaluation.n_events], how, generator)
        evaluation.update(events, {"pflow": reconstruct(events, model)})
        if evaluation.n_events == n_events:
            break
    tree = document(evaluation.result())
    print(f"{how}: {evaluation.n_events} events", flush=True)
    return {"n_events": evaluation.n_events, **intervals(tree, QUANTITIES, 100.0)}


def sturdy_table(rows: Mapping[str, Any]) -> str:
    """A row a model and disturbance."""
    lines = []
    for name, row in rows.items():
        for how, numbers in row["numbers"].items():
            texts = (number_text(Number(*numbers[title])) for title in QUANTITIES)
            lines.append([name, f"`{row['sample']}`", how, str(numbers["n_events"]), *texts])
    return table(["model", "file", "disturbance", "events", *QUANTITIES], lines, left=(0, 1, 2))
