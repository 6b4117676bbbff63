"""Loading for training, stage by stage, beside what a training step needs, in events a second of one core.

Stages, in CPU time: plain (uproot alone, the same branches), reading (file to events, validated, with truth), cached
(the same from a cache, as of --data.cache), tokens (truth rules, merging, features, targets), padding, augmentation,
and tokens and padding of augmented events, which are larger where events are joined. The training step is that of the
model on this CPU with one thread. Batches are filled to the budget of tokens of one GPU in
`configs/cluster/fit.sbatch`.

What a GPU takes at most is that of a step, forward and backward, of the first stage. (A step of the refinement, with
the first stage frozen, has 0.6 of its FLOPs, but decodes one particle after the other, with many times its kernels; of
both together, 1.4 times its FLOPs.) By its FLOPs, at 30% of 100 TFLOP/s; and by its kernels too, which are launched one
after the other, and are counted with tensors that say they are on a GPU.
"""

from __future__ import annotations

import argparse
import atexit
import copy
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import awkward as ak
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.elsewhere import GPU, Device, Kernels, on_a_gpu
from benchmarks.timing import timed
from measurements.files import write_json
from pflow.checkpoint.load import Model, load_model
from pflow.data.batch import Batch
from pflow.data.buckets import bucket
from pflow.data.collate import Padder
from pflow.data.files import FileOptions, survey
from pflow.data.memory import keep_freed_memory
from pflow.event.augment import Augmentation, Overlay, augment
from pflow.event.events import Events
from pflow.io.open import EventFile, open_events
from pflow.io.rootfile import read_branch

AUGMENTATION = Augmentation(
    rotate=True, reflect=True, overlay=Overlay(frequencies=[3, 1, 1, 1, 1], cone=0.2, max_hits=1000)
)
"""Of the recipe `general`."""

GPU_FLOPS = 0.3 * 100e12
"""FLOP/s that a training reaches on a GPU of 100 TFLOP/s."""

LAUNCH = 2e-6
"""Least time between two kernels, s: launches take 3 to 6 us, and more from Python."""

TRAINED = 128
"""Events whose training steps are measured."""

BOUNDS = ("FLOPs", "kernels")
"""By FLOPs alone, and by kernels too."""

SOURCES = {"files": "reading", "cache": "cached"}
"""Where events come from, and the stage that reads them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, help="events with truth, flat or EDM4hep")
    parser.add_argument(
        "--checkpoint",
        default="ild-g4-general",
        help="a pointing network (default: %(default)s)",
    )
    parser.add_argument("--events", type=int, default=256, help="of each file, read at once (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=20000, help="of a batch (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--repeat", type=int, nargs="+", metavar="N", help="also a training on all files, each N times")
    parser.add_argument("--output", type=Path, help="JSON file")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as the processes that load do
    model = load_model(args.checkpoint)
    rows = [measure(model, path, args) for path in args.files]
    for row in rows:
        stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in row["ms"].items())
        print(f"{row['file']}: {row['events']} events, CPU ms an event: {stages}")
        print(
            f"  reading {row['reading_over_plain']:.2f} of plain uproot, tokens {row['tokens_over_reading']:.2f} of "
            f"reading; a step takes {row['step_cpu']:.1f} events/s on this CPU"
        )
        print_loading(row["loading"])
    result: dict[str, Any] = {"model": args.checkpoint, "torch": torch.__version__, "rows": rows}
    if args.repeat:
        counts = [row["entries"] * repeat for row, repeat in zip(rows, args.repeat, strict=True)]
        result["mixture"] = {"repeat": args.repeat, "loading": mixture([row["loading"] for row in rows], counts)}
        print("all files, repeated as told:")
        print_loading(result["mixture"]["loading"])
    if args.output:
        write_json(args.output, result)


def print_loading(loading: Mapping[str, Any]) -> None:
    for kind, found in loading.items():
        rates = ", ".join(f"{found['per_core'][source]:.0f} events/s a core from {source}" for source in SOURCES)
        print(f"  {kind}: loading {rates}")
        for bound, rate in found["gpu"].items():
            cores = ", ".join(f"{found['cores'][bound][source]:.1f} from {source}" for source in SOURCES)
            print(f"    a GPU takes at most {rate:.0f} events/s by {bound}: cores {cores}")


def mixture(parts: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> dict[str, Any]:
    """Rates of events of several files together, of each of which there are so many."""

    def rate(*names: str) -> float:
        seconds = 0.0
        for part, count in zip(parts, counts, strict=True):
            seconds += count / functools.reduce(lambda found, name: found[name], names, part)
        return sum(counts) / seconds

    return {
        kind: with_cores(
            {source: rate(kind, "per_core", source) for source in SOURCES},
            {bound: rate(kind, "gpu", bound) for bound in BOUNDS},
        )
        for kind in parts[0]
    }


def with_cores(per_core: dict[str, float], gpu: dict[str, float]) -> dict[str, Any]:
    """Events/s that a core loads and that a GPU takes at most, and how many cores load as much."""
    cores = {bound: {source: rate / per_core[source] for source in SOURCES} for bound, rate in gpu.items()}
    return {"per_core": per_core, "gpu": gpu, "cores": cores}


def measure(model: Model, path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds an event of each stage, and the rates that follow from them."""
    with open_events(path) as file:
        entries = file.num_entries
        n = min(args.events, entries)
        plain = plain_reading(file, n)
        times = {"plain": cpu_ms(args.runs, plain), "reading": cpu_ms(args.runs, lambda: file.read(0, n))}
        events = file.read(0, n)
    tokeniser = model.tokeniser
    if tokeniser.other_geometry(events.detector):
        raise SystemExit(f"{path}: of another detector than the model {args.checkpoint}, choose one with --checkpoint")
    times["cached"] = cpu_ms(args.runs, cached_reading(path, n))
    times["augmentation"] = cpu_ms(args.runs, lambda: augment(events, AUGMENTATION, np.random.default_rng(1)))
    kinds = {"as they are": events, "augmented": augment(events, AUGMENTATION, np.random.default_rng(1))}
    loading = {}
    for kind, some in kinds.items():
        more = "" if kind == "as they are" else " augmented"
        times[f"tokens{more}"] = cpu_ms(args.runs, lambda some=some: tokeniser.encode(some, warn=False))
        encoding = cpu_ms(args.runs, lambda some=some: make_batches(model, some, args.max_tokens))
        times[f"padding{more}"] = max(encoding - times[f"tokens{more}"], 0.0)
        after = encoding + times["augmentation"] * (kind == "augmented")
        per_core = {source: n * 1e3 / (times[stage] + after) for source, stage in SOURCES.items()}
        loading[kind] = with_cores(per_core, gpu_rates(model, some, args.max_tokens))
    seconds = cpu_ms(1, steps(model.reconstructor, make_batches(model, events[:TRAINED], args.max_tokens))) / 1e3
    ms = {stage: total / n for stage, total in times.items()}
    return {
        "file": path.name,
        "entries": entries,
        "events": n,
        "ms": ms,
        "reading_over_plain": ms["reading"] / ms["plain"],
        "tokens_over_reading": ms["tokens"] / ms["reading"],
        "loading": loading,
        "step_cpu": min(n, TRAINED) / seconds,
    }


