"""Jobs that are disturbed again and again, and what an undisturbed run of each gives."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from attacks.child import Ended, run_signalled
from attacks.jobs import Content, Job

LONGEST = 900.0
"""Seconds that a run may take."""


class Trial:
    """A job, and an undisturbed run of it, whose outputs are the expected ones.

    Parameters
    ----------
    job
        The job.
    inputs
        Folder of `attacks.jobs.make_inputs`.
    folder
        Folder for its outputs.
    """

    def __init__(self, job: Job, inputs: Path, folder: Path) -> None:
        self.job, self.inputs, self.folder = job, inputs, folder
        self.undisturbed = self.place("undisturbed")
        done = self.run(self.undisturbed)
        if done.code != 0:
            sys.exit(f"the job does not run: {done.said}")
        self.seconds = done.seconds
        self.expected: Content = job.content(self.undisturbed)

    def place(self, name: str) -> Path:
        """A new folder for a run."""
        place = self.folder / name
        place.mkdir(parents=True)
        return place

    def run(self, place: Path, sent: signal.Signals = signal.SIGKILL, after: float = LONGEST) -> Ended:
        """Run the job in a folder; a signal is sent if it takes longer than so many seconds."""
        words = self.job.command(self.inputs, place)
        return run_signalled(words, log=self.folder / "log", sent=sent, after=after)


def check_no_leftovers(place: Path, after: str = "") -> None:
    """Raise an AssertionError that names temporary and replaced files in a folder; `after` ends its message."""
    left = sorted(path.name for kind in ("tmp", "earlier") for path in place.rglob(f"*.{kind}-*"))
    assert not left, f"left behind{after}: {left}"
