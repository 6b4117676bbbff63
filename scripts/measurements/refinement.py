"""The shipped models without their refinement, with decoding alone: refinement.json.

Decoding then stops at the probability that is best for it (`EOS_THRESHOLD`); the evaluation is that of flagship.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from measurements.evaluation import evaluate_file
from measurements.files import DATA, RESULTS, write_json
from measurements.samples import ROLES, SAMPLES
from pflow.checkpoint.load import load_model
from pflow.inference.files import reconstruct_files

__all__ = ["add_options", "run"]

EOS_THRESHOLD = {"photon": 0.5, "general": 0.9}
"""Probability from which decoding stops, as calibrated without refinement."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the samples (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    results: dict[str, Any] = {}
    for role in ROLES:
        model = load_model(f"ild-g4-{role}")
        reconstructor: Any = model.reconstructor
        reconstructor.network.revision = None
        reconstructor.decoding = dataclasses.replace(reconstructor.decoding, eos_threshold=EOS_THRESHOLD[role])
        for sample in SAMPLES:
            events = args.data / f"{sample.name}_test.root"
            if role not in sample.roles or not events.is_file():
                continue
            with tempfile.TemporaryDirectory() as folder:
                reco = Path(folder) / "reco.root"
                reconstruct_files([events], checkpoint=model, output=reco)
                found = evaluate_file(events, {role: reco}, rule=sample.rule)
            results.setdefault(sample.name, {})[role] = found["algorithms"][role]
            print(f"{sample.name}, {role}: {found['n_events']} events", flush=True)
    write_json(RESULTS / "refinement.json", results, indent=None)
