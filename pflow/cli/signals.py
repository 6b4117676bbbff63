"""SIGTERM as an exception."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Terminated", "raised_signals"]


class Terminated(BaseException):
    """SIGTERM, raised where the program is, so that what is half done is undone."""


@contextmanager
def raised_signals() -> Iterator[None]:
    """Raise `Terminated` where SIGTERM would end the process; signals reach the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
