"""Where tracks enter the calorimeter, and how far the nearest hits are."""

from __future__ import annotations

import dataclasses

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
        if events.tracks is None or not jagged.count(events.tracks).any():
            return cls(**dict.fromkeys(("momentum", "by_helix", "by_state", "turned", "energy"), np.zeros(0)))
        columns = jagged.columns(events.tracks)
        momentum, state, at_state = (
            jagged.vectors(events.tracks, field=name) for name in ("momentum", "calo_position", "calo_momentum")
        )
        hits = jagged.columns(events.hits)
        used = hits["energy"] > 0  # unusable hits have energy 0
        bounds = jagged.offsets(used)[jagged.offsets(jagged.count(events.hits))]
        event = jagged.event_index(jagged.count(events.tracks))
        size = np.linalg.norm(momentum, axis=1)
        chosen = np.flatnonzero((size > MIN_MOMENTUM) & (np.diff(bounds)[event] > 0))[:most]
        momentum, state, at_state, event = momentum[chosen], state[chosen], at_state[chosen], event[chosen]
        d0, z0 = (np.nan_to_num(columns[name][chosen].astype(np.float64)) for name in ("d0", "z0"))
        phi = np.arctan2(momentum[:, 1], momentum[:, 0])
        detector = events.detector
        sides = None if detector.truth_tracks is None else detector.truth_tracks.sides
        charge = columns["charge"][chosen].astype(np.float64)
        start = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=1)
        entry, at_entry = follow_to_calorimeter(start, momentum, charge, detector, sides)

        points, hit_energy = jagged.vectors(events.hits, np.float32, field="position")[used], hits["energy"][used]
        squared = (points**2).sum(axis=1)
        entries = np.stack([entry, state])  # [2, track, 3]
        has_state = ~np.isnan(state).any(axis=1)
        nearest, energy = np.zeros((2, len(chosen)), dtype=np.int64), np.zeros(len(chosen))
        threshold = np.cos(CONE) * np.linalg.norm(entries[has_state.astype(np.int64), np.arange(len(chosen))], axis=1)
        for number in np.unique(event):
            track, hit = np.flatnonzero(event == number), slice(bounds[number], bounds[number + 1])
            product = entries[:, track].astype(np.float32) @ points[hit].T  # [2, track, hit]
            nearest[:, track] = bounds[number] + np.argmax(product - 0.5 * squared[hit], axis=2)
            projection = np.where(has_state[track, None], product[1], product[0])
            energy[track] = (projection > threshold[track, None] * np.sqrt(squared[hit])) @ hit_energy[hit]
        step = points[nearest] - entries
        along, squared_distance = (step * unit_vector(entries)).sum(axis=2), (step**2).sum(axis=2)
        across = np.where(squared_distance < FAR**2, np.sqrt(np.maximum(squared_distance - along**2, 0.0)), np.inf)
        return cls(
            momentum=size[chosen],
            by_helix=across[0],
            by_state=np.where(has_state, across[1], np.nan),
            turned=angle_between(at_entry, at_state).astype(np.float64),
            energy=energy,
        )
