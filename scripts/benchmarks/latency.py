"""One event at a time: CPU and wall time of an event, from the file to particles, by stage and engine.

What a reconstruction in an event loop pays, with one thread, in torch, in ONNX Runtime and in the C++ program. Reading
is of all entries, shared. Each event is done `--runs` times and the fastest time of each stage counts. For comparison,
batches of 32 in torch, of as many events as `pflow reconstruct` reads at once. With `--hits`, times against the number
of hits: events of the file are overlaid until they have so many, and hits are left out at random down to it.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import torch

from benchmarks.cpp import compile_library, compile_program, missing_for_cpp, write_events
from benchmarks.engines import ENGINES, Task, measure
from benchmarks.timing import KINDS, N_HITS, joined
from measurements.engine_tables import STAGES, by_particles
from measurements.files import REPORT, RESULTS, rounded, write_json
from measurements.markdown import fill
from measurements.tables import report_tables
from pflow.checkpoint.load import Model, load_model
from pflow.errors import ConfigError
from pflow.event.events import Events, concatenate
from pflow.export.folder import export_model
from pflow.inference.events import BATCH_SIZE, reconstruct
from pflow.io.events_root import write_events as write_root
from pflow.io.open import EventFile, open_events

READ_AT_ONCE = 256
"""Default of `pflow reconstruct --chunk-size`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    parser.add_argument("--checkpoint", default="ild-g4-general", help="default: %(default)s")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all")
    parser.add_argument("--events", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--hits", type=int, nargs="+", default=[], help="also at these numbers (--save: 500 to 16,000)")
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS / 'latency*.json'} and their tables")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    engines = list(args.engines)
    if "cpp" in engines and (missing := missing_for_cpp()):
        print(f"without C++: {missing}")
        engines.remove("cpp")
    model = load_model(args.checkpoint)
    with open_events(args.file) as file, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        n = min(args.events, file.num_entries)
        batches = min(measure_batches(model, file, min(READ_AT_ONCE, file.num_entries)) for _ in range(args.runs))
        print(f"batches of {BATCH_SIZE} in torch: {batches:.1f} ms of CPU time an event, reading included")
        events = file.read(0, n)
        exported, program = folder / "model", folder
        if engines != ["torch"]:
            try:
                export_model(model, exported)
            except ConfigError as error:
                print(f"only torch: {error}")
                engines = [engine for engine in engines if engine == "torch"]
        if "cpp" in engines:
            program = compile_program(compile_library(folder))
        task = Task(
            file=args.file,
            text=write_events(events, folder / "events.txt"),
            events=n,
            checkpoint=args.checkpoint,
            exported=exported,
            program=program,
            runs=args.runs,
        )
        result: dict[str, Any] = {
            "file": args.file.name,
            "model": args.checkpoint,
            "events": n,
            "torch": torch.__version__,
            "batches_of_32": {"cpu_ms": batches},
            "engines": {engine: summary(engine, measure(engine, task)) for engine in engines},
        }
        if args.save and not args.hits:
            args.hits = N_HITS
        if args.hits:
            sized = events_with(events, args.hits)
            write_root(folder / "sized.root", sized)
            text = write_events(sized, folder / "sized.txt")
            task = dataclasses.replace(task, file=folder / "sized.root", text=text, events=len(sized))
            result["by_hits"] = {engine: by_hits(engine, measure(engine, task), args.hits) for engine in engines}
    if args.save:
        sizes = {"file": result["file"], "model": result["model"], "by_hits": result.pop("by_hits")}
        write_json(RESULTS / "latency.json", rounded(result))
        write_json(RESULTS / "latency_by_hits.json", rounded(sizes))
        tables = report_tables(RESULTS)
        fill(REPORT, {name: body for name, body in tables.items() if name.startswith("latency")})


def measure_batches(model: Model, file: EventFile, n: int) -> float:
    """CPU time of an event in batches, ms."""
    start = time.process_time()
    reconstruct(file.read(0, n, truth=False), model, device="cpu")
    return 1e3 * (time.process_time() - start) / n


def summary(engine: str, measured: dict[str, Any]) -> dict[str, Any]:
    """Mean, percentiles and means by stage of the times of the events; printed."""
    rows = measured["events"]
    result = {name: measured[name] for name in ("ready_ms", "peak_memory_mb")}
    print(f"{engine}: ready in {result['ready_ms']:.0f} ms, {result['peak_memory_mb']:.0f} MB at most")
    for kind in KINDS:
        total = np.array([sum(row[kind].values()) for row in rows])
        stages = {
            stage: float(np.mean([row[kind][stage] for row in rows])) for stage in STAGES if stage in rows[0][kind]
        }
        percentiles = {f"p{q}": float(np.percentile(total, q)) for q in (50, 99)}
        result[kind] = {"mean": float(total.mean()), **percentiles, "stages": stages}
        text = ", ".join(f"{stage} {ms:.1f}" for stage, ms in stages.items())
        mean, p50, p99 = (result[kind][name] for name in ("mean", "p50", "p99"))
        print(f"  {kind:8} an event: mean {mean:.1f}, p50 {p50:.1f}, p99 {p99:.1f}; {text}")
    total = np.array([sum(row["cpu_ms"].values()) for row in rows])
    result["by_particles"] = by_particles(np.array([row["particles"] for row in rows]), total)
    return result


def by_hits(engine: str, measured: dict[str, Any], n_hits: Sequence[int]) -> list[dict[str, Any]]:
    """CPU time of each event, with its number of hits; printed."""
    result = []
    for n, row in zip(n_hits, measured["events"], strict=True):
        result.append({"hits": n, "particles": row["particles"], "cpu_ms": sum(row["cpu_ms"].values())})
        print(f"{engine}: {n} hits, {row['particles']} particles: {result[-1]['cpu_ms']:.1f} ms of CPU time")
    return result


def events_with(events: Events, n_hits: Sequence[int]) -> Events:
    """An event with each number of hits: some events joined, less some of their hits, without truth."""
    random = np.random.default_rng(1)
    made = []
    for n in n_hits:
        event = joined(events, n)
        kept = np.sort(random.permutation(len(event.hits[0]))[:n])
        made.append(dataclasses.replace(event.without_truth(), hits=event.hits[ak.Array([kept])]))
    return concatenate(made)
