"""Reconstruction of an event and where the time goes: speed.json, from which RESULTS.md has a table.

The steps of `pflow reconstruct` with 1, 16 and 32 (the default) events at a time, on all cores; and as with `--cluster
local:N`, in one process of one thread for each core. Stages: reading (file to events), tokens (merging, features,
padding), encoder, decoder (with refinement), output (particles, links, covariances, file).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import torch

from benchmarks.timing import fastest, make_batches
from measurements.files import RESULTS, write_json
from measurements.tables import speed_table
from pflow.checkpoint.load import Model, load_model
from pflow.event.particles import Reconstruction
from pflow.inference.events import BATCH_SIZE, reconstruct
from pflow.io.open import open_events
from pflow.io.particles_root import RecoWriter

BATCH_SIZES = (1, 16, BATCH_SIZE)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--checkpoint", default="ild-g4-general", help="default: %(default)s")
    parser.add_argument("--events", type=int, default=64, help="of each file (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="and processes (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS / 'speed.json'}")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    model = load_model(args.checkpoint)
    rows = [measure(model, path, size, args.events, args.runs) for path in args.files for size in BATCH_SIZES]
    result = {
        "model": args.checkpoint,
        "processor": platform.processor() or platform.machine(),
        "threads": args.threads,
        "torch": torch.__version__,
        "rows": rows,
        "processes_ms": {path.name: side_by_side(args, path) for path in args.files},
    }
    print(speed_table(result))
    if args.save:
        write_json(RESULTS / "speed.json", result)


def measure(model: Model, path: Path, batch_size: int, n_events: int, runs: int) -> dict[str, Any]:
    """Milliseconds an event of each stage."""
    with open_events(path) as file:
        n = min(n_events, file.num_entries)
        reading = fastest(runs, file.read, 0, n, truth=False)
        events = file.read(0, n, truth=False)
    batches = make_batches(model, events, batch_size)
    reconstructor = model.reconstructor

    def encode() -> None:
        with torch.inference_mode():
            for batch in batches:
                reconstructor.network.encode(batch)

    answer = reconstruct(events, model, batch_size=batch_size, device="cpu")
    tokens = fastest(runs, make_batches, model, events, batch_size)
    encoder = fastest(runs, encode)
    generation = fastest(runs, lambda: [reconstructor.generate(batch) for batch in batches])
    whole = fastest(runs, reconstruct, events, model, batch_size=batch_size, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        writing = fastest(runs, write, Path(folder) / "reco.root", answer)
    times = {
        "reading": reading,
        "tokens": tokens,
        "encoder": encoder,
        "decoder": generation - encoder,
        "output": max(whole - tokens - generation, 0.0) + writing,
    }
    lengths = [int(batch.hits.mask.sum()) for batch in batches]
    lengths += [int(batch.tracks.mask.sum()) for batch in batches if batch.tracks is not None]
    return {
        "file": path.name,
        "events": n,
        "batch_size": batch_size,
        "hits": float(ak.mean(ak.num(events.hits))),
        "tokens": float(np.sum(lengths) / n),
        "particles": float(ak.mean(ak.num(answer.particles))),
        "ms": {stage: time / n for stage, time in times.items()},
    }


def side_by_side(args: argparse.Namespace, path: Path) -> float:
    """Milliseconds an event, all stages, of processes of one thread, each with events of its own."""
    context = multiprocessing.get_context("spawn")
    barrier, times = context.Barrier(args.threads), context.Queue()
    options = (args.checkpoint, path, args.events, args.runs, barrier, times)
    workers = [context.Process(target=_work, args=options) for _ in range(args.threads)]
    for worker in workers:
        worker.start()
    each = [times.get(timeout=1800) for _ in workers]
    for worker in workers:
        worker.join()
    # A run takes as long as its slowest process.
    return min(max(run) for run in zip(*(seconds for seconds, _ in each), strict=True)) / sum(n for _, n in each)


def _work(name: str, path: Path, n_events: int, runs: int, barrier: Any, times: Any) -> None:
    torch.set_num_threads(1)
    model = load_model(name)
    with open_events(path) as file, tempfile.TemporaryDirectory() as folder:
        n = min(n_events, file.num_entries)
        reconstruct(file.read(0, min(n, 4), truth=False), model, device="cpu")

        def once() -> None:
            answer = reconstruct(file.read(0, n, truth=False), model, device="cpu")
            write(Path(folder) / "reco.root", answer)

        found = []
        for _ in range(runs):
            barrier.wait()
            found.append(fastest(1, once))
    times.put((found, n))


def write(path: Path, answer: Reconstruction) -> None:
    """Write particles, links and covariances."""
    with RecoWriter(path, provenance={}) as writer:
        writer.extend(answer)
