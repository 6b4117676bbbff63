"""Signals that wait while a library calls Python code which must not raise."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["deferred_signals"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred_signals() -> Iterator[Callable[[], None]]:
    """Hold back SIGINT and SIGTERM where a handler in Python would raise; yield a function that lets them through.

    HDF5 writes to a file through Python. An exception of a handler there, which runs between any two steps of the main
    thread, is an error of writing to it, after which it ends the interpreter.

    Examples
    --------
    >>> with deferred_signals() as let_through:
    ...     for step in range(3):
    ...         let_through()  # outside of the library's calls
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main thread alone
        yield lambda: None
        return
    caught: list[signal.Signals] = []

    def keep(number: int, frame: FrameType | None) -> None:
        caught.append(signal.Signals(number))

    def let_through() -> None:
        while caught:
            number = caught.pop(0)
            before[number](number, None)

    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in before:
        signal.signal(number, keep)
    try:
        yield let_through
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    let_through()
