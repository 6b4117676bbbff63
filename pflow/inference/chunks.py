"""One chunk of entries at a time: the work that a process, this one or a cluster's, does on its own."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

import awkward as ak
import numpy as np

from pflow.checkpoint.load import Model, load_model
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.inference.events import reconstruct
from pflow.io.open import EventFile, open_events
from pflow.physics.detector import Calorimeter, Detector

__all__ = ["Chunk", "ChunkResult", "Settings", "Worker"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How to read and reconstruct; the same for all chunks of a job. Parameters as of `reconstruct_files`."""

    detector: Detector
    schema: str | None
    layout: str | Path | None
    on_error: Literal["raise", "skip"]
    max_particles: int
    max_hits: int
    batch_size: int
    device: str


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Entries ``start`` to ``stop`` (exclusive) of a file."""

    path: str
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkResult:
    """Particles of a chunk, and what there was to warn of."""

    reconstruction: Reconstruction
    warnings: tuple[str, ...]


class Worker:
    """A model and the files it has open; a context manager that closes them.

    Parameters
    ----------
    model
        Model, or what `load_model` takes.
    settings
        The job's settings.
    """

    def __init__(self, model: Model | str, settings: Settings) -> None:
        self.model = model if isinstance(model, Model) else load_model(model)
        self._settings = settings
        self._files: dict[str, EventFile] = {}

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def open(self, path: str) -> EventFile:
        """The file, opened once and kept open.

        Raises
        ------
        InputError
            A file that cannot be read as the job's detector.
        """
        if path not in self._files:
            settings = self._settings
            self._files[path] = open_events(
                path, detector=settings.detector, schema=settings.schema, layout=settings.layout
            )
        return self._files[path]

    def run(self, chunk: Chunk) -> ChunkResult:
        """Read and reconstruct a chunk.

        Raises
        ------
        InputError
            An entry that cannot be used, unless the settings say to skip it.
        """
        settings = self._settings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            events = self.open(chunk.path).read(chunk.start, chunk.stop, truth=False, on_error=settings.on_error)
            reconstruction = reconstruct(
                _as_the_models(events, self.model),
                self.model,
                max_particles=settings.max_particles,
                max_hits=settings.max_hits,
                batch_size=settings.batch_size,
                device=settings.device,
                on_error=settings.on_error,
            )
        return ChunkResult(reconstruction, tuple(str(warning.message) for warning in caught))


def _as_the_models(events: Events, model: Model) -> Events:
    """The events as if of the model's detector: who names another detector explicitly has decided to go on.

    Hits go to the calorimeter of the same kind and region, else of the same kind, else of the same region (the last).
    """
    theirs, ours = events.detector.calorimeters, model.tokeniser.detector.calorimeters
    hits = events.hits
    if theirs != ours:
        counterpart = np.array([_counterpart(calorimeter, ours) for calorimeter in theirs], dtype=np.int64)
        subdetector = counterpart[ak.to_numpy(ak.flatten(hits.subdetector))]
        hits = ak.with_field(hits, ak.unflatten(subdetector, ak.num(hits)), "subdetector")
    return dataclasses.replace(events, detector=model.tokeniser.detector, hits=hits)


def _counterpart(one: Calorimeter, others: Sequence[Calorimeter]) -> int:
    return max(
        range(len(others)), key=lambda i: (2 * (others[i].kind == one.kind) + (others[i].region == one.region), i)
    )
