"""Decoding and training steps on a GPU: time, waits of the host, memory, and losses under bfloat16 autocast.

One batch; `--device cpu` tries the script out, without waits: operations in which the host waits for the device,
as PyTorch's warnings count them.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from benchmarks.timing import make_batches, peak_mb, timed
from pflow.checkpoint.load import load_model
from pflow.data.batch import Batch
from pflow.io.open import read_events


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="events with truth")
    parser.add_argument("--checkpoint", default="general", help="a pointing network (default: %(default)s)")
    parser.add_argument("--events", type=int, nargs="+", default=[32, 128], help="of a batch (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="repeats; the fastest counts (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    print(torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else args.device)
    for n_events in args.events:
        for what, numbers in measure(args, n_events).items():
            print(f"{what}, {n_events} events:", ", ".join(f"{key} {value:.4g}" for key, value in numbers.items()))


def measure(args: argparse.Namespace, n_events: int) -> dict[str, dict[str, float]]:
    """Numbers of decoding and of a step of each training."""
    model = load_model(args.checkpoint)
    (batch,) = make_batches(model, read_events(args.file, entry_stop=n_events), n_events, truth=True)
    batch = batch.to(args.device)
    reconstructor: Any = model.reconstructor.to(args.device)

    def decode() -> None:
        with torch.inference_mode():
            reconstructor.eval().generate(batch)

    def train() -> None:
        reconstructor.zero_grad()
        reconstructor.train().training_step(batch)["total"].backward()

    numbers = {"decoding and refinement": cost(decode, args)}
    numbers["step of the refinement"] = cost(train, args) | precision(reconstructor, batch)
    reconstructor.network.refiner = None
    return numbers | {"step of the first stage": cost(train, args) | precision(reconstructor, batch)}


def cost(work: Callable[[], None], args: argparse.Namespace) -> dict[str, float]:
    """Wall time, waits of the host, and most memory."""
    on_gpu = args.device.startswith("cuda")

    def whole() -> None:
        work()
        if on_gpu:
            torch.cuda.synchronize()

    whole()  # compiles and allocates
    if not on_gpu:
        return {"ms": timed(args.runs, whole)[2], "peak MB": peak_mb()}
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchronizing CUDA" in str(warning.message) for warning in caught)
    ms = timed(args.runs, whole)[2]
    return {"ms": ms, "waits": waits, "peak MB": torch.cuda.max_memory_allocated() / 2**20}


def precision(reconstructor: Any, batch: Batch) -> dict[str, float]:
    """Total loss in single precision and in bfloat16, and the cosine between the gradients."""
    reconstructor.eval()  # without random choices
    losses, gradients = [], []
    for rounds in (False, True):
        reconstructor.zero_grad()
        with torch.autocast(batch.hits.mask.device.type, dtype=torch.bfloat16, enabled=rounds):
            losses.append(reconstructor.training_step(batch)["total"])
        losses[-1].backward()
        gradients.append(torch.cat([p.grad.flatten() for p in reconstructor.parameters() if p.grad is not None]))
    cosine = cosine_similarity(*gradients, dim=0).item()
    return {"loss": losses[0].item(), "bfloat16": losses[1].item(), "cosine": cosine}
