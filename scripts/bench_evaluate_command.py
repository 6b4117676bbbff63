"""The whole command `pflow evaluate`, from files to report, on toy events: its time and peak memory at growing sizes.

    python scripts/bench_evaluate_command.py --events 2500 10000 40000

An event has 5 particles of 20 hits each; the answer is the truth, smeared. One process a size.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import awkward as ak
import numpy as np

from pflow.event.build import make_hits, make_links, make_particles, make_truth
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.io.events_root import write_events
from pflow.io.particles_root import RecoWriter
from pflow.physics.detector import load_detector

PARTICLES, HITS, STEP = 5, 20, 1000


def toy(n_events: int, first: int, rng: np.random.Generator) -> Events:
    """Photons of 1 to 50 GeV, their hits on the line from the vertex to the ECAL."""
    n = n_events * PARTICLES
    energy = np.exp(rng.uniform(0, np.log(50), n))
    phi, cos = rng.uniform(0, 2 * np.pi, n), rng.uniform(-0.7, 0.7, n)
    sin = np.sqrt(1 - cos**2)
    momentum = {"px": energy * sin * np.cos(phi), "py": energy * sin * np.sin(phi), "pz": energy * cos}
    per_event = np.full(n_events, PARTICLES)
    zero = ak.unflatten(np.zeros(n), per_event)
    truth = make_truth(
        pdg=zero + 22, mass=zero, charge=zero, **{key: ak.unflatten(p, per_event) for key, p in momentum.items()}
    )
    distance = 1850.0 / np.repeat(sin, HITS)
    unit = [np.repeat(p / energy, HITS) for p in momentum.values()]
    hits_per_event = per_event * HITS
    position = {axis: ak.unflatten(distance * part, hits_per_event) for axis, part in zip("xyz", unit, strict=True)}
    return Events(
        detector=load_detector("ild_g4"),
        hits=make_hits(energy=ak.unflatten(np.repeat(energy / HITS, HITS), hits_per_event), **position),
        truth=truth,
        hit_links=make_links(
            source=ak.unflatten(np.tile(np.arange(PARTICLES * HITS), n_events), hits_per_event),
            particle=ak.unflatten(np.tile(np.repeat(np.arange(PARTICLES), HITS), n_events), hits_per_event),
        ),
        event=np.arange(first, first + n_events),
    )


def smeared(events: Events, rng: np.random.Generator) -> Reconstruction:
    truth = events.truth
    counts = ak.num(truth, axis=1)
    scale = ak.unflatten(rng.normal(1.0, 0.05, int(ak.sum(counts))), counts)
    particles = make_particles(
        pdg=truth.pdg,
        charge=truth.charge,
        energy=truth.energy * scale,
        **{key: truth.momentum[key] * scale for key in ("px", "py", "pz")},
    )
    return Reconstruction(particles=particles, event=events.event, flags=events.flags)


def chunks(n_events: int) -> Iterator[Events]:
    rng = np.random.default_rng(1)
    for start in range(0, n_events, STEP):
        n = min(STEP, n_events - start)
        chunk = toy(n, start, rng)
        yield dataclasses.replace(chunk, entry=np.arange(start, start + n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=[2500, 10_000, 40_000])
    args = parser.parse_args()
    print(f"{'events':>10} {'time [s]':>9} {'peak memory of the largest so far [MB]':>39}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n_events in args.events:
            truth, reco = folder / f"truth{n_events}.root", folder / f"reco{n_events}.root"
            write_events(truth, chunks(n_events))
            rng = np.random.default_rng(2)
            with RecoWriter(reco, provenance={}) as writer:
                for chunk in chunks(n_events):
                    writer.extend(smeared(chunk, rng))
            begin = time.perf_counter()
            command = [sys.executable, "-m", "pflow", "evaluate", str(reco), "--truth", str(truth)]
            subprocess.run([*command, "-o", str(folder / f"out{n_events}")], check=True, stdout=subprocess.DEVNULL)
            spent = time.perf_counter() - begin
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            print(f"{n_events:>10} {spent:>9.1f} {peak:>39.0f}", flush=True)


if __name__ == "__main__":
    main()
