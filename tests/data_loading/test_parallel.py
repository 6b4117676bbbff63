from __future__ import annotations

import warnings

import pytest

from pflow.data.parallel import in_order
from pflow.errors import InputError


def work(number: int) -> int:
    if number == 7:
        raise InputError("seven", file="a.root", entry=7)
    if number == 2:
        warnings.warn("two", stacklevel=1)
    return number * number


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine with one core
@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_order_with_the_warnings_and_errors_of_the_work(workers):
    with pytest.warns(UserWarning, match="two"):
        assert list(in_order(work, range(5), num_workers=workers)) == [0, 1, 4, 9, 16]
    with pytest.raises(InputError, match=r"^a\.root, entry 7: seven$"):
        list(in_order(work, [6, 7, 8], num_workers=workers))
