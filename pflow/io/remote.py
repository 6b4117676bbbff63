"""Files on servers (``root://``, ``https://``): retry after connection failures."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from typing import TypeVar

from pflow.errors import InputError, first_line

ATTEMPTS = 4  # most attempts to open or read a file
FIRST_WAIT = 1.0  # time before the second attempt, s; doubled before each further one

RETURNED_ERROR = re.compile(r"'\w+Error' object is not subscriptable")
"""Message of the error that uproot raises where fsspec returned an exception instead of the bytes of a range."""

T = TypeVar("T")


def is_remote(path: str | PathLike[str]) -> bool:
    """Whether a path is a URL."""
    return "://" in str(path)


def with_retries(path: str | PathLike[str], work: Callable[[], T], *, again: Callable[[], object] | None = None) -> T:
    """Return the result of `work` on a file; call `again` and retry if the connection to its server fails.

    An `InputError` says how often it was tried and for how long. A local file has one attempt.
    """
    if not is_remote(path):
        return work()
    begin, wait = time.monotonic(), FIRST_WAIT
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if attempt > 1 and again is not None:
                again()
            return work()
        except Exception as error:
            failure = _connection_failure(error)
            if failure is None:
                raise
            if attempt == ATTEMPTS:
                text = f"no connection, tried {ATTEMPTS} times in {time.monotonic() - begin:.0f} s"
                raise InputError(f"{text}: {first_line(failure)}", file=path) from error
        time.sleep(wait)
        wait *= 2
        with suppress(Exception):  # fsspec keeps connections that broke; whatever else is wrong, opening says it
            import fsspec

            fsspec.get_filesystem_class(str(path).partition("://")[0]).clear_instance_cache()
    raise AssertionError("unreachable")


def _connection_failure(error: BaseException | None) -> BaseException | None:
    """The failure of the network or server among the causes of an error; None without one."""
    while error is not None:
        text = str(error)
        if isinstance(error, FileNotFoundError | PermissionError) or "No such file" in text:
            return None
        if isinstance(error, OSError) or type(error).__module__.startswith("aiohttp"):
            return error
        if "closed file" in text or RETURNED_ERROR.search(text):
            return error
        error = error.__cause__ or error.__context__
    return None
