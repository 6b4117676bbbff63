"""Checks of the content of events: impossible values, and indices that lead nowhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.schema import Field, fields_of

Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Violation:
    """A violation in the event at `index` (from 0), with part and field, e.g. ``hits.energy``."""

    index: int
    field: str
    message: str


def validate_part(
    part: str, records: ak.Array, sizes: Mapping[str, npt.NDArray[np.int64]], *, name: str | None = None
) -> list[Violation]:
    """Check the numbers of a part of the events against the schema; violations call the part `name`.

    `sizes`, int64 [event]: number of objects of each part (or of ``calorimeters``). An index into a part without a size
    is not checked. Each check yields one violation an event, which names the first bad object.
    """
    violations: list[Violation] = []
    for column, values, impossible, expected in _impossible(part, records, sizes):
        counts, rows = jagged.count(records), np.flatnonzero(impossible)
        event, local = jagged.event_index(counts), jagged.local_index(counts)
        for index, first, n in zip(*np.unique(event[rows], return_index=True, return_counts=True), strict=True):
            row = rows[first]
            message = f"{expected}, found {values[row]} at index {local[row]}"
            more = f" and {n - 1} more like it" if n > 1 else ""
            violations.append(Violation(int(index), f"{name or part}.{column}", message + more))
    return violations


def unusable_objects(part: str, records: ak.Array, sizes: Mapping[str, npt.NDArray[np.int64]]) -> Mask:
    """Whether each object of a part has impossible numbers, bool [N]; `sizes` as for `validate_part`."""
    unusable = np.zeros(int(jagged.count(records).sum()), dtype=np.bool_)
    for _, _, impossible, _ in _impossible(part, records, sizes):
        unusable |= impossible
    return unusable


def _impossible(
    part: str, records: ak.Array, sizes: Mapping[str, npt.NDArray[np.int64]]
) -> Iterator[tuple[str, npt.NDArray[Any], Mask, str]]:
    """Column, values, mask of the impossible ones and the expectation, for each check that finds some."""
    columns, counts = jagged.columns(records), jagged.count(records)
    for column, field in fields_of(part).items():
        if column in columns and not field.width:
            for impossible, expected in _checks(field, columns[column], counts, sizes):
                yield column, columns[column], impossible, expected


def _checks(
    field: Field, values: npt.NDArray[Any], counts: npt.NDArray[np.int64], sizes: Mapping[str, npt.NDArray[np.int64]]
) -> list[tuple[Mask, str]]:
    """Masks of impossible values with the expectation; most often none, as the smallest and largest value show."""
    if not len(values) or (field.points_to and field.points_to not in sizes):
        return []
    low, high = field.low, field.high
    if field.points_to:
        low, size = min(field.default, 0), sizes[field.points_to]
        if values.min() >= low and values.max() < size.min(initial=np.iinfo(np.int64).max):
            return []
        expected = "points outside the event's list"
        if field.points_to == "calorimeters":
            expected = f"expected 0 to {size.max(initial=0) - 1}, a calorimeter of the detector"
        elif low < 0:
            expected = "expected -1 or the index of a particle"
        return [((values < low) | (values >= np.repeat(size, counts)), expected)]
    unbounded = (low, high) == (-np.inf, np.inf)
    if (unbounded and not field.required) or (values.min() >= low and values.max() <= high and values.max() < np.inf):
        return []
    unit, finite = f" {field.unit}" if field.unit else "", np.isfinite(values)
    checks = [(~finite, "expected a finite number")] if field.required else []
    if low == 0:
        checks.append((finite & (values < 0), f"expected at least 0{unit}"))
    checks.append((finite & (np.abs(values) > high), f"expected at most {high:g}{unit}"))
    return checks
