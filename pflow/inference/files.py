"""Reconstruction of event files, in bounded memory: one output entry for each input entry; provenance of outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import awkward as ak
import numpy as np
import torch

from pflow.checkpoint.format import fitting_models, read_header
from pflow.checkpoint.load import TrainedModel, load_model
from pflow.config import VERSION, shipped_models, to_plain, versions
from pflow.data.files import Chunk, FileOptions
from pflow.errors import ConfigError, InputError, PflowError, check_choice
from pflow.event import jagged
from pflow.event.events import Flag, count_flags, leave_out_files
from pflow.inference.events import MAX_HITS, batch_limits, check_geometry, pick_device, warn_of_tracks
from pflow.inference.worker import ChunkResult, Job, Outcome, Settings, Task, Worker, entries_of_a_chunk, run_on_cluster
from pflow.io.atomic import check_output, make_folder
from pflow.io.checks import Expected
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.open import EventFile, matching
from pflow.io.particles_root import FORMATS, NOTE, RecoWriter, count_entries, read_provenance
from pflow.physics.arrays import Floats
from pflow.physics.detector import Detector
from pflow.physics.geometry import check_described

SUFFIXES = (".root", ".h5", ".hdf5", ".edm4hep")
"""Endings of event files that the name of an output does not repeat."""


@dataclasses.dataclass(kw_only=True)
class Summary:
    """Results of a call of `reconstruct_files`."""

    model: str = ""
    detector: str = ""
    device: str = ""
    n_events: int = 0
    n_particles: int = 0
    n_left_out: int = 0
    """Events with single hits or tracks that could not be used; flagged ``UNUSABLE_HITS``, ``UNUSABLE_TRACKS``."""
    track_momentum: Floats = dataclasses.field(default_factory=lambda: np.zeros(3))
    """Sums over tracks: all, in neutral particles, unused (`Reconstruction.track_momentum`) [3], GeV."""
    flagged: Counter[str] = dataclasses.field(default_factory=Counter)
    """Events with each flag, by its name."""
    truncated: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    """Input file and entry of each event that was cut at its largest number of particles."""
    seconds: float = 0.0
    """Wall time from the first entry read to the last one written."""
    written: list[Path] = dataclasses.field(default_factory=list)
    """Outputs that were written."""
    finished_before: list[Path] = dataclasses.field(default_factory=list)
    """Complete outputs of an earlier run with the same input and settings, which were left unchanged."""
    failed: list[InputError | ConfigError] = dataclasses.field(default_factory=list)
    """The error of each output that was left out."""

    def count(self, result: ChunkResult, chunk: Chunk) -> None:
        """Add the events of a chunk."""
        reconstruction, flags = result.reconstruction, result.reconstruction.flags
        self.track_momentum = self.track_momentum + result.track_momentum
        self.flagged.update(count_flags(flags))
        self.n_events += len(reconstruction)
        self.n_particles += int(ak.count(reconstruction.particles.pdg))
        self.n_left_out += int(np.count_nonzero(flags & (Flag.UNUSABLE_HITS | Flag.UNUSABLE_TRACKS)))
        cut = chunk.start + np.flatnonzero(flags & Flag.MAX_PARTICLES)
        self.truncated += [(chunk.path, int(entry)) for entry in cut]

    def add(self, part: Summary) -> None:
        """Add the events of an output."""
        for name in ("n_events", "n_particles", "n_left_out", "track_momentum", "flagged", "truncated"):
            setattr(self, name, getattr(self, name) + getattr(part, name))


def reconstruct_files(
    inputs: Sequence[str | Path],
    *,
    checkpoint: TrainedModel | str | Path | None = None,
    output: str | Path | None = None,
    output_dir: str | Path | None = None,
    format: Literal["ttree", "rntuple", "edm4hep"] = "ttree",
    mc_links: bool = False,
    detector: str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | None = None,
    truth_tracks: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    max_particles: int | None = None,
    max_hits: int = MAX_HITS,
    batch_size: int | None = None,
    chunk_size: int = 256,
    device: str = "auto",
    cluster: str | None = None,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Reconstruct files into one ROOT file, or into one each.

    Outputs appear only when they are complete. `pflow reconstruct --help` explains the options; `detector` to
    `truth_tracks` are as in `pflow.open_events`. `on_progress` is called with the number of entries done and of all, an
    estimate until all inputs are opened.

    Raises
    ------
    InputError
        An input that cannot be used: names file, entry and branch. Under ``skip`` with `output_dir`: none can.
    ConfigError
        An output that cannot be written, or was made with other settings; options that do not work together.
    """
    check_choice(format, (*FORMATS, "edm4hep"), "output format")
    if mc_links and format != "edm4hep":
        raise ConfigError(f"mc_links is for the output format edm4hep, not {format}")
    if chunk_size < 1:
        raise ConfigError(f"chunk_size must be at least 1 entry, found {chunk_size}")
    if cluster is not None and isinstance(checkpoint, TrainedModel):
        raise ConfigError("a cluster needs the path of the checkpoint: its processes load it themselves")
    jobs = _jobs(matching(inputs), output, output_dir, format)
    for job in jobs:  # before the model is loaded; outputs of a folder that are there may be finished ones
        if output is not None or not job.output.exists():
            sources = [*job.inputs, *([checkpoint] if isinstance(checkpoint, str | Path) else [])]
            check_output(job.output, inputs=sources, replace=NOTE.encode(), force=force)
    skip_files = output_dir is not None and on_error == "skip"
    reading = FileOptions(detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks, on_error=on_error)
    if checkpoint is None:
        checkpoint = _model_for(jobs, reading, skip=skip_files)
    model = checkpoint if isinstance(checkpoint, TrainedModel) else load_model(checkpoint)
    tokeniser, place = model.tokeniser, pick_device(device)
    of_model = detector is None and not tokeniser.config.geometry  # files of the model's detector
    read_as, expected = tokeniser.detector if of_model else detector, Expected(sample=tokeniser.sample)
    settings = Settings(
        reading=dataclasses.replace(reading, detector=read_as, expected=expected),
        max_particles=max_particles,
        max_hits=max_hits,
        batch_size=batch_limits(place)[0] if batch_size is None else batch_size,
        device=str(place),
    )
    summary = Summary(model=model.path, detector=tokeniser.reads_detector, device=settings.device)
    begin = time.perf_counter()
    # The writer of EDM4hep copies the collections of a file that must stay open; `_Plan` closes it after its output.
    worker = Worker(model, settings, max_open=None if format == "edm4hep" else 2)
    with contextlib.closing(worker.files):
        plan = _Plan(
            jobs=jobs,
            worker=worker,
            options={"format": format, "mc_links": mc_links, "chunk_size": chunk_size, "cluster": cluster},
            check_geometry=of_model,
            skip_finished=output_dir is not None and not force,
            force=force,
        )
        tasks = plan.tasks()
        outcomes = _run_here(worker, tasks) if cluster is None else run_on_cluster(cluster, model.path, settings, tasks)
        with contextlib.closing(outcomes):
            for job, of_job in itertools.groupby(outcomes, key=lambda outcome: outcome[0]):
                try:
                    if job.error is not None:
                        raise job.error
                    if job.was_finished:
                        summary.finished_before.append(job.output)
                    else:
                        summary.add(plan.write(job, of_job, summary.n_events, on_progress))
                        summary.written.append(job.output)
                except (InputError, ConfigError) as error:
                    job.error = error
                    summary.failed.append(error)
                    if not skip_files:
                        raise
                finally:
                    for path in job.inputs:
                        worker.files.release(path)
    leave_out_files(summary.failed, len(jobs))
    summary.seconds = time.perf_counter() - begin
    return summary


