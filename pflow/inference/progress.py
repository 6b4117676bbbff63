"""How much of a reconstruction is done, where not all of its inputs have been opened yet."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pflow.inference.jobs import Job

__all__ = ["Progress"]


class Progress:
    """Entries that are done, and an estimate of all.

    The entries of an input that is not opened yet are estimated as its size times the entries per byte of the opened
    ones; where a size is unknown (remote files), as the mean number of entries of the opened ones.

    Parameters
    ----------
    jobs
        All jobs.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._size = {job: _size(job) for job in jobs}
        if not all(self._size.values()):
            self._size = {job: len(job.inputs) for job in jobs}
        self._entries: dict[Job, int] = {}
        self._done = 0

    def begin(self, job: Job) -> None:
        """Count the entries of a job that was opened."""
        self._entries[job] = job.n_entries

    def leave_out(self, job: Job, n_done: int = 0) -> None:
        """Take a job out of the count, with its `n_done` entries: it failed, or its output was there before."""
        self._size.pop(job)
        self._entries.pop(job, None)
        self._done -= n_done

    def advance(self, n: int) -> None:
        """Count entries that are done."""
        self._done += n

    @property
    def done(self) -> int:
        """Entries that are done."""
        return self._done

    @property
    def total(self) -> int:
        """Entries of all jobs, as far as is known."""
        known, size = sum(self._entries.values()), sum(self._size[job] for job in self._entries)
        rest = sum(self._size.values()) - size
        return known + round(rest * known / size) if size else known


def _size(job: Job) -> int:
    """Bytes of a job's inputs; 0 where they are not known."""
    try:
        return sum(os.path.getsize(path) for path in job.inputs)
    except OSError:
        return 0
