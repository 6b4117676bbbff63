"""One event at a time: CPU time of an event, from the file to particles, in torch and C++.

What a reconstruction in an event loop pays, with one thread, and whether the engines find the same particles. Reading
is of all entries, shared. Each event is done `--runs` times and the fastest counts.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import torch

from benchmarks.cpp import compile_library, compile_program, missing_for_cpp, run_program, write_events
from benchmarks.timing import add_common_options, peak_mb, timed
from measurements.rows import REPORT, Row, fill, read_rows, write_rows
from measurements.tables import speed_table
from pflow.checkpoint import load_model
from pflow.errors import ConfigError
from pflow.event.events import Reconstruction
from pflow.export.pointing import export_model
from pflow.inference.events import reconstruct
from pflow.io.open import open_events, read_events

ENGINES = ("torch", "C++")

Particles = list[list[dict[str, Any]]]
"""Particles of each event, as `pflow/export/cpp/reconstruct.cpp` writes them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    add_common_options(parser, events=32)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all")
    parser.add_argument("--save", action="store_true", help="write the results into results.csv and RESULTS.md")


def run(args: argparse.Namespace) -> None:
    measured = {}
    if "torch" in args.engines:  # in a process of its own, so that its memory is its own
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            measured["torch"] = pool.submit(measure_torch, args).result()
    if "C++" in args.engines:
        try:
            measured["C++"] = measure_cpp(args)
        except ConfigError as error:
            print(f"without C++: {error}")
    rows = list(summary(measured, args))
    for row in rows:
        print(f"{row.sample}: {row.quantity} {row.value:.1f}")
    if args.save:
        write_rows(rows)
        fill(REPORT, {"speed": speed_table(read_rows())})


def measure_torch(args: argparse.Namespace) -> dict[str, Any]:
    """Measure with one thread.

    Returns ``loading`` (until the model is loaded, ms), ``memory`` (most, MB), ``cpu_ms`` of each event, reading
    included, and the ``particles``.
    """
    torch.set_num_threads(1)
    model, _, loading = timed(1, lambda: load_model(args.checkpoint))
    work = functools.partial(reconstruct, model=model, device="cpu")
    with open_events(args.file) as file:
        events, reading, _ = timed(args.runs, lambda: file.read(0, args.events, truth=False))
    work(events[:1])
    times, particles = [], []
    for entry in range(len(events)):
        reco, ms, _ = timed(args.runs, lambda entry=entry: work(events[entry : entry + 1]))
        times.append(ms + reading / len(events))
        particles += particles_of(reco)
    return {"loading": loading, "memory": peak_mb(), "cpu_ms": times, "particles": particles}


def measure_cpp(args: argparse.Namespace) -> dict[str, Any]:
    """The same of the C++ program; ConfigError: it cannot be compiled or fails, or the network has no graphs."""
    if missing := missing_for_cpp():
        raise ConfigError(missing)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sample = read_events(args.file, entry_stop=args.events)
        export_model(load_model(args.checkpoint), folder / "model", detector=sample.detector)
        text = write_events(sample, folder / "events.txt")
        program = compile_program(compile_library(folder))
        try:
            first, *events, last = run_program(program, folder / "model", text, runs=args.runs)
        except subprocess.CalledProcessError as error:
            raise ConfigError(error.stderr.strip()) from None
    return {
        "loading": first["ready"][1],
        "memory": last["peak_memory_kb"] / 1024.0,
        "cpu_ms": [sum(times[0] for times in event["times"].values()) for event in events],
        "particles": [event["particles"] for event in events],
    }


def summary(measured: dict[str, dict[str, Any]], args: argparse.Namespace) -> Iterator[Row]:
    """Mean and percentiles of the times of the events; prints how far the engines agree."""
    sample = f"{args.file.resolve().parent.name}/{args.file.stem.removesuffix('_test')}, one event at a time"
    for engine, result in measured.items():
        times = np.array(result["cpu_ms"])
        values = {"mean [ms]": times.mean(), **{f"p{q} [ms]": np.percentile(times, q) for q in (50, 99)}}
        values |= {"loading [ms]": result["loading"], "memory [MB]": result["memory"]}
        for quantity, value in values.items():
            yield Row(args.checkpoint, sample, f"{engine}, {quantity}", float(value))
    if len(measured) > 1:
        print(f"C++ beside torch: {compare(measured['C++']['particles'], measured['torch']['particles'])}")


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

    Returns the number of ``particles`` of both together (the larger of each event), how many have the ``same_identity``
    (code and charge), how many of these the ``same_momentum`` (energy to 1e-3, direction to 1e-3 rad),
    ``same_covariance`` (to 1%) and ``same_links`` (hits and tracks, fractions to 0.02), and the largest relative
    difference of ``energy``.
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
