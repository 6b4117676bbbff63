"""Torch and the C++ program on the same events: times of each, and whether they agree."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import torch

from benchmarks.cpp import run_program
from benchmarks.timing import peak_mb, timed
from pflow.checkpoint.load import load_model
from pflow.event.particles import Reconstruction
from pflow.inference.events import reconstruct
from pflow.io.open import open_events

Particles = list[list[dict[str, Any]]]
"""Particles of each event, as `pflow/export/cpp/reconstruct.cpp` writes them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The first `events` of `file`, also as `text` of `benchmarks.cpp.write_events`, and the model in all forms."""

    file: Path
    text: Path
    events: int
    checkpoint: str
    exported: Path
    program: Path
    runs: int
    """Repeats of each event; the fastest counts."""


def measure(engine: str, task: Task) -> dict[str, Any]:
    """Times of an engine, with one thread, in a process of its own, so that its memory is its own.

    Returns
    -------
    dict
        ``loading`` (wall time until the model is loaded, ms), ``memory`` (most, MB), ``cpu_ms`` of each event, reading
        included, and the ``particles``.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(ENGINES[engine], task).result()


def measure_torch(task: Task) -> dict[str, Any]:
    torch.set_num_threads(1)
    model, _, loading = timed(1, lambda: load_model(task.checkpoint))
    work = functools.partial(reconstruct, model=model, device="cpu")
    with open_events(task.file) as file:
        events, reading, _ = timed(task.runs, lambda: file.read(0, task.events, truth=False))
    work(events[:1])
    times, particles = [], []
    for entry in range(len(events)):
        reco, ms, _ = timed(task.runs, lambda entry=entry: work(events[entry : entry + 1]))
        times.append(ms + reading / len(events))
        particles += particles_of(reco)
    return {"loading": loading, "memory": peak_mb(), "cpu_ms": times, "particles": particles}


def measure_cpp(task: Task) -> dict[str, Any]:
    first, *events, last = run_program(task.program, task.exported, task.text, runs=task.runs)
    return {
        "loading": first["ready"][1],
        "memory": last["peak_memory_kb"] / 1024.0,
        "cpu_ms": [sum(times[0] for times in event["times"].values()) for event in events],
        "particles": [event["particles"] for event in events],
    }


ENGINES: dict[str, Callable[[Task], dict[str, Any]]] = {
    "torch": measure_torch,
    "C++": measure_cpp,
}


def particles_of(reconstruction: Reconstruction) -> Particles:
    """The particles of each event as plain data, in the form of the C++ program."""
    particles = reconstruction.particles
    columns: dict[str, Any] = {
        **{name: particles[name] for name in ("pdg", "charge", "energy", "covariance")},
        "momentum": ak.concatenate([particles.momentum[axis][..., None] for axis in ("px", "py", "pz")], axis=-1),
        "class_probability": particles.scores,
    }
    values = {name: ak.to_list(column) for name, column in columns.items()}
    events: Particles = [
        [{name: values[name][event][i] for name in values} | {"hits": [], "tracks": []} for i in range(n)]
        for event, n in enumerate(ak.num(particles).tolist())
    ]
    for name, links in (("hits", reconstruction.hit_links), ("tracks", reconstruction.track_links)):
        for event, of_event in enumerate([] if links is None else ak.to_list(links)):
            for link in of_event:
                events[event][link["particle"]][name].append([link["source"], link["weight"]])
    return events


def compare(found: Particles, expected: Particles) -> dict[str, Any]:
    """Compare the particles of two engines.

    Returns
    -------
    dict
        Number of ``particles`` of both together (the larger of each event); of those with the ``same_identity`` (code
        and charge); and of these with the ``same_momentum`` (energy to 1e-3, direction to 1e-3 rad), the
        ``same_covariance`` (to 1%) and the ``same_links`` (hits and tracks, fractions to 0.02); and the largest
        relative difference of ``energy``.
    """
    counts = dict.fromkeys(("particles", "same_identity", "same_momentum", "same_covariance", "same_links"), 0)
    largest = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        counts["particles"] += max(len(ours), len(theirs))
        for one, other in zip(ours, theirs, strict=False):
            if (one["pdg"], one["charge"]) != (other["pdg"], other["charge"]):
                continue
            energy = abs(one["energy"] / other["energy"] - 1.0)
            off = np.abs(np.subtract(one["momentum"], other["momentum"])).max() / other["energy"]
            scale = abs(other["covariance"][-1])
            counts["same_identity"] += 1
            counts["same_momentum"] += bool(energy <= 1e-3 and off <= 2e-3)
            counts["same_covariance"] += np.allclose(one["covariance"], other["covariance"], 0.01, 0.01 * scale)
            counts["same_links"] += all(_linked(one[name], other[name]) for name in ("hits", "tracks"))
            largest = max(largest, float(energy))
    return {**counts, "energy": largest}


def _linked(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> bool:
    """Whether lists of [index, share] are the same, but for shares that differ by less than 0.02."""
    first, second = ({int(index): share for index, share in links} for links in (ours, theirs))
    return all(abs(first.get(i, 0.0) - second.get(i, 0.0)) < 0.02 for i in first.keys() | second.keys())
