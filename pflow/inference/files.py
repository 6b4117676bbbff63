"""Reconstruction of event files, in bounded memory: one output entry for each input entry; provenance of outputs.

In the order of `reconstruct_files`: `plan` the outputs, `run` their chunks, `write` each output. Chunks are
reconstructed in this process or on a dask cluster, which is started on this machine or runs already behind a
scheduler, such as dask-jobqueue's in a batch system. This process collects the results in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import os
import platform
import threading
import time
import uuid
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import awkward as ak
import numpy as np
import torch

from pflow.checkpoint import TrainedModel, fitting_models, load_model, read_header
from pflow.config import VERSION, shipped_models, to_plain, versions
from pflow.data.dataset import Chunk, FileOptions, OpenFiles
from pflow.errors import (
    ConfigError,
    InputError,
    PflowError,
    check_choice,
    collected_warnings,
    first_line,
    missing_package,
    warn,
)
from pflow.event import jagged
from pflow.event.checks import UNLIKE, compare, outside_training, warn_of
from pflow.event.events import BadEntriesWarning, Flag, Reconstruction, count_flags, leave_out_files
from pflow.event.scales import Scales, measure
from pflow.inference.events import (
    BATCH_SIZE,
    MAX_HITS,
    Engine,
    batch_limits,
    check_geometry,
    pick_device,
    reconstruct_valid,
    usable_events,
    warn_of_tracks,
    with_detector,
)
from pflow.io.atomic import check_output, make_folder
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.open import EventFile, matching
from pflow.io.particles_root import FORMATS, OutputWriter, RecoWriter, count_entries, origin, read_provenance
from pflow.physics.arrays import Index
from pflow.physics.detector import Detector, digest
from pflow.physics.geometry import check_described

DEFAULT = "general"
"""Model that is taken where none is named: it comes with pflow, for any detector."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of `pflow.inference.files.reconstruct_files` that hold for all chunks, resolved."""

    reading: FileOptions
    max_particles: int | None = None
    candidates: float | None = None
    merge_mm: float | None = None
    max_hits: int
    batch_size: int
    device: str


class ChunkResult(NamedTuple):
    """Particles of a chunk, each event's number of tokens of hits, the scales of the events, and the warnings."""

    reconstruction: Reconstruction
    n_tokens: Index
    scales: Scales
    warnings: tuple[Warning, ...]


class Worker:
    """A model ready to run, and its open input files: at most `max_open`; None: all until they are released.

    `files`: the open files of another worker, to be shared. Each thread needs its own: two threads that read one open
    file would move each other's position in it.
    """

    def __init__(
        self, model: TrainedModel, settings: Settings, *, max_open: int | None = 2, files: OpenFiles | None = None
    ) -> None:
        self.model = model if settings.merge_mm is None else model.merging(settings.merge_mm)
        self.settings = settings
        names = ("device", "max_particles", "candidates", "batch_size")
        self._engine = Engine(self.model, **{name: getattr(settings, name) for name in names})
        self.files = files or OpenFiles(dataclasses.replace(settings.reading, said={}), most=max_open)

    def run(self, chunk: Chunk) -> ChunkResult:
        """Read and reconstruct a chunk."""
        settings, on_error = self.settings, self.settings.reading.on_error
        # In a process of a cluster nobody would see a warning: it goes back with the result.
        with collected_warnings() as warnings:
            events = self.files.open(chunk.path).read(chunk.start, chunk.stop, truth=False, on_error=on_error)
            events, tokeniser = chunk.move.apply(events), self.model.tokeniser
            as_trained = events if tokeniser.config.geometry else with_detector(events, tokeniser.detector)
            usable = usable_events(as_trained, tokeniser.config, settings.max_hits, on_error, valid=True)
            reconstruction, n_tokens = reconstruct_valid(usable, self._engine, on_error)
            # Hits of events that could not be used would stand beside no particles.
            scales = measure(events.emptied((reconstruction.flags & Flag.BAD_INPUT) > 0), reconstruction.particles)
        return ChunkResult(reconstruction, n_tokens, scales, tuple(warnings))


class Executor(NamedTuple):
    """Reconstructs chunks: `submit` returns a function that returns the result, or raises the `InputError`."""

    submit: Callable[[Chunk], Callable[[], ChunkResult]]
    in_flight: Callable[[], int]
    """Number of chunks to submit before the first result is needed."""


TIMEOUT = "10s"
"""Longest time until a scheduler answers."""

