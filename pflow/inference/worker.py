"""Reconstruct chunks of files, in this process or on a dask cluster.

A cluster is started on this machine, or runs already behind a scheduler, such as dask-jobqueue's in a batch system.
This process collects the results in order.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from pflow.checkpoint import TrainedModel, load_model
from pflow.data.files import Chunk, FileOptions, OpenFiles
from pflow.errors import ConfigError, InputError, collected_warnings, first_line, missing_package
from pflow.event.particles import Reconstruction
from pflow.event.scales import Scales, measure
from pflow.inference.events import BATCH_SIZE, Engine, reconstruct_valid, track_momentum, usable_events, with_detector
from pflow.physics.arrays import Floats


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of `pflow.inference.files.reconstruct_files` that hold for all chunks, resolved."""

    reading: FileOptions
    max_particles: int | None
    candidates: float | None
    merge_mm: float | None
    max_hits: int
    batch_size: int
    device: str


class ChunkResult(NamedTuple):
    """Particles of a chunk, the scales of its events, the momentum of its tracks (`Reconstruction.track_momentum`), and
    its warnings."""

    reconstruction: Reconstruction
    scales: Scales
    track_momentum: Floats  # [3], summed over the events, GeV
    warnings: tuple[Warning, ...]


class Worker:
    """A model ready to run, and its open input files: at most `max_open`; None: all until they are released.

    `files`: the open files of another worker, to be shared. Each thread needs its own: two threads that read one open
    file would move each other's position in it.
    """

    def __init__(
        self, model: TrainedModel, settings: Settings, *, max_open: int | None = 2, files: OpenFiles | None = None
    ) -> None:
        self.model = model if settings.merge_mm is None else model.merging(settings.merge_mm)
        self.settings = settings
        names = ("device", "max_particles", "candidates", "batch_size")
        self._engine = Engine(self.model, **{name: getattr(settings, name) for name in names})
        self.files = files or OpenFiles(dataclasses.replace(settings.reading, said={}), most=max_open)

    def run(self, chunk: Chunk) -> ChunkResult:
        """Read and reconstruct a chunk."""
        settings, on_error = self.settings, self.settings.reading.on_error
        with collected_warnings() as warnings:
            events = self.files.open(chunk.path).read(chunk.start, chunk.stop, truth=False, on_error=on_error)
            events, tokeniser = chunk.move.apply(events), self.model.tokeniser
            as_trained = events if tokeniser.config.geometry else with_detector(events, tokeniser.detector)
            usable = usable_events(as_trained, settings.max_hits, on_error, valid=True)
            reconstruction = reconstruct_valid(usable, self._engine, on_error)
            scales = measure(events, reconstruction.particles)
        momentum = track_momentum(reconstruction, usable, self.model).sum(axis=0)
        return ChunkResult(reconstruction, scales, momentum, tuple(warnings))


class Executor(NamedTuple):
    """Reconstructs chunks: `submit` returns a function that returns the result, or raises the `InputError`."""

    submit: Callable[[Chunk], Callable[[], ChunkResult]]
    in_flight: Callable[[], int]
    """Number of chunks to submit before the first result is needed."""


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


@contextmanager
def executor_for(worker: Worker, cluster: str | None) -> Iterator[Executor]:
    """An executor with the worker; on a new cluster of N processes (``local:N``), or the cluster of a scheduler.

    Processes need pflow, and checkpoint and inputs under the same paths. If a process dies, another repeats its chunks;
    a chunk that kills several processes raises an `InputError`. Chunks wait while there are no processes. ConfigError:
    the cluster does not answer, or is lost.
    """
    if cluster is None:
        yield Executor(submit=lambda chunk: functools.partial(worker.run, chunk), in_flight=lambda: 1)
        return
    try:
        import dask
        from dask.distributed import CancelledError, Client, KilledWorker, LocalCluster
        from distributed.comm.core import CommClosedError
    except ImportError as error:
        raise missing_package("dask", "clusters", extra="cluster") from error

    def wait(chunk: Chunk, future: Any) -> ChunkResult:
        try:
            result: ChunkResult = future.result()
        except KilledWorker as error:
            text = f"entries {chunk.start} to {chunk.stop - 1} ended several processes of the cluster, perhaps out of "
            text += "memory: reduce chunk_size or batch_size"
            raise InputError(text, file=chunk.path, entry=chunk.start) from error
        except (CancelledError, CommClosedError) as error:
            raise ConfigError(f"the cluster was lost: {first_line(error)}") from error
        return result

    with ExitStack() as stack:
        target: Any = cluster
        if n_processes := _local_processes(cluster):
            options = {"dashboard_address": None, "scheduler_kwargs": SCHEDULER}
            with dask.config.set(LOCAL):
                target = stack.enter_context(LocalCluster(n_workers=n_processes, threads_per_worker=1, **options))
        try:
            client = stack.enter_context(Client(target, timeout=TIMEOUT))
        except (OSError, ValueError) as error:
            text = "expected local:N or the address of a scheduler that runs, e.g. of dask-jobqueue"
            raise ConfigError(f"cluster '{cluster}' does not answer, {text}: {first_line(error)}") from error
        begin = functools.partial(client.submit, _run, uuid.uuid4().hex, worker.model.path, worker.settings, pure=False)
        yield Executor(
            submit=lambda chunk: functools.partial(wait, chunk, begin(chunk)),
            in_flight=lambda: CHUNKS_PER_THREAD * max(1, sum(client.nthreads().values())),  # processes may join later
        )


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


_thread = threading.local()  # dask's default is one process with a thread for each core


def _run(call: str, checkpoint: str, settings: Settings, chunk: Chunk) -> ChunkResult:
    """Run a chunk with this thread's worker; each `call` of `reconstruct_files` makes a new one.

    Between calls files may be replaced under the same paths.
    """
    if getattr(_thread, "call", None) != call:
        if hasattr(_thread, "worker"):
            _thread.worker.files.close()
        _thread.worker, _thread.call = Worker(load_model(checkpoint), settings), call
    result: ChunkResult = _thread.worker.run(chunk)
    return result
