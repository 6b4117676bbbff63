"""Interrupt pflow at random moments with SIGINT, SIGTERM and SIGKILL, and check the files that it leaves.

    python scripts/interrupt.py --seed 1 --times 100
    python scripts/interrupt.py --seed 1 --times 6 --only fit convert

Each run is a fork of this process, which has all libraries loaded, and is interrupted within the time that an
undisturbed one takes. Then every file under its final name must be whole and right. The command is given again: it must
end well, with what the undisturbed run gave, and leave no temporary file.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attacks.child import Ended, run_signalled
from attacks.jobs import JOBS, Job, make_inputs

SIGNALS = {
    signal.SIGINT: (130,),
    signal.SIGTERM: (143, -signal.SIGTERM),  # the second before the command line takes over the signal
    signal.SIGKILL: (-signal.SIGKILL,),
}
"""Signals, and the exit codes of a process that they end."""

COLUMNS = ("times", "in time", "nothing", "partial", "whole", "failed")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=10, help="interruptions of each job")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="interrupt no job for longer than this")
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB", help="jobs to interrupt")
    args = parser.parse_args(arguments)

    failures = 0
    with tempfile.TemporaryDirectory(prefix="interrupt-") as scratch:
        inputs = Path(scratch) / "inputs"
        inputs.mkdir()
        make_inputs(inputs, log=Path(scratch) / "log")
        print(f"{'job':<14}", *(f"{name:>8}" for name in COLUMNS))
        for name in args.only:
            trial = Trial(JOBS[name], inputs, Path(scratch) / name)
            generator = np.random.default_rng([args.seed, list(JOBS).index(name)])
            counts: Counter[str] = Counter()
            end = time.monotonic() + 60 * args.minutes
            for number in range(args.times):
                if time.monotonic() > end:
                    break
                counts["times"] += 1
                sent = list(SIGNALS)[number % len(SIGNALS)]
                try:
                    counts.update(trial.interrupt(number, sent, generator.uniform(0, trial.seconds)))
                except AssertionError as error:
                    counts["failed"] += 1
                    print(f"{name}, number {number}, {sent.name}: {error}", flush=True)
            print(f"{name:<14}", *(f"{counts[key]:>8}" for key in COLUMNS), flush=True)
            failures += counts["failed"]
    return 1 if failures else 0


class Trial:
    """A job that is interrupted; an undisturbed run in `folder` of it, on `inputs`, gives the expected outputs."""

    def __init__(self, job: Job, inputs: Path, folder: Path) -> None:
        self.job, self.inputs, self.folder = job, inputs, folder
        done = self.run(undisturbed := self.place("undisturbed"))
        if done.code != 0:
            sys.exit(f"the job does not run: {done.said}")
        self.seconds, self.expected = done.seconds, job.content(undisturbed)

    def place(self, name: str) -> Path:
        """A new folder for a run."""
        place = self.folder / name
        place.mkdir(parents=True)
        return place

    def run(self, place: Path, sent: signal.Signals = signal.SIGKILL, after: float = 900.0) -> Ended:
        """Run the job in a folder; a signal is sent if it takes longer than so many seconds."""
        return run_signalled(self.job.command(self.inputs, place), log=self.folder / "log", sent=sent, after=after)

    def interrupt(self, number: int, sent: signal.Signals, after: float) -> list[str]:
        """Interrupt a run, check the files that it leaves, run it again, and check the outputs.

        Returns ``in time`` if the signal came before the end, and ``nothing``, ``partial`` or ``whole``: how many of
        the final files existed. AssertionError: what does not hold.
        """
        place = self.place(str(number))
        ended = self.run(place, sent, after)
        assert ended.code in (0, *SIGNALS[sent]), f"exit code {ended.code}: {ended.said}"
        assert "Traceback" not in ended.said, ended.said
        if sent != signal.SIGKILL:
            check_no_leftovers(place)
        files = self.job.content(place)  # raises if a file is incomplete
        left = "whole" if files.keys() == self.expected.keys() else "partial" if files else "nothing"
        outcomes = [left, *(["in time"] if ended.code else [])]
        if self.job.final:
            changed = [name for name, content in files.items() if content != self.expected[name]]
            assert not changed, f"the undisturbed run made others: {changed}"
        refused = left == "whole" and self.job.final  # without --force
        if ended.code == 0 or refused:
            return outcomes
        again = self.run(place)
        assert again.code == 0, f"the second run ended with {again.code}: {again.said}"
        files = self.job.content(place)
        changed = [name for name in self.expected if files.get(name) != self.expected[name]]
        assert not changed, f"the second run gave others: {changed}"
        check_no_leftovers(place, " by the second run")
        return outcomes


def check_no_leftovers(place: Path, after: str = "") -> None:
    """Raise an AssertionError that names temporary and replaced files in a folder; `after` ends its message."""
    left = sorted(path.name for kind in ("tmp", "earlier") for path in place.rglob(f"*.{kind}-*"))
    assert not left, f"left behind{after}: {left}"


if __name__ == "__main__":
    raise SystemExit(main())
