"""What runs a model on one event at a time, with one thread: torch, ONNX Runtime from Python, the C++ program.

Each measures itself in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpp import run_program
from benchmarks.memory import peak_mb
from benchmarks.timing import KINDS, Times, timed
from measurements.engine_tables import STAGES
from pflow.checkpoint.load import Model, load_model
from pflow.data.collate import collate
from pflow.event.events import Events
from pflow.inference.events import reconstruct
from pflow.inference.exported import ExportedModel
from pflow.inference.exported_events import event_arrays
from pflow.io.open import open_events
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.generate import decode_first_stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What to measure.

    Parameters
    ----------
    file
        ROOT file of the events.
    text
        The same events as `benchmarks.cpp.write_events` writes them.
    events
        Number of events, from the first.
    checkpoint
        Model, for torch.
    exported
        The same model, exported.
    program
        The C++ program.
    runs
        Of each stage of each event, of which the fastest counts.
    """

    file: Path
    text: Path
    events: int
    checkpoint: str
    exported: Path
    program: Path
    runs: int


def measure(engine: str, task: Task) -> dict[str, Any]:
    """Times of an engine, in a process of its own.

    Returns
    -------
    dict
        ``ready_ms`` until the model is loaded, ``peak_memory_mb``, and a list ``events`` with their number of
        ``particles``, and ``cpu_ms`` and ``wall_ms`` by stage.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(ENGINES[engine], task).result()


def measure_torch(task: Task) -> dict[str, Any]:
    torch.set_num_threads(1)
    model, ready = timed(1, lambda: load_model(task.checkpoint))
    with open_events(task.file) as file:
        events, reading = timed(task.runs, lambda: file.read(0, task.events, truth=False))
    shared = {kind: ms / task.events for kind, ms in reading.items()}
    rows = [time_event(model, events[entry : entry + 1], shared, task.runs) for entry in range(task.events)]
    return {"ready_ms": ready["wall_ms"], "peak_memory_mb": peak_mb(), "events": rows}


def time_event(model: Model, event: Events, reading: Times, runs: int) -> dict[str, Any]:
    """Number of particles of an event, and times by stage, ms; `reading` is its share of that of all."""
    reconstructor: Any = model.reconstructor.eval()
    network, decoding = reconstructor.network, reconstructor.decoding
    times = {"reading": reading}
    with torch.inference_mode():
        batch, times["tokens"] = timed(runs, lambda: collate(model.tokeniser.encode(event, truth=False)))
        source, times["encoder"] = timed(runs, lambda: network.encode(batch))
        _, times["decoder"] = timed(runs, lambda: decode_first_stage(network, source.copy(), decoding, Sampler()))
        _, generated = timed(runs, lambda: reconstructor.generate(batch))
    reco, whole = timed(runs, lambda: reconstruct(event, model, batch_size=1, device="cpu"))
    for kind in KINDS:
        before = times["encoder"][kind] + times["decoder"][kind]
        times.setdefault("refinement", {})[kind] = max(generated[kind] - before, 0.0)
        times.setdefault("output", {})[kind] = max(whole[kind] - generated[kind] - times["tokens"][kind], 0.0)
    by_kind = {kind: {stage: times[stage][kind] for stage in STAGES} for kind in KINDS}
    return {"particles": len(reco.particles[0]), **by_kind}


def measure_cpp(task: Task) -> dict[str, Any]:
    first, *events, last = run_program(task.program, task.exported, task.text, runs=task.runs)
    rows = []
    for event in events:
        row: dict[str, Any] = {"particles": len(event["particles"])}
        for i, kind in enumerate(KINDS):
            row[kind] = {stage: times[i] for stage, times in event["times"].items()}
        rows.append(row)
    return {"ready_ms": first["ready"][1], "peak_memory_mb": last["peak_memory_kb"] / 1024.0, "events": rows}


def measure_onnxruntime(task: Task) -> dict[str, Any]:
    runtime, ready = timed(1, lambda: ExportedModel(task.exported))
    with open_events(task.file) as file:
        events, reading = timed(task.runs, lambda: file.read(0, task.events, truth=False))
    shared = {kind: ms / task.events for kind, ms in reading.items()}
    rows = []
    for entry in range(task.events):
        event = events[entry : entry + 1]
        times = {"reading": shared}
        arrays, times["tokens"] = timed(task.runs, lambda event=event: event_arrays(event, 0, runtime.inputs))
        values, times["encoder"] = timed(task.runs, lambda arrays=arrays: runtime.encode(arrays))
        (decoded, _), times["decoder"] = timed(task.runs, runtime.decode, values)
        particles = 0
        times["refinement"] = dict.fromkeys(KINDS, 0.0)
        if len(decoded["seed"]):
            columns, times["refinement"] = timed(
                task.runs, lambda values=values, decoded=decoded: runtime.refine(values, decoded)
            )
            particles = len(columns["pdg"])
        by_kind = {kind: {stage: times[stage][kind] for stage in times} for kind in KINDS}
        rows.append({"particles": particles, **by_kind})
    return {"ready_ms": ready["wall_ms"], "peak_memory_mb": peak_mb(), "events": rows}


ENGINES: dict[str, Callable[[Task], dict[str, Any]]] = {
    "torch": measure_torch,
    "onnxruntime": measure_onnxruntime,
    "cpp": measure_cpp,
}
