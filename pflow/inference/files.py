"""Reconstruction of event files, in bounded memory: one output entry for each input entry."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import awkward as ak
import numpy as np

from pflow.checkpoint.load import Model
from pflow.data.files import Chunk, FileOptions, matching
from pflow.errors import ConfigError, InputError
from pflow.event.events import Flag
from pflow.event.particles import Reconstruction
from pflow.event.skipped import BadEntriesWarning
from pflow.inference.choose_model import shipped_model
from pflow.inference.chunks import Settings, Worker, load_for
from pflow.inference.cluster import run_on_cluster
from pflow.inference.events import BATCH_SIZE, MAX_HITS, pick_device
from pflow.inference.jobs import Job, Outcome, Planner, Unit
from pflow.inference.outputs import OutputOptions, output_paths
from pflow.inference.progress import Progress
from pflow.io.atomic import make_folder
from pflow.physics.detector import Detector

__all__ = ["Summary", "reconstruct_files"]


@dataclasses.dataclass(kw_only=True)
class Summary:
    """Numbers of a call of `reconstruct_files`."""

    n_events: int = 0
    n_particles: int = 0
    n_skipped: int = 0
    """Entries that could not be used: empty in the output and flagged ``BAD_INPUT``."""
    n_not_finite: int = 0
    """Events for which the model gave numbers that are not finite: empty and flagged ``NOT_FINITE``."""
    truncated: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    """Input file and entry of each event that was cut at its largest number of particles."""
    seconds: float = 0.0
    """From the first entry read to the last one written."""
    written: list[Path] = dataclasses.field(default_factory=list)
    """Outputs that were written."""
    finished_before: list[Path] = dataclasses.field(default_factory=list)
    """Outputs that were there, whole and made from the same input with the same settings, and were left as they are."""
    failed: list[InputError | ConfigError] = dataclasses.field(default_factory=list)
    """Why outputs were left out, one for each."""

    def count(self, reconstruction: Reconstruction, chunk: Chunk) -> None:
        """Add the events of a chunk."""
        flags = reconstruction.flags
        self.n_events += len(reconstruction)
        self.n_particles += int(ak.count(reconstruction.particles.pdg))
        self.n_skipped += int(np.count_nonzero(flags & Flag.BAD_INPUT))
        self.n_not_finite += int(np.count_nonzero(flags & Flag.NOT_FINITE))
        cut = chunk.start + np.flatnonzero(flags & Flag.MAX_PARTICLES)
        self.truncated += [(chunk.path, int(entry)) for entry in cut]


def reconstruct_files(
    inputs: Sequence[str | Path],
    *,
    checkpoint: Model | str | Path | None = None,
    output: str | Path | None = None,
    output_dir: str | Path | None = None,
    format: Literal["ttree", "rntuple", "edm4hep"] = "ttree",
    keep_input: bool = False,
    mc_links: bool = False,
    detector: str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | None = None,
    truth_tracks: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    max_particles: int | None = None,
    max_hits: int = MAX_HITS,
    batch_size: int = BATCH_SIZE,
    chunk_size: int = 256,
    device: str = "auto",
    engine: Literal["torch", "onnxruntime"] = "torch",
    cluster: str | None = None,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Reconstruct files into one ROOT file, or into one each.

    Outputs are those of `pflow.io.particles_root` and, for EDM4hep, `pflow.io.edm4hep.reco`. They appear only
    when they are complete. One output for all has the entries of the inputs one after the other.

    Parameters
    ----------
    inputs
        Event files of any schema, or patterns of their names; truth is not read, but for `mc_links`.
    checkpoint
        Model, or the argument of `load_model`. Default: the model that comes with pflow for the first input's detector
        (`pflow.inference.choose_model`).
    output
        File to write, for all inputs.
    output_dir
        In place of `output`: a folder for one output for each input, named as `pflow.inference.outputs.output_paths`
        says. Outputs that are there and whole, from the same input, model and settings, are left as they are.
    format
        ``ttree``, ``rntuple``, or ``edm4hep``: a file that podio opens.
    keep_input
        Copy the input's collections into an EDM4hep output, so that all references lead to objects in it. Without them
        particles refer to the input's hits and tracks by the ids of their collections.
    mc_links
        Write links from particles to the input's Monte Carlo particles into an EDM4hep output.
    detector
        Read the files as this detector, even if the model was trained on another. By default they are read as the
        model's, and refused if their ECAL hits lie elsewhere.
    schema, layout, truth_tracks
        As for `pflow.open_events`.
    on_error
        For an entry that cannot be used: ``raise`` and write nothing, or ``skip``: warn and leave an empty, flagged
        entry. With `output_dir`, an input that cannot be used at all is left out too, with a warning.
    max_particles, max_hits, batch_size, device
        As for `pflow.reconstruct`.
    chunk_size
        Entries in memory at a time.
    engine
        ``torch``, or ``onnxruntime``: `checkpoint` is a folder that `pflow export` wrote, and events are reconstructed
        one at a time on the CPU.
    cluster
        ``local:N`` for N processes, a YAML file of a batch system, or the address of a dask scheduler
        (`pflow.inference.cluster`), whose processes each use `device`. Default: this process.
    force
        Replace any file; without it, only an earlier output of a reconstruction, and in `output_dir` only one that is
        not whole.
    on_progress
        Called with the number of entries done and of all; the latter is an estimate until all inputs are opened.

    Raises
    ------
    InputError
        An input that cannot be used: names file, entry and branch. Under ``skip`` with `output_dir`: none can.
    ConfigError
        An output that cannot be written, or was made with other settings; options that do not work together.
    """
    if chunk_size < 1:
        raise ConfigError(f"chunk_size must be at least 1 entry, found {chunk_size}")
    if cluster is not None and isinstance(checkpoint, Model):
        raise ConfigError("a cluster needs the path of the checkpoint: its processes load it themselves")
    outputs = OutputOptions(format=format, keep_input=keep_input, mc_links=mc_links, force=force)
    inputs = matching(inputs)
    jobs = _jobs(inputs, output, output_dir, format)
    skip_files = output_dir is not None and on_error == "skip"
    reading = FileOptions(detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks, on_error=on_error)
    if engine == "onnxruntime":
        if checkpoint is None or isinstance(checkpoint, Model):
            raise ConfigError("the engine onnxruntime needs a folder that `pflow export` wrote: name it (checkpoint)")
        if device not in ("auto", "cpu"):
            raise ConfigError(f"the engine onnxruntime runs on the CPU, found device '{device}'")
        device = "cpu"
    if checkpoint is None:
        checkpoint = _model_of(inputs, reading, skip=skip_files)
    model = checkpoint if isinstance(checkpoint, Model) else load_for(engine, checkpoint)
    settings = Settings(
        reading=dataclasses.replace(reading, detector=model.tokeniser.detector if detector is None else detector),
        max_particles=max_particles,
        max_hits=max_hits,
        batch_size=batch_size,
        device=str(pick_device(device)),
        engine=engine,
        keep_events=outputs.needs_events,
        read_truth=mc_links,
    )
    with contextlib.closing(Worker(model, settings, **({"max_open": None} if outputs.needs_events else {}))) as worker:
        planner = Planner(
            worker,
            settings,
            outputs,
            chunk_size=chunk_size,
            cluster=cluster,
            check_geometry=detector is None,
            skip_finished=output_dir is not None and not force,
        )
        units = planner.units(jobs)
        outcomes = _run_here(worker, units) if cluster is None else run_on_cluster(cluster, model.path, settings, units)
        collector = _Collector(worker, planner, outputs, jobs, on_progress)
        with contextlib.closing(outcomes):
            for job, of_job in itertools.groupby(outcomes, key=lambda outcome: outcome.unit.job):
                error = collector.collect(job, of_job)
                if error is not None and not skip_files:
                    raise error
    return collector.result()


