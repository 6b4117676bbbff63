"""Scales of a sample of events, by which other events are compared with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from pflow.event import jagged
from pflow.event.entries import Entries
from pflow.event.events import Events
from pflow.physics.kinematics import GEV_PER_TESLA_MM

MIN_HITS, MIN_TRACKS = 100, 10
"""Hits of a kind of calorimeter, and tracks, from which on a median is taken."""

MOST_TRACKS = 60
"""Tracks whose surroundings are looked at."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleScales:
    """Energies and curvatures that are typical of a sample; None where it holds too few hits or tracks to tell.

    `ecal_hit` and `hcal_hit`: median energy of a hit, GeV; `max_energy`: largest energy of an event in hits, GeV;
    `near_tracks`: median ratio of the energy in hits near a track (`pflow.event.entries.CONE`) to its momentum;
    `b_field`: field in which the tracks' curvature gives their momentum, T.
    """

    ecal_hit: float | None
    hcal_hit: float | None
    max_energy: float
    near_tracks: float | None
    b_field: float | None

    @classmethod
    def of(cls, events: Events, entries: Entries | None = None) -> SampleScales:
        """The scales of events, of which `entries` may be known."""
        entries = entries or Entries.of(events, most=MOST_TRACKS)
        energy = jagged.flat(events.hits.energy, np.float64)
        subdetector = jagged.flat(events.hits.subdetector)
        hit = {}
        for kind in ("ecal", "hcal"):
            of_kind = [number for number, own in enumerate(events.detector.calorimeters) if own.kind == kind]
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
    """The scales of several samples: medians of theirs, and the largest energy."""
    values = {field.name: [getattr(one, field.name) for one in samples] for field in dataclasses.fields(SampleScales)}
    known = {name: [value for value in column if value is not None] for name, column in values.items()}
    medians = {name: float(np.median(column)) if column else None for name, column in known.items()}
    medians["max_energy"] = max(known["max_energy"], default=0.0)
    return SampleScales(**medians)  # type: ignore[arg-type]


def _field(events: Events) -> float | None:
    """Median field, T, in which the tracks of unit charge have their curvature."""
    if events.tracks is None:
        return None
    momentum = jagged.vectors(events.tracks["momentum"])
    field = np.abs(jagged.flat(events.tracks["omega"])) * np.hypot(*momentum[:, :2].T) / GEV_PER_TESLA_MM
    field = field[np.isfinite(field)]
    return float(np.median(field)) if len(field) >= MIN_TRACKS else None
