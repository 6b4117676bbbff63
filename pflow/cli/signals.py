"""SIGINT and SIGTERM as exceptions that are not lost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AGAIN_AFTER = 0.05
"""Seconds after which a signal that Python dropped is sent again."""


class Terminated(BaseException):
    """SIGTERM as an exception, so that unfinished outputs are removed."""


SIGNALS: dict[type[BaseException], signal.Signals] = {
    KeyboardInterrupt: signal.SIGINT,
    Terminated: signal.SIGTERM,
}
"""The signal that raises each exception."""


@contextmanager
def raised_signals() -> Iterator[None]:
    """Raise `Terminated` where SIGTERM would end the process.

    Python drops exceptions raised in a ``__del__``: there SIGTERM and SIGINT come again a moment later. Signals reach
    the main thread only; in another this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    main = threading.main_thread().ident
    repeated: list[threading.Timer] = []

    def stop(*_: object) -> None:
        raise Terminated

    def dropped(found: Any) -> None:
        number = SIGNALS.get(found.exc_type)
        if number is None:
            show(found)
            return
        timer = threading.Timer(AGAIN_AFTER, signal.pthread_kill, [main, number])
        timer.daemon = True
        timer.start()
        repeated.append(timer)

    before, show = signal.signal(signal.SIGTERM, stop), sys.unraisablehook
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        for timer in repeated:
            timer.cancel()
        sys.unraisablehook = show
        signal.signal(signal.SIGTERM, before)
