"""Reconstruction of event files, in bounded memory: one output entry for each input entry."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import awkward as ak
import numpy as np

from pflow.checkpoint.load import Model, load_model
from pflow.data.files import Chunk, FileOptions, matching
from pflow.errors import ConfigError, InputError, check_choice
from pflow.event.events import Flag
from pflow.inference.choose_model import shipped_model
from pflow.inference.chunks import ChunkResult, Settings, Worker
from pflow.inference.cluster import run_on_cluster
from pflow.inference.events import BATCH_SIZE, MAX_HITS, pick_device
from pflow.inference.provenance import provenance
from pflow.io.detect_detector import geometry_fits
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.open import EventFile
from pflow.io.particles_root import FORMATS, RecoWriter
from pflow.physics.detector import Detector

__all__ = ["Summary", "reconstruct_files"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """Numbers of a call of `reconstruct_files`."""

    n_events: int
    n_particles: int
    n_skipped: int
    """Entries that could not be used: empty in the output and flagged ``BAD_INPUT``."""
    n_not_finite: int
    """Events for which the model gave numbers that are not finite: empty and flagged ``NOT_FINITE``."""
    n_truncated: int
    """Events that reached `max_particles`."""
    max_particles: int
    seconds: float
    """From the first entry read to the last one written."""


def reconstruct_files(
    inputs: Sequence[str | Path],
    *,
    checkpoint: Model | str | Path | None = None,
    output: str | Path,
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
    cluster: str | None = None,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Reconstruct files into one ROOT file (`pflow.io.particles_root` and, for EDM4hep, `pflow.io.edm4hep.reco_names`).

    The output has the entries of the inputs one after the other. It appears only when it is complete.

    Parameters
    ----------
    inputs
        Event files of any schema, or patterns of their names; truth is not read, but for `mc_links`.
    checkpoint
        Model, or the argument of `load_model`. Default: the model that comes with pflow for the first input's detector
        (`pflow.inference.choose_model`).
    output, format
        File to write, as ``ttree``, ``rntuple``, or ``edm4hep``: a file that podio opens.
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
        entry.
    max_particles, max_hits, batch_size, device
        As for `pflow.reconstruct`.
    chunk_size
        Entries in memory at a time.
    cluster
        ``local:N`` for N processes, or the address of a dask scheduler (`pflow.inference.cluster`), whose processes
        each use `device`. Default: this process.
    force
        Replace any file at `output`; without it, only an earlier output of a reconstruction.
    on_progress
        Called with the number of entries done and of all.

    Raises
    ------
    InputError
        An input that cannot be used: names file, entry and branch.
    ConfigError
        An output that cannot be written, or options that do not work together.
    """
    if chunk_size < 1:
        raise ConfigError(f"chunk_size must be at least 1 entry, found {chunk_size}")
    if (keep_input or mc_links) and format != "edm4hep":
        raise ConfigError(
            f"{'keep_input' if keep_input else 'mc_links'} is for the output format edm4hep, not {format}"
        )
    check_choice(format, (*FORMATS, "edm4hep"), "output format")
    if cluster is not None and isinstance(checkpoint, Model):
        raise ConfigError("a cluster needs the path of the checkpoint: its processes load it themselves")
    inputs = matching(inputs)
    reading = FileOptions(detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks, on_error=on_error)
    if checkpoint is None:
        with reading.open(inputs[0]) as file:
            checkpoint = shipped_model(file)
    model = checkpoint if isinstance(checkpoint, Model) else load_model(checkpoint)
    settings = Settings(
        reading=dataclasses.replace(reading, detector=model.tokeniser.detector if detector is None else detector),
        max_particles=model.reconstructor.decoding.max_particles if max_particles is None else max_particles,
        max_hits=max_hits,
        batch_size=batch_size,
        device=str(pick_device(device)),
        keep_events=format == "edm4hep",
        read_truth=mc_links,
    )
    with contextlib.closing(Worker(model, settings)) as worker:
        files = [worker.open(str(path)) for path in inputs]
        if detector is None:
            for file in files:
                _check_geometry(file, model.tokeniser.detector)
        total = sum(file.num_entries for file in files)
        chunks = itertools.chain(*(Chunk.all_of(file, chunk_size) for file in files))
        results = map(worker.run, chunks) if cluster is None else run_on_cluster(cluster, model.path, settings, chunks)
        made = provenance(
            files,
            model,
            settings,
            format=format,
            keep_input=keep_input,
            mc_links=mc_links,
            chunk_size=chunk_size,
            cluster=cluster,
        )
        sources = (*inputs, model.path)
        writer: RecoWriter | Edm4hepRecoWriter
        if format == "edm4hep":
            writer = Edm4hepRecoWriter(
                output,
                files,
                provenance=made,
                keep_input=keep_input,
                mc_links=mc_links,
                inputs=sources,
                force=force,
            )
        else:
            writer = RecoWriter(output, provenance=made, format=format, inputs=sources, force=force)
        with writer:
            return _write(results, writer, total, settings.max_particles, on_progress)


def _write(
    results: Iterable[ChunkResult],
    writer: RecoWriter | Edm4hepRecoWriter,
    total: int,
    max_particles: int,
    on_progress: Callable[[int, int], None] | None,
) -> Summary:
    begin = time.perf_counter()
    n_events = n_particles = n_skipped = n_not_finite = n_truncated = 0
    for result in results:
        for warning in result.warnings:
            warnings.warn(warning, stacklevel=3)
        reconstruction = result.reconstruction
        if isinstance(writer, RecoWriter):
            writer.extend(reconstruction)
        elif result.events is not None:
            writer.extend(reconstruction, result.events)
        n_events += len(reconstruction)
        n_particles += int(ak.count(reconstruction.particles.pdg))
        n_skipped += int(np.count_nonzero(reconstruction.flags & Flag.BAD_INPUT))
        n_not_finite += int(np.count_nonzero(reconstruction.flags & Flag.NOT_FINITE))
        n_truncated += int(np.count_nonzero(reconstruction.flags & Flag.MAX_PARTICLES))
        if on_progress is not None:
            on_progress(n_events, total)
    return Summary(
        n_events=n_events,
        n_particles=n_particles,
        n_skipped=n_skipped,
        n_not_finite=n_not_finite,
        n_truncated=n_truncated,
        max_particles=max_particles,
        seconds=time.perf_counter() - begin,
    )


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
