"""What can be wrong with the content of events, and where."""

from __future__ import annotations

import dataclasses
from typing import Any

import awkward as ak
import numpy as np

from pflow.event import jagged
from pflow.physics.detector import Detector

__all__ = ["Problem", "link_problems", "part_problems"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one event."""

    index: int
    """Position of the event in the `Events`, from 0."""
    field: str
    """Part and field, e.g. ``hits.energy``."""
    message: str
    """What was found and what was expected."""


def part_problems(name: str, part: ak.Array, detector: Detector) -> list[Problem]:
    """Impossible numbers in a part of the events other than links, e.g. `name` ``hits``."""
    found: list[Problem] = []
    required = {
        "hits": ("energy", "position.x", "position.y", "position.z"),
        "tracks": ("momentum.px", "momentum.py", "momentum.pz", "charge"),
        "tracker_hits": ("position.x", "position.y", "position.z"),
        "truth": ("mass", "charge", "energy", "momentum.px", "momentum.py", "momentum.pz"),
        "reference": ("energy", "charge", "momentum.px", "momentum.py", "momentum.pz"),
    }[name]
    for field in required:
        found += _violations(part, name, field, lambda x: ~np.isfinite(x), "expected a finite number")
    if name in ("hits", "reference"):
        found += _violations(part, name, "energy", lambda x: x < 0, "expected at least 0 GeV")
    if name == "hits":
        n = len(detector.calorimeters)
        found += _violations(
            part, name, "subdetector", lambda x: (x < 0) | (x >= n), f"expected 0 to {n - 1} ({detector.name})"
        )
    if name == "truth":
        counts = jagged.count(part)
        limit = np.repeat(counts, counts)
        found += _violations(
            part, name, "parent", lambda x: (x < -1) | (x >= limit), "expected -1 or the index of a particle"
        )
    return found


def link_problems(name: str, links: ak.Array, sources: ak.Array | None, truth: ak.Array | None) -> list[Problem]:
    """Links, e.g. `name` ``hit_links``, that point outside the lists they connect, or have impossible weights."""
    found: list[Problem] = []
    counts = jagged.count(links)
    for field, target in (("source", sources), ("particle", truth)):
        sizes = np.zeros(len(links), dtype=np.int64) if target is None else jagged.count(target)
        limit = np.repeat(sizes, counts)
        found += _violations(
            links,
            name,
            field,
            lambda x, limit=limit: (x < 0) | (x >= limit),
            "points outside the event's list",
        )
    found += _violations(
        links, name, "weight", lambda x: ~np.isfinite(x) | (x < 0), "expected a finite share of at least 0"
    )
    return found


def _violations(part: ak.Array, name: str, field: str, is_bad: Any, expected: str) -> list[Problem]:
    """One problem for each event in which `is_bad` holds for a value of the field, naming the first such object."""
    values = part
    for key in field.split("."):
        values = values[key]
    flat = jagged.flat(values)
    bad = np.flatnonzero(is_bad(flat))
    if not len(bad):
        return []
    counts = jagged.count(part)
    local, event = jagged.local_index(counts), jagged.event_index(counts)[bad]
    events, first, times = np.unique(event, return_index=True, return_counts=True)
    return [
        Problem(
            int(index),
            f"{name}.{field}",
            f"{expected}, found {flat[bad[at]]} at index {local[bad[at]]}"
            + (f" and {n - 1} more like it" if n > 1 else ""),
        )
        for index, at, n in zip(events, first, times, strict=True)
    ]
