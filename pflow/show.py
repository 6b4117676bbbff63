"""Tables of a few rows and facts, as text and as HTML."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from html import escape

Row = Sequence[str | Sequence[str]]
"""Cells; the last one may have several lines."""


def html_table(heads: Iterable[str], rows: Iterable[Iterable[str]], *, caption: str = "") -> str:
    """An HTML table."""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def text_table(heads: Row, rows: Iterable[Row | None]) -> str:
    """Columns two spaces apart, numbers to the right; None is an empty line. What a terminal cannot hold goes below.

    >>> print(text_table(("name", "GeV", "hits"), [("photon", "10.5", ["HCAL", "ECAL"]), ("pi+", "1.5", "ECAL")]))
    name     GeV  hits
    photon  10.5  HCAL
                  ECAL
    pi+      1.5  ECAL
    """
    table = [heads, *rows]
    columns = list(zip(*(row[:-1] for row in table if row is not None), strict=True))
    widths = [max(map(len, column)) for column in columns]
    # The head is a text above numbers too, and an empty cell is one that has no number.
    numbers = [all(re.match(r"-?\d|$", str(cell)) for cell in column[1:]) for column in columns]
    lines = []
    for row in table:
        if row is None:
            lines.append("")
            continue
        cells = zip(row[:-1], widths, numbers, strict=True)
        begin = "".join(f"{cell:>{width}}  " if number else f"{cell:<{width}}  " for cell, width, number in cells)
        last = [row[-1]] if isinstance(row[-1], str) else row[-1] or [""]
        if len(begin) + max(map(len, last)) > _width():
            # Long texts are broken, but names are not.
            wrapper = textwrap.TextWrapper(_width(), break_long_words=False, break_on_hyphens=False)
            wrapper.initial_indent = wrapper.subsequent_indent = "    "
            lines += [begin, *(line for text in last for line in wrapper.wrap(text))]
        else:
            lines += [begin + last[0], *(" " * len(begin) + text for text in last[1:])]
    return "\n".join(line.rstrip() for line in lines)


def text_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Two-column text of labels and values; in a terminal long values are broken, between words only."""
    facts = list(facts)
    indent = max(len(label) for label, _ in facts) + 2
    # In a terminal hardly wider than the labels each line would hold a single word.
    wrapper = textwrap.TextWrapper(max(_width(), indent + 20), break_long_words=False, break_on_hyphens=False)
    wrapper.subsequent_indent = " " * indent
    lines = []
    for label, text in facts:
        wrapper.initial_indent = f"{label:<{indent}}"
        # Of an empty text textwrap gives nothing, not even the label.
        lines.append(wrapper.fill(text) or label)
    return "\n".join(lines)


def _width() -> int:
    """Columns of the terminal; lines of any length if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
