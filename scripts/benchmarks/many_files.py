"""Many files: memory against their number, a process that reconstructs many small ones, and several processes.

One file and ten of it, each in a process of its own: peak memory. Then so many small files in one process: memory and
open files after the first tenth and at the end. Then more events, in one process and in two (`--cluster local:2`). With
``--parts long``, a long run in one process: memory, open and temporary files at each tenth of it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.memory import open_files, peak_mb, resident_mb
from measurements.files import write_json
from pflow.inference.files import reconstruct_files
from pflow.io.events_root import write_events
from pflow.io.open import read_events

PARTS = ("memory", "small", "processes")
LONG = "long"
PROCESSES = 2
CHUNKS = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path)
    parser.add_argument("--checkpoint", default="ild-g4-general", help="default: %(default)s")
    parser.add_argument("--events", type=int, default=100, help="of a file, for memory (default: %(default)s)")
    parser.add_argument("--small", type=int, default=200, help="number of files of 2 events (default: %(default)s)")
    parser.add_argument("--all", type=int, default=2000, help="events for several processes (default: %(default)s)")
    parser.add_argument("--long", type=int, default=200_000, help="events of the long run (default: %(default)s)")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=(*PARTS, LONG),
        default=PARTS,
        help="what to measure (default: all but the long run)",
    )
    parser.add_argument("--output", type=Path, help="JSON file")


def run(args: argparse.Namespace) -> None:
    measure = {"memory": memory, "small": small_files, "processes": processes, LONG: long_run}
    result: dict[str, Any] = {"file": args.file.name, "model": args.checkpoint, "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        for part in args.parts:
            result[part] = measure[part](args, Path(folder))
    if args.output:
        write_json(args.output, result)


def memory(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Peak memory with one file and with ten, into one output or into one each."""
    files = copies(args.file, args.events, folder / "file", 10)
    result: dict[str, Any] = {"events": args.events}
    for place in ("output", "output_dir"):
        one, ten = (alone(peak_of, some, args.checkpoint, place) for some in (files[:1], files))
        result[place] = {"one": one, "ten": ten, "ratio": ten / one}
        print(f"peak memory, {place}: one file {one:.0f} MB, ten {ten:.0f} MB, ratio {ten / one:.3f}", flush=True)
    return result


def small_files(args: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Memory and open files of a process with many small files."""
    found: dict[str, list[float]] = alone(
        growth_of, copies(args.file, 2, folder / "small", args.small), args.checkpoint
    )
    for what, values in found.items():
        print(f"{args.small} files of 2 events: {what} {values}", flush=True)
    return found


def processes(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Time of one process and of several."""
    (path,) = copies(args.file, args.all, folder / "all", 1)
    seconds = {n: alone(seconds_of, path, args.checkpoint, n, max(1, args.all // CHUNKS)) for n in (1, PROCESSES)}
    ratio = seconds[1]["working"] / seconds[PROCESSES]["working"]
    print(f"{args.all} events: {seconds}; ratio of the time at work {ratio:.2f}")
    return {"events": args.all, "seconds": seconds, "ratio": ratio}


def long_run(args: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Memory, open files and temporary files of one process at each tenth of a long run over copies of the file."""
    n_files = -(-args.long // len(read_events(args.file)))
    files = [folder / f"long{i:04}.root" for i in range(n_files)]
    for path in files:
        path.symlink_to(args.file.resolve())
    tenths: list[dict[str, float]] = alone(tenths_of, files, args.checkpoint)
    for tenth in tenths:
        print(tenth, flush=True)
    return tenths


def copies(file: Path, n_events: int, start: Path, n: int) -> list[Path]:
    """Files of the first events of a file, all alike."""
    found = [start.with_name(f"{start.name}{i}.root") for i in range(n)]
    write_events(found[0], read_events(file, entry_stop=n_events))
    for other in found[1:]:
        shutil.copy(found[0], other)
    return found


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def peak_of(files: list[Path], checkpoint: str, place: str) -> float:
    """Peak memory with one output for all files (``output``), or one for each (``output_dir``)."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        where: dict[str, Any] = {place: Path(folder) / "reco.root"}
        reconstruct_files(files, checkpoint=checkpoint, device="cpu", **where)
    return peak_mb()


def growth_of(files: list[Path], checkpoint: str) -> dict[str, list[float]]:
    """Memory and open files after the first tenth of the files, and at the end."""
    torch.set_num_threads(1)
    seen: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        reconstruct_files(
            files,
            checkpoint=checkpoint,
            output_dir=folder,
            device="cpu",
            on_progress=lambda *_: seen.append((resident_mb(), open_files())),
        )
    first, last = seen[len(seen) // 10], seen[-1]
    return {"resident_mb": [first[0], last[0]], "open_files": [first[1], last[1]]}


def tenths_of(files: list[Path], checkpoint: str) -> list[dict[str, float]]:
    """Events done, seconds since the start, memory, open files and temporary files, at each tenth of the events."""
    torch.set_num_threads(1)
    tenths: list[dict[str, float]] = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:

        def note(done: int, total: int) -> None:
            if done * 10 < total * (len(tenths) + 1):
                return
            temporary = sum(".tmp-" in path.name for path in Path(folder).iterdir())
            row = {"events": done, "seconds": time.perf_counter() - start, "resident_mb": resident_mb()}
            tenths.append({**row, "peak_mb": peak_mb(), "open_files": open_files(), "temporary_files": temporary})

        reconstruct_files(files, checkpoint=checkpoint, output_dir=folder, device="cpu", on_progress=note)
    return tenths


def seconds_of(file: Path, checkpoint: str, processes: int, chunk_size: int) -> dict[str, float]:
    """Time of a reconstruction: all of it, without the start of processes, and CPU time of all of them; s."""
    torch.set_num_threads(1)
    marks: list[tuple[float, int]] = []
    options: dict[str, Any] = {} if processes == 1 else {"cluster": f"local:{processes}"}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        reconstruct_files(
            [file],
            checkpoint=checkpoint,
            output=Path(folder) / "reco.root",
            device="cpu",
            chunk_size=chunk_size,
            on_progress=lambda done, _: marks.append((time.perf_counter(), done)),
            **options,
        )
    whole = time.perf_counter() - start
    # The first round is left out: processes start and import in it.
    (begin, n_begin), (end, n_end) = marks[processes - 1], marks[-1]
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    return {"whole": whole, "working": (end - begin) * n_end / max(n_end - n_begin, 1), "cpu": cpu}
