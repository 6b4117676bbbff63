"""Tracks of EDM4hep: the states at the vertex and at the calorimeter's face."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.build import make_tracks
from pflow.io.edm4hep.podio import PodioFile, expand, vector_member
from pflow.physics import kinematics

__all__ = ["AT_CALORIMETER", "AT_FIRST_HIT", "AT_IP", "AT_LAST_HIT", "read_tracks"]

AT_IP, AT_FIRST_HIT, AT_LAST_HIT, AT_CALORIMETER = 1, 2, 3, 4
"""Values of ``location`` in edm4hep::TrackState."""

VERTEX_PREFERENCE = (AT_IP, AT_FIRST_HIT, AT_LAST_HIT, AT_CALORIMETER)
"""States that stand for the track at its vertex, best first; after them any other state that it has."""


def read_tracks(file: PodioFile, collection: str, start: int, stop: int, *, b_field: float) -> ak.Array:
    """Tracks of one collection in entries `start` to `stop`, as `pflow.event.build.make_tracks` builds them.

    Momentum, charge and track parameters come from the state at the IP; a track without one uses its state at the
    first hit, then at the last, then at the calorimeter, then any. A track without states has NaN for them.
    Position and momentum at the calorimeter come from the state there (NaN without one): its point of closest
    approach, ``referencePoint + (-D0 sin phi, D0 cos phi, Z0)``. `b_field` in T.

    Raises
    ------
    InputError
        A member is missing or cannot be decoded.
    """
    columns = file.columns
    states = vector_member(columns, collection, 1, "trackStates")
    if states is None:
        raise InputError(
            f"the tracks have no states; expected _{collection}_trackStates or {collection}_1",
            file=file.path,
            field=collection,
        )

    def state(*members: str) -> npt.NDArray[np.float64]:
        return jagged.flat(columns.get(states, *members, start=start, stop=stop), np.float64)

    location_by_event = columns.get(states, "location", start=start, stop=stop)
    location = jagged.flat(location_by_event)
    begin = columns.get(collection, "trackStates_begin", start=start, stop=stop)
    end = columns.get(collection, "trackStates_end", start=start, stop=stop)
    track, member = expand(begin, end, jagged.count(location_by_event))
    counts = jagged.count(begin)
    n_tracks = int(counts.sum())

    rank = np.full(len(location), len(VERTEX_PREFERENCE))
    for preference, place in enumerate(VERTEX_PREFERENCE):
        rank[location == place] = preference
    vertex = _first_state(track, member, rank[member], n_tracks)
    there = location[member] == AT_CALORIMETER
    face = _first_state(track[there], member[there], rank[member][there], n_tracks)

    d0, z0, phi, omega, tan_lambda = (state(name) for name in ("D0", "Z0", "phi", "omega", "tanLambda"))
    px, py, pz = kinematics.momentum_from_track(omega, phi, tan_lambda, b_field)
    at_vertex = {"omega": omega, "phi": phi, "tan_lambda": tan_lambda, "d0": d0, "z0": z0}
    at_calorimeter = {
        "x": state("referencePoint.x") - d0 * np.sin(phi),
        "y": state("referencePoint.y") + d0 * np.cos(phi),
        "z": state("referencePoint.z") + z0,
        **{"px": px, "py": py, "pz": pz},
    }

    def take(values: npt.NDArray[Any], chosen: npt.NDArray[np.int64]) -> ak.Array:
        return jagged.unflatten(np.append(values, np.nan)[chosen], counts)

    return make_tracks(
        b_field=b_field,
        **{name: take(values, vertex) for name, values in at_vertex.items()},
        **{f"calo_{name}": take(values, face) for name, values in at_calorimeter.items()},
    )


def _first_state(
    track: npt.NDArray[np.int64], member: npt.NDArray[np.int64], rank: npt.NDArray[np.int64], n_tracks: int
) -> npt.NDArray[np.int64]:
    """State of lowest rank of each track, the first among equals; -1 for a track without any."""
    order = np.lexsort((member, rank, track))
    found, first = np.unique(track[order], return_index=True)
    chosen = np.full(n_tracks, -1, dtype=np.int64)
    chosen[found] = member[order][first]
    return chosen
