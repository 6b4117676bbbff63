"""What merging of hits saves: tokens of an event, and the time of merging, encoding and one pass through a network.

    python scripts/bench_merging.py ../shared/data/g4/gamma1_test.root ../shared/data/g4/zqq_test.root

A row for each setting: hits of an event before and tokens after, the time of merging and of all of the encoding to
tokens (merging included), and of a pass of the encoder and the decoder, fed with the truth, through a network of the
default size with random weights, all in ms an event, the fastest of several runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable

import awkward as ak
import torch

from pflow.data.collate import collate
from pflow.event.cells import Merge, merge_hits
from pflow.event.events import Events
from pflow.io.open import read_events
from pflow.model.api import build_network
from pflow.tokens.encode import select_hits
from pflow.tokens.recipe import Recipe
from pflow.tokens.tokeniser import Tokeniser

SETTINGS = (
    None,
    Merge(ecal_mm=10.0, hcal_mm=60.0),
    Merge(ecal_mm=15.0, hcal_mm=60.0, layers=2),
    Merge(ecal_mm=20.0, hcal_mm=60.0, layers=3),
    Merge(ecal_mm=20.0, hcal_mm=90.0, layers=5),
    Merge(ecal_mm=40.0, hcal_mm=120.0, layers=5),
)


def fastest(runs: int, work: Callable[[], object]) -> float:
    """Shortest of several times of the same work, ms."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def pass_through(tokeniser: Tokeniser, events: Events, batch_size: int) -> Callable[[], None]:
    """One pass of all events through a network with random weights."""
    torch.manual_seed(0)
    network = build_network({}, tokeniser.sizes).eval()
    tokens = tokeniser.encode(events)
    starts = range(0, len(events), batch_size)
    batches = [collate([tokens[i] for i in range(start, min(start + batch_size, len(events)))]) for start in starts]

    @torch.no_grad()
    def work() -> None:
        for batch in batches:
            network(batch)

    return work


def merging(kept: Events, merge: Merge, runs: int) -> float:
    """Time of merging all events, ms."""
    return fastest(runs, lambda: merge_hits(kept, merge))


def bench(path: str, events: Events, passed: Events, recipe: Recipe, batch_size: int, runs: int) -> None:
    print(f"\n{path}: {len(events)} events, {len(passed)} of them through the network, {batch_size} at once")
    print("| ECAL, HCAL cell, layers | hits | tokens | merging, ms | encoding, ms | network, ms |")
    print("|---|---:|---:|---:|---:|---:|")
    kept = select_hits(events, recipe)
    for merge in SETTINGS:
        own = dataclasses.replace(recipe, merge=merge)
        tokeniser = Tokeniser.fit([events], own)
        columns = [
            "none" if merge is None else f"{merge.ecal_mm:g} mm, {merge.hcal_mm:g} mm, {merge.layers}",
            f"{float(ak.mean(ak.num(kept.hits))):.0f}",
            f"{float(ak.mean(ak.num(select_hits(events, own).hits))):.0f}",
            "-" if merge is None else f"{merging(kept, merge, runs) / len(events):.2f}",
            f"{fastest(runs, lambda t=tokeniser: t.encode(events)) / len(events):.2f}",
            f"{fastest(runs, pass_through(tokeniser, passed, batch_size)) / len(passed):.1f}",
        ]
        print(f"| {' | '.join(columns)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="event files with truth")
    parser.add_argument("--events", type=int, default=100, help="of each file (default: %(default)s)")
    parser.add_argument("--passed", type=int, default=16, help="events through the network (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=4, help="events at once (default: %(default)s)")
    parser.add_argument("--hit-energy-min", type=float, default=0.0, help="GeV (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recipe = Recipe(hit_energy_min=args.hit_energy_min)
    for path in args.files:
        events = read_events(path, entry_stop=args.events)
        bench(path, events, events[: args.passed], recipe, args.batch_size, args.runs)


if __name__ == "__main__":
    main()
