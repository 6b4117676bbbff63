"""Decoding and training steps on a GPU: ms an event, waits of the host, memory, and losses, in float32 and bfloat16.

One batch of each size; `--device cpu` tries the script out, without waits: operations in which the host waits for the
device, as PyTorch's warnings count them. The last line says how many events of a training step fit into the memory.
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
from pflow.checkpoint import load_model
from pflow.inference.events import pick_device
from pflow.io.open import read_events


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="events with truth")
    parser.add_argument("--checkpoint", default="general", help="a pointing network (default: %(default)s)")
    parser.add_argument("--events", type=int, nargs="+", default=[32, 128], help="of a batch (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="repeats; the fastest counts (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    on_gpu = pick_device(args.device).type == "cuda"
    print(torch.cuda.get_device_name(args.device) if on_gpu else args.device)
    fits = args.events[0]
    for n_events in args.events:
        try:
            fits = measure(args, n_events, on_gpu=on_gpu)
        except torch.OutOfMemoryError:
            print(f"{n_events} events do not fit")
            break
    print(f"fits: {fits if on_gpu else max(args.events)} events")


def measure(args: argparse.Namespace, n_events: int, *, on_gpu: bool) -> int:
    """Print the numbers of decoding and of a step of each training; returns how many events of a step would fit."""
    model = load_model(args.checkpoint)
    (batch,) = make_batches(model, read_events(args.file, entry_stop=n_events), n_events, truth=True)
    batch, n_events = batch.to(args.device), len(batch)
    reconstructor: Any = model.reconstructor.to(args.device)

    def decode() -> dict[str, float]:
        with torch.inference_mode():
            return {"particles": float(reconstructor.eval().generate(batch).mask.sum())}

    def train() -> dict[str, float]:
        reconstructor.zero_grad()
        reconstructor.train().training_step(batch)["total"].backward()
        return {}

    def gradient() -> tuple[float, torch.Tensor]:
        reconstructor.zero_grad()
        loss = reconstructor.eval().training_step(batch)["total"]  # without random choices
        loss.backward()
        parts = [p.grad.flatten() for p in reconstructor.parameters() if p.grad is not None]
        return loss.item(), torch.cat(parts)

    for what, work in (("decoding", decode), ("step of the refinement", train), ("step of the first stage", train)):
        if what == "step of the first stage":
            reconstructor.network.refiner = None
        gradients: list[tuple[float, torch.Tensor]] = []
        for name, rounds in (("float32", False), ("bfloat16", True)):
            with torch.autocast(batch.hits.mask.device.type, dtype=torch.bfloat16, enabled=rounds):
                numbers = cost(work, args.runs, n_events, on_gpu=on_gpu)
                gradients += [gradient()] if work is train else []
            numbers |= {"loss": gradients[-1][0]} if gradients else {}
            if gradients:
                numbers["cosine of the gradients"] = cosine_similarity(gradients[0][1], gradients[-1][1], 0)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
            print(f"{what}, {n_events} events, {name}: {shown}", flush=True)
        if what == "step of the refinement":
            most_mb = numbers["peak MB"]
    memory_mb = torch.cuda.get_device_properties(args.device).total_memory / 2**20 if on_gpu else 0.0
    return int(0.7 * memory_mb / most_mb * n_events)  # 30% of the memory stay free


def cost(work: Callable[[], dict[str, float]], runs: int, n_events: int, *, on_gpu: bool) -> dict[str, float]:
    """Wall time, what the work returns, waits of the host, and most memory."""

    def whole() -> None:
        work()
        if on_gpu:
            torch.cuda.synchronize()

    whole()  # compiles and allocates
    if not on_gpu:
        return {"ms an event": timed(runs, whole)[2] / n_events, "peak MB": peak_mb(), **work()}
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchronizing CUDA" in str(warning.message) for warning in caught)
    peak = torch.cuda.max_memory_allocated() / 2**20
    return {"ms an event": timed(runs, whole)[2] / n_events, "waits": waits, "peak MB": peak, **result}
