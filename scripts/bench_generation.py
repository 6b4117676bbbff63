"""Generation: the paper's way (everything anew at each step) against pflow's, events/s and peak memory, side by side.

    python scripts/bench_generation.py [--quick] [--full] [--batch 16] [--hits 500 2000 8000] [--particles 10 50 150]

Weights are untrained and the logit of eos is lowered, so that every event has exactly the number of particles asked
for; events have between half and all of the hits asked for. Each figure comes from a process of its own. A naive
sentence is not written to its end but timed at its first and last step, between which the cost of a step grows evenly;
these figures are marked ~. With --full they are written whole. Up to 2,000 hits, sentences are written three times and
each step's fastest time is kept for the last table.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import multiprocessing
import platform
import resource
import statistics
import sys
import time

import torch

from bench_events import add_common_options, network, now, random_batch
from naive_generation import generate_naively
from pflow.data.batch import Batch
from pflow.model.api import Sampler
from pflow.model.common.decode import generate
from pflow.model.translation.network import ParticleTransformer
from pflow.model.translation.special import EOS


@dataclasses.dataclass(frozen=True)
class Task:
    """One figure of the table."""

    way: str  # naive, naive-full or cached
    decoder: str
    batch: int
    hits: int
    particles: int
    device: str
    threads: int


@dataclasses.dataclass(frozen=True)
class Result:
    """Seconds for the whole batch, MiB above the idle process, (CPU) seconds of each cached step."""

    seconds: float
    peak: float
    steps: list[float]


def endless(decoder: str, device: str) -> ParticleTransformer:
    """A network that never says eos."""
    model = network(decoder, device=device).eval()
    with torch.no_grad():
        model.heads.classifiers["charge"][-1].bias[EOS] = -1e9
    return model


def measure(task: Task) -> Result:
    """Run one task; meant for a process of its own, whose peak memory is then the task's."""
    torch.set_num_threads(task.threads)
    model = endless(task.decoder, task.device)
    batch = random_batch(events=task.batch, hits=task.hits, particles=task.particles, device=task.device)
    generate(model, random_batch(events=2, hits=20, device=task.device), max_particles=2, sampler=Sampler())  # warm up
    before = _memory(task.device)
    steps: list[float] = []
    if task.way == "cached":
        runs = [_cached(model, batch, task) for _ in range(3 if task.hits <= 2000 else 1)]
        seconds = runs[0][0]
        steps = [min(times) for times in zip(*(run[1] for run in runs), strict=True)]
    elif task.way == "naive-full":
        start = now(task.device)
        generate_naively(model, batch, max_particles=task.particles)
        seconds = now(task.device) - start
    else:
        seconds = _naive_from_two_steps(model, batch, task)
    return Result(seconds, _memory(task.device) - before, steps)


def _cached(model: ParticleTransformer, batch: Batch, task: Task) -> tuple[float, list[float]]:
    """Seconds for the batch, and for each step of the decoder."""
    steps: list[float] = []
    step = type(model).step
    # on a CPU its own time, which does not see what else the machine is doing
    clock = time.process_time if task.device == "cpu" else functools.partial(now, task.device)

    def timed(tokens, state):
        start = clock()
        prediction = step(model, tokens, state)
        steps.append(clock() - start)
        return prediction

    model.step = timed  # type: ignore[method-assign]
    start = now(task.device)
    written = generate(model, batch, max_particles=task.particles, sampler=Sampler())
    seconds = now(task.device) - start
    if not bool(written.mask.all()) or written.mask.shape[1] != task.particles:
        raise RuntimeError("the sentences do not have the length asked for")
    return seconds, steps


def _naive_from_two_steps(model: ParticleTransformer, batch: Batch, task: Task) -> float:
    with torch.inference_mode():
        times = []
        for written in (0, task.particles):
            prefix = random_batch(events=task.batch, hits=1, particles=written, device=task.device).target
            start = now(task.device)
            model(dataclasses.replace(batch, target=prefix))
            times.append(now(task.device) - start)
    return (task.particles + 1) * statistics.mean(times)


def _memory(device: str) -> float:
    """Peak so far, MiB."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)


def in_a_process(task: Task) -> Result:
    """Measure `task` in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (task,))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16, help="events; a quarter of it from 8,000 hits on a CPU")
    parser.add_argument("--hits", type=int, nargs="+", default=[500, 2000, 8000])
    parser.add_argument("--particles", type=int, nargs="+", default=[10, 50, 150])
    parser.add_argument("--decoder", default="vanilla", choices=["vanilla", "multi_projection"])
    parser.add_argument("--full", action="store_true", help="write the naive sentences to their end")
    add_common_options(parser)
    options = parser.parse_args(arguments)
    if options.quick:
        options.hits, options.particles = [200, 1000], [10, 50]
    naive, mark = ("naive-full", " ") if options.full else ("naive", "~")
    print(f"decoder {options.decoder}, device {options.device}, {options.threads} threads, torch {torch.__version__}")
    print(f"{'':21} | {'events/s':^31} | {'peak memory, MiB':^17}")
    print(
        f"{'hits':>6}{'particles':>10}{'batch':>6}| {'naive':>10}{'cached':>10}{'ratio':>9}   |"
        f" {'naive':>8}{'cached':>8}"
    )
    longest: dict[int, Result] = {}
    for hits in options.hits:
        small = hits >= 8000 and options.device == "cpu"
        batch = max(1, options.batch // 4) if small else options.batch
        for particles in options.particles:
            task = Task("cached", options.decoder, batch, hits, particles, options.device, options.threads)
            cached = in_a_process(task)
            slow = in_a_process(dataclasses.replace(task, way=naive))
            longest[hits] = cached
            print(
                f"{hits:6}{particles:10}{batch:6}| {mark}{batch / slow.seconds:9.3g}{batch / cached.seconds:10.3g}"
                f"{slow.seconds / cached.seconds:9.1f}   | {slow.peak:8.0f}{cached.peak:8.0f}",
                flush=True,
            )
    last = max(options.particles)
    if last >= 20:
        late = min(100, last - 5)
        clock = "CPU time" if options.device == "cpu" else "time"
        print(
            f"\nms of {clock} per step (one particle of each event; fastest of 11 neighbours), "
            f"at the 10th and {late}th particle:"
        )
        for hits, result in longest.items():
            first, second = (1e3 * min(result.steps[at - 5 : at + 6]) for at in (10, late))
            print(f"{hits:6} hits: {first:7.2f} {second:7.2f}  {100 * (second / first - 1):+.0f}%")


if __name__ == "__main__":
    main(sys.argv[1:])
