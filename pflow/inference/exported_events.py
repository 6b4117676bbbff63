"""Reconstruction of events in memory with an exported network, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.build import make_links, make_particles
from pflow.event.events import Events, Flag
from pflow.event.particles import Reconstruction
from pflow.inference.events import MAX_HITS, finite_events, give_up, usable_events
from pflow.inference.exported import Arrays, ExportedModel

__all__ = ["event_arrays", "reconstruct_exported"]

_NONE: Arrays = {
    "pdg": np.zeros(0, dtype=np.int64),
    **{name: np.zeros(0) for name in ("charge", "energy", "mass", "score")},
    **{name: np.zeros((0, n)) for name, n in (("momentum", 3), ("class_probability", 5), ("covariance", 10))},
    **{f"{part}_link_{name}": np.zeros(0, dtype=np.int64) for part in ("hit", "track") for name in (part, "particle")},
    **{f"{part}_link_weight": np.zeros(0) for part in ("hit", "track")},
}
"""Columns of an event without particles."""


def reconstruct_exported(
    events: Events,
    model: ExportedModel,
    *,
    max_particles: int | None = None,
    max_hits: int = MAX_HITS,
    on_error: Literal["raise", "skip"] = "raise",
) -> Reconstruction:
    """Reconstruct the particles of events, one event at a time; truth is not used.

    Parameters
    ----------
    events
        Events of the detector that the model was trained on.
    model
        The exported model.
    max_particles
        Largest number of particles of any event; default: as `pflow.reconstruct`, which may grow with the event. Events
        that reach it are flagged ``MAX_PARTICLES``.
    max_hits, on_error
        As for `pflow.reconstruct`.

    Returns
    -------
    Reconstruction
        As of `pflow.reconstruct` with the checkpoint that was exported.

    Raises
    ------
    InputError
        Events of another detector, or an event that cannot be used: names file, entry, field and what was expected.
    ConfigError
        A number of particles below 1.
    """
    if max_particles is not None and max_particles < 1:
        raise ConfigError(f"max_particles must be at least 1, found {max_particles}")
    model.tokeniser.check_detector(events)
    events = usable_events(events, max_hits, on_error)
    sources: list[Arrays | None] = []
    errors: list[InputError] = []
    for index in range(len(events)):
        try:
            sources.append(_known(event_arrays(events, index, model.inputs), model, events, index))
        except InputError as error:
            sources.append(None)
            errors.append(error)
    give_up(errors, len(events), on_error)
    events = events.emptied(np.array([source is None for source in sources], dtype=np.bool_))
    columns, truncated = [], np.zeros(len(events), dtype=np.uint32)
    for index, source in enumerate(sources):
        found = None
        if source is not None and model.has_particles(source):
            found, cut = model.reconstruct(source, max_particles=max_particles)
            truncated[index] = Flag.MAX_PARTICLES if cut else Flag.NONE
        columns.append(_NONE if found is None else found)
    reconstruction = _joined(columns, events, truncated, tracks="track_momentum" in model.inputs)
    return finite_events(reconstruction, ~reconstruction.finite(), events, model.path, on_error)


def event_arrays(events: Events, index: int, names: Sequence[str]) -> Arrays:
    """Inputs of an exported encoder: ``hit_energy`` [N], ``track_momentum`` [K, 3] and so on, of one event.

    Raises
    ------
    InputError
        The events have no tracks, and the model reads them.
    """
    parts = {"hit": jagged.columns(events.hits[index])}
    if events.tracks is not None:
        parts["track"] = jagged.columns(events.tracks[index])
    arrays: Arrays = {}
    for name in names:
        part, _, field = name.partition("_")
        if part not in parts:
            raise events.error(
                "the model reads tracks, and there are none for these events", index=index, field="tracks"
            )
        columns, dtype = parts[part], np.int32 if field in ("subdetector", "layer") else np.float32
        vector = [values for path, values in columns.items() if path.startswith(f"{field}.")]
        values = np.stack(vector, axis=1) if vector else columns[field]
        arrays[name] = np.ascontiguousarray(values, dtype=dtype)
    return arrays


def _known(source: Arrays, model: ExportedModel, events: Events, index: int) -> Arrays:
    """The same arrays, if the model's numbers are all known."""
    for name in model.known:
        values = source[name]
        known = np.isfinite(values) if values.dtype == np.float32 else values >= 0
        if not known.all():
            part, _, field = name.partition("_")
            raise events.error(
                f"{np.count_nonzero(~known)} values that the model reads are unknown or not finite",
                index=index,
                field=f"{part}s.{field}",
            )
    return source


def _joined(
    columns: Sequence[Mapping[str, npt.NDArray[Any]]], events: Events, flags: npt.NDArray[np.uint32], *, tracks: bool
) -> Reconstruction:
    """The particles and links of all events; `flags` are added to those of the events."""

    def column(name: str, orders: Sequence[Any] | None = None) -> Any:
        counts = np.array([len(of_event[name]) for of_event in columns], dtype=np.int64)
        parts = [of_event[name][slice(None) if orders is None else orders[i]] for i, of_event in enumerate(columns)]
        values = np.concatenate(parts or [_NONE[name]])
        return jagged.unflatten(values, counts)

    def links(part: str) -> ak.Array:
        orders = [np.argsort(of_event[f"{part}_link_{part}"], kind="stable") for of_event in columns]
        source, particle, weight = (column(f"{part}_link_{name}", orders) for name in (part, "particle", "weight"))
        return make_links(source=source, particle=particle, weight=weight, normalise=False)

    momentum = column("momentum")
    return Reconstruction(
        particles=make_particles(
            **{name: column(name) for name in ("pdg", "charge", "energy", "mass", "score", "covariance")},
            **{name: momentum[..., axis] for axis, name in enumerate(("px", "py", "pz"))},
            scores=column("class_probability"),
        ),
        event=events.event,
        flags=events.flags | flags,
        hit_links=links("hit"),
        track_links=links("track") if tracks and events.tracks is not None else None,
    )
