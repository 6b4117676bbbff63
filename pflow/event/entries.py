"""Where tracks enter the calorimeter, and which hits lie there."""

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
"""GeV; softer tracks curl, and scatter on their way."""

CONE = 0.1
"""rad around a track's entry, seen from the origin, within which hits are counted as near it."""

FAR = 500.0
"""mm; a hit that is farther from a track's entry, e.g. because the entry is at the origin, is not near it at all."""

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Entries:
    """Tracks above `MIN_MOMENTUM` in events that have hits, float64 [track] each.

    `by_helix` and `by_state`: distance, across the direction from the origin, from where a track enters the calorimeter
    to the hit that is nearest to this point, mm; inf for a track that does not get there. `by_helix` follows the track
    from the IP, `by_state` takes ``calo_position``. `turned`: angle between the momentum at the entry by the helix and
    ``calo_momentum``, rad. NaN without the state at the calorimeter. `energy`: of the hits in the `CONE`, GeV.
    """

    momentum: Floats
    by_helix: Floats
    by_state: Floats
    turned: Floats
    energy: Floats

    @classmethod
    def of(cls, events: Events, *, most: int) -> Entries:
        """Measure the tracks of events, `most` of them; none where the events hold no tracks."""
        none = np.zeros(0)
        if events.tracks is None:
            return cls(momentum=none, by_helix=none, by_state=none, turned=none, energy=none)
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
            mine = np.flatnonzero(event == number)
            there = slice(first_hit[number], first_hit[number + 1])
            used = hits["energy"][there] > 0  # hits that were left out have none
            if used.any():
                places = np.stack([entry[mine], state[mine]])
                across[:, mine], energy[mine] = _near(
                    points[there][used].astype(np.float64), hits["energy"][there][used], places
                )
        return cls(
            momentum=size[chosen],
            by_helix=across[0],
            by_state=np.where(np.isnan(state).any(axis=1), np.nan, across[1]),
            turned=angle_between(at_entry, at_state).astype(np.float64),
            energy=energy,
        )


def _near(points: Floats, energy: npt.NDArray[Any], places: Floats) -> tuple[Floats, Floats]:
    """Distances across, [2, track], of the hits that are nearest to `places` [2, track, 3], and energy [track] near."""
    size = np.linalg.norm(points, axis=1)
    product = places @ points.T  # [2, track, hit]
    step = points[np.argmin(size**2 - 2 * product, axis=2)] - places
    along = (step * unit_vector(places)).sum(axis=2)
    squared = (step**2).sum(axis=2)
    across = np.where(squared < FAR**2, np.sqrt(np.maximum(squared - along**2, 0.0)), np.inf)
    of_state = np.isfinite(product[1, :, :1])
    seen = np.where(of_state, product[1], product[0])
    distance = np.linalg.norm(np.where(of_state, places[1], places[0]), axis=1)
    return across, (seen > np.cos(CONE) * distance[:, None] * size) @ energy.astype(np.float64)
