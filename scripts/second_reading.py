"""What the second reading brings: the section `second_reading` of RESULTS.md.

    python scripts/second_reading.py
    python scripts/second_reading.py --val             # the validation files, to the screen
    python scripts/second_reading.py --only-report     # the text anew from scripts/results/second_reading.json

Each shipped model that has one reconstructs the test files that it is made for twice, once with its first reading alone
(sentences then end where that is best for it: `FIRST_END`), and both are evaluated as in scripts/flagship_results.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flagship.measure import measure
from flagship.samples import ROLES, SAMPLES
from flagship.section import table
from flagship.targets import ROWS, number
from sections import replace_section

from pflow.checkpoint.load import Model, load_model
from pflow.inference.files import reconstruct_files
from pflow.io.atomic import replacing
from pflow.metrics.report import number_text

ROOT = Path(__file__).resolve().parent.parent
FIRST_END = {"photon": 0.5, "general": 0.9}
"""Probability of the end from which a sentence ends where there is only the first reading, as calibrated for it."""
FIRST, SECOND = "first", "second"
TEXT = """\
## The second reading

A sentence is written from the left to the right. The second reading (`pflow/model/pointing/refiner.py`) looks at all
that was written at once, divides hits and tracks among the particles anew, makes each anew, and drops what it takes for
none. An energy that no track measures is the expected one: what the particle has if it is one, times the probability
that it is one. It was taught on sentences that the model writes by itself. The same models on the test files with the
first reading alone and with both; errors are half the 68.3% interval, of the same events, so that differences are more
certain than they say:

{table}

    {command}

All numbers are in `scripts/results/second_reading.json`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data/g4", help="default: %(default)s")
    parser.add_argument("--val", action="store_true", help="the validation files, and write nothing")
    parser.add_argument("--only-report", action="store_true", help="run nothing, write from the results")
    for role in ROLES:
        parser.add_argument(f"--{role}", metavar="MODEL", default=f"ild-g4-{role}", help="default: %(default)s")
    args = parser.parse_args()
    results_file, report = ROOT / "scripts/results/second_reading.json", ROOT / "RESULTS.md"
    if args.only_report:
        results = json.loads(results_file.read_text("utf-8"))
    else:
        models = {role: load_model(getattr(args, role)) for role in ROLES}
        results = measured(models, args.data, "val" if args.val else "test")
    if args.val:
        print(lines(results))
        return
    with replacing(results_file) as partial:
        partial.write_text(json.dumps(results, allow_nan=False, separators=(",", ":")) + "\n", "utf-8")
    body = TEXT.format(table=lines(results), command="python scripts/second_reading.py")
    with replacing(report) as partial:
        partial.write_text(replace_section(report.read_text("utf-8"), "second_reading", body), "utf-8")
    print(f"wrote {results_file} and {report}")


def measured(models: Mapping[str, Model], data: Path, split: str) -> dict[str, Any]:
    """The lines of each sample by model: those with a second reading."""
    found: dict[str, Any] = {}
    for role, model in models.items():
        second = model.network.revision
        if second is None:
            continue
        for sample in SAMPLES:
            events = data / f"{sample.name}_{split}.root"
            if role not in sample.roles or not events.is_file():
                continue
            with tempfile.TemporaryDirectory() as folder:
                files = {name: Path(folder) / f"{name}.root" for name in (FIRST, SECOND)}
                end = model.network.end
                for name, revision in ((FIRST, None), (SECOND, second)):
                    model.network.revision = revision
                    model.network.end = end if revision is not None else FIRST_END[role]
                    reconstruct_files([events], checkpoint=model, output=files[name])
                answer = measure(events, files, rule=sample.rule, no_tracks=False)
            found.setdefault(sample.name, {})[role] = {name: answer["lines"][name] for name in files}
            print(f"{sample.name}, {role}: {answer['n_events']} events", flush=True)
    return found


def lines(results: Mapping[str, Any]) -> str:
    """The table."""
    rows = []
    for row in ROWS:
        for role, answers in results.get(row.sample, {}).items():
            figures = (number(answers[name], row.key) * row.factor for name in (FIRST, SECOND))
            rows.append([row.sample, row.title, role, *map(number_text, figures)])
    return table(["sample", "quantity", "model", "first reading", "both"], rows, left=(0, 1, 2))


if __name__ == "__main__":
    main()
