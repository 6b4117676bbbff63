"""Tables of torch, ONNX Runtime from Python and the C++ program: whether they find the same, and how long it takes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy.typing as npt

from measurements.markdown import table

Results = dict[str, Any]
Values = npt.NDArray[Any]
TITLES = {"torch": "torch", "onnxruntime": "ONNX Runtime", "cpp": "C++"}
STAGES = ("reading", "tokens", "encoder", "decoder", "refinement", "output")
"""Tokens: merging, features, padding; an exported encoder makes them itself. Output: particles and links; an exported
refinement makes them itself."""
PARTICLES = (0, 30, 40, 50, 10**6)
"""Limits of the ranges of numbers of particles."""


def engines_table(results: Results) -> str:
    """A row a file and engine, and one of all files of each engine."""
    counts = ("events", "particles", "same_identity", "same_momentum", "same_covariance", "same_links")
    largest = ("energy", "class_probability")
    lines = []
    for engine in dict.fromkeys(row["engine"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["engine"] == engine]
        total = {name: sum(row[name] for row in rows) for name in counts}
        total |= {name: max(row[name] for row in rows) for name in largest}
        for row in (*rows, {**total, "file": "all"}):
            differences = (f"{row[name]:.1e}" for name in largest)
            lines.append([engine, row["file"], *(str(row[name]) for name in counts), *differences])
    head = ["engine", "file", "events", "particles", "code, charge", "energy, direction", "covariance", "links"]
    return table([*head, "largest difference of E / E", "of a class probability"], lines, left=(0, 1))


def latency_table(results: Results) -> str:
    """CPU time of an event by engine and stage."""
    rows = []
    for engine, row in results["engines"].items():
        times = row["cpu_ms"]
        stages = (f"{times['stages'][stage]:.1f}" if stage in times["stages"] else "-" for stage in STAGES)
        totals = (f"{times[name]:.1f}" for name in ("mean", "p50", "p99"))
        rows.append([TITLES[engine], *totals, *stages, f"{row['ready_ms']:.0f}", f"{row['peak_memory_mb']:.0f}"])
    batches = f"{results['batches_of_32']['cpu_ms']:.1f}"
    rows.append(["torch, batches of 32", batches, *["-"] * (4 + len(STAGES))])
    return table(["engine", "mean", "p50", "p99", *STAGES, "ready after [ms]", "memory [MB]"], rows)


def latency_by_hits_table(results: Results) -> str:
    """CPU time of an event against its number of hits."""
    by_hits = results["by_hits"]
    first = next(iter(by_hits.values()))
    rows = [
        [str(row["hits"]), str(row["particles"]), *(f"{of[i]['cpu_ms']:.0f}" for of in by_hits.values())]
        for i, row in enumerate(first)
    ]
    return table(["hits", "particles", *(TITLES[engine] for engine in by_hits)], rows, left=())


def by_particles(particles: Values, cpu_ms: Values) -> list[dict[str, float]]:
    """Number of events and means of each range of numbers of particles, of particles and CPU times [event]."""
    rows = []
    for low, high in itertools.pairwise(PARTICLES):
        within = (particles >= low) & (particles < high)
        if within.any():
            means = {"particles": float(particles[within].mean()), "cpu_ms": float(cpu_ms[within].mean())}
            rows.append({"events": int(within.sum()), **means})
    return rows


def latency_by_particles_table(results: Results) -> str:
    """Mean CPU time of the events of each range of numbers of particles."""
    engines = results["engines"]
    rows = []
    for same in zip(*(of["by_particles"] for of in engines.values()), strict=True):
        first = same[0]
        times = (f"{row['cpu_ms']:.1f}" for row in same)
        rows.append([f"{first['particles']:.1f}", str(first["events"]), *times])
    return table(["particles, mean", "events", *(TITLES[engine] for engine in engines)], rows, left=())
