"""Chunks on a dask cluster: its processes reconstruct, this one collects the results in order.

The processes are on this machine, of a scheduler that runs already, or jobs of a batch system (Slurm, HTCondor and
others), which dask-jobqueue submits.
"""

from __future__ import annotations

import dataclasses
import signal
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from pflow.config import from_plain, load_yaml, resolve
from pflow.data.files import Chunk
from pflow.errors import ConfigError, InputError, check_choice, first_line, missing_package
from pflow.inference.worker import ChunkResult, Job, Outcome, Settings, Task, Worker

CHUNKS_PER_THREAD = 3
"""Chunks in flight for each thread of the cluster: enough to keep it busy, few enough to bound memory."""

TIMEOUT = "10s"
"""Time to wait for a scheduler."""

LOOK_EVERY = 30.0
"""Seconds between two looks whether the cluster has processes; a second one without them is told."""

LOCAL = {
    # By default dask's processes return freed memory at once, and spent half of their time on getting it again.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
    # Nobody reads dask's own monitoring: each process samples its stack 100 times a second, its event loop 50 times
    # and its load twice. With two processes and the scheduler that took a tenth of a core.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "500ms",
}
"""Settings of dask for processes on this machine."""


def run_on_cluster(
    cluster: str, checkpoint: str, settings: Settings, tasks: Iterable[Task]
) -> Generator[Outcome, None, None]:
    """Outcomes of the tasks, in their order; tasks are consumed some ahead of them, to keep all processes busy.

    `cluster` is as for `pflow.inference.files.reconstruct_files`; its processes need pflow, and checkpoint and inputs
    under the same paths. The chunks of a process that dies are done again by another one; a chunk with which several
    die has an error as its outcome. Without processes the chunks wait, with a warning. ConfigError: there is no
    cluster, or it is lost.
    """
    try:
        from dask.distributed import Client
    except ImportError as error:
        raise missing_package("dask", "clusters", extra="cluster") from error
    with ExitStack() as stack:
        target = _started(cluster, stack)
        jobs = target if isinstance(target, BatchJobs) else None
        try:
            client = stack.enter_context(Client(target if jobs is None else jobs.cluster, timeout=TIMEOUT))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cluster '{cluster}' does not answer: {error}") from error
        watch = _Watch(client, cluster, jobs)
        in_flight: deque[tuple[Job, Chunk | None, Any]] = deque()
        for job, chunk in tasks:
            future = None if chunk is None else client.submit(_run, checkpoint, settings, chunk, pure=False)
            in_flight.append((job, chunk, future))
            # Jobs of a batch system begin one after the other.
            if len(in_flight) >= CHUNKS_PER_THREAD * max(1, sum(client.nthreads().values())):
                yield _outcome(*in_flight.popleft(), watch)
        while in_flight:
            yield _outcome(*in_flight.popleft(), watch)


def _started(cluster: str, stack: ExitStack) -> Any:
    """`BatchJobs` or a local cluster, which `stack` ends; the address of a cluster that runs already as it is."""
    import dask
    from dask.distributed import LocalCluster

    if cluster.endswith((".yaml", ".yml")):
        return stack.enter_context(load_batch_system(cluster).start())
    if not cluster.startswith("local:"):
        return cluster
    number = cluster.removeprefix("local:")
    if not number.isdigit() or int(number) < 1:
        raise ConfigError(f"cluster '{cluster}': expected local:N with N processes, at least 1")
    with dask.config.set(LOCAL):
        return stack.enter_context(
            LocalCluster(
                n_workers=int(number), threads_per_worker=1, dashboard_address=None, scheduler_kwargs=SCHEDULER
            )
        )