def cached_reading(path: Path, n: int) -> Callable[[], object]:
    """Reads `n` events of a file from a cache, which is removed at the end, and touches all bytes."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    _, options = survey([str(path)], FileOptions(cache=folder.name), n)
    file = options.open_cached(str(path))
    return lambda: [ak.to_packed(part) for _, part in file.read(0, n).parts()]


def make_batches(model: Model, events: Events, max_tokens: int) -> list[Batch]:
    """Batches of the events, as a training cuts a buffer of them into batches."""
    tokens = model.tokeniser.encode(events, warn=False)
    padder, generator = Padder([tokens]), np.random.default_rng(1)
    return [padder.batch(rows) for rows in bucket(tokens.n_source, len(tokens), max_tokens, generator)]


def steps(reconstructor: Any, batches: Sequence[Batch]) -> Callable[[], None]:
    """Training steps, forward and backward."""
    reconstructor.train()

    def run() -> None:
        for batch in batches:
            reconstructor.training_step(batch).losses["total"].backward()

    return run


def gpu_rates(model: Model, events: Events, max_tokens: int) -> dict[str, float]:
    """Events/s that a GPU takes at most in training steps of the first stage, by their FLOPs, and by kernels too."""
    reconstructor: Any = copy.deepcopy(model.reconstructor)
    reconstructor.network.refiner = None
    training = dataclasses.replace(reconstructor.training_config, scheduled_sampling_prob=0.0)
    reconstructor.training_config = training
    batches = make_batches(model, events[:TRAINED], max_tokens)
    with FlopCounter() as flop:
        steps(reconstructor, batches)()
    by_flops = GPU_FLOPS * min(TRAINED, len(events)) / flop.total
    with Device():
        largest = max(batches, key=len).to(GPU)
    with on_a_gpu(reconstructor), Device(), Kernels() as kernels:
        steps(reconstructor, [largest])()
    in_batch = max_tokens / float(model.tokeniser.encode(events, warn=False).n_source.mean())  # nothing is padded
    return {"FLOPs": by_flops, "kernels": min(by_flops, in_batch / (kernels.count * LAUNCH))}


class FlopCounter(TorchDispatchMode):
    """Counts the floating-point operations of matrix products, as `torch.utils.flop_counter` does.

    Its own `FlopCounterMode` looks at the modules too, which fails where a part of the model runs without gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def plain_reading(file: EventFile, n: int) -> Callable[[], list[Any]]:
    """Reads with uproot alone what a reading of `n` events reads, and holds it until all is read, as reading does."""
    with recorded_branches() as branches:
        file.read(0, n)

    def read() -> list[Any]:
        return [
            table[branch].array(entry_start=start, entry_stop=stop, library="ak")
            for table, branch, start, stop in branches
        ]

    return read


@contextmanager
def recorded_branches() -> Iterator[list[tuple[Any, str, int, int]]]:
    """Tables, branches and entries that are read."""
    found: list[tuple[Any, str, int, int]] = []

    def recorded(table: Any, branch: str, start: int, stop: int, path: str | Path) -> Any:
        found.append((table, branch, start, stop))
        return read_branch(table, branch, start, stop, path)

    with patch("pflow.io.flat.read_branch", recorded), patch("pflow.io.columns.read_branch", recorded):
        yield found


def cpu_ms(runs: int, work: Callable[[], object]) -> float:
    """Smallest CPU time of several runs, after one that is not timed; ms."""
    work()
    return timed(runs, work)[1]["cpu_ms"]
