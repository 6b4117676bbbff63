"""Checks of the content of events: values that cannot be, and indices that lead nowhere."""

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
    """One thing that is wrong with one event, by its position from 0: part and field, e.g. ``hits.energy``."""

    index: int
    field: str
    message: str


def validate_part(
    part: str, records: ak.Array, sizes: Mapping[str, npt.NDArray[np.int64]], *, name: str | None = None
) -> list[Violation]:
    """Find impossible numbers in a part of the events, which violations call `name`, as the schema says.

    `sizes`, int64 [event], is how many of each part (or ``calorimeters``) there are; indices without are not checked.
    """
    found: list[Violation] = []
    for column, values, bad, expected in _impossible(part, records, sizes):
        found += _violations(f"{name or part}.{column}", values, jagged.count(records), bad, expected)
    return found


def unusable_objects(part: str, records: ak.Array, sizes: Mapping[str, npt.NDArray[np.int64]]) -> Mask:
    """Whether each object of a part has impossible numbers, bool [N]; `sizes` as of `validate_part`."""
    unusable = np.zeros(int(jagged.count(records).sum()), dtype=np.bool_)
    for _, _, bad, _ in _impossible(part, records, sizes):
        unusable |= bad
    return unusable


def _impossible(
    part: str, records: ak.Array, sizes: Mapping[str, npt.NDArray[np.int64]]
) -> Iterator[tuple[str, npt.NDArray[Any], Mask, str]]:
    """Columns and their values, which of these cannot be, and what was expected, once for each check."""
    columns, counts = jagged.columns(records), jagged.count(records)
    for column, field in fields_of(part).items():
        if column in columns and not field.width:
            for bad, expected in _checks(field, columns[column], counts, sizes):
                yield column, columns[column], bad, expected


def _checks(
    field: Field, values: npt.NDArray[Any], counts: npt.NDArray[np.int64], sizes: Mapping[str, npt.NDArray[np.int64]]
) -> list[tuple[Mask, str]]:
    """The checks that values of a field need; most often none, which one look at the smallest and largest shows."""
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


def _violations(
    field: str, values: npt.NDArray[Any], counts: npt.NDArray[np.int64], is_bad: Mask, expected: str
) -> list[Violation]:
    """One violation for each event in which a value of the field is bad; it names the first such object."""
    bad = np.flatnonzero(is_bad)
    if not len(bad):
        return []
    local = jagged.local_index(counts)
    events, first, times = np.unique(jagged.event_index(counts)[bad], return_index=True, return_counts=True)
    return [
        Violation(
            int(index),
            field,
            f"{expected}, found {values[row]} at index {local[row]}" + (f" and {n - 1} more like it" if n > 1 else ""),
        )
        for index, row, n in zip(events, bad[first], times, strict=True)
    ]
