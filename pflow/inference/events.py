"""Reconstruction of events in memory with a trained model."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import awkward as ak
import numpy as np
import numpy.typing as npt
import torch

from pflow.checkpoint.load import Model, load_model
from pflow.data.collate import Padder
from pflow.errors import ConfigError, InputError, first_line
from pflow.event import jagged
from pflow.event.events import Events, Flag
from pflow.event.particles import Reconstruction
from pflow.event.skipped import BadEntriesWarning, refused_message, without_refused
from pflow.inference.collect import ParticleCollector
from pflow.model.api import DecodingConfig, Reconstructor, Sampler
from pflow.physics.detector import Calorimeter, Detector
from pflow.tokens.encode import kept_hits
from pflow.tokens.tokens import Tokens

__all__ = [
    "BATCH_SIZE",
    "MAX_HITS",
    "finite_events",
    "generate",
    "give_up",
    "pick_device",
    "reconstruct",
    "usable_events",
    "with_detector",
]

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
        Thresholds and largest number of particles; default: the model's own. Events that reach the latter are flagged
        ``MAX_PARTICLES``.
    max_particles
        Largest number of particles of any event, in place of that of `decoding`, which may grow with the event.
    sampler
        Chooses classes from logits; default: the most probable.
    max_hits
        Largest number of hits of an event.
    batch_size
        Events in one pass of the network.
    device
        ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1`` ...
    on_error
        For events with impossible hits or tracks, without a value that the model reads, or with more than `max_hits`
        hits: ``raise``, or ``skip``: warn, with their number, and leave an empty entry flagged ``BAD_INPUT``. Likewise
        for events for which the model gives numbers that are not finite; their flag is ``NOT_FINITE``.

    Returns
    -------
    Reconstruction
        One entry for each event, in order; an event without hits and tracks has no particles.

    Raises
    ------
    InputError
        Events of another detector, or an event that cannot be used: names file, entry, field and what was expected.
    ConfigError
        No such device, a batch size below 1, or a number of particles below 1.
    """
    if not isinstance(model, Model):
        model = load_model(model)
    if max_particles is not None:
        try:
            decoding = (model.reconstructor.decoding if decoding is None else decoding).limited(max_particles)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    events = usable_events(events, max_hits, on_error)
    tokens, events = without_refused(events, lambda some: model.tokeniser.encode(some, truth=False), on_error)
    collector = generate(tokens, model, decoding=decoding, sampler=sampler, batch_size=batch_size, device=device)
    particles = collector.tokens()
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below
        reconstruction = model.tokeniser.decode(
            particles,
            calibration=model.calibration,
            event=events.event,
            flags=events.flags | np.where(collector.truncated, np.uint32(Flag.MAX_PARTICLES), np.uint32(0)),
        )
    hit_links = collector.links("hit_fraction", kept_hits(events, model.tokeniser.config))
    track_links = None
    if events.tracks is not None:
        n_tracks = jagged.count(events.tracks)
        track_links = collector.links("track_fraction", jagged.unflatten(jagged.local_index(n_tracks), n_tracks))
    reconstruction = dataclasses.replace(reconstruction, hit_links=hit_links, track_links=track_links)
    return finite_events(reconstruction, ~particles.finite() | ~reconstruction.finite(), events, model.path, on_error)


def generate(
    tokens: Tokens,
    model: Model,
    *,
    decoding: DecodingConfig | None = None,
    sampler: Sampler | None = None,
    batch_size: int = BATCH_SIZE,
    device: str | torch.device = "auto",
) -> ParticleCollector:
    """The particles that a model decodes from encoded events; parameters and errors as of `reconstruct`."""
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, found {batch_size}")
    place = pick_device(device)
    reconstructor = _ready(model.reconstructor, place)
    decoding = reconstructor.decoding if decoding is None else decoding
    collector, padder = ParticleCollector(len(tokens)), Padder([tokens])
    for rows in _batches(tokens, batch_size):
        batch = padder.batch(rows).to(place)
        with torch.inference_mode():
            generated = reconstructor.generate(batch, decoding=decoding, sampler=sampler)
        collector.add(rows, generated)
    return collector


def _ready(reconstructor: Reconstructor, device: torch.device) -> Reconstructor:
    """The network on a device and in evaluation mode; its modules are visited only where it is not so yet."""
    if reconstructor.training:
        reconstructor.eval()
    first = next(reconstructor.parameters(), None)
    return reconstructor.to(device) if first is None or first.device != device else reconstructor


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
        torch.zeros(1, device=place).item()  # the device meta makes tensors and holds no numbers
    except Exception as error:  # each kind of device fails in its own way
        raise ConfigError(f"no device '{device}' here: {first_line(error)}") from error
    return place


def usable_events(events: Events, max_hits: int, on_error: str) -> Events:
    """The events whose hits and tracks are possible and not too many; the others are empty."""
    errors = {
        violation.index: events.error(violation.message, index=violation.index, field=violation.field)
        for violation in reversed(events.without_truth().violations())
    }
    n_hits = jagged.count(events.hits)
    for index in np.flatnonzero(n_hits > max_hits).tolist():
        errors[index] = events.error(
            f"{n_hits[index]} hits, expected at most {max_hits}; a larger limit (max_hits) costs time and memory with "
            "the square of the number of hits",
            index=index,
            field="hits",
        )
    give_up([errors[index] for index in sorted(errors)], len(events), on_error)
    return events.emptied(np.isin(np.arange(len(events)), list(errors)))


def with_detector(events: Events, detector: Detector) -> Events:
    """The events as events of the model's detector, where the user named another one to read them.

    Each hit goes to the calorimeter of the same kind and region, else of the same kind, else of the same region, else
    the last one.
    """
    hits = events.hits
    if events.detector.calorimeters != detector.calorimeters:
        counterpart = np.array([_counterpart(one, detector.calorimeters) for one in events.detector.calorimeters])
        subdetector = ak.unflatten(counterpart[jagged.flat(hits.subdetector)], jagged.count(hits))
        hits = ak.with_field(hits, subdetector, "subdetector")
    return dataclasses.replace(events, detector=detector, hits=hits)


def finite_events(
    reconstruction: Reconstruction, bad: npt.NDArray[np.bool_], events: Events, model: str, on_error: str
) -> Reconstruction:
    """The reconstruction without the particles of the events `bad`, of which numbers of the model are not finite."""
    errors = [
        events.error(f"the model '{model}' gives numbers that are not finite for this event", index=index)
        for index in np.flatnonzero(bad)
    ]
    give_up(errors, len(events), on_error)
    return reconstruction.emptied(bad, Flag.NOT_FINITE)


def give_up(errors: list[InputError], n_events: int, on_error: str) -> None:
    """Raise the first error, or warn of all."""
    if not errors:
        return
    if on_error == "raise":
        raise errors[0]
    warnings.warn(refused_message(errors, n_events), BadEntriesWarning, stacklevel=4)


def _counterpart(one: Calorimeter, others: Sequence[Calorimeter]) -> int:
    return max(
        range(len(others)), key=lambda i: (2 * (others[i].kind == one.kind) + (others[i].region == one.region), i)
    )


def _batches(tokens: Tokens, batch_size: int) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of the events that have source tokens, in batches of similar length, the longest first."""
    length = tokens.n_source
    order = np.argsort(-length, kind="stable")
    order = order[length[order] > 0]
    while len(order):
        size = min(batch_size, max(1, MAX_BATCH_TOKENS // int(length[order[0]])))
        yield order[:size]
        order = order[size:]
