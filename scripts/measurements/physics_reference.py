"""tests/data/physics_reference.json: what the shipped models find on the small samples, with statistical errors.

To be measured again when shipped weights change, or when a change of reader, tokens, decoding or metrics is meant to
change the physics; tests/test_physics.py holds every later version to these numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak

from measurements.rows import ROOT
from pflow.checkpoint import TrainedModel, load_model
from pflow.event.events import Events
from pflow.inference.events import reconstruct
from pflow.io.open import read_events
from pflow.metrics.evaluation import evaluate
from pflow.metrics.report import EvaluationSettings
from pflow.metrics.stats import leaves

PHOTONS = ("gamma1_test_small.root", "gammasep_test_small.root")
SAMPLES = {
    "general": ("gamma1_test_small.root", "multi_test_small.root", "zqq_test_small.root", "cld_multi_test_small.root"),
    "ild-g4-photon": PHOTONS,
    "ild-g4-translation": PHOTONS,
}
FIGURES = (
    "count.exact_fraction",
    "energy.mean_abs_rel_error",
    "energy.response_median",
    "angle.median_deg",
    "pdg.class_accuracy",
    "energy_weighted_efficiency",
    "energy_weighted_efficiency_loose",
    "fake_energy_fraction",
    "event.visible_energy.response_median",
    "event.visible_energy.rms90_over_mean90",
)
"""Keys of metrics.json."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "data" / "physics_reference.json")


def run(args: argparse.Namespace) -> None:
    reference = {}
    for name, samples in SAMPLES.items():
        model = load_model(name)
        numbers = {sample: measure(model, ROOT / "tests" / "data" / sample) for sample in samples}
        reference[name] = {"sha256": model.digest, "samples": numbers}
    args.output.write_text(json.dumps(reference, indent=1) + "\n", encoding="utf-8")


def measure(model: TrainedModel, path: Path, change: Callable[[Events], Events] | None = None) -> dict[str, Any]:
    """Measure a model on a file, on a CPU; `change` is applied to the events before."""
    events = dataclasses.replace(read_events(path), reference=None)  # Pandora's numbers are not asked for
    answer = reconstruct(events if change is None else change(events), model, device="cpu")
    settings = EvaluationSettings(use_tracks=bool(model.tokeniser.config.track_features))
    numbers = dict(leaves(evaluate(answer, events, settings=settings, oracle=False).algorithms["PFlow"]))
    return {
        "n_events": len(events),
        "n_particles": int(ak.sum(ak.num(answer.particles))),
        "energy_sum": float(ak.sum(answer.particles.energy)),
        "figures": {key: [numbers[key].value, numbers[key].low, numbers[key].high] for key in FIGURES},
    }
