"""Tables in Markdown, and their places in a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pflow.io.atomic import replacing


def table(head: list[str], rows: Iterable[list[str]], *, left: tuple[int, ...] = (0,)) -> str:
    """A table with the columns `left` aligned to the left and all others to the right."""
    separator = ["---" if k in left else "---:" for k in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, separator, *rows])


def replace_table(document: str, name: str, body: str) -> str:
    """The document with `body` between the comments ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.

    Raises
    ------
    ValueError
        The document does not hold both comments once, in this order.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    if (document.count(begin), document.count(end), rest.count(end)) != (1, 1, 1):
        raise ValueError(f"expected once, in this order: {begin} {end}")
    return f"{before}{begin}\n{body}\n{end}{after}"


def fill(path: Path, tables: Mapping[str, str]) -> None:
    """Replace tables of a file; all else in it was written by hand and stays."""
    text = path.read_text("utf-8")
    for name, body in tables.items():
        text = replace_table(text, name, body)
    with replacing(path) as partial:
        partial.write_text(text, "utf-8")
    print(f"wrote {path}", flush=True)
