"""The limit of a detector: fit its calibration on training files, and measure it on test files.

    python scripts/limit.py fit --detector ild_g4 -o configs/limit/ild_g4.yaml ../shared/data/g4/*_train.root
    python scripts/limit.py results -o limit.json ../shared/data/g4/*_test.root

The first writes what `pflow evaluate` uses for its line `limit`; the second evaluates the limit and the classical
algorithm of each file with the same code as any reconstruction, prints a table and writes all numbers as JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from pflow.detector import load_detector
from pflow.io.atomic import replacing
from pflow.io.read import iterate_events
from pflow.metrics.calibration import CalibrationFit
from pflow.metrics.evaluation import Evaluation, Settings
from pflow.metrics.limit import NAME, add_showers
from pflow.metrics.number import Number, leaves
from pflow.metrics.report import document, number_text

COLUMNS = (
    "count.exact_fraction",
    "count.one_vs_two_accuracy",
    "class.all.efficiency",
    "energy.mean_abs_rel_error",
    "energy.resolution_68",
    "angle.mean_deg",
    "angle.median_deg",
    "event.visible_energy.response_median",
    "event.visible_energy.resolution_68_over_median",
)
STEP = 200


def fit(files: list[Path], detector_name: str, output: Path) -> None:
    detector = load_detector(detector_name)
    fitted = CalibrationFit(detector)
    for path in files:
        for events in iterate_events(path, detector=detector, step=STEP):
            add_showers(fitted, events)
        print(f"read {path.name}")
    calibration = fitted.result(origin=f"showers without a track in {', '.join(path.name for path in files)}")
    with replacing(output) as partial:
        header = (
            "# Calibration of showers for the limit. Written by scripts/limit.py; see pflow/metrics/calibration.py.\n"
        )
        content = yaml.safe_dump(calibration.to_dict(detector), sort_keys=False, default_flow_style=None, width=110)
        partial.write_text(header + content, "utf-8")
    print(f"wrote {output}")


def results(files: list[Path], rule: str, output: Path) -> None:
    content: dict[str, Any] = {}
    print(f"| sample | line | {' | '.join(COLUMNS)} |\n|---|---|{'---:|' * len(COLUMNS)}")
    for path in files:
        evaluation = Evaluation(name=NAME, settings=Settings(rule=rule), limit=True)
        for events in iterate_events(path, step=STEP):
            evaluation.update(events, {})
        result = evaluation.result()
        for line, tree in result.lines.items():
            flat: dict[str, Number] = dict(leaves(tree))
            print(f"| {path.stem} | {line} | {' | '.join(number_text(flat[key]) for key in COLUMNS)} |")
        content[path.stem] = document(result, inputs={"truth": [path.name]})
    with replacing(output) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")
    print(f"\nwrote {output}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("fit", "results"):
        sub = verbs.add_parser(verb)
        sub.add_argument("files", nargs="+", type=Path)
        sub.add_argument("-o", "--output", required=True, type=Path)
    verbs.choices["fit"].add_argument("--detector", required=True)
    verbs.choices["results"].add_argument("--rule", default="stable")
    args = parser.parse_args()
    if args.verb == "fit":
        fit(args.files, args.detector, args.output)
    else:
        results(args.files, args.rule, args.output)


if __name__ == "__main__":
    main()
