"""One event at a time: CPU time of an event, from the file to particles, in torch and C++.

What a reconstruction in an event loop pays, with one thread, and whether the engines find the same particles. Reading
is of all entries, shared. Each event is done `--runs` times and the fastest counts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpp import compile_library, compile_program, missing_for_cpp, write_events
from benchmarks.engines import ENGINES, Task, compare, measure
from measurements.rows import REPORT, Row, fill, read_rows, write_rows
from measurements.tables import speed_table
from pflow.checkpoint.load import load_model
from pflow.errors import ConfigError
from pflow.export.folder import export_model
from pflow.io.open import read_events


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    parser.add_argument("--checkpoint", default="general", help="default: %(default)s")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all")
    parser.add_argument("--events", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="repeats; the fastest counts (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="write the results into results.csv and RESULTS.md")


def run(args: argparse.Namespace) -> None:
    engines = list(args.engines)
    if "C++" in engines and (missing := missing_for_cpp()):
        print(f"without C++: {missing}")
        engines.remove("C++")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        events = read_events(args.file, entry_stop=args.events)
        program = exported = folder / "none"
        try:
            exported = folder / "model"
            export_model(load_model(args.checkpoint), exported)
        except ConfigError as error:
            print(f"only torch: {error}")
            engines = [engine for engine in engines if engine == "torch"]
        if "C++" in engines:
            program = compile_program(compile_library(folder))
        task = Task(
            file=args.file,
            text=write_events(events, folder / "events.txt"),
            events=len(events),
            checkpoint=args.checkpoint,
            exported=exported,
            program=program,
            runs=args.runs,
        )
        rows = list(summary({engine: measure(engine, task) for engine in engines}, args))
    for row in rows:
        print(f"{row.sample}: {row.quantity} {row.value:.1f}")
    if args.save:
        write_rows(rows)
        fill(REPORT, {"speed": speed_table(read_rows())})


def sample_of(path: Path) -> str:
    """Folder and name of a test file, as in results.csv."""
    return f"{path.resolve().parent.name}/{path.stem.removesuffix('_test')}"


def summary(found: dict[str, dict[str, Any]], args: argparse.Namespace) -> Iterator[Row]:
    """Mean and percentiles of the times of the events; prints how far the engines agree."""
    sample = f"{sample_of(args.file)}, one event at a time"
    for engine, measured in found.items():
        times = np.array(measured["cpu_ms"])
        values = {"mean [ms]": times.mean(), **{f"p{q} [ms]": np.percentile(times, q) for q in (50, 99)}}
        values |= {"loading [ms]": measured["loading"], "memory [MB]": measured["memory"]}
        for quantity, value in values.items():
            yield Row(args.checkpoint, sample, f"{engine}, {quantity}", float(value))
        first = next(iter(found))
        if engine != first:
            print(f"{engine} beside {first}: {compare(measured['particles'], found[first]['particles'])}")
