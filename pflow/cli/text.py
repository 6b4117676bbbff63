"""Facts and tables as text: names are never broken, and where the output is no terminal, neither are lines."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

__all__ = ["print_facts", "print_table"]

Row = Sequence[str | Sequence[str]]
"""Cells, the last of which may have several lines."""


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print labels and what belongs to them; long texts go on below themselves, broken between words only."""
    facts = list(facts)
    indent = max(len(label) for label, _ in facts) + 2
    for label, text in facts:
        lines = _wrapped(text, indent)
        print(f"{label:<{indent}}{lines[0]}".rstrip(), *(" " * indent + line for line in lines[1:]), sep="\n")


def print_table(header: Row, rows: Iterable[Row | None], *, title: str = "") -> None:
    """Print aligned columns, numbers to the right; None is an empty line. A last cell too wide gets its own lines."""
    table = [None if row is None else [*row[:-1], _lines(row[-1])] for row in (header, *rows)]
    cells = [row for row in table if row is not None]
    widths = [max(len(str(row[column])) for row in cells) for column in range(len(header) - 1)]
    right = [all(re.match(r"-?\d|$", str(row[column])) for row in cells[1:]) for column in range(len(widths))]
    indent = sum(widths) + 2 * len(widths)
    limit = _columns()
    print(*([f"\n{title}"] if title else []), sep="\n", end="\n" if title else "")
    for row in table:
        if row is None:
            print()
            continue
        parts = zip(row[:-1], widths, right, strict=True)
        begin = "".join(f"{cell:>{width}}  " if to_right else f"{cell:<{width}}  " for cell, width, to_right in parts)
        below = limit is not None and any(indent + len(line) > limit for line in row[-1])
        first, *others = ("", *row[-1]) if below else row[-1]
        print(
            (begin + first).rstrip(), *((" " * (4 if below else indent) + line).rstrip() for line in others), sep="\n"
        )


def _lines(cell: str | Sequence[str]) -> list[str]:
    return [cell] if isinstance(cell, str) else list(cell) or [""]


def _columns() -> int | None:
    """Width of the terminal; None where the output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _wrapped(text: str, indent: int) -> list[str]:
    limit = _columns()
    if limit is None:
        return [text]
    width = max(limit - indent, 20)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
