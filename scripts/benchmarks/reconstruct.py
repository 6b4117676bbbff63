"""Events a second of a reconstruction: in batches, and in several processes beside each other.

A translation network is timed beside the loop without caches, too, which the first paper's code has. Whole events, from
the file to particles in memory, wall time. Beside torch in batches stands the share of reading, tokens and network.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.naive import generate_naively
from benchmarks.timing import make_batches, timed, write_json
from pflow.checkpoint.load import TrainedModel, load_model
from pflow.inference.events import BATCH_SIZE, reconstruct
from pflow.io.open import open_events
from pflow.model.translation import TranslationReconstructor


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--checkpoint", default="ild-g4-general", help="default: %(default)s")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, BATCH_SIZE], help="default: %(default)s")
    parser.add_argument("--events", type=int, default=64, help="of each file (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="repeats; the fastest counts (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="of one thread (default: %(default)s)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, help="JSON file")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    model = load_model(args.checkpoint)
    rows = []
    for path in args.files:
        rows += [measure(model, path, size, args) for size in args.batch_sizes]
        if isinstance(model.reconstructor, TranslationReconstructor):
            rows.append(naive(model, path, args))
        if args.processes > 1:
            rows.append(side_by_side(path, args))
    for row in rows:
        stages = ", ".join(f"{name} {ms:.1f}" for name, ms in row.get("stages", {}).items())
        print(f"{row['file']}, {row['how']}: {row['ms']:.1f} ms an event{f' ({stages})' if stages else ''}")
    write_json(args.output, {"model": args.checkpoint, "torch": torch.__version__, "rows": rows})


def measure(model: TrainedModel, path: Path, batch_size: int, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds an event of torch."""
    with open_events(path) as file:
        n = min(args.events, file.num_entries)
        events, _, reading = timed(args.runs, lambda: file.read(0, n, truth=False))
    _, _, tokens = timed(args.runs, lambda: make_batches(model, events, batch_size))
    options: dict[str, Any] = {"batch_size": batch_size, "device": args.device}
    _, _, total = timed(args.runs, lambda: reconstruct(events, model, **options))
    stages = {"reading": reading / n, "tokens": tokens / n, "network": (total - tokens) / n}
    how = f"torch, {args.device}, batches of {batch_size}"
    return {"file": path.name, "how": how, "ms": sum(stages.values()), "stages": stages}


def naive(model: TrainedModel, path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds an event without caches, one event after another."""
    network: Any = model.reconstructor.network
    limit = model.reconstructor.decoding.max_particles

    def work() -> None:
        for batch in make_batches(model, file.read(0, n, truth=False), 1):
            generate_naively(network, batch, max_particles=limit)

    with open_events(path) as file:
        n = min(args.events, file.num_entries)
        _, _, ms = timed(args.runs, work)
    return {"file": path.name, "how": "torch, one event after another without caches", "ms": ms / n}


def side_by_side(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds an event of processes of one thread, each with the same events."""
    context = multiprocessing.get_context("spawn")
    barrier, times = context.Barrier(args.processes), context.Queue()
    options = (args.checkpoint, path, args.events, args.runs, barrier, times)
    workers = [context.Process(target=_work, args=options) for _ in range(args.processes)]
    for worker in workers:
        worker.start()
    each = [times.get(timeout=1800) for _ in workers]
    for worker in workers:
        worker.join()
    # A run takes as long as its slowest process.
    ms = min(max(run) for run in zip(*each, strict=True)) / args.processes
    return {"file": path.name, "how": f"torch, {args.processes} processes", "ms": ms}


def _work(name: str, path: Path, n_events: int, runs: int, barrier: Any, times: Any) -> None:
    torch.set_num_threads(1)
    model = load_model(name)
    with open_events(path) as file:
        n = min(n_events, file.num_entries)
        reconstruct(file.read(0, min(n, 4), truth=False), model, device="cpu")
        ms_per_event = []
        for _ in range(runs):
            barrier.wait()
            _, _, ms = timed(1, lambda: reconstruct(file.read(0, n, truth=False), model, device="cpu"))
            ms_per_event.append(ms / n)
    times.put(ms_per_event)
