import os
import signal
import warnings
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader, IterableDataset

from pflow.data.parallel import begin_worker, in_order
from pflow.errors import InputError


def work(number: int) -> int:
    if number == 7:
        raise InputError("seven", file="a.root", entry=7)
    if number == 2:
        warnings.warn("two", stacklevel=1)
    return number * number


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_order_with_the_warnings_and_errors_of_the_work(workers):
    with pytest.warns(UserWarning, match="two"):
        assert list(in_order(work, range(5), num_workers=workers)) == [0, 1, 4, 9, 16]
    with pytest.raises(InputError, match=r"^a\.root, entry 7: seven$"):
        list(in_order(work, [6, 7, 8], num_workers=workers))


class Process(IterableDataset[int]):
    """The number of the process that loads, some times."""

    def __iter__(self) -> Iterator[int]:
        yield from [os.getpid()] * 9


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_of_a_job_does_not_end_those_that_load(number):
    batches = iter(DataLoader(Process(), batch_size=None, num_workers=1, worker_init_fn=begin_worker))
    worker = next(batches)
    assert worker != os.getpid()
    os.kill(worker, number)
    assert list(batches) == [worker] * 8
