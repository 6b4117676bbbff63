"""Errors that name the file, the entry and the branch or field, what was expected and the nearest matches."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike

__all__ = [
    "ConfigError",
    "InputError",
    "OutputError",
    "PflowError",
    "check_choice",
    "check_fields",
    "first_line",
    "missing_package",
    "nearest",
    "reading",
]


def nearest(name: object, available: Iterable[str], n: int = 3) -> list[str]:
    """Up to `n` of the `available` names that look most like `name`, best first; the ``suggestions`` of an error.

    >>> nearest("ECalBarrel", ["HCALBarrel", "ECALBarrel", "MUON"], n=2)
    ['ECALBarrel', 'HCALBarrel']
    """
    by_folded = {candidate.casefold(): candidate for candidate in available}
    found = difflib.get_close_matches(str(name).casefold(), by_folded, n=n, cutoff=0.5)
    return [by_folded[folded] for folded in found]


def first_line(error: BaseException) -> str:
    """Type and first line of the message of another library's error.

    >>> first_line(OSError("truncated\\nfor many reasons"))
    'OSError: truncated'
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def check_choice(name: object, choices: Iterable[str], what: str) -> None:
    """Refuse a name that is not among the choices.

    Raises
    ------
    ConfigError
        Says `what` was named, all choices and the nearest matches.
    """
    known = tuple(choices)
    if name not in known:
        message = f"no {what} '{name}': expected one of {', '.join(known)}"
        raise ConfigError(message, suggestions=nearest(name, known))


def check_fields(names: Iterable[object], known: Iterable[str], where: str) -> None:
    """Refuse fields that do not exist.

    Raises
    ------
    ConfigError
        Says `where`, the first unknown field and the nearest matches; all known fields if none is near.
    """
    known = tuple(known)
    for name in names:
        if name not in known:
            close = nearest(name, known)
            expected = "" if close else f"; expected some of {', '.join(known)}"
            raise ConfigError(f"{where}: unknown field '{name}'{expected}", suggestions=close)


class PflowError(Exception):
    """Base of every error that pflow raises on purpose. The command line prints it without a traceback.

    Parameters
    ----------
    message
        What is wrong, and what was expected instead.
    suggestions
        Nearest matches for a name that was not found; the message ends with them.
    """

    def __init__(self, message: str, *, suggestions: Iterable[str] = ()) -> None:
        self.suggestions = tuple(suggestions)
        super().__init__(message + (f" (nearest matches: {', '.join(self.suggestions)})" if self.suggestions else ""))


class ConfigError(PflowError, ValueError):
    """A configuration, an option or a combination of them that cannot work."""


class InputError(PflowError, ValueError):
    """An input file that cannot be used as it is.

    Parameters
    ----------
    message, suggestions
        See `PflowError`.
    file, entry, field
        Where: the path, the entry of its tree counted from 0, the branch or field. Each may be unknown.

    Attributes
    ----------
    where
        All of these in one text, with which the message begins; "" if nothing is known.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | PathLike[str] | None = None,
        entry: int | None = None,
        field: str | None = None,
        suggestions: Iterable[str] = (),
    ) -> None:
        self.file = None if file is None else str(file)
        self.entry = entry
        self.field = field
        parts = (self.file, None if entry is None else f"entry {entry}", None if field is None else f"'{field}'")
        self.where = ", ".join(part for part in parts if part is not None)
        super().__init__(f"{self.where}: {message}" if self.where else message, suggestions=suggestions)


class OutputError(PflowError, OSError):
    """An output that cannot be written: the disk is full, the folder is gone or read-only."""


def missing_package(package: str, what: str, *, extra: str) -> ConfigError:
    """The error where an optional package is not installed: for what it is needed, and which extra installs it."""
    return ConfigError(f"the package {package}, for {what}, is not installed: pip install 'pflow[{extra}]'")


@contextmanager
def reading(
    message: str,
    *,
    file: str | PathLike[str] | None = None,
    entry: int | None = None,
    field: str | None = None,
) -> Iterator[None]:
    """Turn whatever the content of a file makes other libraries raise into an `InputError`.

    Damaged or hostile bytes can fail anywhere in a parser, with an error of any type.

    Parameters
    ----------
    message
        What the content should have been; the error's type and first line are added.
    file, entry, field
        See `InputError`.

    Raises
    ------
    InputError
        Any exception of the block; a `PflowError` passes unchanged.
    """
    try:
        yield
    except PflowError:
        raise
    except Exception as error:
        raise InputError(f"{message}: {first_line(error)}", file=file, entry=entry, field=field) from error