LOCAL = {
    # By default dask's processes return freed memory at once, and spent half of their time on getting it again.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
    # Nobody reads dask's own monitoring: each process samples its stack 100 times a second, its event loop 50 times
    # and its load twice. With two processes and the scheduler that took a tenth of a core.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "500ms",
}
"""Settings of dask for processes on this machine."""


@contextmanager
def executor_for(worker: Worker, cluster: str | None) -> Iterator[Executor]:
    """An executor with the worker; on a new cluster of N processes (``local:N``), or the cluster of a scheduler.

    Processes need pflow, and checkpoint and inputs under the same paths. If a process dies, another repeats its chunks;
    a chunk that kills several processes raises an `InputError`. Chunks wait while there are no processes. ConfigError:
    the cluster does not answer. PflowError: it cannot start, or was lost, and no other chunk can be done.
    """
    if cluster is None:
        yield Executor(submit=lambda chunk: functools.partial(worker.run, chunk), in_flight=lambda: 1)
        return
    try:
        import dask
        from dask.distributed import CancelledError, Client, KilledWorker, LocalCluster
        from distributed.comm.core import CommClosedError
    except ImportError as error:
        raise missing_package("dask", "clusters", extra="cluster") from error

    def wait(chunk: Chunk, future: Any) -> ChunkResult:
        try:
            result: ChunkResult = future.result()
        except KilledWorker as error:
            text = f"entries {chunk.start} to {chunk.stop - 1} ended several processes of the cluster, perhaps out of "
            text += "memory: reduce max_hits (an event of 30,000 hits takes 3 GB), chunk_size or batch_size"
            raise InputError(text, file=chunk.path, entry=chunk.start) from error
        except (CancelledError, CommClosedError) as error:
            raise PflowError(f"the cluster was lost: {first_line(error)}") from error
        return result

    with ExitStack() as stack:
        target: Any = cluster
        if n_processes := _local_processes(cluster):
            # Without a dashboard dask still answers a few HTTP requests, by default to all at port 8787.
            scheduler = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
            # An interrupt would be followed by pages of the processes' own errors.
            options = {"dashboard_address": None, "scheduler_kwargs": scheduler, "silence_logs": logging.CRITICAL}
            try:
                with dask.config.set(LOCAL):
                    target = stack.enter_context(LocalCluster(n_workers=n_processes, threads_per_worker=1, **options))
            except RuntimeError as error:
                text = f"a process of cluster '{cluster}' ended while it started, perhaps out of memory: name fewer"
                raise PflowError(f"{text} ({first_line(error)})") from error
        try:
            client = stack.enter_context(Client(target, timeout=TIMEOUT))
        except (OSError, ValueError) as error:
            text = "expected local:N or the address of a scheduler that runs, e.g. of dask-jobqueue"
            raise ConfigError(f"cluster '{cluster}' does not answer, {text}: {first_line(error)}") from error
        # The model's path goes with each chunk, not its weights: a thread loads it once.
        # Not pure: dask would hash the arguments of each chunk, to look for a result that it has already.
        begin = functools.partial(client.submit, _run, uuid.uuid4().hex, worker.model.path, worker.settings, pure=False)
        yield Executor(
            submit=lambda chunk: functools.partial(wait, chunk, begin(chunk)),
            # Enough to keep each thread busy, few enough to bound memory; processes may join later.
            in_flight=lambda: 3 * max(1, sum(client.nthreads().values())),
        )


def entries_of_a_chunk(cluster: str | None, n_entries: int, chunk_size: int) -> int:
    """At most `chunk_size`, and fewer of a file of `n_entries` if else processes on this machine would be idle."""
    n_processes = _local_processes(cluster or "")
    if n_processes < 2:
        return chunk_size
    # Four for each process, which is idle at last for half a chunk on average. More would be smaller, so that batches
    # hold events of less similar lengths: eight took 6% more CPU time (Z -> qq). The smallest fill a batch.
    return min(chunk_size, max(BATCH_SIZE, math.ceil(n_entries / (4 * n_processes))))


def _local_processes(cluster: str) -> int:
    """Number of processes of ``local:N``, 0 for other clusters; ConfigError: N is not a number of at least 1."""
    if not cluster.startswith("local:"):
        return 0
    number = cluster.removeprefix("local:")
    if not number.isdigit() or int(number) < 1:
        raise ConfigError(f"cluster '{cluster}': expected local:N with N processes, at least 1")
    return int(number)


