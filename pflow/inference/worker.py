"""Reconstruction of one chunk of entries of a file: the unit of work of a process, this one or one of a cluster."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.checkpoint.load import TrainedModel, load_model
from pflow.data.files import Chunk, FileOptions, OpenFiles
from pflow.errors import ConfigError, InputError
from pflow.event.particles import Reconstruction
from pflow.inference.engine import Engine
from pflow.inference.events import reconstruct_valid, usable_events, with_detector

MAX_OPEN = 2
"""Input files that a worker keeps open."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of `pflow.inference.files.reconstruct_files` that hold for all chunks, resolved."""

    reading: FileOptions
    max_particles: int | None
    max_hits: int
    batch_size: int
    device: str


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkResult:
    """Particles of a chunk, the momentum of its tracks (`Reconstruction.track_momentum`), the warnings on the way."""

    reconstruction: Reconstruction
    track_momentum: npt.NDArray[np.float64]  # [3], summed over the events, GeV
    warnings: tuple[Warning, ...]


@dataclasses.dataclass(eq=False)
class Job:
    """One output, and the inputs whose entries it has."""

    output: Path
    inputs: Sequence[str]
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)
    n_entries: int = 0
    error: InputError | ConfigError | None = None
    """Why there is no output."""
    was_finished: bool = False
    """Whether the output was there before."""


Task = tuple[Job, Chunk | None]
"""A chunk of a job, or None once for a job without chunks."""

Outcome = tuple[Job, Chunk | None, ChunkResult | InputError | None]
"""A task and what became of it."""


class Worker:
    """A model that is ready to run, and its open input files: at most `max_open`, None: all until they are released."""

    def __init__(self, model: TrainedModel | str, settings: Settings, *, max_open: int | None = MAX_OPEN) -> None:
        self.model = model if isinstance(model, TrainedModel) else load_model(model)
        self.settings = settings
        self._engine = Engine(
            self.model,
            device=settings.device,
            max_particles=settings.max_particles,
            batch_size=settings.batch_size,
        )
        self.files = OpenFiles(settings.reading.open, most=max_open)

    def close(self) -> None:
        """Close the inputs."""
        self.files.close()

    def run(self, chunk: Chunk) -> ChunkResult:
        """Read and reconstruct a chunk."""
        settings, on_error = self.settings, self.settings.reading.on_error
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            events = self.files.open(chunk.path).read(chunk.start, chunk.stop, truth=False, on_error=on_error)
            tokeniser = self.model.tokeniser
            as_trained = events if tokeniser.config.geometry else with_detector(events, tokeniser.detector)
            usable = usable_events(as_trained, settings.max_hits, on_error, valid=True)
            reconstruction = reconstruct_valid(usable, self._engine, on_error)
        messages = tuple(one for warning in caught if isinstance(one := warning.message, Warning))
        return ChunkResult(reconstruction, reconstruction.track_momentum(usable).sum(axis=0), messages)
