"""CPU time beside another checkout of pflow, alternating in one run, so that a loaded machine disturbs both alike.

Reconstruction in batches and of one event at a time, and training steps of the refinement (frozen first stage, same
weights, batches and random numbers). Each checkout runs in a process of its own with one thread; ratios are new to old.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.timing import add_common_options

TASKS = ("batches", "alone", "steps")

WORKER = """
import inspect, sys, time
import numpy as np, torch
torch.set_num_threads(1)
import pflow
from pflow.data.dataset import Padder

name, path, n_events = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = pflow.load_model(name)
events = pflow.read_events(path, entry_stop=n_events)
tokens = model.tokeniser.encode(events, truth=True)
order, padder = np.argsort(-tokens.n_source, kind="stable"), Padder([tokens])
# Checkouts before 0.4 have two engines.
options = {"device": "cpu"}
engine = inspect.signature(pflow.reconstruct).parameters.get("engine")
if engine is not None and engine.default == "auto":
    options["engine"] = "torch"

def batches():
    pflow.reconstruct(events, model, **options)

def alone():
    for i in range(n_events // 4):
        pflow.reconstruct(events[i : i + 1], model, **options)

def steps():
    network = model.reconstructor.train()
    for part in network.first_stage_modules:
        network.get_submodule(part).requires_grad_(False).eval()
    for start in range(0, n_events // 2, 6):
        network.zero_grad()
        losses = network.training_step(padder.batch(order[start : start + 6]))
        getattr(losses, "losses", losses)["total"].backward()  # checkouts before 0.4 return more than the losses
    network.eval()

print(pflow.__file__, flush=True)
for line in sys.stdin:
    torch.manual_seed(1)
    start = time.process_time()
    {"batches": batches, "alone": alone, "steps": steps}[line.strip()]()
    print(time.process_time() - start, flush=True)
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="events with truth")
    parser.add_argument("--other", type=Path, required=True, help="folder of the older checkout")
    add_common_options(parser, events=64, runs=5, model="ild-g4-general")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="default: all")


def run(args: argparse.Namespace) -> None:
    folders = args.other.resolve(), Path(__file__).resolve().parents[2]
    old, new = (_start(folder, args) for folder in folders)
    try:
        for task in args.tasks:
            for process in (old, new):  # not counted
                _ask(process, task)
            pairs = []
            for i in range(args.runs):
                first, second = (old, new) if i % 2 else (new, old)
                times = {process.pid: _ask(process, task) for process in (first, second)}
                pairs.append((times[old.pid], times[new.pid]))
            ratios = sorted(after / before for before, after in pairs)
            before, after = (min(column) for column in zip(*pairs, strict=True))
            print(
                f"{task}: {statistics.median(ratios):.3f} times the CPU time ({ratios[0]:.3f} to {ratios[-1]:.3f}), "
                f"fastest {before:.2f} and {after:.2f} s, {after / before:.3f}",
                flush=True,
            )
    finally:
        for process in (old, new):
            process.kill()
            process.communicate()  # closes its pipes


def _start(folder: Path, args: argparse.Namespace) -> subprocess.Popen[str]:
    words = [args.checkpoint, str(args.file.resolve()), str(args.events)]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command, pipe = [sys.executable, "-W", "ignore", "-c", WORKER, *words], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=folder)
    print(process.stdout.readline().strip())
    return process


def _ask(process: subprocess.Popen[str], task: str) -> float:
    """CPU time of a task, s."""
    print(task, file=process.stdin, flush=True)
    return float(process.stdout.readline())