_thread = threading.local()  # dask's default is one process with a thread for each core


def _run(call: str, checkpoint: str, settings: Settings, chunk: Chunk) -> ChunkResult:
    """Run a chunk with this thread's worker; each `call` of `reconstruct_files` makes a new one.

    Between calls files may be replaced under the same paths.
    """
    if getattr(_thread, "call", None) != call:
        # Processes of a scheduler outlive a call, and would keep its files open.
        if hasattr(_thread, "worker"):
            _thread.worker.files.close()
        _thread.worker, _thread.call = Worker(load_model(checkpoint), settings), call
    result: ChunkResult = _thread.worker.run(chunk)
    return result


@dataclasses.dataclass(kw_only=True)
class Summary:
    """Results of a call of `reconstruct_files`."""

    model: str = ""
    detector: str = ""
    device: str = ""
    n_events: int = 0
    n_particles: int = 0
    scales: Scales = dataclasses.field(default_factory=Scales)
    """Of the events of one output, not of their sum."""
    flagged: Counter[str] = dataclasses.field(default_factory=Counter)
    """Events with each flag, by its name."""
    seconds: float = 0.0
    """Wall time from the first entry read to the last one written."""
    written: list[Path] = dataclasses.field(default_factory=list)
    """Outputs that were written."""
    finished_before: list[Path] = dataclasses.field(default_factory=list)
    """Complete outputs of an earlier run with the same input and settings, which were left unchanged."""
    failed: list[InputError | ConfigError] = dataclasses.field(default_factory=list)
    """The error of each output that was left out."""


