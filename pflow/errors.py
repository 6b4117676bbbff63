"""Errors that say where: the file, the entry and the branch or field, what was expected and the nearest match."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from os import PathLike

__all__ = ["ConfigError", "InputError", "PflowError", "first_line", "nearest"]


def nearest(name: str, available: Iterable[str], n: int = 3) -> list[str]:
    """Return up to `n` of the `available` names that look most like `name`, best first.

    >>> nearest("ECalBarrel", ["HCALBarrel", "ECALBarrel", "MUON"], n=2)
    ['ECALBarrel', 'HCALBarrel']
    """
    by_folded = {candidate.casefold(): candidate for candidate in available}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=n, cutoff=0.5)
    return [by_folded[folded] for folded in found]


def first_line(error: BaseException) -> str:
    """Type and first line of what another library's error says, which may go on for pages.

    >>> first_line(OSError("truncated\\nfor many reasons"))
    'OSError: truncated'
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class PflowError(Exception):
    """Base of every error that pflow raises on purpose. The command line prints it without a traceback."""


class ConfigError(PflowError, ValueError):
    """A configuration, an option or a combination of them that cannot work."""


class InputError(PflowError, ValueError):
    """An input file that cannot be used as it is.

    Parameters
    ----------
    message
        What is wrong, and what was expected instead.
    file, entry, field
        Where: the path, the entry of its tree counted from 0, the branch or field. Each may be unknown.
    suggestions
        Nearest matches for a name that was not found.
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
        self.suggestions = tuple(suggestions)
        where = [
            part
            for part in (
                self.file,
                None if entry is None else f"entry {entry}",
                None if field is None else f"'{field}'",
            )
            if part is not None
        ]
        text = f"{', '.join(where)}: {message}" if where else message
        if self.suggestions:
            text += f" (nearest matches: {', '.join(self.suggestions)})"
        super().__init__(text)
