"""Typical energies and curvatures of a sample, to compare other events with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pflow.event import jagged
from pflow.event.entries import Entries
from pflow.event.events import Events
from pflow.physics.kinematics import GEV_PER_TESLA_MM

MIN_HITS, MIN_TRACKS = 100, 10
"""Fewest hits of a kind of calorimeter, and fewest tracks, for a median."""

MOST_TRACKS = 60
"""Tracks that `Entries` measures for the ratio `near_tracks`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleScales:
    """Typical energies and curvatures of a sample; None where it holds too few hits or tracks.

    `ecal_hit` and `hcal_hit`: median energy of a hit, GeV; `max_energy`: largest energy of an event in hits, GeV;
    `near_tracks`: median ratio of the energy in hits near a track (`pflow.event.entries.CONE`) to its momentum;
    `b_field`: field that relates the tracks' curvature to their momentum, T.
    """

    ecal_hit: float | None
    hcal_hit: float | None
    max_energy: float
    near_tracks: float | None
    b_field: float | None

    @classmethod
    def of(cls, events: Events, entries: Entries | None = None) -> SampleScales:
        """Measure events; `entries`, if known, saves following the tracks."""
        entries = entries or Entries.of(events, most=MOST_TRACKS)
        energy = jagged.flat(events.hits.energy, np.float64)
        subdetector = jagged.flat(events.hits.subdetector)
        hit = {}
        for kind in ("ecal", "hcal"):
            of_kind = [i for i, calorimeter in enumerate(events.detector.calorimeters) if calorimeter.kind == kind]
            positive = energy[np.isin(subdetector, of_kind) & (energy > 0)]
            hit[f"{kind}_hit"] = float(np.median(positive)) if len(positive) >= MIN_HITS else None
        event = jagged.event_index(jagged.count(events.hits))
        near = entries.energy / entries.momentum
        return cls(
            **hit,
            max_energy=float(np.bincount(event, energy, len(events)).max(initial=0.0)),
            near_tracks=float(np.median(near)) if len(near) >= MIN_TRACKS else None,
            b_field=_field(events),
        )


def joined(samples: Sequence[SampleScales]) -> SampleScales:
    """The scales of several samples: the median of each scale, and the largest `max_energy`."""
    scales: dict[str, Any] = {}
    for field in dataclasses.fields(SampleScales):
        known = [value for sample in samples if (value := getattr(sample, field.name)) is not None]
        scales[field.name] = float(np.median(known)) if known else None
    scales["max_energy"] = max((sample.max_energy for sample in samples), default=0.0)
    return SampleScales(**scales)


def _field(events: Events) -> float | None:
    """Median field, T, that gives tracks of unit charge their curvature; None for too few tracks."""
    if events.tracks is None:
        return None
    momentum = jagged.vectors(events.tracks["momentum"])
    field = np.abs(jagged.flat(events.tracks["omega"])) * np.hypot(*momentum[:, :2].T) / GEV_PER_TESLA_MM
    field = field[np.isfinite(field)]
    return float(np.median(field)) if len(field) >= MIN_TRACKS else None
