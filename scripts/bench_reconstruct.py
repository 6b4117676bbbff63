"""How long a shipped model takes for an event, and where the time goes; writes RESULTS.md's section `speed`.

    python scripts/bench_reconstruct.py --model ild-g4-general ../shared/data/g4/zqq_test.root

The same steps as in `pflow reconstruct`, with 1, 16 and 32 (the default) events at a time, on all cores (`--threads`);
and as with `--cluster local:N`, in a process of one thread for each core, all at once, with the default.
Stages: reading (ROOT to events), tokens (merging, features, padding), encoder, decoder (all particles of all events,
one after the other), output (particles, links, covariances, ROOT). Each is the fastest of `--runs`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import torch

from pflow.checkpoint.load import Model, load_model
from pflow.data.collate import collate
from pflow.event.events import Events
from pflow.inference.events import BATCH_SIZE, reconstruct
from pflow.io.atomic import replacing
from pflow.io.open import open_events
from pflow.io.particles_root import RecoWriter
from sections import replace_section

ROOT = Path(__file__).resolve().parent.parent
BATCH_SIZES = (1, 16, BATCH_SIZE)
STAGES = ("reading", "tokens", "encoder", "decoder", "output")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model", default="ild-g4-general")
    parser.add_argument("--events", type=int, default=64, help="of each file (default: 64)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, default=ROOT / "scripts" / "results" / "speed.json")
    parser.add_argument("--report", type=Path, default=ROOT / "RESULTS.md")
    parser.add_argument("--dry", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_model(args.model)
    rows = [
        measure(model, path, batch_size, args.events, args.runs) for path in args.files for batch_size in BATCH_SIZES
    ]
    together = {path.name: side_by_side(args.model, path, args.threads, args.events, args.runs) for path in args.files}
    machine = {"processor": platform.processor() or platform.machine(), "threads": args.threads}
    result = {"model": args.model, **machine, "torch": torch.__version__, "rows": rows, "processes_ms": together}
    text = section(result)
    print(text)
    if args.dry:
        return
    with replacing(args.json) as partial:
        partial.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    with replacing(args.report) as partial:
        partial.write_text(replace_section(args.report.read_text("utf-8"), "speed", text), "utf-8")


def measure(model: Model, path: Path, batch_size: int, n_events: int, runs: int) -> dict[str, Any]:
    """Milliseconds an event of each stage."""
    with open_events(path) as file:
        n = min(n_events, file.num_entries)
        reading = fastest(runs, lambda: file.read(0, n, truth=False))
        events = file.read(0, n, truth=False)
    reconstructor: Any = model.reconstructor
    tokens = model.tokeniser.encode(events, truth=False)
    order = np.argsort([-tokens[i].n_source for i in range(n)], kind="stable")
    batches = [collate([tokens[int(i)] for i in order[at : at + batch_size]]) for at in range(0, n, batch_size)]

    def encoder() -> None:
        with torch.inference_mode():
            for batch in batches:
                reconstructor.network.encode(batch)

    def everything() -> None:
        reconstruct(events, model, batch_size=batch_size, device="cpu")

    answer = reconstruct(events, model, batch_size=batch_size, device="cpu")
    times = {
        "reading": reading,
        "tokens": fastest(runs, lambda: tokens_of(model, events, batch_size)),
        "encoder": fastest(runs, encoder),
    }
    generation = fastest(runs, lambda: [reconstructor.generate(batch) for batch in batches])
    times["decoder"] = generation - times["encoder"]
    whole = fastest(runs, everything)
    with tempfile.TemporaryDirectory() as folder:
        writing = fastest(runs, lambda: write(Path(folder) / "reco.root", answer))
    times["output"] = max(whole - times["tokens"] - generation, 0.0) + writing
    return {
        "file": path.name,
        "events": n,
        "batch_size": batch_size,
        "hits": float(ak.mean(ak.num(events.hits))),
        "tokens": float(np.mean([tokens[i].n_source for i in range(n)])),
        "particles": float(ak.mean(ak.num(answer.particles))),
        "ms": {stage: times[stage] / n for stage in STAGES},
    }


def side_by_side(name: str, path: Path, n_processes: int, n_events: int, runs: int) -> float:
    """Milliseconds an event, all stages, where each of some processes of one thread does the events of its own."""
    context = multiprocessing.get_context("spawn")
    barrier, times = context.Barrier(n_processes), context.Queue()
    workers = [
        context.Process(target=_work, args=(name, path, n_events, runs, barrier, times)) for _ in range(n_processes)
    ]
    for worker in workers:
        worker.start()
    each = [times.get(timeout=1800) for _ in workers]
    for worker in workers:
        worker.join()
    # A run takes as long as its slowest process.
    return min(max(run) for run in zip(*(seconds for seconds, _ in each), strict=True)) * 1e3 / sum(n for _, n in each)


def _work(name: str, path: Path, n_events: int, runs: int, barrier: Any, times: Any) -> None:
    torch.set_num_threads(1)
    model = load_model(name)
    seconds = []
    with open_events(path) as file, tempfile.TemporaryDirectory() as folder:
        n = min(n_events, file.num_entries)
        reconstruct(file.read(0, min(n, 4), truth=False), model, device="cpu")
        for _ in range(runs):
            barrier.wait()
            start = time.perf_counter()
            answer = reconstruct(file.read(0, n, truth=False), model, device="cpu")
            write(Path(folder) / "reco.root", answer)
            seconds.append(time.perf_counter() - start)
    times.put((seconds, n))


def tokens_of(model: Model, events: Events, batch_size: int) -> None:
    """Encode and pad."""
    tokens = model.tokeniser.encode(events, truth=False)
    for at in range(0, len(tokens), batch_size):
        collate([tokens[i] for i in range(at, min(at + batch_size, len(tokens)))])


def write(path: Path, answer: Any) -> None:
    """Write particles, links and covariances."""
    with RecoWriter(path, provenance={}) as writer:
        writer.extend(answer)


def fastest(runs: int, work: Callable[[], object]) -> float:
    """Shortest of several times of the same work, ms."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def section(result: dict[str, Any]) -> str:
    """The text and table of RESULTS.md."""
    lines = [
        "## Speed",
        "",
        f"`{result['model']}` on {result['threads']} threads ({result['processor']}, torch {result['torch']}), ms an "
        "event, the fastest of several runs; written by `scripts/bench_reconstruct.py`. Pandora took about 70 ms "
        "for a `zqq` event on one core of such a machine, in another hour: their speed changes by a factor of two, so "
        "that the two are of one size, and no more is known.",
        "",
        f"| file | at once | hits | tokens | particles | {' | '.join(STAGES)} | all |",
        f"|---|---:|---:|---:|---:|{'---:|' * len(STAGES)}---:|",
    ]
    for row in result["rows"]:
        total = sum(row["ms"].values())
        stages = " | ".join(f"{row['ms'][stage]:.1f} ({row['ms'][stage] / total:.0%})" for stage in STAGES)
        numbers = f"{row['hits']:.0f} | {row['tokens']:.0f} | {row['particles']:.1f}"
        lines.append(f"| `{row['file']}` | {row['batch_size']} | {numbers} | {stages} | {total:.1f} |")
    together = ", ".join(f"`{name}` {ms:.1f} ms" for name, ms in result["processes_ms"].items())
    lines += [
        "",
        f"With {result['threads']} processes of one thread each in place of {result['threads']} threads, as with "
        f"`pflow reconstruct --cluster local:{result['threads']}`, {BATCH_SIZE} events at a time: {together} an event.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
