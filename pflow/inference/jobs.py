"""What there is to do in a reconstruction: outputs, and the chunks of input that each of them is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pflow.data.files import Chunk
from pflow.errors import ConfigError, InputError
from pflow.inference.chunks import ChunkResult, Settings, Worker
from pflow.inference.outputs import OutputOptions, is_finished
from pflow.inference.provenance import describe_input, provenance
from pflow.io.detect import geometry_fits
from pflow.io.open import EventFile
from pflow.physics.detector import Detector

__all__ = ["Job", "Outcome", "Planner", "Unit"]


@dataclasses.dataclass(eq=False)
class Job:
    """One output file and the input files whose entries it has."""

    output: Path
    inputs: Sequence[str]
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)
    n_entries: int = 0
    error: InputError | ConfigError | None = None
    """Why there is no output."""
    was_finished: bool = False
    """Whether the output was there before."""


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """A chunk of a job. A job without entries, or one that cannot be done, has a single unit without a chunk."""

    job: Job
    chunk: Chunk | None = None
    last: bool = True
    """Whether it is the job's last."""


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of a unit: a result, or the error of a chunk that cannot be used. A unit without a chunk has neither."""

    unit: Unit
    result: ChunkResult | None = None
    error: InputError | None = None


class Planner:
    """Opens the inputs of jobs as their turn comes, and cuts them into chunks.

    Parameters
    ----------
    worker
        Opens the files.
    settings
        Of all chunks.
    outputs
        How outputs are written.
    chunk_size
        Largest number of entries of a chunk.
    cluster
        Where the chunks are done, for the provenance.
    check_geometry
        Whether to refuse files whose ECAL hits do not lie where the model's detector has its ECAL.
    skip_finished
        Whether an output that is there and whole is left as it is.
    """

    def __init__(
        self,
        worker: Worker,
        settings: Settings,
        outputs: OutputOptions,
        *,
        chunk_size: int,
        cluster: str | None,
        check_geometry: bool,
        skip_finished: bool,
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._outputs = outputs
        self._chunk_size = chunk_size
        self._cluster = cluster
        self._check_geometry = check_geometry
        self._skip_finished = skip_finished

    def units(self, jobs: Sequence[Job]) -> Iterator[Unit]:
        """The units of all jobs, in order. A job that fails on the way has no further ones.

        A job that cannot be done has its `error` and one unit, so that it is told in its turn.
        """
        for job in jobs:
            try:
                chunks = self._plan(job)
            except (InputError, ConfigError) as error:
                job.error = error
                chunks = []
            if not chunks:
                yield Unit(job)
            for number, chunk in enumerate(chunks, start=1):
                if job.error is not None:
                    break
                yield Unit(job, chunk, last=number == len(chunks))

    def _plan(self, job: Job) -> list[Chunk]:
        """Open a job's inputs and check its output; its chunks."""
        detector = self._worker.model.tokeniser.detector
        chunks: list[Chunk] = []
        inputs: list[dict[str, Any]] = []
        for path in job.inputs:
            file = self._worker.files.open(path)
            if self._check_geometry:
                _check_geometry(file, detector)
            inputs.append(describe_input(file))
            read_as = file.detector.name
            chunks += Chunk.of(file, self._chunk_size)
        job.n_entries = sum(entry["entries"] for entry in inputs)
        job.provenance = provenance(
            inputs,
            self._worker.model,
            self._settings,
            detector=read_as,
            format=self._outputs.format,
            keep_input=self._outputs.keep_input,
            mc_links=self._outputs.mc_links,
            chunk_size=self._chunk_size,
            cluster=self._cluster,
        )
        if self._skip_finished and is_finished(job.output, job.provenance, job.n_entries):
            job.was_finished = True
            return []
        self._outputs.check(job.output, self.sources(job))
        return chunks

    def sources(self, job: Job) -> list[str]:
        """Files that the job's output must not overwrite."""
        return [*job.inputs, self._worker.model.path]


def _check_geometry(file: EventFile, trained_on: Detector) -> None:
    """Refuse a file whose ECAL hits do not lie where the model's detector has its ECAL."""
    events, _ = file.read_all(0, 20, truth=False)
    if geometry_fits(events, trained_on) is False:
        raise InputError(
            f"the checkpoint was trained on detector '{trained_on.name}' (ECAL from r = "
            f"{trained_on.ecal_inner_radius:g} mm, |z| = {trained_on.ecal_inner_z:g} mm) and the ECAL hits of this "
            "file lie elsewhere: it is of another detector; name that one (--detector) to reconstruct it anyway",
            file=file.path,
            field="hits.position",
        )
