"""Sections of RESULTS.md, each of which one script writes anew and leaves the others alone."""

from __future__ import annotations

__all__ = ["replace_section"]


def replace_section(document: str, name: str, body: str) -> str:
    """The document with the section `name` replaced, or added at the end where there is none.

    A section stands between two comments, which a rendered page does not show.

    Raises
    ------
    ValueError
        The section begins and does not end, or the other way round.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    section = f"{begin}\n{body.strip()}\n{end}"
    if (document.count(begin), document.count(end)) == (0, 0):
        return f"{document.rstrip()}\n\n{section}\n"
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"section '{name}' lacks one of its two comments, in this order: {begin} {end}")
    return before + section + after
