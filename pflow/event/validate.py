"""Checks of the content of events: values that cannot be, and links that lead nowhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.physics.detector import Detector

__all__ = ["Violation", "validate_links", "validate_part"]

FINITE = {
    "hits": ("energy", "position.x", "position.y", "position.z"),
    "tracks": ("momentum.px", "momentum.py", "momentum.pz", "charge"),
    "tracker_hits": ("position.x", "position.y", "position.z"),
    "truth": ("mass", "charge", "energy", "momentum.px", "momentum.py", "momentum.pz"),
    "reference": ("energy", "charge", "momentum.px", "momentum.py", "momentum.pz"),
}
"""Fields of each part that must be finite numbers."""

MAX_ENERGY = 1e7
"""Largest energy or momentum, GeV: a thousand times that of any collider, and small enough to compute with."""

MAX_LENGTH = 1e7
"""Largest coordinate, mm: larger than any cavern."""

MAX_LAYER = 2**16 - 1
"""Largest number of a layer: of the widest field in a cell's id."""

LARGEST = {
    **dict.fromkeys(("energy", "momentum.px", "momentum.py", "momentum.pz", "mass"), (MAX_ENERGY, " GeV")),
    **{f"calo_momentum.{axis}": (MAX_ENERGY, " GeV") for axis in ("px", "py", "pz")},
    **{f"{vector}.{axis}": (MAX_LENGTH, " mm") for vector in ("position", "calo_position") for axis in "xyz"},
    "layer": (MAX_LAYER, ""),
    "charge": (1000, " e"),
}
"""Largest absolute value of a field, in any part; unknown values (NaN) are judged elsewhere."""


@dataclasses.dataclass(frozen=True)
class Violation:
    """One thing that is wrong with one event."""

    index: int
    """Position of the event in the `Events`, from 0."""
    field: str
    """Part and field, e.g. ``hits.energy``."""
    message: str
    """What was expected and what was found."""


def validate_part(name: str, part: ak.Array, detector: Detector) -> list[Violation]:
    """Find impossible numbers in a part of the events other than links, e.g. `name` ``hits``."""
    found: list[Violation] = []
    columns = jagged.columns(part)
    largest = {field: most for field, most in LARGEST.items() if field in columns}
    # Most often all is well, which one look at each field shows.
    well = {field for field, (most, _) in largest.items() if _within(columns[field], most)}
    counts = jagged.count(part)

    def check(field: str, is_bad: Callable[..., npt.NDArray[Any]], expected: str) -> None:
        found.extend(_violations(f"{name}.{field}", columns[field], counts, is_bad, expected))

    for field in FINITE[name]:
        if field not in well:
            check(field, lambda x: ~np.isfinite(x), "expected a finite number")
    for field, (most, unit) in largest.items():
        if field not in well:
            check(field, lambda x, most=most: np.isfinite(x) & (np.abs(x) > most), f"expected at most {most:g}{unit}")
    if name in ("hits", "reference"):
        check("energy", lambda x: x < 0, "expected at least 0 GeV")
    if name == "hits":
        n = len(detector.calorimeters)
        check("subdetector", lambda x: (x < 0) | (x >= n), f"expected 0 to {n - 1} ({detector.name})")
    if name == "truth":
        limit = np.repeat(counts, counts)
        check("parent", lambda x: (x < -1) | (x >= limit), "expected -1 or the index of a particle")
    return found


def validate_links(name: str, links: ak.Array, sources: ak.Array | None, particles: ak.Array | None) -> list[Violation]:
    """Find links, e.g. `name` ``hit_links``, that point outside the lists they connect or have impossible weights."""
    found: list[Violation] = []
    columns, counts = jagged.columns(links), jagged.count(links)
    for field, target in (("source", sources), ("particle", particles)):
        sizes = np.zeros(len(links), dtype=np.int64) if target is None else jagged.count(target)
        limit = np.repeat(sizes, counts)
        found += _violations(
            f"{name}.{field}",
            columns[field],
            counts,
            lambda x, limit=limit: (x < 0) | (x >= limit),
            "points outside the event's list",
        )
    return found + _violations(
        f"{name}.weight",
        columns["weight"],
        counts,
        lambda x: ~np.isfinite(x) | (x < 0),
        "expected a finite weight of at least 0",
    )


def _within(values: npt.NDArray[Any], most: float) -> bool:
    """Whether all values are known and at most so large, with either sign."""
    return not len(values) or bool(values.min() >= -most and values.max() <= most)


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
            f"{expected}, found {values[at]} at index {local[at]}" + (f" and {n - 1} more like it" if n > 1 else ""),
        )
        for index, at, n in zip(events, bad[first], times, strict=True)
    ]
