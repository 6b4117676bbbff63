"""A network ready to run, in batches of events, and the particles that it generates."""

from __future__ import annotations

import dataclasses
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflow.checkpoint.load import TrainedModel
from pflow.data.batch import Batch
from pflow.data.collate import Padder, cut
from pflow.errors import ConfigError, first_line
from pflow.event import jagged
from pflow.event.events import Events, Flag
from pflow.event.links import MIN_HIT_FRACTION, Links
from pflow.event.particles import Reconstruction
from pflow.model.api import DecodingConfig, GeneratedParticles
from pflow.tokens.encode import kept_hits
from pflow.tokens.tokens import ParticleTokens, Tokens

Index = npt.NDArray[np.int64]

BATCH_SIZE = 32
"""Default number of events in a batch."""

MAX_BATCH_TOKENS = 65536
"""Most source tokens in a batch, padding included."""

COLUMNS = tuple(field.name for field in dataclasses.fields(ParticleTokens) if field.name != "counts")
"""Columns of generated particles that are kept."""


class Engine:
    """The network of a model, ready to run in torch, `batch_size` events in one pass; parameters as of `reconstruct`.

    ConfigError: no such device, or a number of particles or events below 1.
    """

    def __init__(
        self,
        model: TrainedModel,
        *,
        device: str | torch.device = "auto",
        decoding: DecodingConfig | None = None,
        max_particles: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, found {batch_size}")
        self.model, self.batch_size, self.device = model, batch_size, pick_device(device)
        self._decoding = model.reconstructor.decoding if decoding is None else decoding
        if max_particles is not None:
            try:
                self._decoding = self._decoding.limited(max_particles)
            except ValueError as error:
                raise ConfigError(str(error)) from error

    def encode(self, events: Events) -> Tokens:
        """The source tokens of events; InputError: events of another detector, or a missing value."""
        return self.model.tokeniser.encode(events, truth=False)

    @torch.inference_mode()
    def generate(self, batch: Batch) -> GeneratedParticles:
        """Decode the particles of a batch on the device."""
        reconstructor = self.model.reconstructor
        if reconstructor.training:
            reconstructor.eval()
        first = next(reconstructor.parameters(), None)
        if first is not None and first.device != self.device:
            reconstructor.to(self.device)
        return reconstructor.generate(batch.to(self.device), decoding=self._decoding)

    def collect(self, encoded: Tokens) -> ParticleCollector:
        """The generated particles of all events, in batches of events of similar length."""
        collector = ParticleCollector(len(encoded), linked=self.model.reconstructor.needs_readout)
        padder = Padder([encoded])
        longest_first = np.argsort(-encoded.n_source, kind="stable")
        order = longest_first[encoded.n_source[longest_first] > 0]
        for part in cut(encoded.n_source[order], self.batch_size, MAX_BATCH_TOKENS):
            collector.add(order[part], self.generate(padder.batch(order[part])))
        return collector

    def run(self, encoded: Tokens, events: Events) -> tuple[Reconstruction, npt.NDArray[np.bool_]]:
        """The particles of the events that were encoded, and bool [event], whether their numbers are not finite."""
        collector, model = self.collect(encoded), self.model
        particles = collector.tokens()
        links: dict[str, Any] = {
            "hit_links": collector.links("hit_fraction", kept_hits(events, model.tokeniser.config))
        }
        if events.tracks is not None:
            n_tracks = jagged.count(events.tracks)
            index = jagged.unflatten(jagged.local_index(n_tracks), n_tracks)
            links["track_links"] = collector.links("track_fraction", index)
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that overflow are reported below
            reconstruction = model.tokeniser.decode(
                particles,
                calibration=model.calibration,
                event=events.event,
                flags=events.flags | np.where(collector.truncated, np.uint32(Flag.MAX_PARTICLES), np.uint32(0)),
            )
        reconstruction = dataclasses.replace(reconstruction, **links)
        return reconstruction, ~particles.finite() | ~reconstruction.finite()


def pick_device(device: str | torch.device) -> torch.device:
    """The device with a name, ``auto``: a GPU if torch finds one, else the CPU; ConfigError if it cannot compute."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()  # the device meta makes tensors and holds no numbers
    except Exception as error:  # each kind of device fails in its own way
        raise ConfigError(f"no device '{device}' here: {first_line(error)}") from error
    return place


class ParticleCollector:
    """Joins the generated particles of batches of `n_events` events; if `linked`, there are links even of no batch."""

    def __init__(self, n_events: int, *, linked: bool = False) -> None:
        self._n_events, self._linked = n_events, linked
        self._parts: list[tuple[Index, dict[str, npt.NDArray[Any]]]] = []
        self._links: dict[str, list[tuple[npt.NDArray[Any], ...]]] = {}
        self.truncated = np.zeros(n_events, dtype=np.bool_)
        """bool [event], True = stopped at the maximum number of particles."""

    def add(self, rows: Index, generated: GeneratedParticles) -> None:
        """Add the particles of events `rows`, int64 [B]; dense fractions are too large to keep and become links."""
        self.truncated[rows] = generated.truncated.cpu().numpy()
        for name in ("hit_fraction", "track_fraction"):
            fraction = getattr(generated, name)
            if fraction is not None:
                values = _numpy(fraction)  # [B, T, N]
                row, particle, source = np.nonzero(values >= MIN_HIT_FRACTION)
                self._links.setdefault(name, []).append((rows[row], particle, source, values[row, particle, source]))
        event = np.repeat(rows, _numpy(generated.mask.sum(1)))
        columns = {name: getattr(generated, name) for name in COLUMNS}
        real = {name: _numpy(value[generated.mask]) for name, value in columns.items() if value is not None}
        self._parts.append((event, real))

    def tokens(self) -> ParticleTokens:
        """The particles of all events, one event after the other."""
        if not self._parts:
            none, index = np.zeros(0), np.zeros(0, dtype=np.int64)
            counts = np.zeros(self._n_events, dtype=np.int64)
            return ParticleTokens(counts=counts, charge=index, pdg=index, energy=none, direction=np.zeros((0, 3)))
        event = np.concatenate([event for event, _ in self._parts])
        order = np.argsort(event, kind="stable")
        columns = {name: np.concatenate([part[name] for _, part in self._parts])[order] for name in self._parts[0][1]}
        return ParticleTokens(counts=np.bincount(event, minlength=self._n_events), **columns)

    def links(self, name: str, index: ak.Array) -> ak.Array | None:
        """Links [event, link] by source and then particle; None if the network gives no fractions of this name.

        `name` is ``hit_fraction`` or ``track_fraction``; `index`, int64 [event, source], says which hit or track of
        the input's entry each one of the readout is.
        """
        none = [(np.zeros(0, dtype=np.int64),) * 4] if self._linked else []
        parts = self._links.get(name, none)
        if not parts:
            return None
        event, particle, source, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.lexsort((particle, source, event))
        event, particle, weight = event[order], particle[order], weight[order]
        source = jagged.flat(index)[source[order] + jagged.offsets(jagged.count(index))[event]]
        return Links.by_event(event, source, particle, weight, self._n_events).records()


def _numpy(values: Tensor) -> npt.NDArray[Any]:
    values = values.float() if values.is_floating_point() else values
    return values.cpu().numpy()
