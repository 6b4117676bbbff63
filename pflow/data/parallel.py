"""The same work on many items, in the worker processes of a `DataLoader`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader, Dataset

from pflow.errors import PflowError

__all__ = ["in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(work: Callable[[Item], Result], items: Sequence[Item], *, num_workers: int = 0) -> Iterator[Result]:
    """Results of the items, in their order; errors and warnings are those of the work.

    Parameters
    ----------
    work
        What is done with an item; with workers, it and its results are pickled.
    items
        Any number of them.
    num_workers
        Processes; 0: this one.

    Raises
    ------
    PflowError
        The first that the work raises.
    """
    if num_workers == 0 or len(items) < 2:
        yield from map(work, items)
        return
    loader: DataLoader[_Outcome[Result]] = DataLoader(
        _Items(work, items), batch_size=None, num_workers=min(num_workers, len(items)), collate_fn=_unchanged
    )
    for outcome in loader:
        for message, category in outcome.warned:
            warnings.warn(message, category, stacklevel=2)
        if isinstance(outcome.result, PflowError):
            raise outcome.result
        yield outcome.result


class _Outcome(Generic[Result]):
    """A result, or the error in its place, and what was warned of."""

    def __init__(self, result: Result | PflowError, warned: Sequence[tuple[str, type[Warning]]]) -> None:
        self.result = result
        self.warned = warned


class _Items(Dataset[_Outcome[Result]], Generic[Item, Result]):
    def __init__(self, work: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self.work = work
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> _Outcome[Result]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result: Result | PflowError = self.work(self.items[index])
            except PflowError as error:
                result = error
        return _Outcome(result, [(str(one.message), one.category) for one in caught])


def _unchanged(outcome: Any) -> Any:
    return outcome