# Compared by identity: `itertools.groupby` tells outputs apart with ==.
@dataclasses.dataclass(eq=False)
class Output:
    """An output, its inputs, and what `open_inputs` finds in them."""

    path: Path
    inputs: Sequence[str]
    n_entries: int | None = None
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)
    finished_before: bool = False
    error: InputError | ConfigError | None = None
    """Reason why the output cannot be written."""


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
    candidates: float | None = None,
    merge_mm: float | None = None,
    max_hits: int = MAX_HITS,
    batch_size: int | None = None,
    chunk_size: int = 256,
    device: str = "auto",
    cluster: str | None = None,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Reconstruct files of one detector into one ROOT file, or files into one each.

    Outputs appear only when they are complete. `pflow reconstruct --help` explains the options; `detector` to
    `truth_tracks` are as in `pflow.open_events`. `on_progress` is called with the number of entries done and of all, an
    estimate until all inputs are opened.

    Raises
    ------
    InputError
        An input that cannot be used: names file, entry and branch. Under ``skip`` with `output_dir`: none can.
    ConfigError
        An output that exists, cannot be written, or was made with other settings; options that do not work together.
    """
    check_choice(format, (*FORMATS, "edm4hep"), "output format")
    if mc_links and format != "edm4hep":
        raise ConfigError(f"mc_links is for the output format edm4hep, not {format}")
    if cluster is not None and isinstance(checkpoint, TrainedModel):
        raise ConfigError("a cluster needs the path of the checkpoint: its processes load it themselves")
    outputs = plan(matching(inputs), output, output_dir, edm4hep=format == "edm4hep")
    for out in outputs:  # before the model is loaded; existing outputs in a folder may be complete
        if output is not None or not out.path.exists():
            sources = [*out.inputs, *([checkpoint] if isinstance(checkpoint, str | Path) else [])]
            check_output(out.path, inputs=sources, force=force)
    skip_files = output_dir is not None and on_error == "skip"
    reading = FileOptions(detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks, on_error=on_error)
    named = DEFAULT if checkpoint is None else checkpoint
    model = named if isinstance(named, TrainedModel) else load_model(named)
    if model.reconstructor.gives_uncertainties and model.calibration is None:
        text = "%s is not calibrated: photon energies and covariances are the network's own (see pflow calibrate)"
        logging.getLogger("pflow").info(text, model.path)
    if detector is None and not model.tokeniser.config.geometry:  # files of the model's detector
        detector = model.tokeniser.detector
    # Chosen once: the processes of a cluster must not each choose a device for ``auto``.
    place = pick_device(device)
    settings = Settings(  # the workers measure what they read; the sum is compared below
        reading=dataclasses.replace(reading, detector=detector, expected=None),
        max_particles=max_particles,
        candidates=candidates,
        merge_mm=merge_mm,
        max_hits=max_hits,
        batch_size=batch_limits(place)[0] if batch_size is None else batch_size,
        device=str(place),
    )
    # The writer of EDM4hep copies the collections of an input, which stays open until its output is written.
    worker = Worker(model, settings, max_open=None if format == "edm4hep" else 2)
    options = {"format": format, "mc_links": mc_links, "chunk_size": chunk_size, "cluster": cluster}
    summary = Summary(model=model.path, detector=model.tokeniser.reads_detector, device=settings.device)

    def show(n_done: int) -> None:
        if on_progress is not None:
            to_do = [out for out in outputs if out.error is None and not out.finished_before]
            sizes = [out.n_entries for out in to_do if out.n_entries is not None]
            n_all = sum(sizes) + round(sum(sizes) / max(1, len(sizes)) * (len(to_do) - len(sizes)))
            on_progress(summary.n_events + n_done, n_all)

    begin = time.perf_counter()
    with contextlib.closing(worker.files), executor_for(worker, cluster) as executor:
        # Lazy: the inputs of an output are opened when its first chunk is to be submitted.
        resume = output_dir is not None and not force
        opening = functools.partial(_open_suited if checkpoint is None else open_input, worker)
        opened = (open_inputs(out, worker, options, opening, resume=resume) for out in outputs)
        for out, results in itertools.groupby(run(itertools.chain.from_iterable(opened), executor), itemgetter(0)):
            try:
                if out.error is not None:
                    raise out.error
                if out.finished_before:
                    summary.finished_before.append(out.path)
                    continue
                more: Any = {"provenance": out.provenance, "inputs": [*out.inputs, model.path], "force": force}
                writer: OutputWriter
                if format == "edm4hep":
                    more |= {"mc_links": mc_links, "candidates": candidates is not None}
                    writer = Edm4hepRecoWriter(out.path, worker.files.open(out.inputs[0]), **more)
                else:
                    writer = RecoWriter(out.path, format=format, **more)
                part = write(writer, results, show)
                warn_of(compare(part.scales, model.tokeniser.sample), ", ".join(out.inputs))
                warn_of_tracks(part.flagged, part.n_events, str(out.path))
                # After the output is complete: one that fails adds no events.
                summary.n_events += part.n_events
                summary.n_particles += part.n_particles
                summary.flagged += part.flagged
                summary.written.append(out.path)
            except (InputError, ConfigError) as error:
                out.error = error
                summary.failed.append(error)
                if not skip_files:
                    raise
            finally:
                # Also after an error: files for EDM4hep stay open until they are released.
                for path in out.inputs:
                    worker.files.release(path)
    leave_out_files(summary.failed, len(outputs))
    summary.seconds = time.perf_counter() - begin
    return summary


def plan(
    inputs: Sequence[str], output: str | Path | None, output_dir: str | Path | None, *, edm4hep: bool
) -> list[Output]:
    """The output of all inputs, or one for each with its name in a folder, which is made; no input is opened."""
    if (output_dir is None) == (output is None):
        raise ConfigError("name one place for the output: a file (output), or a folder (output_dir)")
    if output is not None:
        if edm4hep and len(inputs) > 1:
            raise ConfigError(
                f"an EDM4hep output has the collections of one input, found {len(inputs)} inputs: name a folder for "
                "one output each (--output-dir)"
            )
        return [Output(Path(output), inputs)]
    folder, outputs = make_folder(str(output_dir)), dict[Path, Output]()
    for path in inputs:
        place = folder / f"{stem(path)}.reco{'.edm4hep' if edm4hep else ''}.root"
        if place in outputs:
            raise ConfigError(
                f"the outputs of {outputs[place].inputs[0]} and {path} would both be {place}: give inputs of different "
                "names, or reconstruct them into different folders"
            )
        outputs[place] = Output(place, [path])
    return list(outputs.values())


def stem(path: str) -> str:
    """Name of an event file without folders, endings of event files and the query of an address."""
    name = os.path.basename(path.partition("?")[0])
    # A name may have several endings, such as .edm4hep.root.
    while name.endswith((".root", ".h5", ".hdf5", ".edm4hep")):
        name = name.rpartition(".")[0]
    return name


def open_inputs(
    out: Output, worker: Worker, options: Mapping[str, Any], opening: Callable[[str], EventFile], *, resume: bool
) -> list[tuple[Output, Chunk | None]]:
    """The chunks to reconstruct for an output, whose number of entries and provenance, or error, are set.

    One None without chunks: the output is complete (`resume`), cannot be made, or its inputs are empty. `options` of
    `reconstruct_files` go into the provenance; `opening` opens an input, and refuses what the model is not for.
    """
    chunks: list[tuple[Output, Chunk | None]] = []
    described, detectors = [], []
    try:
        for path in out.inputs:
            file = opening(path)
            detectors.append(file.detector)
            if file.detector != detectors[0]:
                raise InputError(
                    f"is of detector '{file.detector.name}', and {out.inputs[0]} of '{detectors[0].name}', which are "
                    "described differently: an output has the particles of one detector; write one for each input "
                    "(--output-dir)",
                    file=path,
                    field="detector",
                )
            described.append(describe_input(file))
            size = entries_of_a_chunk(options["cluster"], file.num_entries, options["chunk_size"])
            chunks += [(out, chunk) for chunk in Chunk.of(file, size)]
        out.n_entries = sum(entry["entries"] for entry in described)
        out.provenance = provenance(described, worker.model, worker.settings, detector=detectors[0].name, **options)
        out.finished_before = resume and out.path.exists() and is_finished(out.path, out.provenance, out.n_entries)
        if not out.finished_before:
            for path in out.inputs:
                warn_of(worker.files.open(path).check_field(), path)
            return chunks or [(out, None)]
    except (InputError, ConfigError) as error:
        out.error = error  # raised in its turn: outputs before it are written first
    return [(out, None)]


K = TypeVar("K")
Result = tuple[K, tuple[Chunk, Callable[[], ChunkResult]] | None]
"""What a chunk is for; the chunk and a function that waits for its result, or raises its error, None without one."""


def run(chunks: Iterable[tuple[K, Chunk | None]], executor: Executor) -> Iterator[Result[K]]:
    """Submit chunks, as many ahead as the executor wants, and yield them in order with the function of the result.

    Who does not call the function, since its output has an error already, does not pay for the chunk.
    """
    waiting: deque[Result[K]] = deque()
    for key, chunk in chunks:
        waiting.append((key, None if chunk is None else (chunk, executor.submit(chunk))))
        while len(waiting) >= executor.in_flight():
            yield waiting.popleft()
    yield from waiting


def write(output: OutputWriter, results: Iterable[Result[Any]], on_progress: Callable[[int], None]) -> Summary:
    """Write the results of an output's chunks and sum up the events; an error among the results is raised."""
    total = Summary()
    with output as writer:
        for _, begun in results:
            if begun is None:  # empty inputs
                break
            _, wait = begun
            result = wait()
            for warning in result.warnings:
                warnings.warn(warning, stacklevel=3)
            reconstruction = result.reconstruction
            writer.extend(reconstruction)
            total.n_events += len(reconstruction)
            total.n_particles += int(ak.count(reconstruction.particles.pdg))
            total.flagged.update(count_flags(reconstruction.flags))
            total.scales += result.scales
            on_progress(total.n_events)
    return total


