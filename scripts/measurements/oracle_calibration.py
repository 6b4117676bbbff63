"""The calibration of the oracle's showers, fitted on training files: configs/oracle/DETECTOR.yaml."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from pflow.config import to_plain
from pflow.io.atomic import replacing
from pflow.io.open import iterate_events
from pflow.metrics.oracle import add_showers
from pflow.metrics.oracle_calibration import ShowerCalibrationFit
from pflow.physics.detector import load_detector

HEADER = (
    "# Calibration of showers for the oracle. Written by scripts/results.py; see pflow/metrics/oracle_calibration.py.\n"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--detector", required=True)
    parser.add_argument("-o", "--output", required=True, type=Path)


def run(args: argparse.Namespace) -> None:
    detector = load_detector(args.detector)
    fitted = ShowerCalibrationFit(detector)
    for path in args.files:
        for events in iterate_events(path, detector=detector, chunk_size=200):
            add_showers(fitted, events)
        print(f"read {path.name}", flush=True)
    calibration = fitted.result(origin=f"showers without a track in {', '.join(path.name for path in args.files)}")
    content = yaml.safe_dump(to_plain(calibration), sort_keys=False, default_flow_style=None, width=110)
    with replacing(args.output) as partial:
        partial.write_text(HEADER + content, "utf-8")
    print(f"wrote {args.output}")