def _jobs(inputs: list[str], output: str | Path | None, output_dir: str | Path | None, format: str) -> list[Job]:
    if output is not None and output_dir is None:
        return [Job(Path(output), inputs)]
    if output_dir is None or output is not None:
        raise ConfigError("name one place for the output: a file (output), or a folder (output_dir)")
    paths = output_paths(inputs, Path(output_dir), format)
    make_folder(output_dir)
    return [Job(path, [name]) for path, name in zip(paths, inputs, strict=True)]


def _model_of(inputs: Sequence[str], reading: FileOptions, *, skip: bool) -> str:
    """Name of the model that comes with pflow for the detector of the first input, or of the first that opens."""
    for number, path in enumerate(inputs, start=1):
        try:
            with reading.open(path) as file:
                return shipped_model(file)
        except InputError:
            if not skip or number == len(inputs):
                raise
    raise ConfigError("no input files are given")


def _run_here(worker: Worker, units: Iterable[Unit]) -> Generator[Outcome, None, None]:
    """Outcomes of the units, one after the other in this process."""
    for unit in units:
        try:
            yield Outcome(unit, None if unit.chunk is None else worker.run(unit.chunk))
        except InputError as error:
            yield Outcome(unit, error=error)


class _Collector:
    """Writes outcomes to their outputs and counts.

    Parameters
    ----------
    worker, planner, outputs, jobs, on_progress
        Of the call.
    """

    def __init__(
        self,
        worker: Worker,
        planner: Planner,
        outputs: OutputOptions,
        jobs: Sequence[Job],
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._worker, self._planner, self._outputs = worker, planner, outputs
        self._n_jobs = len(jobs)
        self._progress = Progress(jobs)
        self._on_progress = on_progress
        self._summary = Summary()
        self._begin = time.perf_counter()

    def collect(self, job: Job, outcomes: Iterator[Outcome]) -> InputError | ConfigError | None:
        """Write the output of a job; the error, if there is none."""
        before = self._progress.done
        try:
            if job.error is not None:
                raise job.error
            if job.was_finished:
                self._summary.finished_before.append(job.output)
                self._progress.leave_out(job)
                return None
            self._progress.begin(job)
            part = self._write(job, outcomes)
        except (InputError, ConfigError) as error:
            job.error = error
            self._summary.failed.append(error)
            self._progress.leave_out(job, self._progress.done - before)
            return error
        finally:
            for path in job.inputs:
                self._worker.files.release(path)
        summary = self._summary
        summary.written.append(job.output)
        for name in ("n_events", "n_particles", "n_skipped", "n_not_finite", "truncated"):
            setattr(summary, name, getattr(summary, name) + getattr(part, name))
        return None

    def _write(self, job: Job, outcomes: Iterator[Outcome]) -> Summary:
        """Write an output chunk by chunk; its numbers."""
        files = [self._worker.files.open(path) for path in job.inputs] if self._outputs.needs_events else []
        part = Summary()
        sources = self._planner.sources(job)
        with self._outputs.writer(job.output, files, provenance=job.provenance, inputs=sources) as writer:
            for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error
                if outcome.unit.chunk is not None and outcome.result is not None:
                    for warning in outcome.result.warnings:
                        warnings.warn(warning, stacklevel=2)
                    reconstruction = outcome.result.reconstruction
                    writer.extend(reconstruction)
                    part.count(reconstruction, outcome.unit.chunk)
                    self._progress.advance(len(reconstruction))
                    if self._on_progress is not None:
                        self._on_progress(self._progress.done, self._progress.total)
                if outcome.unit.last:
                    break
        return part

    def result(self) -> Summary:
        """The numbers of all.

        Raises
        ------
        InputError, ConfigError
            There is no output at all: why the first could not be made.
        """
        summary = self._summary
        if summary.failed:
            if not summary.written and not summary.finished_before:
                raise summary.failed[0]
            errors = "".join(f"\n  {error}" for error in summary.failed)
            warnings.warn(f"{len(summary.failed)} of {self._n_jobs} files were left out:{errors}", BadEntriesWarning, 3)
        summary.seconds = time.perf_counter() - self._begin
        return summary
