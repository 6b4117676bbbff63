"""Measure what the shipped models reach, and write the tables and figures of the documents.

    python scripts/results.py flagship     # the models on the test files of the ILD
    python scripts/results.py cld          # the same of CLD, simplified and in full simulation
    python scripts/results.py variations   # `general` on disturbed events, and on events moved into other detectors
    python scripts/results.py scans        # `pflow scan` of both detectors
    python scripts/results.py paper        # the first paper's set-ups, trained with three seeds
    python scripts/results.py oracle-calibration   # configs/oracle
    python scripts/results.py physics-reference    # tests/data/physics_reference.json
    python scripts/results.py tables       # the tables of RESULTS.md, README.md and the cards from results.csv

Each verb has options: `python scripts/results.py VERB --help`. `scripts/bench.py` measures speed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from measurements import oracle_calibration, paper, physics_reference, scans, shipped, variations
from measurements.tables import write_tables

MODULES = (paper, variations, scans, oracle_calibration, physics_reference)


def measure(args: argparse.Namespace) -> None:
    """Measure; tables are written for the results of the repository."""
    if shipped.run(args):
        write_tables()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="verb")

    verbs.add_parser("tables", help=write_tables.__doc__).set_defaults(run=lambda _: write_tables())
    modules = {module.__name__.rpartition(".")[2].replace("_", "-"): module for module in MODULES}
    for name, module in (dict.fromkeys(shipped.SAMPLES, shipped) | modules).items():
        verb = verbs.add_parser(name, help=module.__doc__.partition("\n")[0], description=module.__doc__)
        verb.set_defaults(run=measure if module is shipped else module.run)
        module.add_options(verb)
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
