"""Loading for training, stage by stage, beside what a training step needs, in events a second of one core.

Stages, in CPU time: plain (uproot alone, the same branches), reading (file to events, validated, with truth), tokens
(truth rules, merging, features, targets), augmentation, padding. The training step is that of the model on this CPU
with one thread; what a GPU needs follows from the step's FLOPs (forward and backward) at 30% of 100 TFLOP/s.
"""

from __future__ import annotations

import argparse
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
from pflow.event.augment import Augmentation, Overlay, augment
from pflow.io.open import EventFile, open_events
from pflow.io.rootfile import read_branch

__all__ = ["add_options", "run"]

AUGMENTATION = Augmentation(
    rotate=True, reflect=True, overlay=Overlay(frequencies=[3, 1, 1, 1, 1], cone=0.2, max_hits=1000)
)
"""Of the recipe `general`."""

GPU_FLOPS = 0.3 * 100e12
"""FLOP/s that a training reaches on a GPU of 100 TFLOP/s."""

WORKERS = 8
"""Processes that load for one GPU."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, help="events with truth, flat or EDM4hep")
    parser.add_argument("--checkpoint", default="ild-g4-general", help="whose tokens and step (default: %(default)s)")
    parser.add_argument("--events", type=int, default=256, help="of each file, read at once (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="JSON file")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    model = load_model(args.checkpoint)
    rows = [measure(model, path, args) for path in args.files]
    for row in rows:
        stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in row["ms"].items())
        print(f"{row['file']}: {row['events']} events, CPU ms an event: {stages}")
        print(
            f"  reading {row['reading_over_plain']:.2f} of plain uproot, tokens {row['tokens_over_reading']:.2f} of "
            f"reading; loading {row['loading_per_core']:.0f} events/s a core; a step needs {row['step_cpu']:.1f} "
            f"events/s on this CPU and {row['step_gpu']:.0f} on a GPU, {row['cores_for_gpu']:.1f} cores"
        )
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
    times["augmentation"] = cpu_ms(args.runs, lambda: augment(events, AUGMENTATION, np.random.default_rng(1)))
    times["tokens"] = cpu_ms(args.runs, lambda: tokeniser.encode(events, warn=False))
    padded = cpu_ms(args.runs, lambda: make_batches(model, events, args.batch_size, truth=True))
    times["padding"] = max(padded - times["tokens"], 0.0)
    batches = make_batches(model, events[: min(n, 2 * args.batch_size)], args.batch_size, truth=True)
    n_stepped = sum(map(len, batches))
    network = model.reconstructor.train()

    def step() -> None:
        for batch in batches:
            network.training_step(batch).losses["total"].backward()

    counter = FlopCounter()
    with counter:
        step()
    seconds = cpu_ms(1, step) / 1e3
    ms = {stage: total / n for stage, total in times.items()}
    loading = 1e3 / sum(ms[stage] for stage in ("reading", "augmentation", "tokens", "padding"))
    gpu = GPU_FLOPS / (counter.total / n_stepped)
    return {
        "file": path.name,
        "events": n,
        "ms": ms,
        "reading_over_plain": ms["reading"] / ms["plain"],
        "tokens_over_reading": ms["tokens"] / ms["reading"],
        "loading_per_core": loading,
        "step_cpu": n_stepped / seconds,
        "step_gflop": counter.total / n_stepped / 1e9,
        "step_gpu": gpu,
        "cores_for_gpu": gpu / loading,
        "enough_for_gpu": gpu <= WORKERS * loading,
    }


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
