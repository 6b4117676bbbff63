"""A training step: forward pass with losses, backward pass and optimiser, of a model on events of a file."""

from __future__ import annotations

import argparse

import torch

from benchmarks.timing import add_common_options, fastest, make_batches
from pflow.checkpoint.load import load_model
from pflow.io.open import read_events

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="events with truth")
    parser.add_argument("--checkpoint", default="ild-g4-general", help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--device", default="cpu")
    add_common_options(parser)


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    model = load_model(args.checkpoint)
    events = read_events(args.file, entry_stop=args.events)
    batches = [batch.to(args.device) for batch in make_batches(model, events, args.batch_size, truth=True)]
    network = model.reconstructor.to(args.device).train()
    optimiser = torch.optim.AdamW(network.parameters())

    def forward() -> None:
        for batch in batches:
            network.training_step(batch)
        _wait(args.device)

    def step() -> None:
        for batch in batches:
            optimiser.zero_grad()
            network.training_step(batch).losses["total"].backward()
            optimiser.step()
        _wait(args.device)

    step()
    whole, loss = fastest(args.runs, step) / len(batches), fastest(args.runs, forward) / len(batches)
    rate = 1e3 * len(events) / (whole * len(batches))
    print(f"{args.checkpoint}, {args.batch_size} events a batch, {args.device}, {args.threads} threads")
    print(f"{whole:.0f} ms a step, of which {loss:.0f} forward and losses; {rate:.1f} events/s")


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
