"""Reconstruction of one chunk of entries of a file: the unit of work of a process, this one or one of a cluster."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

from pflow.checkpoint.load import Model, load_model
from pflow.data.files import Chunk, FileOptions, OpenFiles
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.inference.events import reconstruct, with_detector
from pflow.inference.exported import ExportedModel
from pflow.inference.exported_events import reconstruct_exported

__all__ = ["ChunkResult", "Settings", "Worker", "load_for"]

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
    engine: str = "torch"
    """``torch``, or ``onnxruntime``: the model is a folder that `pflow export` wrote."""
    keep_events: bool = False
    """Return the events too, for an output that refers to them."""
    read_truth: bool = False
    """Read their truth as well; the reconstruction never sees it."""


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkResult:
    """Particles of a chunk, the warnings on the way, and the events if they are kept."""

    reconstruction: Reconstruction
    warnings: tuple[Warning, ...]
    events: Events | None = None


class Worker:
    """A model and its open input files.

    Parameters
    ----------
    model
        Model, or the argument of `load_for`.
    settings
        The same for all chunks.
    max_open
        Input files that are kept open at most, those used last; None: all, until they are released.
    """

    def __init__(
        self, model: Model | ExportedModel | str, settings: Settings, *, max_open: int | None = MAX_OPEN
    ) -> None:
        self.model = model if not isinstance(model, str) else load_for(settings.engine, model)
        self._settings = settings
        self.files = OpenFiles(settings.reading, most=max_open)
        """The inputs."""

    def close(self) -> None:
        """Close the files."""
        self.files.close()

    def run(self, chunk: Chunk) -> ChunkResult:
        """Read and reconstruct a chunk.

        Raises
        ------
        InputError
            An entry that cannot be used, unless the settings say to skip it.
        """
        settings, on_error = self._settings, self._settings.reading.on_error
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            events = self.files.open(chunk.path).read(
                chunk.start, chunk.stop, truth=settings.read_truth, on_error=on_error
            )
            reconstruction = self._reconstruct(with_detector(events, self.model.tokeniser.detector))
        messages = tuple(one for warning in caught if isinstance(one := warning.message, Warning))
        return ChunkResult(reconstruction, messages, events if settings.keep_events else None)

    def _reconstruct(self, events: Events) -> Reconstruction:
        settings, on_error = self._settings, self._settings.reading.on_error
        if isinstance(self.model, ExportedModel):
            return reconstruct_exported(
                events,
                self.model,
                max_particles=settings.max_particles,
                max_hits=settings.max_hits,
                on_error=on_error,
            )
        return reconstruct(
            events,
            self.model,
            max_particles=settings.max_particles,
            max_hits=settings.max_hits,
            batch_size=settings.batch_size,
            device=settings.device,
            on_error=on_error,
        )


def load_for(engine: str, source: str | Path) -> Model | ExportedModel:
    """The model that an engine runs: a checkpoint for ``torch``, an exported folder for ``onnxruntime``.

    Raises
    ------
    InputError
        No such model, or one that cannot be used; names the file.
    """
    return ExportedModel(source) if engine == "onnxruntime" else load_model(source)