def _run_here(worker: Worker, tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
    for job, chunk in tasks:
        try:
            yield job, chunk, None if chunk is None else worker.run(chunk)
        except InputError as error:
            yield job, chunk, error


@dataclasses.dataclass(kw_only=True)
class _Plan:
    """Opens the inputs of jobs in turn, cuts them into chunks, writes the outputs; `options` go into the provenance."""

    jobs: Sequence[Job]
    worker: Worker
    options: Mapping[str, Any]
    check_geometry: bool
    skip_finished: bool
    force: bool
    n_planned: int = 0

    def tasks(self) -> Iterator[Task]:
        """The chunks of all jobs, in order; a job that fails on the way has no further ones."""
        for job in self.jobs:
            chunks: Sequence[Chunk | None] = []
            try:
                chunks = self._chunks(job)
            except (InputError, ConfigError) as error:
                job.error = error  # said in its turn
            self.n_planned += 1
            for chunk in chunks or [None]:
                if chunk is None or job.error is None:
                    yield job, chunk

    def _chunks(self, job: Job) -> list[Chunk]:
        """Open a job's inputs and check its output."""
        model, options = self.worker.model, self.options
        chunks, inputs = [], []
        for path in job.inputs:
            file = self._open(path)
            inputs.append(describe_input(file))
            read_as = file.detector.name
            chunks += Chunk.of(file, entries_of_a_chunk(options["cluster"], file.num_entries, options["chunk_size"]))
        job.n_entries = sum(entry["entries"] for entry in inputs)
        job.provenance = provenance(inputs, model, self.worker.settings, detector=read_as, **options)
        if self.skip_finished and is_finished(job.output, job.provenance, job.n_entries):
            job.was_finished = True
            return []
        check_output(job.output, inputs=[*job.inputs, model.path], replace=NOTE.encode(), force=self.force)
        return chunks

    def _open(self, path: str) -> EventFile:
        """Open an input; a file of another detector than the model's is refused unless the user named it."""
        model, differing = self.worker.model, []
        try:
            file = self.worker.files.open(path)
            if self.check_geometry:
                check_geometry(file.read_all(0, 20, truth=False)[0], model.tokeniser.detector)
            return file
        except (ConfigError, InputError):
            if self.check_geometry:
                with contextlib.suppress(PflowError):
                    with dataclasses.replace(self.worker.settings.reading, detector=None).open(path) as file:
                        detector = file.detector
                    models = ", ".join(fitting_models(detector)) or "none comes with pflow"
                    differing = model.tokeniser.other_geometry(detector)
            if not differing:
                raise
        message = (
            f"is of detector '{detector.name}', and the model '{model.path}' was trained on "
            f"'{model.tokeniser.detector.name}', which differs in {', '.join(differing)}: reconstruct files of "
            f"different detectors apart, with a model of each (of '{detector.name}': {models}), or name the "
            f"detector (--detector {detector.name}) to use this model anyway"
        )
        raise InputError(message, file=path, field="detector")

    def write(
        self, job: Job, outcomes: Iterable[Outcome], n_done: int, on_progress: Callable[[int, int], None] | None
    ) -> Summary:
        """Write the output of a job chunk by chunk, after `n_done` entries of earlier ones; its numbers."""
        part = Summary()
        with self._writer(job) as writer:
            for _, chunk, result in outcomes:
                if isinstance(result, InputError):
                    raise result
                if chunk is None or result is None:
                    continue
                for warning in result.warnings:
                    warnings.warn(warning, stacklevel=3)
                writer.extend(result.reconstruction)
                part.count(result, chunk)
                if on_progress is not None:
                    planned = self.jobs[: self.n_planned]
                    known = [job.n_entries for job in planned if job.error is None and not job.was_finished]
                    waiting = len(self.jobs) - self.n_planned
                    on_progress(n_done + part.n_events, sum(known) + round(sum(known) * waiting / len(known)))
        warn_of_tracks(part.track_momentum, part.flagged, part.n_events, str(job.output))
        return part

    def _writer(self, job: Job) -> RecoWriter | Edm4hepRecoWriter:
        inputs = [*job.inputs, self.worker.model.path]
        more: dict[str, Any] = {"provenance": job.provenance, "inputs": inputs, "force": self.force}
        if self.options["format"] != "edm4hep":
            return RecoWriter(job.output, format=self.options["format"], **more)
        file = self.worker.files.open(job.inputs[0])
        return Edm4hepRecoWriter(job.output, file, mc_links=self.options["mc_links"], **more)


def _jobs(inputs: list[str], output: str | Path | None, output_dir: str | Path | None, format: str) -> list[Job]:
    """One job for the output, or one for each input with an output of its name in the folder."""
    if output_dir is None and output is not None:
        if format == "edm4hep" and len(inputs) > 1:
            raise ConfigError(
                f"an EDM4hep output has the collections of one input, found {len(inputs)} inputs: name a folder for "
                "one output each (--output-dir)"
            )
        return [Job(Path(output), inputs)]
    if output_dir is None or output is not None:
        raise ConfigError("name one place for the output: a file (output), or a folder (output_dir)")
    jobs: dict[Path, Job] = {}
    for path in inputs:
        name = os.path.basename(path.partition("?")[0])
        while name.endswith(SUFFIXES):
            name = name.rpartition(".")[0]
        place = Path(output_dir, f"{name}.reco.edm4hep.root" if format == "edm4hep" else f"{name}.reco.root")
        if place in jobs:
            raise ConfigError(
                f"the outputs of {jobs[place].inputs[0]} and {path} would both be {place}: give inputs of different "
                "names, or reconstruct them into different folders"
            )
        jobs[place] = Job(place, [path])
    make_folder(output_dir)
    return list(jobs.values())


def _model_for(jobs: Sequence[Job], reading: FileOptions, *, skip: bool) -> str:
    """Name of the model that comes with pflow for the detector of the first input that opens."""
    inputs = [path for job in jobs for path in job.inputs]
    for path in inputs:
        try:
            with reading.open(path) as file:
                return shipped_model(file)
        except InputError:
            if not skip or path == inputs[-1]:
                raise
    raise ConfigError("no input files are given")


def readable_models(file: EventFile) -> dict[str, str]:
    """The models that come with pflow for an open file's detector, and why one cannot read its events ("": it can).

    A model for any detector cannot if the description of this one lacks something.
    """
    events, *_ = file.read_all(0, 5, truth=False)
    n_with_tracks = 0 if events.tracks is None else int(np.count_nonzero(jagged.count(events.tracks)))
    reasons = {}
    for name in shipped_models():
        tokeniser = read_header(name).tokeniser
        try:
            if tokeniser.other_geometry(file.detector):
                continue
            reasons[name] = ""
            if 2 * n_with_tracks > len(events) and not any(tokeniser.model_inputs["charged"]):
                codes = ", ".join(map(str, tokeniser.pdg.codes))
                reasons[name] = (
                    f"trained on |PDG| {codes} alone, and {n_with_tracks} of {len(events)} events have tracks"
                )
            tokeniser.encode(events, truth=False)
        except (ConfigError, InputError) as error:
            reasons[name] = str(error)
    return reasons


def shipped_model(file: EventFile) -> str:
    """The model that comes with pflow for an open file's detector; InputError if the detector is not described."""
    try:
        check_described(file.detector)  # one of the models reads every detector that is described
    except ConfigError as error:
        message = f"{error}, or name a model with --checkpoint"
        raise InputError(message, file=file.path, field="detector") from error
    return fitting_models(file.detector)[0]


PACKAGES = ("torch", "numpy", "awkward", "uproot")
"""Packages whose version can change a number of the output."""

INPUT_KEYS = ("uuid", "entries", "schema", "truth_tracks", "description")
"""Fields of an input that must agree in the provenance of two outputs for them to be the same; its path may differ."""

WAYS = ("on_error", "batch_size", "chunk_size", "device", "engine", "cluster", "keep_input")
"""Options that the particles of an event do not depend on."""


def describe_input(file: EventFile) -> dict[str, Any]:
    """Path, size, UUID and schema of an input file, and a digest of its detector's description, as plain data."""
    description = json.dumps(to_plain(file.detector), sort_keys=True)
    return {
        "path": file.path,
        "bytes": os.path.getsize(file.path) if os.path.isfile(file.path) else None,
        "uuid": file.uuid,
        "schema": file.schema,
        "entries": file.num_entries,
        "truth_tracks": file.truth_tracks,
        "description": hashlib.sha256(description.encode()).hexdigest()[:12],
    }


def provenance(
    inputs: Sequence[Mapping[str, Any]],
    model: TrainedModel,
    settings: Settings,
    *,
    detector: str,
    **options: str | int | bool | None,
) -> dict[str, Any]:
    """All that repeats a reconstruction, as plain data.

    The same inputs, model, options, versions, number of threads and kind of processor give the same numbers, bit for
    bit. `inputs` come from `describe_input`, `detector` says what they were read as, and `options` are the options of
    `reconstruct_files` that `settings` does not hold.
    """
    reading = settings.reading
    return {
        "pflow_version": VERSION,
        "versions": versions(*PACKAGES),
        "machine": {
            "processor": platform.machine(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name(settings.device) if settings.device.startswith("cuda") else None,
        },
        "inputs": list(inputs),
        "checkpoint": {"path": model.path, "sha256": model.digest},
        "options": {
            "detector": detector,
            "read_as": None if reading.detector is model.tokeniser.detector else _named(reading.detector),
            "layout": None if reading.layout is None else str(reading.layout),
            **{name: getattr(reading, name) for name in ("schema", "truth_tracks", "on_error")},
            **{name: getattr(settings, name) for name in ("max_particles", "max_hits", "batch_size", "device")},
            **options,
        },
        "decoding": dataclasses.asdict(model.reconstructor.decoding),
        "configuration": model.config,
    }


def is_finished(output: Path, provenance: Mapping[str, Any], n_entries: int) -> bool:
    """Whether an output of `n_entries` is there and whole; a ConfigError names what differs in its provenance."""
    try:
        if not output.is_file() or count_entries(output) != n_entries:
            return False
        earlier = read_provenance(output)
    except InputError:
        return False
    ours, theirs = _essence(provenance), _essence(earlier)
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    if provenance["options"]["on_error"] == "raise" and {"BAD_INPUT", "NOT_FINITE"} & set(earlier.get("flagged", ())):
        differing.append("on_error (entries were skipped)")
    if differing:
        texts = (
            f"{name} {theirs.get(name)} there and {ours[name]} here" if name in ours else name for name in differing
        )
        text = f"{', '.join(texts)}; choose another folder, or replace the file with --force"
        raise ConfigError(f"{output} was made otherwise: {text}")
    return True


def _essence(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """All that the particles of an output depend on, by name."""
    options = {name: value for name, value in provenance.get("options", {}).items() if name not in WAYS}
    inputs = provenance.get("inputs", ())
    return {
        "pflow": provenance.get("pflow_version"),
        "checkpoint": str(provenance.get("checkpoint", {}).get("sha256"))[:12],
        **{f"input's {key}": [entry.get(key) for entry in inputs] for key in INPUT_KEYS},
        **options,
        **{f"decoding's {name}": value for name, value in provenance.get("decoding", {}).items()},
    }


def _named(detector: str | Path | Detector | None) -> Any:
    """A detector as the option names it; one that was made in Python as plain data."""
    return to_plain(detector) if isinstance(detector, Detector) else None if detector is None else str(detector)
