"""The readout: hits and tracks in physical units beside the tokens, and the targets' fractions of them."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.targets import AssignmentWeights
from pflow.physics.kinematics import unit_vector
from pflow.tokens.order import OrderedTargets
from pflow.tokens.tokens import Assignment, FlatReadout

__all__ = ["make_readout"]

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PXYZ = ("px", "py", "pz")


def make_readout(
    events: Events, *, is_kept: Mask, token: Index, use_tracks: bool, targets: OrderedTargets | None
) -> tuple[FlatReadout, dict[str, Index]]:
    """The readout of all events, joined.

    Parameters
    ----------
    events
        Events with N hits.
    is_kept : bool [N]
        Which hits the recipe keeps.
    token : int64 [number kept]
        Index of the event's hit token that each kept hit is part of.
    use_tracks
        Whether the readout holds the tracks.
    targets
        The target sequences of the same events; None without truth.

    Returns
    -------
    FlatReadout
        Of all events one after the other. A track whose position or momentum at the calorimeter is not finite has a
        null position, which the network takes as unknown, and the direction of its momentum at the vertex.
    dict
        Offsets of ``readout_hits``, ``readout_tracks`` and, with targets, ``hit_assignment`` and ``track_assignment``:
        see `pflow.tokens.tokens.Tokens`.
    """
    n_hits = jagged.count(events.hits)
    tracks = events.tracks if use_tracks else None
    n_tracks = np.zeros_like(n_hits) if tracks is None else jagged.count(tracks)
    all_kept = bool(is_kept.all())  # as most often
    n_kept = n_hits if all_kept else np.bincount(jagged.event_index(n_hits)[is_kept], minlength=len(n_hits))
    offsets = {"readout_hits": jagged.offsets(n_kept), "readout_tracks": jagged.offsets(n_tracks)}
    assignments: dict[str, Any] = {}
    if targets is not None:
        all_tracks = np.ones(int(n_tracks.sum()), dtype=np.bool_)
        track_weights = None if tracks is None else targets.targets.tracks
        for name, weights, counts, kept in (
            ("hit_assignment", targets.targets.hits, n_hits, is_kept),
            ("track_assignment", track_weights, n_tracks, all_tracks),
        ):
            assignments[name], offsets[name] = _assignment(weights, counts, kept, targets)
    hits = jagged.columns(events.hits)
    if not all_kept:
        hits = {name: values[is_kept] for name, values in hits.items()}
    readout = FlatReadout(
        energy=np.asarray(hits["energy"], dtype=np.float32),
        position=np.stack([hits[f"position.{axis}"] for axis in "xyz"], axis=-1, dtype=np.float32),
        subdetector=np.asarray(hits["subdetector"], dtype=np.int32),
        layer=np.asarray(hits["layer"], dtype=np.int32),
        token=token,
        **_tracks(tracks),
        **assignments,
    )
    return readout, offsets


def _tracks(tracks: ak.Array | None) -> dict[str, Any]:
    if tracks is None:
        null = np.zeros((0, 3), dtype=np.float32)
        vectors = dict.fromkeys(("track_momentum", "track_position", "track_direction"), null)
        return {"track_charge": null[:, 0], **vectors}
    columns = jagged.columns(tracks)
    momentum, position, at_calorimeter = (
        np.stack([columns[f"{vector}.{axis}"] for axis in axes], axis=-1, dtype=np.float32)
        for vector, axes in (("momentum", PXYZ), ("calo_position", "xyz"), ("calo_momentum", PXYZ))
    )
    known = np.isfinite(np.concatenate([position, at_calorimeter], axis=1)).all(axis=1, keepdims=True)
    return {
        "track_momentum": momentum,
        "track_charge": columns["charge"].astype(np.float32),
        "track_position": np.where(known, position, np.float32(0)),
        "track_direction": unit_vector(np.where(known, at_calorimeter, momentum).astype(np.float64)).astype(np.float32),
    }


def _assignment(
    weights: AssignmentWeights | None, n_sources: Index, is_kept: Mask, targets: OrderedTargets
) -> tuple[Assignment, Index]:
    """The pairs whose source is kept, and their offsets; their sources count the kept ones of the event."""
    if weights is None:
        none = np.zeros(0, dtype=np.int32)
        pairs = Assignment(source=none, target=none.astype(np.int64), weight=none.astype(np.float32))
        return pairs, np.zeros_like(targets.offsets)
    columns, n_links = targets.targets.pairs(weights, targets.position)
    source, target, weight = (columns[name] for name in ("source", "particle", "weight"))
    source = source.astype(np.int32, copy=False)
    if is_kept.all():
        return Assignment(source=source, target=target, weight=weight), jagged.offsets(n_links)
    first = np.repeat(jagged.offsets(n_sources)[:-1], n_links)
    kept = is_kept[source + first]
    n_before = jagged.offsets(is_kept)  # kept sources before each one, in all events
    rank = n_before[source + first] - n_before[first]
    event = jagged.event_index(n_links)
    pairs = Assignment(source=rank[kept].astype(np.int32), target=target[kept], weight=weight[kept])
    return pairs, jagged.offsets(np.bincount(event[kept], minlength=len(n_sources)))
