"""The readout: hits and tracks in physical units beside the tokens, and the targets' fractions of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.links import Links
from pflow.event.schema import PXYZ, XYZ
from pflow.event.truth import Targets
from pflow.physics.arrays import double, namespace, single
from pflow.physics.kinematics import unit_vector

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def make_readout(
    events: Events,
    *,
    is_kept: Mask,
    token: Index,
    use_tracks: bool,
    targets: Targets | None,
    measured: tuple[Index, npt.NDArray[np.float64]] | None = None,
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Index]]:
    """The arrays of the readout of all events, and their offsets, as of `pflow.tokens.tokens.Tokens`.

    `is_kept` bool [N] says which hits of the events the configuration keeps, `token` int64 [number kept] which of the
    event's hit tokens each kept hit is part of. `targets` are the target sequences of the same events, None without
    truth. With `measured`, int64 and float64 [number kept], hits have the kind of their calorimeter and their depth
    instead of calorimeter and layer.
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
    arrays |= readout_columns(hits, None if tracks is None else jagged.columns(tracks))
    subdetector, layer = (hits["subdetector"], hits["layer"].astype(np.int32)) if measured is None else measured
    arrays |= {"subdetector": subdetector.astype(np.int32), "token": token}
    arrays["layer"] = layer if measured is None else layer.astype(np.float32)
    return {f"readout.{name}": values for name, values in arrays.items()}, offsets


def readout_columns(hits: Mapping[str, Any], tracks: Mapping[str, Any] | None) -> dict[str, Any]:
    """Energy and position of hits, and all of tracks, as of `pflow.data.batch.Readout`; arrays or tensors, float32.

    Of columns as of `pflow.event.jagged.columns`. A track whose position or momentum at the calorimeter is not finite
    has a null position, and the direction of its momentum at the vertex.
    """
    position = _vectors(hits, "position", XYZ)
    null = position[:0]
    charge, momentum, entry, at_entry = null[:, 0], null, null, null
    if tracks is not None:
        charge, momentum = single(tracks["charge"]), _vectors(tracks, "momentum", PXYZ)
        entry, at_entry = _vectors(tracks, "calo_position", XYZ), _vectors(tracks, "calo_momentum", PXYZ)
    xp = namespace(position)
    known = (xp.isfinite(entry) & xp.isfinite(at_entry)).all(axis=1, keepdims=True)
    return {
        "energy": single(hits["energy"]),
        "position": position,
        "track_momentum": momentum,
        "track_charge": charge,
        "track_position": xp.where(known, entry, 0.0),
        "track_direction": single(unit_vector(double(xp.where(known, at_entry, momentum)))),
    }


def _vectors(columns: Mapping[str, Any], name: str, axes: Sequence[str]) -> Any:
    """Vectors float32 [N, 3] of their components."""
    components = [single(columns[f"{name}.{axis}"]) for axis in axes]
    return namespace(components[0]).stack(components, -1)


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
