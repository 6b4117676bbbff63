"""What runs a network: torch, in batches, or ONNX Runtime, one event at a time."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pflow.checkpoint.load import TrainedModel
from pflow.data.batch import Batch
from pflow.data.buckets import cut
from pflow.data.collate import Padder
from pflow.errors import ConfigError, first_line
from pflow.event import jagged
from pflow.event.events import Events, Flag
from pflow.event.particles import Reconstruction
from pflow.inference.collect import ParticleCollector
from pflow.model.api import DecodingConfig, GeneratedParticles
from pflow.tokens.encode import kept_hits
from pflow.tokens.tokens import Tokens

__all__ = ["BATCH_SIZE", "Engine", "TokenEngine", "TorchEngine", "pick_device"]

BATCH_SIZE = 32
"""Default number of events in a batch."""

MAX_BATCH_TOKENS = 65536
"""Most source tokens in a batch, padding included."""


class Engine(ABC):
    """The network of a model, ready to run."""

    name: str

    def __init__(self, model: TrainedModel) -> None:
        self.model = model

    @abstractmethod
    def encode(self, events: Events) -> Any:
        """What the network reads of events; InputError for another detector or a value that is missing."""

    @abstractmethod
    def run(self, encoded: Any, events: Events) -> tuple[Reconstruction, npt.NDArray[np.bool_]]:
        """The particles of events that `encode` made `encoded` of, and which have numbers that are not finite."""


class TokenEngine(Engine):
    """A network that reads the tokens of pflow's tokeniser, `batch_size` events in one pass."""

    batch_size = 1

    @abstractmethod
    def generate(self, batch: Batch) -> GeneratedParticles:
        """Decode the particles of a batch on the CPU."""

    def encode(self, events: Events) -> Tokens:
        """The source tokens."""
        return self.model.tokeniser.encode(events, truth=False)

    def collect(self, encoded: Tokens) -> ParticleCollector:
        """The generated particles of all events."""
        collector = ParticleCollector(len(encoded), linked=self.model.reconstructor.needs_readout)
        padder = Padder([encoded])
        longest_first = np.argsort(-encoded.n_source, kind="stable")
        order = longest_first[encoded.n_source[longest_first] > 0]
        for part in cut(encoded.n_source[order], self.batch_size, MAX_BATCH_TOKENS):
            collector.add(order[part], self.generate(padder.batch(order[part])))
        return collector

    def run(self, encoded: Tokens, events: Events) -> tuple[Reconstruction, npt.NDArray[np.bool_]]:
        """The particles, in batches."""
        collector, model = self.collect(encoded), self.model
        particles = collector.tokens()
        links: dict[str, Any] = {
            "hit_links": collector.links("hit_fraction", kept_hits(events, model.tokeniser.config))
        }
        if events.tracks is not None:
            n_tracks = jagged.count(events.tracks)
            index = jagged.unflatten(jagged.local_index(n_tracks), n_tracks)
            links["track_links"] = collector.links("track_fraction", index)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below
            reconstruction = model.tokeniser.decode(
                particles,
                calibration=model.calibration,
                event=events.event,
                flags=events.flags | np.where(collector.truncated, np.uint32(Flag.MAX_PARTICLES), np.uint32(0)),
            )
        reconstruction = dataclasses.replace(reconstruction, **links)
        return reconstruction, ~particles.finite() | ~reconstruction.finite()


class TorchEngine(TokenEngine):
    """The network in torch, by default with the model's own decoding."""

    name = "torch"

    def __init__(
        self,
        model: TrainedModel,
        *,
        device: str | torch.device = "auto",
        decoding: DecodingConfig | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        super().__init__(model)
        if model.graphs is not None:
            raise ConfigError(f"{model.path} holds graphs for ONNX Runtime and no weights: torch cannot run it")
        self._device, self.batch_size = pick_device(device), batch_size
        self._decoding = model.reconstructor.decoding if decoding is None else decoding

    @torch.inference_mode()
    def generate(self, batch: Batch) -> GeneratedParticles:
        """Decode on the device."""
        reconstructor = self.model.reconstructor
        if reconstructor.training:
            reconstructor.eval()
        first = next(reconstructor.parameters(), None)
        if first is not None and first.device != self._device:
            reconstructor.to(self._device)
        return reconstructor.generate(batch.to(self._device), decoding=self._decoding)


def pick_device(device: str | torch.device) -> torch.device:
    """The device with a name, ``auto``: a GPU where torch finds one, else the CPU; ConfigError if there is none."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()  # the device meta makes tensors and holds no numbers
    except Exception as error:  # each kind of device fails in its own way
        raise ConfigError(f"no device '{device}' here: {first_line(error)}") from error
    return place
