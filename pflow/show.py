"""Tables of a few rows, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["html_table", "text_table"]


def html_table(heads: Iterable[str], rows: Iterable[Iterable[str]], *, caption: str = "") -> str:
    """An HTML table."""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, two spaces apart.

    >>> print(text_table([("name", "GeV"), ("photon", "10")]))
    name    GeV
    photon  10
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
