"""Loading for training, stage by stage: CPU time of an event on one core.

Stages: reading (file to events, validated, with truth), tokens (truth rules, merging, features, targets), padding,
augmentation, and tokens and padding of augmented events, which are larger where events are joined. Batches are filled
to a budget of tokens.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import add_common_options, timed
from pflow.checkpoint import TrainedModel, load_model
from pflow.data.batch import Batch
from pflow.data.dataset import Padder, bucket
from pflow.event.augment import Augmentation, Overlay, augment
from pflow.io.open import open_events
from pflow.tokens.tokens import Tokens

AUGMENTATION = Augmentation(
    rotate=True, reflect=True, overlay=Overlay(frequencies=[3, 1, 1, 1, 1], cone=0.2, max_hits=1000)
)
"""Of the recipe `general`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, help="events with truth, flat or EDM4hep")
    add_common_options(parser, events=256)
    parser.add_argument("--chunk-size", type=int, help="read so many at a time (default: all)")
    parser.add_argument("--max-tokens", type=int, default=20000, help="of a batch (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    model = load_model(args.checkpoint)
    for path in args.files:
        n, times = measure(model, path, args)
        stages = ", ".join(f"{stage} {ms / n:.3f}" for stage, ms in times.items())
        print(f"{path.name}: {n} events, CPU ms an event: {stages}")


def measure(model: TrainedModel, path: Path, args: argparse.Namespace) -> tuple[int, dict[str, float]]:
    """Number of events, and milliseconds of each stage."""

    def cpu_ms(work: Callable[[], object]) -> float:
        work()  # not counted
        return timed(args.runs, work)[1]

    with open_events(path) as file:
        n = min(args.events, file.num_entries)
        step = args.chunk_size or n
        chunks = [(start, min(start + step, n)) for start in range(0, n, step)]
        times = {"reading": cpu_ms(lambda: [file.read(*chunk) for chunk in chunks])}
        events = file.read(0, n)
    if model.tokeniser.other_geometry(events.detector):
        raise SystemExit(f"{path}: of another detector than {args.checkpoint}, choose one with --checkpoint")
    times["augmentation"] = cpu_ms(lambda: augment(events, AUGMENTATION, np.random.default_rng(1)))
    for kind, some in {"": events, " augmented": augment(events, AUGMENTATION, np.random.default_rng(1))}.items():
        encode = functools.partial(model.tokeniser.encode, some, warn=False)
        times[f"tokens{kind}"] = cpu_ms(encode)
        times[f"padding{kind}"] = cpu_ms(functools.partial(make_batches, encode(), args.max_tokens))
    return n, times


def make_batches(tokens: Tokens, max_tokens: int) -> list[Batch]:
    """Batches of the events, as a training cuts a buffer of them into batches."""
    padder = Padder([tokens])
    return [padder.batch(rows) for rows in bucket(tokens.n_source, len(tokens), max_tokens, np.random.default_rng(1))]
