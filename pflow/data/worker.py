"""How the processes begin that load batches."""

from __future__ import annotations

import signal

from pflow.data.memory import keep_freed_memory

__all__ = ["begin_worker"]


def begin_worker(_: int) -> None:
    """Prepare a process of a `DataLoader`, as its ``worker_init_fn``.

    Batch systems send SIGTERM to all processes of a job. A worker that it ended would be an error in the middle of a
    step; workers end when the training closes them or is gone.
    """
    keep_freed_memory()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
