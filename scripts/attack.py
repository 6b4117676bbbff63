"""Attack pflow with damaged files, hostile models, strange events and wrong command lines.

    python scripts/attack.py --seed 1 --cases 10000
    python scripts/attack.py --seed 1 --cases 300 --only 'HDF5' 'strange event' --keep failures

Each case runs in a child process with limits of time and memory. It must end in success or in an error of pflow's own;
anything else is a failure, whose files are kept. A seed and a number give the same case: case I of seed S alone is
``--seed S --cases I+1 --first I``.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attacks.child import Outcome, run_limited
from attacks.kinds import KINDS, make_originals

SECONDS = 30.0
MEGABYTES = 2048.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000, help="number of cases, the kinds in turn")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after so many minutes")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help="kinds of cases")
    parser.add_argument("--keep", type=Path, default=Path("attack_failures"), help="folder for the files of failures")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="attack-") as scratch:
        return _report(attack(Path(scratch), args))


def attack(scratch: Path, args: argparse.Namespace) -> dict[str, list[Outcome]]:
    """Make the files that the cases damage; outcomes of the cases by kind, each in a folder of its own."""
    originals, log = scratch / "originals", scratch / "log"
    originals.mkdir()
    made = run_limited(lambda: make_originals(originals), log=log, seconds=600, megabytes=8 * MEGABYTES)
    if made.what != "accepted":
        sys.exit(f"the originals cannot be made: {made}\n{log.read_text()}")
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    end = time.monotonic() + 60 * args.minutes
    for number in range(args.first, args.cases):
        if time.monotonic() > end:
            break
        kind = args.only[number % len(args.only)]
        folder = scratch / f"case_{number}"
        folder.mkdir()
        generator = np.random.default_rng([args.seed, number])
        case = functools.partial(KINDS[kind], originals, folder, generator)
        outcome = run_limited(case, log=log, seconds=SECONDS, megabytes=MEGABYTES)
        outcomes[kind].append(outcome)
        if outcome.failed:
            print(f"case {number}, {kind}: {outcome.what}: {outcome.text[:300]}", flush=True)
            failure = args.keep / f"seed_{args.seed}_case_{number}"
            shutil.rmtree(failure, ignore_errors=True)
            shutil.copytree(folder, failure)
            shutil.copy(log, failure / "log")
        shutil.rmtree(folder)
    return outcomes


def _report(outcomes: dict[str, list[Outcome]]) -> int:
    header = ("cases", "accepted", "refused", "failed", "worst [s]", "worst [MB]")
    print(f"{'kind':<26}", *(f"{name:>10}" for name in header))
    failed = 0
    for kind, of_kind in outcomes.items():
        counts = Counter("failed" if outcome.failed else outcome.what for outcome in of_kind)
        numbers = [len(of_kind), *(counts[what] for what in ("accepted", "refused", "failed"))]
        worst = max(outcome.seconds for outcome in of_kind), max(outcome.megabytes for outcome in of_kind)
        print(f"{kind:<26}", *(f"{n:>10}" for n in numbers), f"{worst[0]:>10.1f} {worst[1]:>10.0f}")
        failed += counts["failed"]
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
