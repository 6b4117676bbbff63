"""Chunks on a dask cluster: its processes reconstruct, this one collects the results in order."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import ExitStack, suppress
from typing import Any

from pflow.data.files import Chunk
from pflow.errors import ConfigError, InputError, first_line, missing_package
from pflow.inference.batch_system import BatchJobs, load_batch_system
from pflow.inference.chunks import ChunkResult, Settings, Worker
from pflow.inference.jobs import Outcome, Unit

__all__ = ["run_on_cluster"]

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
    cluster: str, checkpoint: str, settings: Settings, units: Iterable[Unit]
) -> Generator[Outcome, None, None]:
    """Outcomes of the units, in their order.

    The chunks of a process that dies are done again by another one. A chunk with which several processes die, as one
    that needs more memory than they have, has an error as its outcome. While the cluster has no processes, the chunks
    wait, with a warning.

    Parameters
    ----------
    cluster
        ``local:N`` for N processes on this machine, a YAML file of a batch system to submit them to
        (`pflow.inference.batch_system`), or the address of a dask scheduler (``tcp://host:port``). The processes need
        pflow, and the checkpoint and input files under the same paths.
    checkpoint
        Argument of `load_model`.
    settings
        The same for all chunks.
    units
        Consumed some ahead of the outcomes, so that small files keep the processes busy too.

    Raises
    ------
    ConfigError
        dask is not installed, the name is none of these, the scheduler does not answer or is lost, or the batch system
        does not take the jobs.
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
        in_flight: deque[tuple[Unit, Any]] = deque()
        for unit in units:
            future = None
            if unit.chunk is not None:
                future = client.submit(_run, checkpoint, settings, unit.chunk, pure=False)
            in_flight.append((unit, future))
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
        # No dashboard: it would open a port.
        return stack.enter_context(LocalCluster(n_workers=int(number), threads_per_worker=1, dashboard_address=None))


class _Watch:
    """Waits for results, and meanwhile looks whether the cluster has processes.

    Parameters
    ----------
    client
        A `distributed.Client`.
    cluster
        What the user calls the cluster.
    jobs
        Its jobs if it is on a batch system.
    """

    def __init__(self, client: Any, cluster: str, jobs: BatchJobs | None) -> None:
        self._client = client
        self._cluster = cluster
        self._jobs = jobs
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


def _outcome(unit: Unit, future: Any, watch: _Watch) -> Outcome:
    """Wait for what becomes of a unit."""
    from dask.distributed import CancelledError, KilledWorker
    from distributed.comm.core import CommClosedError

    if unit.chunk is None or unit.job.error is not None:
        return Outcome(unit)
    try:
        return Outcome(unit, watch.result(future))
    except InputError as error:
        return Outcome(unit, error=error)
    except KilledWorker:
        text = (
            f"entries {unit.chunk.start} to {unit.chunk.stop - 1} ended several processes of the cluster, perhaps for "
            "want of memory; a smaller chunk_size or batch_size needs less"
        )
        return Outcome(unit, error=InputError(text, file=unit.chunk.path, entry=unit.chunk.start))
    except (CancelledError, CommClosedError) as error:
        raise ConfigError(f"the cluster was lost: {first_line(error)}") from error


_workers: list[tuple[str, Settings, Worker]] = []
"""The worker of this process, kept from chunk to chunk; settings compare and need not be hashable."""


def _worker(checkpoint: str, settings: Settings) -> Worker:
    """The worker of this process for a checkpoint and settings."""
    if not _workers or _workers[0][:2] != (checkpoint, settings):
        for *_, other in _workers:
            other.close()
        _workers[:] = [(checkpoint, settings, Worker(checkpoint, settings))]
    return _workers[0][2]


def _run(checkpoint: str, settings: Settings, chunk: Chunk) -> ChunkResult:
    return _worker(checkpoint, settings).run(chunk)
