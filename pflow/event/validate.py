"""Checks of the content of events: values that cannot be, and indices that lead nowhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.schema import Field, fields_of

__all__ = ["Violation", "unusable_objects", "validate_part"]


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
    columns, counts = jagged.columns(records), jagged.count(records)
    for column, field in fields_of(part).items():
        values = columns.get(column)
        if values is None or field.width:
            continue
        for is_bad, expected in _checks(field, values, counts, sizes):
            found += _violations(f"{name or part}.{column}", values, counts, is_bad, expected)
    return found


def unusable_objects(part: str, records: ak.Array, sizes: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.bool_]:
    """Whether each object of a part has impossible numbers, bool [N]; `sizes` as of `validate_part`."""
    columns, counts = jagged.columns(records), jagged.count(records)
    unusable = np.zeros(int(counts.sum()), dtype=np.bool_)
    for column, field in fields_of(part).items():
        if column in columns and not field.width:
            for is_bad, _ in _checks(field, columns[column], counts, sizes):
                unusable |= is_bad(columns[column])
    return unusable


Check = tuple[Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]], str]


def _checks(
    field: Field, values: npt.NDArray[Any], counts: npt.NDArray[np.int64], sizes: Mapping[str, npt.NDArray[np.int64]]
) -> list[Check]:
    """The checks that values of a field need; most often none, which one look at the smallest and largest shows."""
    if not len(values) or (field.points_to and field.points_to not in sizes):
        return []
    low, high = field.low, field.high
    if field.points_to:
        low, size = min(field.default, 0), sizes[field.points_to]
        if values.min() >= low and values.max() < size.min(initial=np.iinfo(np.int64).max):
            return []
        limit = np.repeat(size, counts)
        expected = "points outside the event's list"
        if field.points_to == "calorimeters":
            expected = f"expected 0 to {size.max(initial=0) - 1}, a calorimeter of the detector"
        elif low < 0:
            expected = "expected -1 or the index of a particle"
        return [(lambda x: (x < low) | (x >= limit), expected)]
    unbounded = (low, high) == (-np.inf, np.inf)
    if (unbounded and not field.required) or (values.min() >= low and values.max() <= high and values.max() < np.inf):
        return []
    unit = f" {field.unit}" if field.unit else ""
    checks: list[Check] = [(lambda x: ~np.isfinite(x), "expected a finite number")] if field.required else []
    if low == 0:
        checks.append((lambda x: np.isfinite(x) & (x < 0), f"expected at least 0{unit}"))
    checks.append((lambda x: np.isfinite(x) & (np.abs(x) > high), f"expected at most {high:g}{unit}"))
    return checks


def _violations(
    field: str,
    values: npt.NDArray[Any],
    counts: npt.NDArray[np.int64],
    is_bad: Callable[..., npt.NDArray[Any]],
    expected: str,
) -> list[Violation]:
    """One violation for each event in which `is_bad` holds for a value of the field; it names the first such object."""
    bad = np.flatnonzero(is_bad(values))
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
