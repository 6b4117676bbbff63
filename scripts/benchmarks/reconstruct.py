"""Time of an event of a reconstruction in batches.

A translation network is timed beside the loop without caches, too, which the first paper's code has. Whole events, from
the file to particles in memory, wall time. Beside torch in batches stands the share of reading, tokens and network.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.naive import generate_naively
from benchmarks.timing import make_batches, timed
from pflow.checkpoint.load import TrainedModel, load_model
from pflow.inference.events import BATCH_SIZE, reconstruct
from pflow.io.open import open_events
from pflow.model.translation import TranslationReconstructor


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--checkpoint", default="general", help="default: %(default)s")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, BATCH_SIZE], help="default: %(default)s")
    parser.add_argument("--events", type=int, default=64, help="of each file (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="repeats; the fastest counts (default: %(default)s)")
    parser.add_argument("--device", default="cpu")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    model = load_model(args.checkpoint)
    rows = []
    for path in args.files:
        rows += [measure(model, path, size, args) for size in args.batch_sizes]
        if isinstance(model.reconstructor, TranslationReconstructor):
            rows.append(naive(model, path, args))
    for row in rows:
        stages = ", ".join(f"{name} {ms:.1f}" for name, ms in row.get("stages", {}).items())
        print(f"{row['file']}, {row['how']}: {row['ms']:.1f} ms an event{f' ({stages})' if stages else ''}")


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
