"""Where tracks enter the calorimeter, and how far the nearest hits are."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.truth_tracks import follow_to_calorimeter
from pflow.physics.kinematics import angle_between, unit_vector

MIN_MOMENTUM = 1.0
"""GeV. Softer tracks curl, and scatter in the tracker."""

CONE = 0.1
"""Half opening angle, rad, of the cone from the origin around a track's entry in which hits are near the track."""

FAR = 500.0
"""mm. A nearest hit farther than this does not belong to the entry, which is wrong, e.g. at the origin."""

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Entries:
    """Tracks above `MIN_MOMENTUM` in events that have hits, float64 [track] each.

    `by_helix` and `by_state`: distance, mm, from the track's entry into the calorimeter to the nearest hit, across the
    direction from the origin; inf without a hit closer than `FAR`. `by_helix` takes the entry of the helix from the
    IP, `by_state` takes ``calo_position``. `turned`: angle, rad, at the entry between the helix' momentum and
    ``calo_momentum``. `by_state` and `turned` are NaN without a state at the calorimeter. `momentum`, GeV; `energy`:
    sum of the hits in the `CONE`, GeV.
    """

    momentum: Floats
    by_helix: Floats
    by_state: Floats
    turned: Floats
    energy: Floats

    @classmethod
    def of(cls, events: Events, *, most: int) -> Entries:
        """Measure the first `most` tracks of the events."""
        if events.tracks is None:
            return cls(**dict.fromkeys(("momentum", "by_helix", "by_state", "turned", "energy"), np.zeros(0)))
        columns = jagged.columns(events.tracks)
        momentum, state, at_state = (
            jagged.vectors(events.tracks[name]).astype(np.float64)
            for name in ("momentum", "calo_position", "calo_momentum")
        )
        hits = jagged.columns(events.hits)
        n_hits = jagged.count(events.hits)
        first_hit = jagged.offsets(n_hits)
        event = jagged.event_index(jagged.count(events.tracks))
        size = np.linalg.norm(momentum, axis=1)
        chosen = np.flatnonzero((size > MIN_MOMENTUM) & (n_hits[event] > 0))[:most]
        momentum, state, at_state, event = momentum[chosen], state[chosen], at_state[chosen], event[chosen]
        d0, z0 = (np.nan_to_num(columns[name][chosen].astype(np.float64)) for name in ("d0", "z0"))
        phi = np.arctan2(momentum[:, 1], momentum[:, 0])
        detector = events.detector
        sides = None if detector.truth_tracks is None else detector.truth_tracks.sides
        charge = columns["charge"][chosen].astype(np.float64)
        start = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=1)
        entry, at_entry = follow_to_calorimeter(start, momentum, charge, detector, sides)
        across, energy = np.full((2, len(chosen)), np.inf), np.zeros(len(chosen))
        points = np.stack([hits[f"position.{axis}"] for axis in "xyz"], axis=1)
        for number in np.unique(event):
            of_event = np.flatnonzero(event == number)
            hit = np.arange(first_hit[number], first_hit[number + 1])
            hit = hit[hits["energy"][hit] > 0]  # unusable hits have energy 0
            if len(hit):
                entries = np.stack([entry[of_event], state[of_event]])
                across[:, of_event], energy[of_event] = _near(
                    points[hit].astype(np.float64), hits["energy"][hit], entries
                )
        return cls(
            momentum=size[chosen],
            by_helix=across[0],
            by_state=np.where(np.isnan(state).any(axis=1), np.nan, across[1]),
            turned=angle_between(at_entry, at_state).astype(np.float64),
            energy=energy,
        )


def _near(points: Floats, energy: npt.NDArray[Any], entries: Floats) -> tuple[Floats, Floats]:
    """Distance across of the hit nearest to each of `entries` [2, track, 3], mm, [2, track]; energy in the cone, GeV.

    Hits have `points` [hit, 3], mm, and `energy` [hit]. The cone is around the second entry, or the first without one.
    """
    size = np.linalg.norm(points, axis=1)
    product = entries @ points.T  # [2, track, hit]
    step = points[np.argmin(size**2 - 2 * product, axis=2)] - entries
    along = (step * unit_vector(entries)).sum(axis=2)
    squared = (step**2).sum(axis=2)
    across = np.where(squared < FAR**2, np.sqrt(np.maximum(squared - along**2, 0.0)), np.inf)
    has_state = np.isfinite(product[1, :, :1])
    cosine = np.where(has_state, product[1], product[0])
    distance = np.linalg.norm(np.where(has_state, entries[1], entries[0]), axis=1)
    return across, (cosine > np.cos(CONE) * distance[:, None] * size) @ energy.astype(np.float64)
