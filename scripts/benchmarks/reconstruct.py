"""Time of an event of a reconstruction in batches.

Whole events, from the file to particles in memory, wall time, with the share of reading, tokens and network.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import add_common_options, make_batches, timed
from pflow.checkpoint import TrainedModel, load_model
from pflow.inference.events import BATCH_SIZE, reconstruct
from pflow.io.open import open_events


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path)
    add_common_options(parser, events=64)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, BATCH_SIZE], help="default: %(default)s")
    parser.add_argument("--device", default="cpu")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    model = load_model(args.checkpoint)
    for path in args.files:
        for size in args.batch_sizes:
            stages = measure(model, path, size, args)
            shares = ", ".join(f"{name} {ms:.1f}" for name, ms in stages.items())
            how = f"torch, {args.device}, batches of {size}"
            print(f"{path.name}, {how}: {sum(stages.values()):.1f} ms an event ({shares})", flush=True)


def measure(model: TrainedModel, path: Path, batch_size: int, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds an event of each stage in torch."""
    with open_events(path) as file:
        n = min(args.events, file.num_entries)
        events, _, reading = timed(args.runs, lambda: file.read(0, n, truth=False))
    _, _, tokens = timed(args.runs, lambda: make_batches(model, events, batch_size))
    options: dict[str, Any] = {"batch_size": batch_size, "device": args.device}
    _, _, total = timed(args.runs, lambda: reconstruct(events, model, **options))
    return {"reading": reading / n, "tokens": tokens / n, "network": (total - tokens) / n}
