"""The work on files: settings, jobs, and chunks that a process or a dask cluster reconstructs.

A cluster's processes are on this machine, or of a scheduler that runs already, such as one of dask-jobqueue in a batch
system. This process collects their results in order.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pflow.checkpoint.load import TrainedModel, load_model
from pflow.data.files import Chunk, FileOptions, OpenFiles
from pflow.errors import ConfigError, InputError, first_line, missing_package
from pflow.event.particles import Reconstruction
from pflow.inference.events import BATCH_SIZE, Engine, reconstruct_valid, usable_events, with_detector
from pflow.physics.arrays import Floats


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of `pflow.inference.files.reconstruct_files` that hold for all chunks, resolved."""

    reading: FileOptions
    max_particles: int | None
    max_hits: int
    batch_size: int
    device: str


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkResult:
    """Particles of a chunk, the momentum of its tracks (`Reconstruction.track_momentum`), the warnings on the way."""

    reconstruction: Reconstruction
    track_momentum: Floats  # [3], summed over the events, GeV
    warnings: tuple[Warning, ...]


@dataclasses.dataclass(eq=False)
class Job:
    """One output, and the inputs whose entries it has."""

    output: Path
    inputs: Sequence[str]
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)
    n_entries: int = 0
    error: InputError | ConfigError | None = None
    """Why there is no output."""
    was_finished: bool = False
    """Whether the output was there before."""


Task = tuple[Job, Chunk | None]
"""A chunk of a job, or None once for a job without chunks."""

Outcome = tuple[Job, Chunk | None, ChunkResult | InputError | None]
"""A task and what became of it."""


class Worker:
    """A model that is ready to run, and its open input files: at most `max_open`, None: all until they are released."""

    def __init__(self, model: TrainedModel, settings: Settings, *, max_open: int | None = 2) -> None:
        self.model, self.settings = model, settings
        self._engine = Engine(
            model, device=settings.device, max_particles=settings.max_particles, batch_size=settings.batch_size
        )
        self.files = OpenFiles(settings.reading, most=max_open)

    def run(self, chunk: Chunk) -> ChunkResult:
        """Read and reconstruct a chunk."""
        settings, on_error = self.settings, self.settings.reading.on_error
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            events = self.files.open(chunk.path).read(chunk.start, chunk.stop, truth=False, on_error=on_error)
            tokeniser = self.model.tokeniser
            as_trained = events if tokeniser.config.geometry else with_detector(events, tokeniser.detector)
            usable = usable_events(as_trained, settings.max_hits, on_error, valid=True)
            reconstruction = reconstruct_valid(usable, self._engine, on_error)
        messages = tuple(message for warning in caught if isinstance(message := warning.message, Warning))
        return ChunkResult(reconstruction, reconstruction.track_momentum(usable).sum(axis=0), messages)


CHUNKS_PER_THREAD = 3
"""Chunks in flight for each thread of the cluster: enough to keep it busy, few enough to bound memory."""

CHUNKS_PER_PROCESS = 4
"""Fewest chunks of a file for each process on this machine: a process is idle at last for half a chunk on average. More
of them are smaller, so that batches hold events of less similar lengths: eight took 6% more CPU time (Z -> qq)."""

TIMEOUT = "10s"
"""Longest time until a scheduler answers."""

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

SCHEDULER = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""Options of the scheduler: no dashboard. dask answers a few HTTP requests anyway, by default to all at port 8787."""


def run_on_cluster(
    cluster: str, checkpoint: str, settings: Settings, tasks: Iterable[Task]
) -> Generator[Outcome, None, None]:
    """Outcomes of the tasks, in their order; tasks are consumed some ahead of them, to keep all processes busy.

    Its processes need pflow, and checkpoint and inputs under the same paths. If a process dies, another repeats its
    chunks; a chunk that kills several processes has an error as its outcome. Without processes the chunks wait.
    ConfigError: the cluster does not answer, or is lost.
    """
    try:
        from dask.distributed import Client
    except ImportError as error:
        raise missing_package("dask", "clusters", extra="cluster") from error
    with ExitStack() as stack:
        target = _started(cluster, stack)
        try:
            client = stack.enter_context(Client(target, timeout=TIMEOUT))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cluster '{cluster}' does not answer: {error}") from error
        in_flight: deque[tuple[Job, Chunk | None, Any]] = deque()
        for job, chunk in tasks:
            future = None if chunk is None else client.submit(_run, checkpoint, settings, chunk, pure=False)
            in_flight.append((job, chunk, future))
            # Counted each time: processes may join later.
            if len(in_flight) >= CHUNKS_PER_THREAD * max(1, sum(client.nthreads().values())):
                yield _outcome(*in_flight.popleft())
        while in_flight:
            yield _outcome(*in_flight.popleft())


def entries_of_a_chunk(cluster: str | None, n_entries: int, chunk_size: int) -> int:
    """At most `chunk_size`, and fewer of a file of `n_entries` if else processes on this machine would be idle."""
    n_processes = _local_processes(cluster or "")
    if n_processes < 2:
        return chunk_size
    return min(chunk_size, max(BATCH_SIZE, math.ceil(n_entries / (CHUNKS_PER_PROCESS * n_processes))))


def _local_processes(cluster: str) -> int:
    """Number of processes of ``local:N``, 0 for other clusters; ConfigError: N is not a number of at least 1."""
    if not cluster.startswith("local:"):
        return 0
    number = cluster.removeprefix("local:")
    if not number.isdigit() or int(number) < 1:
        raise ConfigError(f"cluster '{cluster}': expected local:N with N processes, at least 1")
    return int(number)


def _started(cluster: str, stack: ExitStack) -> Any:
    """Start a local cluster, which `stack` closes; the address of a running cluster is returned unchanged."""
    import dask
    from dask.distributed import LocalCluster

    if cluster.endswith((".yaml", ".yml")):
        text = "pflow submits no jobs; start dask, e.g. with dask-jobqueue, and name the address of its scheduler"
        raise ConfigError(f"cluster '{cluster}': {text}")
    n_processes = _local_processes(cluster)
    if not n_processes:
        return cluster
    with dask.config.set(LOCAL):
        return stack.enter_context(
            LocalCluster(
                n_workers=n_processes, threads_per_worker=1, dashboard_address=None, scheduler_kwargs=SCHEDULER
            )
        )


def _outcome(job: Job, chunk: Chunk | None, future: Any) -> Outcome:
    from dask.distributed import CancelledError, KilledWorker
    from distributed.comm.core import CommClosedError

    if chunk is None or job.error is not None:
        return job, None, None
    try:
        return job, chunk, future.result()
    except InputError as error:
        return job, chunk, error
    except KilledWorker:
        text = (
            f"entries {chunk.start} to {chunk.stop - 1} ended several processes of the cluster, perhaps out of memory: "
            "reduce chunk_size or batch_size"
        )
        return job, chunk, InputError(text, file=chunk.path, entry=chunk.start)
    except (CancelledError, CommClosedError) as error:
        raise ConfigError(f"the cluster was lost: {first_line(error)}") from error


_workers: list[tuple[str, Settings, Worker]] = []


def _run(checkpoint: str, settings: Settings, chunk: Chunk) -> ChunkResult:
    """Run a chunk; the worker of this process is kept from one to the next. Settings need not be hashable."""
    if not _workers or _workers[0][:2] != (checkpoint, settings):
        for *_, worker in _workers:
            worker.files.close()
        _workers[:] = [(checkpoint, settings, Worker(load_model(checkpoint), settings))]
    return _workers[0][2].run(chunk)
