"""The readout: hits and tracks in physical units beside the tokens, and the targets' fractions of them."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.links import Links
from pflow.event.truth import Targets
from pflow.physics.arrays import double, namespace
from pflow.physics.geometry import kind_index
from pflow.physics.kinematics import unit_vector

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PXYZ = ("px", "py", "pz")


def make_readout(
    events: Events,
    *,
    is_kept: Mask,
    token: Index,
    use_tracks: bool,
    targets: Targets | None,
    depth: npt.NDArray[np.float64] | None = None,
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Index]]:
    """The arrays of the readout of all events, and their offsets, as of `pflow.tokens.tokens.Tokens`.

    `is_kept` bool [N] says which hits of the events the configuration keeps, `token` int64 [number kept] which of the
    event's hit tokens each kept hit is part of. A track whose position or momentum at the calorimeter is not finite has
    a null position, which the network takes as unknown, and the direction of its momentum at the vertex. `targets` are
    the target sequences of the same events, None without truth. With `depth`, float64 [number kept], hits have the kind
    of their calorimeter and their depth instead of calorimeter and layer.
    """
    n_hits = jagged.count(events.hits)
    tracks = events.tracks if use_tracks else None
    n_tracks = np.zeros_like(n_hits) if tracks is None else jagged.count(tracks)
    all_kept = bool(is_kept.all())  # as most often
    n_kept = n_hits if all_kept else np.bincount(jagged.event_index(n_hits)[is_kept], minlength=len(n_hits))
    offsets = {"readout_hits": jagged.offsets(n_kept), "readout_tracks": jagged.offsets(n_tracks)}
    arrays: dict[str, npt.NDArray[Any]] = {}
    if targets is not None:
        all_tracks = np.ones(int(n_tracks.sum()), dtype=np.bool_)
        track_links = None if tracks is None else targets.tracks
        for name, links, counts, kept in (
            ("hit_assignment", targets.hits, n_hits, is_kept),
            ("track_assignment", track_links, n_tracks, all_tracks),
        ):
            pairs = _assignment(links, counts, kept, targets)
            offsets[name] = jagged.offsets(pairs.counts)
            arrays[f"{name}.source"] = pairs.source.astype(np.int32)
            arrays[f"{name}.particle"] = pairs.particle
            arrays[f"{name}.weight"] = pairs.weight.astype(np.float32)
    hits = jagged.columns(events.hits)
    if not all_kept:
        hits = {name: values[is_kept] for name, values in hits.items()}
    subdetector, layer = hits["subdetector"].astype(np.int32), hits["layer"].astype(np.int32)
    if depth is not None:
        subdetector, layer = kind_index(events.detector).astype(np.int32)[subdetector], depth.astype(np.float32)
    arrays |= {
        "energy": np.asarray(hits["energy"], dtype=np.float32),
        "position": np.stack([hits[f"position.{axis}"] for axis in "xyz"], axis=-1, dtype=np.float32),
        "subdetector": subdetector,
        "layer": layer,
        "token": token,
        **_tracks(tracks),
    }
    return {f"readout.{name}": values for name, values in arrays.items()}, offsets


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
    known_position, direction = entry_of_tracks(momentum, position, at_calorimeter)
    return {
        "track_momentum": momentum,
        "track_charge": columns["charge"].astype(np.float32),
        "track_position": known_position,
        "track_direction": direction.astype(np.float32),
    }


def entry_of_tracks(momentum: Any, position: Any, at_calorimeter: Any) -> tuple[Any, Any]:
    """Where tracks enter the calorimeter, null if unknown, and unit vectors there, else at the vertex; [K, 3] each."""
    xp = namespace(momentum)
    known = (xp.isfinite(position) & xp.isfinite(at_calorimeter)).all(axis=1, keepdims=True)
    direction = unit_vector(double(xp.where(known, at_calorimeter, momentum)))
    return xp.where(known, position, 0.0), direction


def _assignment(links: Links | None, n_sources: Index, is_kept: Mask, targets: Targets) -> Links:
    """Links from the sources that are kept, counting these, to positions in the target sequences."""
    position = jagged.local_index(targets.counts)
    pairs = Links.of(None, len(n_sources)) if links is None else targets.links_to(links, position)
    if not is_kept.all():
        source = pairs.flat_source(n_sources)
        n_before = jagged.offsets(is_kept)  # kept sources before each one, in all events
        place = n_before[source] - np.repeat(n_before[jagged.offsets(n_sources)[:-1]], pairs.counts)
        pairs = pairs.take(is_kept[source], source=place)
    return pairs
