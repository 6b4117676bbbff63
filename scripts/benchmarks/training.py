"""A training step, and batches of a token budget against random ones, of a model on events of one or more files mixed.

The step: forward pass with losses, backward pass and optimiser. Two ways of batching are compared on the same events:
as in training (similar lengths together, at most `--max-tokens` source tokens), and random ones of `--batch-size`
events padded to the longest; each with its share of padding and its events a second, alternating in one run. One thread
on a CPU is timed by its CPU time, which other processes disturb less.

On a CPU an encoder packs the events of a batch side by side, so that padding costs little there. `--unpacked` pads them
as on a GPU. The steps of a refinement decode one particle after the other with the first stage. `--first-stage` leaves
it out, and the network's own particles before (scheduled sampling), which are drawn for one batch and not for another.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.timing import write_json
from pflow.checkpoint.load import load_model
from pflow.data.batch import Batch
from pflow.data.collate import Padder, bucket
from pflow.io.open import read_events
from pflow.model.common.layers import Packing


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", help="events with truth; --events are read of each")
    parser.add_argument("--checkpoint", default="ild-g4-general", help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=int, default=5000, help="default: %(default)s")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--unpacked", action="store_true", help="pad events on a CPU too")
    parser.add_argument("--first-stage", action="store_true", help="train a pointing network's first stage alone")
    parser.add_argument("--output", type=Path, help="JSON file")
    parser.add_argument("--events", type=int, default=64, help="of each file (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="repeats; the fastest counts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    with patch.object(Packing, "of", lambda _: None) if args.unpacked else nullcontext():
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Time both ways of batching."""
    torch.set_num_threads(args.threads)
    model = load_model(args.checkpoint)
    tokens = [model.tokeniser.encode(read_events(path, entry_stop=args.events), warn=False) for path in args.files]
    lengths = np.concatenate([part.n_source for part in tokens])
    generator = np.random.default_rng(1)
    # A budget holds more of the short events than a batch of fixed size.
    most = max(args.batch_size, args.max_tokens // max(int(lengths.min()), 1))
    budget = bucket(lengths, most, args.max_tokens, generator)
    order = generator.permutation(len(lengths))
    fixed = [order[start : start + args.batch_size] for start in range(0, len(order), args.batch_size)]
    padder = Padder(tokens)
    ways = {
        name: [padder.batch(rows).to(args.device) for rows in batches]
        for name, batches in {"budget": budget, "random": fixed}.items()
    }
    network: Any = model.reconstructor.to(args.device).train()
    if args.first_stage:
        network.network.refiner = None
        network.own_particles = False
    optimiser = torch.optim.AdamW(network.parameters())

    def forward(batches: Sequence[Batch]) -> None:
        for batch in batches:
            network.training_step(batch)
        _wait(args.device)

    def step(batches: Sequence[Batch]) -> None:
        for batch in batches:
            optimiser.zero_grad()
            network.training_step(batch).losses["total"].backward()
            optimiser.step()
        _wait(args.device)

    clock = time.process_time if args.device == "cpu" and args.threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.runs + 1):  # the first is not counted
        for name, batches in ways.items():
            start = clock()
            step(batches)
            times[name].append(clock() - start)
    rows: dict[str, Any] = {}
    print(f"{args.checkpoint}, {len(lengths)} events, {args.device}, {args.threads} threads")
    for name, batches in ways.items():
        step_ms = 1e3 * min(times[name][1:]) / len(batches)
        start = clock()
        forward(batches)
        loss = 1e3 * (clock() - start) / len(batches)
        rows[name] = {
            "batches": len(batches),
            "padding": padding(batches),
            "step_ms": step_ms,
            "forward_ms": loss,
            "events_per_s": 1e3 * len(lengths) / (step_ms * len(batches)),
        }
        print(
            f"{name}: {len(batches)} batches, {rows[name]['padding']:.1%} padding, {step_ms:.0f} ms a step ("
            f"{loss:.0f} forward and losses); {rows[name]['events_per_s']:.1f} events/s"
        )
    ratio = rows["budget"]["events_per_s"] / rows["random"]["events_per_s"]
    print(f"budget over random: {ratio:.2f} times the events/s")
    write_json(
        args.output,
        {"model": args.checkpoint, "device": args.device, "torch": torch.__version__, **rows, "ratio": ratio},
    )


def padding(batches: Sequence[Batch]) -> float:
    """Share of the source tokens of all batches that are padding."""
    masks = [part.mask for batch in batches for part in (batch.hits, batch.tracks) if part is not None]
    return 1.0 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
