"""Processes on a batch system (Slurm, HTCondor and others), through dask-jobqueue."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pflow.errors import ConfigError, check_choice, first_line, missing_package
from pflow.plain import from_plain
from pflow.resources import load_yaml, resolve

__all__ = ["SYSTEMS", "BatchSystem", "load_batch_system"]

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSystem:
    """How processes are started; the files of ``configs/cluster`` are examples.

    Parameters
    ----------
    system
        One of `SYSTEMS`.
    jobs
        Number of jobs to submit.
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

    def start(self) -> Any:
        """A `dask_jobqueue.JobQueueCluster` whose jobs are submitted; a context manager, which ends them.

        Raises
        ------
        ConfigError
            dask-jobqueue is not installed, or refuses the options.
        """
        try:
            import dask_jobqueue
        except ImportError as error:
            raise missing_package("dask-jobqueue", "batch systems", extra="cluster") from error
        options = {"scheduler_options": {"dashboard_address": None}, **self.options}  # it would open a port
        try:
            cluster = getattr(dask_jobqueue, SYSTEMS[self.system])(**options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"batch system {self.system}: {first_line(error)}") from error
        cluster.scale(jobs=self.jobs)
        return cluster


def load_batch_system(path: str | Path) -> BatchSystem:
    """A `BatchSystem` from a YAML file, or a built-in one by its name.

    Raises
    ------
    ConfigError
        No such file, no YAML, or fields that are not those of `BatchSystem`.
    """
    return from_plain(BatchSystem, load_yaml(resolve("cluster", path)), str(path))
