"""Errors that name the file, the entry and the branch or field, what was expected and the nearest matches."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from os import PathLike
from types import UnionType
from typing import Any

File = str | PathLike[str] | None


def nearest(name: object, available: Iterable[str], n: int = 3) -> list[str]:
    """Up to `n` of the `available` names that look most like `name`, best first.

    >>> nearest("ECalBarrel", ["HCALBarrel", "ECALBarrel", "MUON"], n=2)
    ['ECALBarrel', 'HCALBarrel']
    """
    by_folded = {candidate.casefold(): candidate for candidate in available}
    matches = difflib.get_close_matches(str(name).casefold(), by_folded, n=n, cutoff=0.5)
    return [by_folded[folded] for folded in matches]


_collected: ContextVar[list[Warning] | None] = ContextVar("collected", default=None)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called pflow, or append to the list of an enclosing `collected_warnings`."""
    collected = _collected.get()
    if collected is None:
        frame, level = sys._getframe(1), 2
        # Generators and contexts of pflow run below frames of contextlib.
        while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("pflow", "contextlib"):
            frame, level = frame.f_back, level + 1
        warnings.warn(message, category, stacklevel=level)
    else:
        collected.append(category(message))


@contextmanager
def collected_warnings() -> Iterator[list[Warning]]:
    """Collect the messages of `warn` in this thread only (`warnings.catch_warnings` acts on the whole process).

    After an error nobody would see them, and they may explain it: it comes behind them.
    """
    collected: list[Warning] = []
    token = _collected.set(collected)
    try:
        yield collected
    except Exception:
        for warning in collected:
            warnings.warn(warning, stacklevel=3)
        raise
    finally:
        _collected.reset(token)


def first_line(error: BaseException) -> str:
    """Type and first line of the message of another library's error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def check_choice(name: object, choices: Iterable[str], what: str) -> None:
    """Raise a `ConfigError` for a name that is not among the choices; says `what` it was to name, and all choices."""
    known = tuple(choices)
    if name not in known:
        message = f"no {what} '{name}': expected one of {', '.join(known) or 'none'}"
        raise ConfigError(message, suggestions=nearest(name, known))


def check_type(value: object, kinds: type | UnionType, expected: str) -> None:
    """Raise a `TypeError` that says what was `expected`, unless a value is of one of the types."""
    if not isinstance(value, kinds):
        raise TypeError(f"expected {expected}; found {type(value).__name__}")


def check_options(options: object, where: str, expected: str, is_right: Callable[[Any], object], *names: str) -> None:
    """Raise a `ConfigError` for the first option of these names that is not right; it says what was `expected`."""
    for name in names:
        value = getattr(options, name)
        try:
            right = is_right(value)
        except TypeError:  # of another type, e.g. a text
            right = False
        if not right:
            raise ConfigError(f"{where}: {name} must be {expected}, found {value!r}")


def check_fields(names: Iterable[object], known: Iterable[str], where: str) -> None:
    """Raise a `ConfigError` for the first field that does not exist; it says `where`, and which fields exist."""
    # Used once for each name and again for the message: an iterator would be empty by then.
    known = tuple(known)
    for name in names:
        if name not in known:
            close = nearest(name, known)
            expected = "" if close else f"; expected some of {', '.join(known)}"
            raise ConfigError(f"{where}: unknown field '{name}'{expected}", suggestions=close)


class PflowError(Exception):
    """Base of every error that pflow raises on purpose; the message ends with the nearest matches of a name."""

    def __init__(self, message: str, *, suggestions: Iterable[str] = ()) -> None:
        self.suggestions = tuple(suggestions)
        super().__init__(message + (f" (nearest matches: {', '.join(self.suggestions)})" if self.suggestions else ""))


class ConfigError(PflowError, ValueError):
    """A configuration, an option or a combination of them that cannot work."""


class InputError(PflowError, ValueError):
    """An input file that cannot be used as it is.

    The message begins with `file`, `entry` (from 0) and `field` (the branch), as far as given: the attribute ``where``.
    """

    def __init__(
        self,
        message: str,
        *,
        file: File = None,
        entry: int | None = None,
        field: str | None = None,
        suggestions: Iterable[str] = (),
    ) -> None:
        self.file = None if file is None else str(file)
        self.entry, self.field = entry, field
        # Compared with None: entry 0 is false, and must be named too.
        parts = (self.file, None if entry is None else f"entry {entry}", None if field is None else f"'{field}'")
        self.where = ", ".join(part for part in parts if part is not None)
        super().__init__(f"{self.where}: {message}" if self.where else message, suggestions=suggestions)


class OutputError(PflowError, OSError):
    """An output that cannot be written: the disk is full, the folder is gone or read-only."""


def missing_package(package: str, what: str, *, extra: str) -> PflowError:
    """The error for an optional package that is not installed: `what` needs it, `extra` installs it."""
    # No ConfigError: the options are right, and no file is at fault.
    return PflowError(f"the package {package}, for {what}, is not installed: pip install 'pflow[{extra}]'")


@contextmanager
def reading(message: str, *, file: File = None, entry: int | None = None, field: str | None = None) -> Iterator[None]:
    """Turn what another library raises on the content of a file into an `InputError` of `message` and its first line.

    Damaged bytes raise errors of any type, so the block holds calls of that library alone: a mistake of our own must
    not look like a damaged file. A `PflowError` passes unchanged.
    """
    try:
        yield
    except PflowError:
        raise
    except Exception as error:
        raise InputError(f"{message}: {first_line(error)}", file=file, entry=entry, field=field) from error
