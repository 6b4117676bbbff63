"""Reconstruction of events in memory with a trained model."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import awkward as ak
import numpy as np
import numpy.typing as npt
import torch

from pflow.checkpoint.load import Model, load_model
from pflow.data.collate import collate
from pflow.errors import ConfigError, InputError, first_line
from pflow.event import jagged
from pflow.event.events import Events, Flag
from pflow.event.particles import Reconstruction
from pflow.inference.collect import ParticleCollector
from pflow.model.api import DecodingConfig, Sampler
from pflow.tokens.encode import kept_hits
from pflow.tokens.tokens import Tokens

__all__ = ["BATCH_SIZE", "MAX_HITS", "pick_device", "reconstruct"]

BATCH_SIZE = 32
"""Default number of events in a batch."""

MAX_HITS = 32768
"""Default of the largest event: attention costs the square of the number of hits."""

MAX_BATCH_TOKENS = 65536
"""Most source tokens in a batch, padding included."""


def reconstruct(
    events: Events,
    model: Model | str | Path,
    *,
    decoding: DecodingConfig | None = None,
    max_particles: int | None = None,
    sampler: Sampler | None = None,
    max_hits: int = MAX_HITS,
    batch_size: int = BATCH_SIZE,
    device: str | torch.device = "auto",
    on_error: Literal["raise", "skip"] = "raise",
) -> Reconstruction:
    """Reconstruct the particles of events; truth is not used.

    Parameters
    ----------
    events
        Events of the detector that the model was trained on.
    model
        From `pflow.load_model`, or its argument.
    decoding
        Thresholds and largest number of particles; default: the model's own.
    max_particles
        Largest number of particles in place of that of `decoding`. Events that reach it are flagged ``MAX_PARTICLES``.
    sampler
        Chooses classes from logits; default: the most probable.
    max_hits
        Largest number of hits of an event.
    batch_size
        Events in one pass of the network.
    device
        ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1`` ...
    on_error
        For events with more than `max_hits` hits: ``raise``, or ``skip``: warn, with their number, and leave an empty
        entry flagged ``BAD_INPUT``.

    Returns
    -------
    Reconstruction
        One entry for each event, in order; an event without hits and tracks has no particles.

    Raises
    ------
    InputError
        Events of another detector or with too many hits: names file, entry and what was expected.
    ConfigError
        No such device, a batch size below 1, or a number of particles below 1.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, found {batch_size}")
    if not isinstance(model, Model):
        model = load_model(model)
    place = pick_device(device)
    reconstructor = model.reconstructor.to(place).eval()
    decoding = reconstructor.decoding if decoding is None else decoding
    if max_particles is not None:
        try:
            decoding = dataclasses.replace(decoding, max_particles=max_particles)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    events = _without_oversized(events, max_hits, on_error)
    tokens = model.tokeniser.encode(events, truth=False)

    collector = ParticleCollector(len(events))
    for rows in _batches(tokens, batch_size):
        batch = collate([tokens[int(row)] for row in rows]).to(place)
        with torch.inference_mode():
            generated = reconstructor.generate(batch, decoding=decoding, sampler=sampler)
        collector.add(rows, generated)
    reconstruction = model.tokeniser.decode(
        collector.tokens(),
        calibration=model.calibration,
        event=events.event,
        flags=events.flags | np.where(collector.truncated, np.uint32(Flag.MAX_PARTICLES), np.uint32(0)),
    )
    hit_links = collector.links("hit_fraction", kept_hits(events, model.tokeniser.recipe))
    track_links = None
    if events.tracks is not None:
        track_links = collector.links("track_fraction", ak.local_index(events.tracks, axis=1))
    return dataclasses.replace(reconstruction, hit_links=hit_links, track_links=track_links)


def pick_device(device: str | torch.device) -> torch.device:
    """The device with a name; ``auto`` is a GPU where torch finds one, else the CPU.

    Raises
    ------
    ConfigError
        No such device here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"no device '{device}' here: {first_line(error)}") from error
    return place


def _without_oversized(events: Events, max_hits: int, on_error: str) -> Events:
    n_hits = jagged.count(events.hits)
    too_many = n_hits > max_hits
    if not too_many.any():
        return events
    first = int(np.flatnonzero(too_many)[0])
    error = InputError(
        f"{n_hits[first]} hits, expected at most {max_hits}; a larger limit (max_hits) costs time and memory with "
        "the square of the number of hits",
        file=events.path or None,
        entry=int(events.entry[first]),
        field="hits",
    )
    if on_error == "raise":
        raise error
    warnings.warn(
        f"{int(too_many.sum())} of {len(events)} entries are too large and were left empty; the first: {error}",
        stacklevel=3,
    )
    return events.emptied(too_many)


def _batches(tokens: Tokens, batch_size: int) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of the events that have source tokens, in batches of similar length, the longest first."""
    length = np.array([tokens[i].n_source for i in range(len(tokens))], dtype=np.int64)
    order = np.argsort(-length, kind="stable")
    order = order[length[order] > 0]
    while len(order):
        size = min(batch_size, max(1, MAX_BATCH_TOKENS // int(length[order[0]])))
        yield order[:size]
        order = order[size:]