class _Watch:
    """Waits for results, and meanwhile looks whether the cluster has processes."""

    def __init__(self, client: Any, cluster: str, jobs: BatchJobs | None) -> None:
        self._client, self._cluster, self._jobs = client, cluster, jobs
        self._next = time.monotonic() + LOOK_EVERY
        self._empty = 0

    def result(self, future: Any) -> Any:
        """Result of a future, as soon as it is there."""
        from distributed import CancelledError, TimeoutError, wait

        while not future.done():
            with suppress(TimeoutError, CancelledError):
                wait([future], timeout=LOOK_EVERY)  # type: ignore[no-untyped-call]
            self._look()
        self._look()
        return future.result()

    def _look(self) -> None:
        """Have ended jobs replaced, and tell if there are no processes; once for each time that there are none."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_EVERY
        if self._jobs is not None:
            try:
                self._jobs.replace_ended()
            except ConfigError as error:
                warnings.warn(f"{error}; trying again", stacklevel=2)
        self._empty = 0 if self._client.nthreads() else self._empty + 1
        if self._empty == 2:
            them = "processes" if self._jobs is None else self._jobs
            warnings.warn(
                f"cluster '{self._cluster}' has had no process for {LOOK_EVERY:.0f} s: waiting for {them}", stacklevel=2
            )


def _outcome(job: Job, chunk: Chunk | None, future: Any, watch: _Watch) -> Outcome:
    """Wait for what becomes of a task."""
    from dask.distributed import CancelledError, KilledWorker
    from distributed.comm.core import CommClosedError

    if chunk is None or job.error is not None:
        return job, None, None
    try:
        return job, chunk, watch.result(future)
    except InputError as error:
        return job, chunk, error
    except KilledWorker:
        text = (
            f"entries {chunk.start} to {chunk.stop - 1} ended several processes of the cluster, perhaps for want of "
            "memory; a smaller chunk_size or batch_size needs less"
        )
        return job, chunk, InputError(text, file=chunk.path, entry=chunk.start)
    except (CancelledError, CommClosedError) as error:
        raise ConfigError(f"the cluster was lost: {first_line(error)}") from error


_workers: list[tuple[str, Settings, Worker]] = []


def _run(checkpoint: str, settings: Settings, chunk: Chunk) -> ChunkResult:
    """Run a chunk; the worker of this process is kept from one to the next. Settings need not be hashable."""
    if not _workers or _workers[0][:2] != (checkpoint, settings):
        for *_, other in _workers:
            other.close()
        _workers[:] = [(checkpoint, settings, Worker(checkpoint, settings))]
    return _workers[0][2].run(chunk)


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
    """How processes are started, as a YAML file says; those of ``configs/cluster`` are examples."""

    system: str
    """One of `SYSTEMS`."""
    jobs: int
    """Number of jobs to submit; another one takes the place of one that ends."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of its class in dask-jobqueue."""

    def __post_init__(self) -> None:
        check_choice(self.system, SYSTEMS, "batch system")
        if self.jobs < 1:
            raise ConfigError(f"jobs must be at least 1, found {self.jobs}")

    @contextmanager
    def start(self) -> Iterator[BatchJobs]:
        """Submit the jobs, and end them and the scheduler afterwards; a ConfigError says why that is not possible."""
        kind = getattr(_dask_jobqueue(), SYSTEMS[self.system])
        try:
            cluster = kind(**{"scheduler_options": SCHEDULER, **self.options})
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"batch system {self.system}: {first_line(error)}") from error
        try:
            jobs = BatchJobs(cluster, self)
            jobs.submit()
            yield jobs
        finally:
            cluster.close()


class BatchJobs:
    """Jobs of a batch system, and a dask scheduler in this process."""

    def __init__(self, cluster: Any, system: BatchSystem) -> None:
        self.cluster, self._system = cluster, system  # a dask_jobqueue.JobQueueCluster without jobs
        self._begun: set[str] = set()  # jobs that have had a process
        self._without: set[str] = set()  # those of them that had none at the last look

    def __str__(self) -> str:
        """Numbers of the jobs, with which the batch system shows their state, and where their logs are."""
        numbers = [str(job.job_id) for job in list(self.cluster.workers.values())]
        shown = ", ".join(numbers[:3]) + (f" and {len(numbers) - 3} more" if len(numbers) > 3 else "")
        logs = self._system.options.get("log_directory")
        return f"jobs {shown or '(none)'} of {self._system.system}" + (f" (logs in {logs})" if logs else "")

    def submit(self) -> None:
        """Submit as many jobs as are wanting; after a ConfigError the jobs that the batch system took stay."""
        while len(self.cluster.worker_spec) < self._system.jobs:
            self.cluster.worker_spec.update(self.cluster.new_worker_spec())
        try:
            self.cluster.sync(self._started)  # as `scale`, which prints errors and goes on
        except (OSError, RuntimeError, ValueError) as error:
            self._forget_refused()
            raise ConfigError(f"batch system {self._system.system}: {_refusal(error)}") from error

    async def _started(self) -> None:
        await self.cluster

    def replace_ended(self) -> None:
        """Submit a job in place of each that had a process, and has none now and at the last call; see `submit`."""
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
    """The package. Its import makes SIGINT exit with code 0, which is taken back."""
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
    """A `BatchSystem` from a YAML file, or a built-in one by its name."""
    return from_plain(BatchSystem, load_yaml(resolve("cluster", path)), str(path))
