"""Hits and tracks as collections of EDM4hep, for inputs that do not hold them as such."""

from __future__ import annotations

import numpy as np

from pflow.event import jagged
from pflow.event.events import Events
from pflow.io.edm4hep.collection_id import collection_id
from pflow.io.edm4hep.frame_writer import Filled
from pflow.io.edm4hep.reader import HitOrigins
from pflow.io.edm4hep.reco_frames import flat_members, references
from pflow.io.edm4hep.reco_names import RecoNames

__all__ = ["AT_CALORIMETER", "AT_IP", "hit_frames", "track_frames"]

AT_IP, AT_CALORIMETER = 1, 4
"""Locations of track states (edm4hep::TrackState)."""


def hit_frames(events: Events, origins: HitOrigins | None, names: RecoNames) -> dict[str, Filled]:
    """The hits of events as calorimeter hits, and links to the simulated ones that they were made from.

    Parameters
    ----------
    events
        The events.
    origins
        Simulated hits of the same events; None for an input of another schema: there are no links then.
    names
        Names of the collections.
    """
    hits = events.hits
    counts = jagged.count(hits)
    columns = {
        "energy": jagged.flat(hits.energy),
        "time": jagged.flat(hits.time),
        **flat_members("position", hits.position),
        "type": jagged.flat(hits.subdetector),
    }
    frames = {names.hits: Filled(counts=counts, columns=columns)}
    if origins is not None:
        totals = origins.counts.sum(axis=0)
        there = np.repeat(counts == totals, totals)  # events that could not be used were emptied
        columns["cellID"] = origins.cell_id[there]
        name, local = names.sim_links, jagged.local_index(counts)
        frames |= {
            name: Filled(counts=counts, columns={"weight": np.ones(len(local))}),
            f"_{name}_from": references(collection_id(names.hits), local, counts),
            f"_{name}_to": references(origins.ids[origins.slot][there], origins.index[there], counts),
        }
    return frames


def track_frames(events: Events, names: RecoNames) -> dict[str, Filled]:
    """The tracks of events, with a state at the interaction point and one at the calorimeter."""
    tracks = events.tracks
    if tracks is None:
        return {}
    counts = jagged.count(tracks)
    total = int(counts.sum())
    momentum = tracks.calo_momentum
    pt = np.hypot(jagged.flat(momentum.px), jagged.flat(momentum.py))
    zero = np.zeros(total)
    with np.errstate(divide="ignore", invalid="ignore"):  # unknown where the track was not followed that far
        calorimeter = {
            "location": np.full(total, AT_CALORIMETER),
            "D0": zero,
            "phi": np.arctan2(jagged.flat(momentum.py), jagged.flat(momentum.px)),
            "omega": jagged.flat(tracks.omega),
            "Z0": zero,
            "tanLambda": jagged.flat(momentum.pz) / pt,
            **flat_members("referencePoint", tracks.calo_position),
        }
    vertex = {
        "location": np.full(total, AT_IP),
        "D0": jagged.flat(tracks.d0),
        "phi": jagged.flat(tracks.phi),
        "omega": jagged.flat(tracks.omega),
        "Z0": jagged.flat(tracks.z0),
        "tanLambda": jagged.flat(tracks.tan_lambda),
        **{f"referencePoint.{axis}": zero for axis in "xyz"},
    }
    states = {key: np.stack([vertex[key], calorimeter[key]], axis=1).ravel() for key in vertex}
    end = 2 * jagged.local_index(counts) + 2
    return {
        names.tracks: Filled(counts=counts, columns={"trackStates_begin": end - 2, "trackStates_end": end}),
        f"_{names.tracks}_trackStates": Filled(counts=2 * counts, columns=states),
    }
