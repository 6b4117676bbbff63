"""Evaluate `general` on test events of both detectors, disturbed or moved into other detectors, for results.csv.

The first 120 events of each `zqq_test`. The moves are those that `pflow scan` does not make: they are approximate, or
depend on the whole sample (`pflow.event.move`).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from measurements.rows import DATA, Row, write_rows
from measurements.shipped import GENERAL, QUANTITIES, Sample, rows
from pflow.checkpoint import load_model
from pflow.event.augment import Augmentation, Disturbance, augment
from pflow.event.move import Variation
from pflow.inference.events import reconstruct
from pflow.io.open import read_events
from pflow.metrics.evaluation import evaluate

SIDES = {"g4": 0, "cld_g4": 12}
"""Sides of the barrels as simulated."""
DISTURBED = {
    "none": Disturbance(),
    "1% of the cells dead": Disturbance(dead_cells=0.01),
    "scale of each subdetector off by 2%": Disturbance(energy_scale=0.02),
    "10 hits of noise an event": Disturbance(noise_hits=10.0),
    "2% of the tracks lost": Disturbance(lost_tracks=0.02),
    "2% false tracks": Disturbance(fake_tracks=0.02),
}
MOVED = {
    "barrel of 8 sides, endcaps at 0.8 of their distance": {"sides": (8,), "endcap": (0.8, 0.8)},
    "HCAL digital or semi-digital": {"digital": 1.0},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=DATA, help="folder of g4 and cld_g4 (%(default)s)")
    parser.add_argument("--events", type=int, default=120, help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    for folder in SIDES:
        write_rows(measured(args.data_dir, folder, args.events), whole=True)


def measured(data: Path, folder: str, n_events: int) -> Iterator[Row]:
    """Rows of the events of a folder in all variations, each with the same random numbers."""
    sample, model = Sample(f"{folder}/zqq", ()), load_model(GENERAL)
    events = read_events(sample.path(data, "test"), entry_stop=n_events)
    same = Variation(probability=1.0, scale=(1.0, 1.0), endcap=(1.0, 1.0), sides=(SIDES[folder],))
    changes = {f"disturbed, {name}": Augmentation(disturb=disturbance) for name, disturbance in DISTURBED.items()}
    for name, options in MOVED.items():
        changes[f"moved, {name}"] = Augmentation(detector=dataclasses.replace(same, **options))
    for name, options in changes.items():
        changed = augment(events, options, np.random.default_rng(1))
        reco = reconstruct(changed.without_truth(), model)
        result = evaluate(reco, changed, name=GENERAL, oracle=False)
        print(f"{sample.name} {name}: {result.n_events} events", flush=True)
        for row in rows(result, sample.name, GENERAL):
            if row.quantity in QUANTITIES["multi"]:
                no_reference = dict.fromkeys(("reference", "difference", "difference_low", "difference_high"), np.nan)
                yield dataclasses.replace(row, sample=f"{sample.name} {name}", **no_reference)
