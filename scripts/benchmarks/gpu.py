"""What a training on a GPU depends on: waits of the host, kernels, bfloat16, and memory against tokens.

Without a GPU waits and kernels are counted with tensors that say they are on one, and the rest is measured on the CPU.

waits: operations in which the host waits for the device, in decoding of a batch and in a step of each training; logging
waits once more. Beside them all operations on the device, each of at least one kernel.
precision: losses of each stage under bfloat16 autocast beside those in single precision, and the cosine between their
gradients.
memory: what a training step of the first stage, of one event made of several, keeps for its backward pass, and the
peak of the process.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from benchmarks.elsewhere import GPU, Device, Kernels, on_a_gpu
from benchmarks.memory import peak_mb, reset_peak
from benchmarks.timing import joined, make_batches
from measurements.files import RESULTS, write_json
from pflow.checkpoint.load import load_model
from pflow.data.batch import Batch
from pflow.data.collate import collate
from pflow.io.open import read_events
from pflow.model.api import Reconstructor

PARTS = ("memory", "waits", "precision")
"""Memory first: later the process keeps what it once had."""

SIZES = (500, 1000, 2000, 4000, 8000)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="events with truth")
    parser.add_argument("--checkpoint", default="ild-g4-general", help="a pointing network (default: %(default)s)")
    parser.add_argument("--events", type=int, default=8, help="of the batch (default: %(default)s)")
    parser.add_argument("--tokens", type=int, nargs="+", default=SIZES, help="for memory (default: 500 to 8,000)")
    parser.add_argument("--device", default="cpu", help="default: %(default)s")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS / 'gpu.json'}")


def run(args: argparse.Namespace) -> None:
    measure: dict[str, Callable[[argparse.Namespace], Any]] = {
        "waits": waits,
        "precision": precision,
        "memory": memory,
    }
    result: dict[str, Any] = {
        **{"file": args.file.name, "model": args.checkpoint, "device": args.device, "torch": torch.__version__}
    }
    for part in args.parts:
        result[part] = measure[part](args)
    if args.save:
        write_json(RESULTS / "gpu.json", result)


def waits(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Numbers of waits and kernels."""
    model = load_model(args.checkpoint)
    (batch,) = make_batches(model, read_events(args.file, entry_stop=args.events), args.events, truth=True)
    if args.device == "cpu":
        with Device():
            batch = batch.to(GPU)
        with on_a_gpu(model.reconstructor) as reconstructor:
            return _waits(reconstructor, batch, _counted)
    return _waits(model.reconstructor.to(args.device), batch.to(args.device), _counted_by_cuda)


def _waits(
    reconstructor: Any, batch: Batch, counted: Callable[[Callable[[], Any]], tuple[Any, dict[str, int]]]
) -> list[dict[str, Any]]:
    with torch.no_grad():
        found, numbers = counted(lambda: reconstructor.eval().generate(batch))
    longest = found.mask.shape[1]
    rows = [{"what": "decoding and refinement", "particles": longest, **numbers}]
    print(f"decoding and refinement of {len(batch)} events with up to {longest} particles: {_told(numbers)}")

    def step() -> None:
        reconstructor.training_step(batch).losses["total"].backward()

    reconstructor.train()
    stages = {"training step of the refinement": None, "training step of the first stage": 0.0}
    stages["the same with its own particles before (scheduled sampling)"] = 1.0
    for what, sampling in stages.items():
        if sampling is not None:
            reconstructor.network.refiner = None
            training = dataclasses.replace(reconstructor.training_config, scheduled_sampling_prob=sampling)
            reconstructor.training_config = training
        _, numbers = counted(step)
        rows.append({"what": what, "particles": longest, **numbers})
        print(f"{what}: {_told(numbers)}", flush=True)
    return rows


def _told(numbers: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in numbers.items())


def _counted(work: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    with Device() as device, Kernels() as kernels:
        found = work()
    return found, {"waits": len(device.waits), "kernels": kernels.count}


def _counted_by_cuda(work: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught, Kernels() as kernels:
            warnings.simplefilter("always")
            found = work()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    waits = sum("synchronizing CUDA" in str(warning.message) for warning in caught)
    return found, {"waits": waits, "kernels": kernels.count}


def precision(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Losses and gradients in bfloat16 beside those in single precision."""
    model = load_model(args.checkpoint)
    (batch,) = make_batches(model, read_events(args.file, entry_stop=args.events), args.events, truth=True)
    reconstructor: Any = model.reconstructor.to(args.device).eval()  # without random choices
    rows = []
    for stage in ("refinement", "first stage"):
        if stage == "first stage":
            reconstructor.network.refiner = None
        (losses, gradient), (rounded, other) = (
            _losses(reconstructor, batch.to(args.device), rounds=rounds) for rounds in (False, True)
        )
        cosine = cosine_similarity(gradient, other, dim=0).item()
        rows.append({"stage": stage, "float32": losses, "bfloat16": rounded, "cosine": cosine})
        largest = max(abs(rounded[name] - losses[name]) for name in losses)
        print(f"{stage}: losses differ by up to {largest:.4f}, cosine between gradients {cosine:.5f}", flush=True)
    return rows


def _losses(reconstructor: Reconstructor, batch: Batch, *, rounds: bool) -> tuple[dict[str, float], Tensor]:
    """Losses by name, and all gradients in one row."""
    reconstructor.zero_grad()
    with torch.autocast(batch.hits.mask.device.type, dtype=torch.bfloat16, enabled=rounds):
        losses = reconstructor.training_step(batch).losses
    losses["total"].backward()
    gradients = [p.grad.flatten() for p in reconstructor.parameters() if p.grad is not None]
    return {name: loss.item() for name, loss in losses.items()}, torch.cat(gradients)


def memory(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Memory of a training step of one event of about so many tokens."""
    model = load_model(args.checkpoint)
    reconstructor: Any = model.reconstructor.to(args.device).train()
    reconstructor.network.refiner = None
    reconstructor.training_config = dataclasses.replace(reconstructor.training_config, scheduled_sampling_prob=0.0)
    events = read_events(args.file, entry_stop=100)
    some = model.tokeniser.encode(events[:20], truth=False)
    hits = sum(len(event) for event in events.hits.energy[:20])
    per_token = hits / int(some.n_source.sum())
    rows = []
    for size in args.tokens:
        tokens = model.tokeniser.encode(joined(events, int(size * per_token)), truth=True)
        row = {
            **{"tokens": int(tokens.n_source[0]), "particles": len(tokens.pdg)},
            **_memory(reconstructor, collate(tokens).to(args.device)),
        }
        rows.append(row)
        text = ", ".join(f"{value:.0f} {name}" for name, value in row.items())
        print(text, flush=True)
    return rows


def _memory(reconstructor: Reconstructor, batch: Batch) -> dict[str, float]:
    """What a step keeps for its backward pass, and the peak of the process (of what is allocated on a GPU), MB."""
    known = {parameter.untyped_storage().data_ptr() for parameter in reconstructor.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    reconstructor.zero_grad()
    on_cuda = batch.hits.mask.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        reset_peak()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        total = reconstructor.training_step(batch).losses["total"]
    total.backward()
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_cuda else peak_mb()
    return {"kept_mb": sum(kept.values()) / 2**20, "peak_mb": peak}
