"""How the values of a drafted description were found."""

from __future__ import annotations

import dataclasses

__all__ = ["HOW", "Note", "Notes", "counted"]

HOW = ("found", "measured", "guessed", "fill in")
"""A value stands in the file, was measured with its events, was guessed, or is yet to be given by hand."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Note:
    """How a value was found, one of `HOW`, and in words from what."""

    how: str
    text: str


class Notes(dict[str, Note]):
    """Notes by field, e.g. ``b_field`` or ``calorimeters.ecal_barrel.kind``."""

    def add(self, field: str, how: str, text: str) -> None:
        """Set the note of a field."""
        self[field] = Note(how=how, text=text)


def counted(number: int, what: str) -> str:
    """A number with its noun.

    >>> counted(1, "event"), counted(3, "event")
    ('1 event', '3 events')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