def open_input(worker: Worker, path: str) -> EventFile:
    """Open an input; where it is read as the model's detector, an InputError names how another detector differs."""
    model = worker.model
    if worker.settings.reading.detector is not model.tokeniser.detector:  # named, or any
        return worker.files.open(path)
    try:
        file = worker.files.open(path)
        check_geometry(file.read_all(0, 20, truth=False)[0], model.tokeniser.detector)
        return file
    except (ConfigError, InputError):
        differing: list[str] = []
        # If the file cannot be opened as any detector either, the first error says more.
        with contextlib.suppress(PflowError):
            with dataclasses.replace(worker.settings.reading, detector=None).open(path) as file:
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


def _open_suited(worker: Worker, path: str) -> EventFile:
    """Open an input for the model that is taken where none is named.

    InputError: its detector is not described, or unlike all that the model was trained on.
    """
    file = worker.files.open(path)
    try:
        check_described(file.detector)
    except ConfigError as error:
        message = f"{error}, or name a model with --checkpoint"
        raise InputError(message, file=path, field="detector") from error
    if reason := _unlike(file.detector, DEFAULT):
        raise InputError(f"{reason}, or use it anyway (--checkpoint {DEFAULT})", file=path, field="detector")
    return file


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
            # Only for its error: what the description lacks goes before other reasons.
            tokeniser.encode(events, truth=False)
            reasons[name] = reasons[name] or _unlike(file.detector, name)
        except (ConfigError, InputError) as error:
            reasons[name] = str(error)
    return reasons


