"""Loading for training, stage by stage, beside what a training step needs, in events a second of one core.

Stages, in CPU time: plain (uproot alone, the same branches), reading (file to events, validated, with truth), prepared
(the same from what `pflow prepare` wrote), tokens (truth rules, merging, features, targets), padding, augmentation, and
tokens and padding of augmented events, which are larger where events are joined. The training step is that of the model
on this CPU with one thread; what a GPU needs follows from the FLOPs of steps (forward and backward) on the events as
they are and augmented, at 30% of 100 TFLOP/s.
"""

from __future__ import annotations

import argparse
import atexit
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.timing import make_batches, timed
from measurements.files import write_json
from pflow.checkpoint.load import Model, load_model
from pflow.data.files import FileOptions
from pflow.data.memory import keep_freed_memory
from pflow.data.prepare import prepare_events
from pflow.event.augment import Augmentation, Overlay, augment
from pflow.event.events import Events
from pflow.io.open import EventFile, open_events
from pflow.io.prepared.reader import prepared_inputs
from pflow.io.rootfile import read_branch

AUGMENTATION = Augmentation(
    rotate=True, reflect=True, overlay=Overlay(frequencies=[3, 1, 1, 1, 1], cone=0.2, max_hits=1000)
)
"""Of the recipe `general`."""

GPU_FLOPS = 0.3 * 100e12
"""FLOP/s that a training reaches on a GPU of 100 TFLOP/s."""

SOURCES = {"files": "reading", "prepared": "prepared"}
"""Where events come from, and the stage that reads them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, help="events with truth, flat or EDM4hep")
    parser.add_argument("--checkpoint", default="ild-g4-general", help="whose tokens and step (default: %(default)s)")
    parser.add_argument("--events", type=int, default=256, help="of each file, read at once (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="JSON file")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as the processes that load do
    model = load_model(args.checkpoint)
    rows = [measure(model, path, args) for path in args.files]
    for row in rows:
        stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in row["ms"].items())
        print(f"{row['file']}: {row['events']} events, CPU ms an event: {stages}")
        print(
            f"  reading {row['reading_over_plain']:.2f} of plain uproot, tokens {row['tokens_over_reading']:.2f} of "
            f"reading; a step takes {row['step_cpu']:.1f} events/s on this CPU"
        )
        for kind, found in row["loading"].items():
            cores = ", ".join(
                f"{found['per_core'][source]:.0f} events/s a core from {source} ({found['cores'][source]:.1f} cores)"
                for source in SOURCES
            )
            print(f"  {kind}: a GPU needs {found['gpu']:.0f} events/s; loading {cores}")
    if args.output:
        write_json(args.output, {"model": args.checkpoint, "torch": torch.__version__, "rows": rows})


def measure(model: Model, path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds an event of each stage, and the rates that follow from them."""
    with open_events(path) as file:
        n = min(args.events, file.num_entries)
        plain = plain_reading(file, n)
        times = {"plain": cpu_ms(args.runs, plain), "reading": cpu_ms(args.runs, lambda: file.read(0, n))}
        events = file.read(0, n)
    tokeniser = model.tokeniser
    if tokeniser.other_geometry(events.detector):
        raise SystemExit(f"{path}: of another detector than the model {args.checkpoint}, choose one with --checkpoint")
    times["prepared"] = cpu_ms(args.runs, prepared_reading(path, n))
    times["augmentation"] = cpu_ms(args.runs, lambda: augment(events, AUGMENTATION, np.random.default_rng(1)))
    kinds = {"as they are": events, "augmented": augment(events, AUGMENTATION, np.random.default_rng(1))}
    encoding: dict[str, float] = {}
    gpu: dict[str, float] = {}
    for kind, some in kinds.items():
        more = "" if kind == "as they are" else " augmented"
        times[f"tokens{more}"] = cpu_ms(args.runs, lambda some=some: tokeniser.encode(some, warn=False))
        encoding[kind] = cpu_ms(args.runs, lambda some=some: make_batches(model, some, args.batch_size, truth=True))
        times[f"padding{more}"] = max(encoding[kind] - times[f"tokens{more}"], 0.0)
        gpu[kind] = GPU_FLOPS / (step_flop(model, some[: 2 * args.batch_size], args.batch_size))
    seconds = cpu_ms(1, step(model, events[: 2 * args.batch_size], args.batch_size)) / 1e3
    ms = {stage: total / n for stage, total in times.items()}
    encoding["augmented"] += times["augmentation"]
    loading = {
        kind: {
            "gpu": gpu[kind],
            "per_core": {source: n * 1e3 / (times[stage] + encoding[kind]) for source, stage in SOURCES.items()},
            "cores": {
                source: gpu[kind] * (times[stage] + encoding[kind]) / n / 1e3 for source, stage in SOURCES.items()
            },
        }
        for kind in kinds
    }
    return {
        "file": path.name,
        "events": n,
        "ms": ms,
        "reading_over_plain": ms["reading"] / ms["plain"],
        "tokens_over_reading": ms["tokens"] / ms["reading"],
        "loading": loading,
        "step_cpu": min(n, 2 * args.batch_size) / seconds,
    }


def prepared_reading(path: Path, n: int) -> Callable[[], object]:
    """Reads `n` events of a file from what `pflow prepare` makes of them, which is removed at the end."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    prepare_events([str(path)], Path(folder.name) / "prepared", FileOptions(), block_size=n)
    file = open_events(prepared_inputs(str(Path(folder.name) / "prepared"))[0])
    return lambda: file.read(0, n)


def step(model: Model, events: Events, batch_size: int) -> Callable[[], None]:
    """Training steps, forward and backward, on batches of the events."""
    batches = make_batches(model, events, batch_size, truth=True)
    network = model.reconstructor.train()

    def steps() -> None:
        for batch in batches:
            network.training_step(batch).losses["total"].backward()

    return steps


def step_flop(model: Model, events: Events, batch_size: int) -> float:
    """FLOPs of a training step, an event."""
    with FlopCounter() as counter:
        step(model, events, batch_size)()
    return counter.total / len(events)


class FlopCounter(TorchDispatchMode):
    """Counts the floating-point operations of matrix products, as `torch.utils.flop_counter` does.

    Its own `FlopCounterMode` looks at the modules too, which fails where a part of the model runs without gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def plain_reading(file: EventFile, n: int) -> Callable[[], list[Any]]:
    """Reads with uproot alone what a reading of `n` events reads, and holds it until all is read, as reading does."""
    with recorded_branches() as branches:
        file.read(0, n)

    def read() -> list[Any]:
        return [
            table[branch].array(entry_start=start, entry_stop=stop, library="ak")
            for table, branch, start, stop in branches
        ]

    return read


@contextmanager
def recorded_branches() -> Iterator[list[tuple[Any, str, int, int]]]:
    """Tables, branches and entries that are read."""
    found: list[tuple[Any, str, int, int]] = []

    def recorded(table: Any, branch: str, start: int, stop: int, path: str | Path) -> Any:
        found.append((table, branch, start, stop))
        return read_branch(table, branch, start, stop, path)

    with patch("pflow.io.flat.read_branch", recorded), patch("pflow.io.columns.read_branch", recorded):
        yield found


def cpu_ms(runs: int, work: Callable[[], object]) -> float:
    """Smallest CPU time of several runs, after one that is not timed; ms."""
    work()
    return timed(runs, work)[1]["cpu_ms"]
