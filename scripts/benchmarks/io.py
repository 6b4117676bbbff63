"""Loading for training, stage by stage: CPU time of an event on one core.

Stages: reading (file to events, validated, with truth), cached (the same with --data.cache), tokens (truth rules,
merging, features, targets), padding, augmentation, and tokens and padding of augmented events, which are larger where
events are joined. Batches are filled to a budget of tokens.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import torch

from benchmarks.timing import cpu_ms
from pflow.checkpoint.load import TrainedModel, load_model
from pflow.data.batch import Batch
from pflow.data.collate import Padder, bucket
from pflow.data.files import FileOptions, survey
from pflow.event.augment import Augmentation, Overlay, augment
from pflow.event.events import Events
from pflow.io.open import open_events

AUGMENTATION = Augmentation(
    rotate=True, reflect=True, overlay=Overlay(frequencies=[3, 1, 1, 1, 1], cone=0.2, max_hits=1000)
)
"""Of the recipe `general`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, help="events with truth, flat or EDM4hep")
    parser.add_argument("--checkpoint", default="general", help="with the tokeniser (default: %(default)s)")
    parser.add_argument("--events", type=int, default=256, help="of each file, read at once (default: %(default)s)")
    parser.add_argument("--chunk-size", type=int, help="read so many at a time (default: all)")
    parser.add_argument("--max-tokens", type=int, default=20000, help="of a batch (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="repeats; the fastest counts (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    model = load_model(args.checkpoint)
    rows = [measure(model, path, args) for path in args.files]
    for row in rows:
        stages = ", ".join(f"{stage} {ms:.3f}" for stage, ms in row["ms"].items())
        print(f"{row['file']}: {row['events']} events, CPU ms an event: {stages}")


def measure(model: TrainedModel, path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds an event of each stage."""
    with open_events(path) as file:
        n = min(args.events, file.num_entries)
        step = args.chunk_size or n

        def read() -> None:
            for start in range(0, n, step):
                file.read(start, min(start + step, n))

        times = {"reading": cpu_ms(args.runs, read)}
        events = file.read(0, n)
    with tempfile.TemporaryDirectory() as folder:
        file = survey([str(path)], FileOptions(cache=folder), n)[1].open_cached(str(path))
        times["cached"] = cpu_ms(args.runs, lambda: [ak.to_packed(part) for _, part in file.read(0, n).parts()])
    if model.tokeniser.other_geometry(events.detector):
        raise SystemExit(f"{path}: of another detector than {args.checkpoint}, choose one with --checkpoint")
    times["augmentation"] = cpu_ms(args.runs, lambda: augment(events, AUGMENTATION, np.random.default_rng(1)))
    kinds = {"": events, " augmented": augment(events, AUGMENTATION, np.random.default_rng(1))}
    for kind, some in kinds.items():
        times[f"tokens{kind}"] = cpu_ms(args.runs, lambda some=some: model.tokeniser.encode(some, warn=False))
        total = cpu_ms(args.runs, lambda some=some: make_batches(model, some, args.max_tokens))
        times[f"padding{kind}"] = max(total - times[f"tokens{kind}"], 0.0)
    return {"file": path.name, "events": n, "ms": {stage: total / n for stage, total in times.items()}}


def make_batches(model: TrainedModel, events: Events, max_tokens: int) -> list[Batch]:
    """Batches of the events, as a training cuts a buffer of them into batches."""
    tokens = model.tokeniser.encode(events, warn=False)
    padder, generator = Padder([tokens]), np.random.default_rng(1)
    return [padder.batch(rows) for rows in bucket(tokens.n_source, len(tokens), max_tokens, generator)]
