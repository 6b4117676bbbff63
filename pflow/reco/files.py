"""Particles from event files: chunks in, particles out, one output entry for each input entry."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import awkward as ak
import numpy as np

from pflow.detector import Detector, load_detector
from pflow.errors import ConfigError, InputError
from pflow.events import Events, Flag
from pflow.io.detect import geometry_fits
from pflow.io.read import EventFile, open_events
from pflow.io.reco import RecoWriter
from pflow.reco.load import Model, load_model
from pflow.reco.reconstruct import MAX_HITS, pick_device, reconstruct

__all__ = ["Summary", "reconstruct_files"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What a call of `reconstruct_files` did."""

    n_events: int
    n_particles: int
    n_skipped: int
    """Entries that could not be used: empty in the output and flagged ``BAD_INPUT``."""
    n_truncated: int
    """Events that reached `max_particles`."""
    max_particles: int
    seconds: float
    """From the first entry read to the last one written."""


def reconstruct_files(
    inputs: Sequence[str | Path],
    *,
    checkpoint: Model | str | Path,
    output: str | Path,
    format: Literal["ttree", "rntuple"] = "ttree",
    detector: str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    max_particles: int | None = None,
    max_hits: int = MAX_HITS,
    batch_size: int = 16,
    chunk: int = 256,
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Reconstruct files into one ROOT file (see `pflow.io.reco` for its content), in bounded memory.

    The output has the entries of the inputs one after the other, and appears only when it is whole.

    Parameters
    ----------
    inputs
        Event files of any schema; truth is not read.
    checkpoint
        Model, or path of its checkpoint.
    output, format
        File to write, as ``ttree`` or ``rntuple``.
    detector
        Read the files as this detector, even if the model was trained on another. By default they are read as the
        model's, and refused if their ECAL hits lie elsewhere.
    schema, layout
        As for `pflow.open_events`.
    on_error
        What to do with an entry that cannot be used: ``raise`` and write nothing, or ``skip``: warn and leave an
        empty, flagged entry.
    max_particles, max_hits, batch_size, device
        As for `pflow.reconstruct`.
    chunk
        Entries in memory at a time.
    on_progress
        Called with the number of entries done and of all.

    Raises
    ------
    InputError
        An input that cannot be used: names file, entry and branch.
    ConfigError
        An output that cannot be written, or options that make no sense.
    """
    if chunk < 1:
        raise ConfigError(f"chunk must be at least 1 entry, found {chunk}")
    model = checkpoint if isinstance(checkpoint, Model) else load_model(checkpoint)
    place = str(pick_device(device))
    read_as = model.tokeniser.detector if detector is None else load_detector(detector)
    longest = model.max_particles if max_particles is None else max_particles

    files: list[EventFile] = []
    try:
        # extend, so that the ones already open are closed if a later one cannot be opened.
        files.extend(open_events(path, detector=read_as, schema=schema, layout=layout) for path in inputs)
        if detector is None:
            for file in files:
                _check_geometry(file, model)
        total = sum(file.num_entries for file in files)
        counts = {"particles": 0, "skipped": 0, "truncated": 0}
        done = 0
        begin = time.perf_counter()
        options = {
            "max_particles": longest,
            "max_hits": max_hits,
            "format": format,
            "detector": read_as.name,
            "on_error": on_error,
        }
        provenance = _provenance(files, model, options)
        with RecoWriter(output, provenance=provenance, format=format, inputs=inputs) as writer:
            for file in files:
                for start in range(0, file.num_entries, chunk):
                    events = file.read(start, start + chunk, truth=False, on_error=on_error)
                    reconstruction = reconstruct(
                        _as_the_models(events, model),
                        model,
                        max_particles=longest,
                        max_hits=max_hits,
                        batch_size=batch_size,
                        device=place,
                        on_error=on_error,
                    )
                    writer.extend(reconstruction)
                    counts["particles"] += int(ak.sum(ak.num(reconstruction.particles, axis=1)))
                    counts["skipped"] += int(np.count_nonzero(reconstruction.flags & Flag.BAD_INPUT))
                    counts["truncated"] += int(np.count_nonzero(reconstruction.flags & Flag.MAX_PARTICLES))
                    done += len(events)
                    if on_progress is not None:
                        on_progress(done, total)
        seconds = time.perf_counter() - begin
    finally:
        for file in files:
            file.close()
    return Summary(
        n_events=done,
        n_particles=counts["particles"],
        n_skipped=counts["skipped"],
        n_truncated=counts["truncated"],
        max_particles=longest,
        seconds=seconds,
    )


def _check_geometry(file: EventFile, model: Model) -> None:
    """Refuse a file whose ECAL hits do not lie where the model's detector has its ECAL."""
    trained_on = model.tokeniser.detector
    events, _ = file.read_all(0, 20, truth=False)
    if geometry_fits(events, trained_on) is False:
        raise InputError(
            f"the checkpoint was trained on detector '{trained_on.name}' (ECAL from r = "
            f"{trained_on.ecal_inner_radius:g} mm, |z| = {trained_on.ecal_inner_z:g} mm) and the ECAL hits of this "
            "file lie elsewhere: it is of another detector; name that one (--detector) to go on all the same",
            file=file.path,
            field="hits.position",
        )


def _as_the_models(events: Events, model: Model) -> Events:
    """The events as if of the model's detector: who names another detector explicitly has decided to go on."""
    return dataclasses.replace(events, detector=model.tokeniser.detector)


def _provenance(files: Sequence[EventFile], model: Model, options: dict[str, Any]) -> dict[str, Any]:
    from pflow import __version__

    return {
        "pflow_version": __version__,
        "inputs": [
            {"path": file.path, "uuid": file.uuid, "schema": file.schema, "entries": file.num_entries} for file in files
        ],
        "checkpoint": {"path": model.path, "sha256": model.digest},
        "options": options,
        "configuration": model.config,
    }
