"""`pflow evaluate` on growing samples: time, and peak memory, which must stay bounded.

The reconstruction is the other algorithm of the file (`Events.reference`); the file is read several times over.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pflow.event.particles import Reconstruction
from pflow.io.open import iterate_events
from pflow.io.particles_root import RecoWriter


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="events with truth and the particles of another algorithm")
    parser.add_argument("--repeat", type=int, nargs="+", default=[1, 4, 16], help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    print(f"{'events':>8} {'time [s]':>9} {'peak memory of the largest so far [MB]':>39}")
    for repeat in args.repeat:
        with tempfile.TemporaryDirectory() as name:
            reco, n_events = Path(name) / "reco.root", 0
            with RecoWriter(reco, provenance={}) as writer:
                for events in iterate_events([args.file] * repeat):
                    if events.reference is None:
                        raise SystemExit(f"{args.file}: holds no particles of another algorithm")
                    writer.extend(Reconstruction(particles=events.reference, event=events.event, flags=events.flags))
                    n_events += len(events)
            command = [sys.executable, "-m", "pflow", "evaluate", str(reco), "--truth", *[args.file] * repeat]
            begin = time.perf_counter()
            subprocess.run([*command, "-o", f"{name}/out", "--no-plots"], check=True, stdout=subprocess.DEVNULL)
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            print(f"{n_events:8} {time.perf_counter() - begin:9.1f} {peak:39.0f}", flush=True)
