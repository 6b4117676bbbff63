"""Chunks on a dask cluster: many processes reconstruct, one writes, in order."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from pflow.errors import ConfigError
from pflow.inference.chunks import Chunk, ChunkResult, Settings, Worker

__all__ = ["run_on_cluster"]

IN_FLIGHT = 3
"""Chunks handed out for each thread of the cluster: enough to keep it busy, few enough to bound memory."""

TIMEOUT = "10s"
"""How long to wait for a scheduler."""


def run_on_cluster(cluster: str, checkpoint: str, settings: Settings, chunks: Iterable[Chunk]) -> Iterator[ChunkResult]:
    """Results of the chunks, in their order.

    Parameters
    ----------
    cluster
        ``local:N`` for N processes on this machine, or the address of a dask scheduler (``tcp://host:port``). Its
        workers need pflow, the checkpoint and the input files under the same paths.
    checkpoint
        What `load_model` takes.
    settings
        The job's settings.
    chunks
        Taken from as results are consumed.

    Raises
    ------
    ConfigError
        dask is not installed, a cluster that is no such name, or a scheduler that does not answer.
    InputError
        From a chunk that cannot be used.
    """
    try:
        from dask.distributed import Client, LocalCluster
    except ImportError as error:
        raise ConfigError("a cluster needs dask: pip install 'pflow[cluster]'") from error
    if cluster.startswith("local:"):
        number = cluster.removeprefix("local:")
        if not number.isdigit() or int(number) < 1:
            raise ConfigError(f"cluster '{cluster}': expected local:N with N processes, at least 1")
        # Without a dashboard: no server that nobody asked for.
        target: Any = LocalCluster(n_workers=int(number), threads_per_worker=1, dashboard_address=None)
    else:
        target = cluster
    try:
        client = Client(target, timeout=TIMEOUT)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cluster '{cluster}' does not answer: {error}") from error
    with client:
        try:
            most = IN_FLIGHT * max(1, sum(client.nthreads().values()))
            waiting: deque[Any] = deque()
            for chunk in chunks:
                waiting.append(client.submit(_run, checkpoint, settings, chunk, pure=False))
                if len(waiting) >= most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            if target is not cluster:
                target.close()


@functools.lru_cache(maxsize=1)
def _worker(checkpoint: str, settings: Settings) -> Worker:
    """This process's worker, kept from chunk to chunk; one job at a time."""
    return Worker(checkpoint, settings)


def _run(checkpoint: str, settings: Settings, chunk: Chunk) -> ChunkResult:
    return _worker(checkpoint, settings).run(chunk)
