"""How fast the metrics are, and whether their memory stays bounded: toy events with smeared answers.

    python scripts/benchmark_evaluate.py --events 10000 --particles 5

Prints time, rate and peak memory at every tenth of the way, and at the end the cost of the results themselves.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from pflow.metrics.evaluation import LineMetrics
from pflow.metrics.match import Matching, match
from pflow.metrics.table import ParticleTable

SPECIES = np.array([22, 211, -211, 130, 11, 13])


def toy(rng: np.random.Generator, n_events: int, n_particles: int) -> ParticleTable:
    n = n_events * n_particles
    pdg = rng.choice(SPECIES, n)
    energy = np.exp(rng.uniform(np.log(0.5), np.log(50.0), n))
    direction = rng.normal(size=(n, 3))
    direction /= np.linalg.norm(direction, axis=1)[:, None]
    return ParticleTable(
        counts=np.full(n_events, n_particles),
        pdg=pdg,
        charge=np.where(np.isin(pdg, (22, 130)), 0.0, np.sign(pdg)),
        energy=energy,
        momentum=energy[:, None] * direction,
    )


def smeared(rng: np.random.Generator, truth: ParticleTable) -> ParticleTable:
    return ParticleTable(
        counts=truth.counts,
        pdg=truth.pdg,
        charge=truth.charge,
        energy=truth.energy * np.maximum(0.1, rng.normal(1.0, 0.05, len(truth))),
        momentum=truth.momentum + rng.normal(0, 0.01, truth.momentum.shape) * truth.energy[:, None],
    )


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--particles", type=int, default=5)
    parser.add_argument("--step", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    line, spent, shown = LineMetrics(), 0.0, 0
    print(f"{'events':>10} {'time [s]':>9} {'peak memory [MB]':>17}")
    for start in range(0, args.events, args.step):
        truth = toy(rng, min(args.step, args.events - start), args.particles)
        reco = smeared(rng, truth)
        begin = time.perf_counter()
        line.update(truth=truth, visible=truth, reco=reco, matches=match(truth, reco, Matching()))
        spent += time.perf_counter() - begin
        done = start + len(truth.counts)
        if done * 10 // args.events > shown:
            shown = done * 10 // args.events
            print(f"{done:>10} {spent:>9.2f} {megabytes():>17.0f}")
    begin = time.perf_counter()
    line.result()
    print(f"results in {time.perf_counter() - begin:.2f} s; {args.events / spent:.0f} events/s")


if __name__ == "__main__":
    main()
