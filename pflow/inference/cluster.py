"""Chunks on a dask cluster: its processes reconstruct, this one collects the results in order."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from pflow.data.files import Chunk
from pflow.errors import ConfigError
from pflow.inference.chunks import ChunkResult, Settings, Worker

__all__ = ["run_on_cluster"]

CHUNKS_PER_THREAD = 3
"""Chunks in flight for each thread of the cluster: enough to keep it busy, few enough to bound memory."""

TIMEOUT = "10s"
"""Time to wait for a scheduler."""


def run_on_cluster(cluster: str, checkpoint: str, settings: Settings, chunks: Iterable[Chunk]) -> Iterator[ChunkResult]:
    """Results of the chunks, in their order.

    Parameters
    ----------
    cluster
        ``local:N`` for N processes on this machine, or the address of a dask scheduler (``tcp://host:port``). Its
        workers need pflow, and the checkpoint and input files under the same paths.
    checkpoint
        Argument of `load_model`.
    settings
        The same for all chunks.
    chunks
        Consumed as results are.

    Raises
    ------
    ConfigError
        dask is not installed, the name is neither ``local:N`` nor an address, or the scheduler does not answer.
    InputError
        A chunk that cannot be used.
    """
    try:
        from dask.distributed import Client, LocalCluster
    except ImportError as error:
        raise ConfigError("a cluster needs dask: pip install 'pflow[cluster]'") from error
    with ExitStack() as stack:
        target = cluster
        if cluster.startswith("local:"):
            number = cluster.removeprefix("local:")
            if not number.isdigit() or int(number) < 1:
                raise ConfigError(f"cluster '{cluster}': expected local:N with N processes, at least 1")
            # No dashboard: it would open a port.
            target = stack.enter_context(
                LocalCluster(n_workers=int(number), threads_per_worker=1, dashboard_address=None)
            )
        try:
            client = stack.enter_context(Client(target, timeout=TIMEOUT))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cluster '{cluster}' does not answer: {error}") from error
        max_in_flight = CHUNKS_PER_THREAD * max(1, sum(client.nthreads().values()))
        in_flight: deque[Any] = deque()
        for chunk in chunks:
            in_flight.append(client.submit(_run, checkpoint, settings, chunk, pure=False))
            if len(in_flight) >= max_in_flight:
                yield in_flight.popleft().result()
        while in_flight:
            yield in_flight.popleft().result()


@functools.lru_cache(maxsize=1)
def _worker(checkpoint: str, settings: Settings) -> Worker:
    """The worker of this process, kept from chunk to chunk."""
    return Worker(checkpoint, settings)


def _run(checkpoint: str, settings: Settings, chunk: Chunk) -> ChunkResult:
    return _worker(checkpoint, settings).run(chunk)
