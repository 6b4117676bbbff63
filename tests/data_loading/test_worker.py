from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader, IterableDataset

from pflow.data.worker import begin_worker


class Process(IterableDataset[int]):
    """The number of the process that loads, some times."""

    def __iter__(self) -> Iterator[int]:
        yield from [os.getpid()] * 9


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_signal_to_all_processes_of_a_job_does_not_end_those_that_load():
    batches = iter(DataLoader(Process(), batch_size=None, num_workers=1, worker_init_fn=begin_worker))
    worker = next(batches)
    assert worker != os.getpid()
    os.kill(worker, signal.SIGTERM)
    assert list(batches) == [worker] * 8
