"""Events to the HDF5 format of the first paper, which `pflow.io.legacy_hdf5.reader.LegacyReader` reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import awkward as ak
import h5py
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.links import assigned_particle
from pflow.io.atomic import replacing
from pflow.io.legacy_hdf5.buffers import TableWriter
from pflow.io.legacy_hdf5.checked_file import CheckedFile
from pflow.io.legacy_hdf5.deferred_signals import deferred_signals
from pflow.io.legacy_hdf5.reader import FEATURES, LABELS
from pflow.version import VERSION

__all__ = ["write_legacy"]

Rows = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


MARK = "pflow_version"
"""Attribute by which a file of pflow is known."""


def write_legacy(
    path: str | Path,
    events: Events | Iterable[Events],
    *,
    inputs: Iterable[str | Path] = (),
    force: bool = False,
) -> int:
    """Write events to an HDF5 file of the first paper; return how many. It appears only when whole.

    One row a hit, then one a track. The label is the particle with the largest weight, its ``mcid`` the index in the
    event's list; a hit or track without a link has ``mcid`` -1 and zeros. Tracks have ``hitid`` -1, -2, ... Parameters
    as of `pflow.io.events_root.write_events`.

    Raises
    ------
    InputError
        Events without truth: the format has a label on every row.
    ConfigError, OutputError
        An output that cannot be written.
    """
    chunks = (events,) if isinstance(events, Events) else events
    written = 0
    with (
        replacing(path, inputs=inputs, replace=MARK.encode(), force=force) as partial,
        contextlib.closing(CheckedFile(partial)) as target,
        deferred_signals() as let_signals_through,
    ):
        with h5py.File(target, "w") as file:
            file.attrs[MARK] = VERSION
            features = TableWriter(file.create_group("feature"), len(FEATURES), "float32")
            labels = TableWriter(file.create_group("label"), len(LABELS), "float64")
            for chunk in chunks:
                counts, feature, label = _rows(chunk)
                features.append(counts, feature)
                labels.append(counts, label)
                written += len(chunk)
                target.check()
                let_signals_through()
            features.finish()
            labels.finish()
        target.check()
    return written


def _rows(events: Events) -> tuple[Index, npt.NDArray[np.float32], Rows]:
    """Number of rows of each event, features float32 [row, 10], labels float64 [row, 9]."""
    if events.truth is None or events.hit_links is None:
        raise events.error("holds no truth, and the first paper's format labels every hit with its particle")
    n_hits = jagged.count(events.hits)
    features = _hit_features(events.hits)
    hitid = jagged.local_index(n_hits) + 1
    labels = _label_rows(hitid, assigned_particle(events.hit_links, events.hits), events.truth)
    if events.tracks is None:
        return n_hits, features, labels
    n_tracks = jagged.count(events.tracks)
    if events.track_links is None:
        particle = ak.unflatten(np.full(n_tracks.sum(), -1, dtype=np.int32), n_tracks)
    else:
        particle = assigned_particle(events.track_links, events.tracks)
    track_features = _track_features(events.tracks)
    trackid = -1 - jagged.local_index(n_tracks)
    event = np.concatenate([jagged.event_index(n_hits), jagged.event_index(n_tracks)])
    order = np.argsort(event, kind="stable")  # the hits of an event, then its tracks
    return (
        n_hits + n_tracks,
        np.concatenate([features, track_features])[order],
        np.concatenate([labels, _label_rows(trackid, particle, events.truth)])[order],
    )


def _hit_features(hits: ak.Array) -> npt.NDArray[np.float32]:
    flat = ak.flatten(hits, axis=1)
    rows = np.zeros((len(flat), len(FEATURES)), dtype=np.float32)
    for at, values in enumerate((flat.energy, flat.position.x, flat.position.y, flat.position.z, flat.time)):
        rows[:, at] = ak.to_numpy(values)
    return rows


def _track_features(tracks: ak.Array) -> npt.NDArray[np.float32]:
    """Rows of tracks: position and momentum at the calorimeter, momentum at the vertex where that is unknown."""
    flat = ak.flatten(tracks, axis=1)
    rows = np.zeros((len(flat), len(FEATURES)), dtype=np.float32)
    for at, axis in enumerate("xyz", start=FEATURES.index("x")):
        rows[:, at] = ak.to_numpy(flat.calo_position[axis])
    rows[:, FEATURES.index("track")] = 1
    rows[:, FEATURES.index("charge")] = ak.to_numpy(flat.charge)
    for at, axis in enumerate(("px", "py", "pz"), start=FEATURES.index("px")):
        there, vertex = (ak.to_numpy(momentum[axis]) for momentum in (flat.calo_momentum, flat.momentum))
        rows[:, at] = np.where(np.isfinite(there), there, vertex)
    return rows


def _label_rows(identity: Index, assigned: ak.Array, truth: ak.Array) -> Rows:
    start = jagged.offsets(jagged.count(truth))[jagged.event_index(jagged.count(assigned))]
    particle = jagged.flat(assigned, np.int64)
    named = particle >= 0
    flat = ak.flatten(truth, axis=1)[(start + particle)[named]]
    rows = np.zeros((len(particle), len(LABELS)))
    rows[:, 0] = identity
    rows[:, 1] = particle
    status = ak.to_numpy(flat.status).astype(np.int32).view(np.uint32)
    momentum = flat.momentum
    values = (flat.pdg, flat.charge, flat.mass, momentum.px, momentum.py, momentum.pz, status)
    for at, column in enumerate(values, start=LABELS.index("pdg")):
        rows[named, at] = np.asarray(column)
    return rows
