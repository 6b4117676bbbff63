"""Particles from events in memory, with a trained model."""

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
from pflow.errors import ConfigError, InputError
from pflow.event.events import Events, Flag
from pflow.event.particles import Reconstruction
from pflow.inference.collect import ParticleCollector
from pflow.model.api import Sampler
from pflow.tokens.encode import kept_hits
from pflow.tokens.tokens import Tokens

__all__ = ["BATCH_SIZE", "MAX_HITS", "pick_device", "reconstruct"]

BATCH_SIZE = 32
"""Default for how many events go through the network together: with fewer, small operations cost more than they do."""

MAX_HITS = 32768
"""Default for the largest event taken on: attention costs the square of the number of hits."""

MAX_BATCH_TOKENS = 65536
"""Most source tokens, padding included, that go through the network at once."""


def reconstruct(
    events: Events,
    model: Model | str | Path,
    *,
    max_particles: int | None = None,
    max_hits: int = MAX_HITS,
    batch_size: int = BATCH_SIZE,
    device: str | torch.device = "auto",
    on_error: Literal["raise", "skip"] = "raise",
    temperature: float | None = None,
    seed: int = 0,
) -> Reconstruction:
    """Write the particles of events. Needs no truth, and does not look at it.

    Parameters
    ----------
    events
        Events of the detector that the model was trained on.
    model
        From `pflow.load_model`, or what that takes.
    max_particles
        Longest answer; events that reach it are flagged ``MAX_PARTICLES``. Default: the model's own.
    max_hits
        Largest event taken on.
    batch_size
        Events that go through the network together.
    device
        ``auto`` (a GPU where there is one), ``cpu``, ``cuda``, ``cuda:1`` ...
    on_error
        What to do with an event of more than `max_hits` hits: ``raise``, or ``skip``: warn, with their number, and
        leave an empty entry flagged ``BAD_INPUT``.
    temperature
        Draw particles instead of taking the most probable ones.
    seed
        Seed for drawing: the same seed gives the same particles.

    Returns
    -------
    Reconstruction
        One entry for each event, in order; an event without hits and tracks has no particles.

    Raises
    ------
    InputError
        Events of another detector or with too many hits: names file, entry and what was expected.
    ConfigError
        A device that is not there, a batch size below 1.
    """
    if batch_size < 1:
        raise ConfigError(f"batch size must be at least 1, found {batch_size}")
    if not isinstance(model, Model):
        model = load_model(model)
    place = pick_device(device)
    decoding = model.reconstructor.decoding
    if max_particles is not None:
        decoding = dataclasses.replace(decoding, max_particles=max_particles)
    events = _without_oversized(events, max_hits, on_error)
    tokens = model.tokeniser.encode(events, truth=False)
    reconstructor = model.reconstructor.to(place).eval()
    random = None if temperature is None else torch.Generator().manual_seed(seed)
    sampler = Sampler(temperature=temperature, generator=random)

    collector = ParticleCollector(len(events))
    for rows in _batches(tokens, batch_size):
        batch = collate([tokens[int(row)] for row in rows]).to(place)
        collector.add(rows, reconstructor.generate(batch, decoding=decoding, sampler=sampler))
    truncated = np.where(collector.truncated, np.uint32(Flag.MAX_PARTICLES), np.uint32(0))
    reconstruction = model.tokeniser.decode(
        collector.tokens(),
        calibration=model.calibration,
        event=events.event,
        flags=(events.flags | truncated).astype(np.uint32),
    )
    hit_links = collector.links("hit_fraction", kept_hits(events, model.tokeniser.recipe))
    track_links = None
    if events.tracks is not None:
        track_links = collector.links("track_fraction", ak.local_index(events.tracks, axis=1))
    return dataclasses.replace(reconstruction, hit_links=hit_links, track_links=track_links)


def pick_device(device: str | torch.device) -> torch.device:
    """The device meant by a name; ``auto`` is a GPU where torch finds one, else the CPU.

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
        reason = str(error).splitlines()[0]
        raise ConfigError(f"no device '{device}' here: {reason}") from error
    return place


def _without_oversized(events: Events, max_hits: int, on_error: str) -> Events:
    n_hits = ak.to_numpy(ak.num(events.hits, axis=1))
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
    """Indices of the events that have something to look at, in batches of similar length, the longest first."""
    length = np.array([tokens[i].n_source for i in range(len(tokens))], dtype=np.int64)
    order = np.argsort(-length, kind="stable")
    order = order[length[order] > 0]
    while len(order):
        most = max(1, MAX_BATCH_TOKENS // int(length[order[0]]))
        size = min(batch_size, most)
        yield order[:size]
        order = order[size:]
