"""The readout: hits and tracks in physical units beside the tokens, and the targets' shares of them."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.tokens.order import OrderedTargets
from pflow.tokens.tokens import EventReadout, Shares

__all__ = ["make_readout"]

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def make_readout(
    events: Events, *, is_kept: Mask, token: Index, use_tracks: bool, targets: OrderedTargets | None
) -> tuple[EventReadout, dict[str, Index]]:
    """The readout of all events, joined.

    Parameters
    ----------
    events
        Events with N hits.
    is_kept : bool [N]
        Which hits the recipe keeps.
    token : int64 [number kept]
        Index of the event's hit token that each of those is part of.
    use_tracks
        Whether tracks are part of the source; if not, the readout has none.
    targets
        The target sentences, from the same events; None without truth.

    Returns
    -------
    EventReadout
        Of all events one after the other. A track whose position or momentum at the calorimeter is not finite has a
        null position there, which the network takes for unknown, and the direction of its momentum at the vertex.
    dict
        The offsets of ``readout_hits``, ``readout_tracks`` and, with targets, ``hit_shares`` and ``track_shares``: see
        `pflow.tokens.tokens.Tokens`.
    """
    n_hits = jagged.count(events.hits)
    hit_event = jagged.event_index(n_hits)
    n_kept = np.bincount(hit_event[is_kept], minlength=len(n_hits))
    tracks = events.tracks if use_tracks else None
    n_tracks = np.zeros(len(n_hits), dtype=np.int64) if tracks is None else jagged.count(tracks)
    offsets = {"readout_hits": jagged.offsets(n_kept), "readout_tracks": jagged.offsets(n_tracks)}
    hit_shares = track_shares = None
    if targets is not None:
        # Index of each hit among those of its event that are kept.
        rank = np.cumsum(is_kept) - 1 - offsets["readout_hits"][hit_event]
        hit_shares, offsets["hit_shares"] = _shares(targets.targets.hit_links, n_hits, is_kept, rank, targets)
        all_tracks = jagged.local_index(n_tracks)
        links = None if tracks is None else targets.targets.track_links
        kept_tracks = np.ones(len(all_tracks), dtype=np.bool_)
        track_shares, offsets["track_shares"] = _shares(links, n_tracks, kept_tracks, all_tracks, targets)
    hits = ak.flatten(events.hits, axis=1)
    readout = EventReadout(
        energy=_numbers(hits.energy, np.float32)[is_kept],
        position=_vectors(hits.position, "xyz")[is_kept],
        subdetector=_numbers(hits.subdetector, np.int64)[is_kept],
        layer=_numbers(hits.layer, np.int64)[is_kept],
        token=token,
        **_tracks(tracks),
        hit_shares=hit_shares,
        track_shares=track_shares,
    )
    return readout, offsets


def _tracks(tracks: ak.Array | None) -> dict[str, npt.NDArray[np.float32]]:
    if tracks is None:
        null = np.zeros((0, 3), dtype=np.float32)
        return {
            "track_momentum": null,
            "track_charge": null[:, 0],
            "track_position": null,
            "track_direction": null,
        }
    flat = ak.flatten(tracks, axis=1)
    momentum = _vectors(flat.momentum, ("px", "py", "pz"))
    position = _vectors(flat.calo_position, "xyz")
    at_calorimeter = _vectors(flat.calo_momentum, ("px", "py", "pz"))
    known = np.isfinite(np.concatenate([position, at_calorimeter], axis=1)).all(axis=1, keepdims=True)
    direction = np.where(known, at_calorimeter, momentum).astype(np.float64)
    length = np.linalg.norm(direction, axis=1, keepdims=True)
    return {
        "track_momentum": momentum,
        "track_charge": _numbers(flat.charge, np.float32),
        "track_position": np.where(known, position, np.float32(0)),
        "track_direction": (direction / np.where(length > 0, length, 1.0)).astype(np.float32),
    }


def _shares(
    links: ak.Array | None, n_sources: Index, is_kept: Mask, rank: Index, targets: OrderedTargets
) -> tuple[Shares, Index]:
    """Shares of the sources that are kept, and where each event's begin; `rank`: a source's index among these."""
    if links is None:
        nothing = np.zeros(0, dtype=np.int64)
        none = Shares(source=nothing, target=nothing, share=nothing.astype(np.float32))
        return none, np.zeros(len(n_sources) + 1, dtype=np.int64)
    event = jagged.event_index(jagged.count(links))
    flat = ak.flatten(links, axis=1)
    source = jagged.global_index(links.source, n_sources)
    target = targets.place[_numbers(flat.particle, np.int64) + targets.offsets[event]]
    kept = is_kept[source]
    shares = Shares(source=rank[source[kept]], target=target[kept], share=_numbers(flat.weight, np.float32)[kept])
    return shares, jagged.offsets(np.bincount(event[kept], minlength=len(n_sources)))


def _numbers(values: ak.Array, dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.asarray(ak.to_numpy(values, allow_missing=False), dtype=dtype)


def _vectors(records: ak.Array, keys: str | tuple[str, ...]) -> npt.NDArray[np.float32]:
    """Flat vectors, float32 [N, 3]."""
    return np.stack([_numbers(records[key], np.float32) for key in keys], axis=1)