def _unlike(detector: Detector, name: str) -> str:
    """Why a model that comes with pflow does not suit a detector with a complete description; "": it does."""
    sample = read_header(name).tokeniser.sample
    far = outside_training(detector, sample, UNLIKE) if sample and sample.detectors else {}
    if not far:
        return ""
    unlike = f"detector '{detector.name}' is unlike all that '{name}' was trained on: {'; '.join(far.values())}"
    return f"{unlike}: correct its description (mm, T), or train the model on it (pflow fit --start-from {name})"


INPUT_KEYS = ("uuid", "entries", "schema", "truth_tracks", "description", "layout")
"""Fields of an input that must agree in the provenance of two outputs for them to be the same; its path may differ."""


def describe_input(file: EventFile) -> dict[str, Any]:
    """Path, size, UUID and schema of an input file, and digests of its descriptions, as plain data.

    Without one of the layout where it comes with pflow, or where the file's own note says what it holds.
    """
    known = file.layout is None or file.layout.is_built_in or getattr(file.reader, "has_note", False)
    return {
        "path": file.path,
        "bytes": os.path.getsize(file.path) if os.path.isfile(file.path) else None,
        "uuid": file.uuid,
        "schema": file.schema,
        "entries": file.num_entries,
        "truth_tracks": file.truth_tracks,
        "description": digest(file.detector),
        "layout": None if known else digest(file.layout),
    }


def provenance(
    inputs: Sequence[Mapping[str, Any]], model: TrainedModel, settings: Settings, *, detector: str, **options: Any
) -> dict[str, Any]:
    """All that repeats a reconstruction, as plain data.

    The same inputs, model, options, versions, number of threads and kind of processor give the same numbers, bit for
    bit. `inputs` come from `describe_input`, `detector` says what they were read as, and `options` are the options of
    `reconstruct_files` that `settings` does not hold.
    """
    reading = settings.reading
    asked = None if reading.detector is model.tokeniser.detector else reading.detector
    used = {name: value for name, value in vars(settings).items() if name != "reading"}
    return {
        "pflow_version": VERSION,
        "versions": versions("torch", "numpy", "awkward", "uproot"),  # they can change a number of the output
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
            # A detector that was made in Python, as plain data.
            "read_as": to_plain(asked) if isinstance(asked, Detector) else asked and str(asked),
            "layout": reading.layout and str(reading.layout),
            **{name: getattr(reading, name) for name in ("schema", "truth_tracks", "on_error")},
            **used,
            **options,
        },
        "decoding": dataclasses.asdict(model.reconstructor.decoding),
        "configuration": model.config,
    }


def essence(made: Mapping[str, Any]) -> dict[str, Any]:
    """What determines the particles of an output with a `provenance`, by name."""
    inputs = {f"input's {key}": [entry.get(key) for entry in made.get("inputs", ())] for key in INPUT_KEYS}
    return {"pflow": made.get("pflow_version")} | inputs | origin(made)


def check_same(path: Path, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """A ConfigError names what an existing output was made from (`theirs`) and would not be made from now."""
    names = [name for name in ours if ours[name] != theirs.get(name)]
    if names:
        text = ", ".join(f"{name} {theirs.get(name)} there and {ours[name]} here" for name in names)
        raise ConfigError(
            f"{path} was made with other settings: {text}; choose another folder, or replace it with --force"
        )


def is_finished(output: Path, provenance: Mapping[str, Any], n_entries: int) -> bool:
    """Whether an existing output is complete, with `n_entries`; warns of those that were skipped in it.

    A ConfigError names differences in provenance.
    """
    try:
        if count_entries(output) != n_entries:
            return False
        earlier = read_provenance(output)
    except InputError:
        return False
    empty = sum(earlier.get("flagged", {}).get(name, 0) for name in ("BAD_INPUT", "NOT_FINITE"))
    ours, theirs = essence(provenance), essence(earlier)
    # `on_error` changes no particle, but with ``raise`` an output with skipped entries would not exist.
    if provenance["options"]["on_error"] == "raise" and empty:
        ours, theirs = ours | {"on_error": "raise"}, theirs | {"on_error": "skip"}
    check_same(output, ours, theirs)
    if empty:
        text = f"{empty} of {n_entries} entries cannot be used and were left empty"
        warn(f"{text} in {output}, which was there before", BadEntriesWarning)
    return True
