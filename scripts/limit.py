"""The limit of a detector: fit its calibration on training files, and measure it on test files.

    python scripts/limit.py fit --detector ild_g4 -o configs/limit/ild_g4.yaml ../shared/data/g4/*_train.root
    python scripts/limit.py results ../shared/data/g4/*_test.root

The first writes what `pflow evaluate` uses for its line `limit`; the second evaluates the limit and the classical
algorithm of each file with the same code as any reconstruction, writes all numbers as JSON and the table of RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml
from sections import replace_section

from pflow.io.atomic import replacing
from pflow.io.open import iterate_events
from pflow.metrics.evaluation import Evaluation, Settings
from pflow.metrics.number import Number, leaves
from pflow.metrics.oracle import NAME, add_showers
from pflow.metrics.oracle_calibration import CalibrationFit
from pflow.metrics.report import document, number_text
from pflow.physics.detector import load_detector

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

ROOT = Path(__file__).resolve().parent.parent

RULES = {"tau10_test": "entering"}
"""Truth rule of files for which it is not ``stable``: the generator's particle of `tau10` is the tau itself."""

SECTION = """## The limit and the classical algorithm

What the detector allows (perfect pattern recognition: `pflow/metrics/oracle.py`, calibrated on the training files) and
what Pandora, the classical algorithm, reaches on the Geant4 test files; truth rule `stable` (`tau10`: `entering`),
matching by energy and angle with cut 3, by the same code as every reconstruction. A `resolution_68` is half the
narrowest interval that holds 68.3%; that of the visible energy is relative to its median. The limit has one particle
for each target by construction: its counts say nothing. Of the single photons, three that left tracks lie 1.5 to 2
degrees off and raise the limit's mean angle; without tracks it is 0.0149 degrees. With two factors for all hadrons, 1.3
in the ECAL and 1.0 in the HCAL, and no dependence on angle, the limit of the visible energy of `zqq` is 3.2% (half the
central interval that holds 68.3%, over the median; `tests/metrics/test_limit.py` holds it).

    python scripts/limit.py results ../shared/data/g4/*_test.root

{table}

All numbers, with intervals: `scripts/results/limit.json`.
"""


def fit(files: list[Path], detector_name: str, output: Path) -> None:
    detector = load_detector(detector_name)
    fitted = CalibrationFit(detector)
    for path in files:
        for events in iterate_events(path, detector=detector, step=STEP):
            add_showers(fitted, events)
        print(f"read {path.name}")
    calibration = fitted.result(origin=f"showers without a track in {', '.join(path.name for path in files)}")
    with replacing(output) as partial:
        header = "# Calibration of showers for the limit. Written by scripts/limit.py; see pflow/metrics/oracle_calibration.py.\n"
        content = yaml.safe_dump(calibration.to_dict(detector), sort_keys=False, default_flow_style=None, width=110)
        partial.write_text(header + content, "utf-8")
    print(f"wrote {output}")


def results(files: list[Path], output: Path, report: Path) -> None:
    content: dict[str, Any] = {}
    table = [f"| sample | line | {' | '.join(COLUMNS)} |", f"|---|---|{'---:|' * len(COLUMNS)}"]
    for path in files:
        evaluation = Evaluation(name=NAME, settings=Settings(rule=RULES.get(path.stem, "stable")), limit=True)
        for events in iterate_events(path, step=STEP):
            evaluation.update(events, {})
        result = evaluation.result()
        for line, tree in result.lines.items():
            flat: dict[str, Number] = dict(leaves(tree))
            table.append(f"| {path.stem} | {line} | {' | '.join(number_text(flat[key]) for key in COLUMNS)} |")
        content[path.stem] = document(result, inputs={"truth": [path.name]})
    print("\n".join(table))
    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(output) as partial:
        partial.write_text(json.dumps(content, allow_nan=False) + "\n", "utf-8")
    before = report.read_text("utf-8") if report.is_file() else "# Results\n"
    with replacing(report) as partial:
        partial.write_text(replace_section(before, "limit", SECTION.format(table="\n".join(table))), "utf-8")
    print(f"\nwrote {output} and {report}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    fitting = verbs.add_parser("fit")
    fitting.add_argument("files", nargs="+", type=Path)
    fitting.add_argument("--detector", required=True)
    fitting.add_argument("-o", "--output", required=True, type=Path)
    measuring = verbs.add_parser("results")
    measuring.add_argument("files", nargs="+", type=Path)
    measuring.add_argument("-o", "--output", type=Path, default=ROOT / "scripts" / "results" / "limit.json")
    measuring.add_argument("--report", type=Path, default=ROOT / "RESULTS.md")
    args = parser.parse_args()
    if args.verb == "fit":
        fit(args.files, args.detector, args.output)
    else:
        results(args.files, args.output, args.report)


if __name__ == "__main__":
    main()
