"""Typical energies and curvatures of a sample, to compare other events with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pflow.event import jagged
from pflow.event.entries import Entries
from pflow.event.events import Events
from pflow.physics.kinematics import GEV_PER_TESLA_MM

MIN_HITS, MIN_TRACKS = 100, 10
"""Fewest hits of a kind of calorimeter, and fewest tracks, for a median."""

MOST_TRACKS = 40
"""Tracks that `Entries` measures for the ratio `near_tracks`."""

LARGEST = ("max_energy", "max_hits", "opening")
"""Scales of joined samples that are the largest of their values, because smaller ones are usual; others are medians."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleScales:
    """Typical energies, sizes and curvatures of a sample; None where it holds too few hits or tracks.

    `ecal_hit` and `hcal_hit`: median energy of a hit, GeV; `max_energy`: largest energy of an event in hits, GeV;
    `max_hits`: largest number of hits of an event; `opening`: median of the opening angle of an event's energy, rad,
    whose cosine is |sum of E n| / sum of E over hits of energy E in the direction n from the origin;
    `near_tracks`: median ratio of the energy in hits near a track (`pflow.event.entries.CONE`) to its momentum;
    `b_field`: field that relates the tracks' curvature to their momentum, T.

    A model for any detector has no scale that differs from one to the next, but the names of the `detectors` that it
    was trained on, and of their `measures` (`pflow.physics.geometry.measures`) the smallest and largest value.
    """

    ecal_hit: float | None
    hcal_hit: float | None
    max_energy: float
    max_hits: float | None = None
    opening: float | None = None
    near_tracks: float | None
    b_field: float | None
    detectors: tuple[str, ...] = ()
    measures: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, events: Events, entries: Entries | None = None) -> SampleScales:
        """Measure events; `entries`, if known, saves following the tracks."""
        entries = entries or Entries.of(events, most=MOST_TRACKS)
        columns, counts = jagged.columns(events.hits), jagged.count(events.hits)
        energy, kinds = columns["energy"], np.array([calorimeter.kind for calorimeter in events.detector.calorimeters])
        hit: dict[str, Any] = {}
        for kind in ("ecal", "hcal"):
            positive = energy[(kinds == kind).take(columns["subdetector"], mode="clip") & (energy > 0)]
            hit[f"{kind}_hit"] = float(np.median(positive)) if len(positive) >= MIN_HITS else None
        position = jagged.vectors(events.hits, field="position")
        weight = energy / np.maximum(np.linalg.norm(position, axis=1), 1.0)  # unusable hits are at the origin
        event = jagged.event_index(counts)
        total = np.bincount(event, energy, len(events))
        sums = np.stack([np.bincount(event, weight * along, len(events)) for along in position.T], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            opening = np.arccos(np.minimum(np.linalg.norm(sums, axis=1) / total, 1.0))
        opening = opening[np.isfinite(opening)]  # NaN for an event without energy
        near = entries.energy / entries.momentum
        return cls(
            **hit,
            max_energy=float(total.max(initial=0.0)),
            max_hits=int(counts.max(initial=0)),
            opening=float(np.median(opening)) if len(opening) else None,
            near_tracks=float(np.median(near)) if len(near) >= MIN_TRACKS else None,
            b_field=_field(events),
        )


def joined(samples: Sequence[SampleScales]) -> SampleScales:
    """The scales of several samples: the largest value of scales in `LARGEST`, the median of others."""
    scales: dict[str, Any] = {}
    for name in {field.name for field in dataclasses.fields(SampleScales)} - {"detectors", "measures"}:
        known = [value for sample in samples if (value := getattr(sample, name)) is not None]
        scales[name] = float((np.max if name in LARGEST else np.median)(known)) if known else None
    return SampleScales(**scales)


def _field(events: Events) -> float | None:
    """Median field, T, that gives tracks of unit charge their curvature; None for too few tracks."""
    if events.tracks is None:
        return None
    pt = np.hypot(*jagged.vectors(events.tracks, field="momentum")[:, :2].T)
    field = np.abs(jagged.columns(events.tracks)["omega"]) * pt / GEV_PER_TESLA_MM
    field = field[np.isfinite(field)]
    return float(np.median(field)) if len(field) >= MIN_TRACKS else None
