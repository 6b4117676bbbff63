"""Processes on a batch system (Slurm, HTCondor and others), through dask-jobqueue."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pflow.config import from_plain, load_yaml, resolve
from pflow.errors import ConfigError, check_choice, first_line, missing_package

__all__ = ["SYSTEMS", "BatchJobs", "BatchSystem", "load_batch_system"]

SYSTEMS = {
    "slurm": "SLURMCluster",
    "htcondor": "HTCondorCluster",
    "lsf": "LSFCluster",
    "moab": "MoabCluster",
    "oar": "OARCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
}
"""Batch systems, and the class of dask-jobqueue for each."""


SCHEDULER = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""Options of the scheduler: no dashboard. dask answers a few HTTP requests anyway, by default to all at port 8787."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSystem:
    """How processes are started; the files of ``configs/cluster`` are examples.

    Parameters
    ----------
    system
        One of `SYSTEMS`.
    jobs
        Number of jobs to submit; another one takes the place of one that ends.
    options
        Keyword arguments of its class in dask-jobqueue.

    Raises
    ------
    ConfigError
        Another system, or fewer than one job.
    """

    system: str
    jobs: int
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice(self.system, SYSTEMS, "batch system")
        if self.jobs < 1:
            raise ConfigError(f"jobs must be at least 1, found {self.jobs}")

    def start(self) -> BatchJobs:
        """Submit the jobs.

        Raises
        ------
        ConfigError
            dask-jobqueue is not installed or refuses the options, or the batch system is not there or refuses a job.
        """
        dask_jobqueue = _dask_jobqueue()
        options = {"scheduler_options": SCHEDULER, **self.options}
        try:
            cluster = getattr(dask_jobqueue, SYSTEMS[self.system])(**options)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"batch system {self.system}: {first_line(error)}") from error
        jobs = BatchJobs(cluster, self)
        try:
            jobs.submit()
        except BaseException:
            jobs.close()
            raise
        return jobs


class BatchJobs:
    """Jobs of a batch system, and a dask scheduler in this process; a context manager, which ends them.

    Parameters
    ----------
    cluster
        A `dask_jobqueue.JobQueueCluster` without jobs.
    system
        What it was made from.
    """

    def __init__(self, cluster: Any, system: BatchSystem) -> None:
        self.cluster = cluster
        self._system = system
        self._begun: set[str] = set()  # jobs that have had a process
        self._without: set[str] = set()  # those of them that had none at the last look

    def __enter__(self) -> BatchJobs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        """Numbers of the jobs, with which the batch system shows their state, and where their logs are."""
        numbers = [str(job.job_id) for job in list(self.cluster.workers.values())]
        shown = ", ".join(numbers[:3]) + (f" and {len(numbers) - 3} more" if len(numbers) > 3 else "")
        logs = self._system.options.get("log_directory")
        return f"jobs {shown or '(none)'} of {self._system.system}" + (f" (logs in {logs})" if logs else "")

    def close(self) -> None:
        """End the jobs and the scheduler."""
        self.cluster.close()

    def submit(self) -> None:
        """Submit as many jobs as are wanting.

        Raises
        ------
        ConfigError
            The batch system is not there, or refuses a job; the jobs that it took stay.
        """
        while len(self.cluster.worker_spec) < self._system.jobs:
            self.cluster.worker_spec.update(self.cluster.new_worker_spec())
        try:
            self.cluster.sync(self.cluster._correct_state)  # as `scale`, which prints errors and goes on
        except (OSError, RuntimeError, ValueError) as error:
            self._forget_refused()
            raise ConfigError(f"batch system {self._system.system}: {_refusal(error)}") from error

    def replace_ended(self) -> None:
        """Submit a job in place of each that had a process, and has none now and at the last call.

        Raises
        ------
        ConfigError
            As for `submit`.
        """
        self.cluster.sync(self._forget_ended)
        self.submit()

    async def _forget_ended(self) -> None:
        cluster = self.cluster
        present = cluster.observed
        # A job with several processes has a name for each.
        here = {
            name
            for name, job in cluster.worker_spec.items()
            if any(name + part in present for part in job.get("group", ("",)))
        }
        without = self._begun - here
        ended = without & (self._without | (set(cluster.worker_spec) - set(cluster.workers)))
        for name in ended & set(cluster.workers):
            await cluster.workers.pop(name).close()
        self._begun = (self._begun | here) - ended
        self._without = without - ended

    def _forget_refused(self) -> None:
        from distributed.core import Status

        for name, job in list(self.cluster.workers.items()):
            if job.job_id is None:
                job.status = Status.failed  # dask asserts at the end that each was closed or has failed
                del self.cluster.workers[name]


def _dask_jobqueue() -> ModuleType:
    """The package. Its import makes SIGINT exit with code 0, which is taken back.

    Raises
    ------
    ConfigError
        It is not installed.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        import dask_jobqueue
    except ImportError as error:
        raise missing_package("dask-jobqueue", "batch systems", extra="cluster") from error
    if signal.getsignal(signal.SIGINT) is not before:
        signal.signal(signal.SIGINT, before)
    return dask_jobqueue  # type: ignore[no-any-return]


def _refusal(error: Exception) -> str:
    """Why a job could not be submitted, in one line."""
    if isinstance(error, FileNotFoundError):
        return f"there is no command '{error.filename}', which submits jobs, on this machine"
    _, _, said = str(error).partition("stderr:")  # by the command, in an error of several lines
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"a job was refused: {'; '.join(lines) or first_line(error)}"


def load_batch_system(path: str | Path) -> BatchSystem:
    """A `BatchSystem` from a YAML file, or a built-in one by its name.

    Raises
    ------
    ConfigError
        No such file, no YAML, or fields that are not those of `BatchSystem`.
    """
    return from_plain(BatchSystem, load_yaml(resolve("cluster", path)), str(path))
