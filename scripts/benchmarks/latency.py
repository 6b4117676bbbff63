"""One event at a time: CPU and wall time of an event, from the file to particles, by stage.

What a reconstruction in an event loop pays, with one thread. Stages: reading (of all entries, shared), tokens (merging,
features, padding), encoder, decoder (first stage), refinement, output (particles and links). Each event is done
`--runs` times and the fastest CPU time of each stage counts. Before them, and for comparison, batches of 32.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from pflow.checkpoint.load import Model, load_model
from pflow.data.collate import collate
from pflow.event.events import Events
from pflow.inference.events import BATCH_SIZE, reconstruct
from pflow.io.open import EventFile, open_events
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.decoder_step import decode_first_stage

__all__ = ["add_options", "run"]

Result = TypeVar("Result")

KINDS = ("cpu_ms", "wall_ms")
STAGES = ("reading", "tokens", "encoder", "decoder", "refinement", "output")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    parser.add_argument("--checkpoint", default="ild-g4-general", help="default: %(default)s")
    parser.add_argument("--events", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="JSON file")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    model = load_model(args.checkpoint)
    with open_events(args.file) as file:
        n = min(args.events, file.num_entries)
        batches = [measure_batches(model, file, n) for _ in range(args.runs)]
        events, reading = timed(args.runs, lambda: file.read(0, n, truth=False))
    shared = {kind: ms / n for kind, ms in reading.items()}
    rows = [measure_event(model, events[entry : entry + 1], shared, args.runs) for entry in range(n)]
    result: dict[str, Any] = {"file": args.file.name, "model": args.checkpoint, "events": n, "torch": torch.__version__}
    result["batches_of_32"] = {"cpu_ms": min(batches)}
    for kind in KINDS:
        total = np.array([sum(row[kind].values()) for row in rows])
        stages = {stage: float(np.mean([row[kind][stage] for row in rows])) for stage in STAGES}
        percentiles = {f"p{q}": float(np.percentile(total, q)) for q in (50, 99)}
        result[kind] = {"mean": float(total.mean()), **percentiles, "stages": stages}
        text = ", ".join(f"{stage} {ms:.1f}" for stage, ms in stages.items())
        mean, p50, p99 = (result[kind][name] for name in ("mean", "p50", "p99"))
        print(f"{kind:8} an event: mean {mean:.1f}, p50 {p50:.1f}, p99 {p99:.1f}; {text}")
    print(f"batches of {BATCH_SIZE}: {min(batches):.1f} ms of CPU time an event, reading included")
    if args.output:
        args.output.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


def measure_batches(model: Model, file: EventFile, n: int) -> float:
    """CPU time of an event in batches, ms."""
    start = time.process_time()
    reconstruct(file.read(0, n, truth=False), model, device="cpu")
    return 1e3 * (time.process_time() - start) / n


def measure_event(model: Model, event: Events, reading: dict[str, float], runs: int) -> dict[str, dict[str, float]]:
    """CPU and wall time of each stage of one event, ms."""
    reconstructor = model.reconstructor.eval()
    network, decoding = reconstructor.network, reconstructor.decoding
    times = {"reading": reading}
    with torch.inference_mode():
        batch, times["tokens"] = timed(runs, lambda: collate([model.tokeniser.encode(event, truth=False)[0]]))
        source, times["encoder"] = timed(runs, lambda: network.encode(batch))
        _, times["decoder"] = timed(runs, lambda: decode_first_stage(network, source.copy(), decoding, Sampler()))
        _, generated = timed(runs, lambda: reconstructor.generate(batch))
        _, whole = timed(runs, lambda: reconstruct(event, model, batch_size=1, device="cpu"))
    for kind in KINDS:
        before = times["encoder"][kind] + times["decoder"][kind]
        times.setdefault("refinement", {})[kind] = max(generated[kind] - before, 0.0)
        times.setdefault("output", {})[kind] = max(whole[kind] - generated[kind] - times["tokens"][kind], 0.0)
    return {kind: {stage: times[stage][kind] for stage in STAGES} for kind in KINDS}


def timed(runs: int, work: Callable[[], Result]) -> tuple[Result, dict[str, float]]:
    """Result of a call, and the shortest CPU and wall times of several, ms."""
    best = dict.fromkeys(KINDS, float("inf"))
    for _ in range(runs):
        start = time.process_time(), time.perf_counter()
        result = work()
        now = time.process_time(), time.perf_counter()
        best = {kind: min(best[kind], 1e3 * (b - a)) for kind, a, b in zip(KINDS, start, now, strict=True)}
    return result, best
