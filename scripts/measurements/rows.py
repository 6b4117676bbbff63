"""Results as rows of scripts/results/results.csv, and tables of them in documents.

A row holds one quantity that one model reaches on one sample, with its 68.3% interval, what the reference algorithm
(Pandora) and the oracle (perfect particle flow) reach on the same events, and the difference of the model to the
reference with the interval of the paired comparison. Cells without a number are empty.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pflow.io.atomic import replacing
from pflow.metrics.report import number_text
from pflow.metrics.stats import Number

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("PFLOW_DATA", ROOT.parent / "shared" / "data"))
RESULTS = ROOT / "scripts" / "results"
CSV = RESULTS / "results.csv"
REPORT = ROOT / "RESULTS.md"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the file; `sample` is the folder and name of the events, e.g. ``g4/zqq``."""

    model: str
    sample: str
    quantity: str
    value: float
    low: float = math.nan
    high: float = math.nan
    reference: float = math.nan
    oracle: float = math.nan
    difference: float = math.nan
    difference_low: float = math.nan
    difference_high: float = math.nan

    @property
    def key(self) -> tuple[str, str, str]:
        return self.model, self.sample, self.quantity

    @property
    def text(self) -> str:
        """The value with its error, if it has one; the seeds of a set-up may all agree."""
        if math.isnan(self.low) or self.low == self.high:
            return f"{self.value:.4g}"
        return number_text(Number(self.value, self.low, self.high))

    @property
    def difference_text(self) -> str:
        """The paired difference to the reference with its error, or to as many digits as the value; or "-"."""
        if not math.isnan(self.difference) and math.isnan(self.difference_low):
            return f"{self.difference:+.{self._digits}f}"
        return number_text(Number(self.difference, self.difference_low, self.difference_high), sign=True)

    @property
    def _digits(self) -> int:
        return max(len(self.text.split()[0].partition(".")[2]), 1)

    @property
    def others(self) -> tuple[str, str]:
        """The reference and the oracle, to as many digits as the value."""
        reference, oracle = ("-" if math.isnan(x) else f"{x:.{self._digits}f}" for x in (self.reference, self.oracle))
        return reference, oracle


def read_rows(path: Path = CSV) -> list[Row]:
    """All rows of a file; none if it is not there yet."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Row(words[0], words[1], words[2], *(float(word) if word else math.nan for word in words[3:]))
            for words in list(csv.reader(file))[1:]
        ]


def write_rows(rows: Iterable[Row], path: Path = CSV, *, whole: bool = False) -> None:
    """Add rows to a file, or replace rows of the same model, sample and quantity.

    `whole`: the rows are complete for their models and samples; remove other rows of these.
    """
    new = list(rows)
    measured = {row.key[:2] for row in new if whole}
    known = {row.key: row for row in (*(row for row in read_rows(path) if row.key[:2] not in measured), *new)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, force=True) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(Row)])
        for row in known.values():
            numbers = dataclasses.astuple(row)[3:]
            writer.writerow([*row.key, *("" if math.isnan(x) else f"{x:.6g}" for x in numbers)])
    print(f"wrote {path}", flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table in Markdown; the first `left` columns are aligned to the left, the others to the right."""
    separator = ["---" if k < left else "---:" for k in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, separator, *rows))


def replace_table(document: str, name: str, body: str) -> str:
    """The document with `body` between the comments ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.

    ValueError: it does not hold both comments once, in this order.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    if (document.count(begin), document.count(end), rest.count(end)) != (1, 1, 1):
        raise ValueError(f"expected once, in this order: {begin} {end}")
    return f"{before}{begin}\n{body}\n{end}{after}"


def fill(path: Path, tables: Mapping[str, str]) -> None:
    """Replace tables of a file; the text around them stays."""
    text = path.read_text("utf-8")
    for name, body in tables.items():
        text = replace_table(text, name, body)
    with replacing(path, force=True) as partial:
        partial.write_text(text, "utf-8")
    print(f"wrote {path}", flush=True)
