"""Merging of hits into cells: tokens of an event, and the time of merging and of all encoding to tokens."""

from __future__ import annotations

import argparse
import dataclasses

import awkward as ak

from benchmarks.timing import add_common_options, fastest
from pflow.event.cells import Merge, merge_hits
from pflow.io.open import read_events
from pflow.tokens.encode import select_hits
from pflow.tokens.recipe import Recipe
from pflow.tokens.tokeniser import Tokeniser

__all__ = ["add_options", "run"]

SETTINGS = (
    None,
    Merge(ecal_mm=10.0, hcal_mm=60.0),
    Merge(ecal_mm=10.0, hcal_mm=60.0, layers=5),  # ild-g4-photon
    Merge(ecal_mm=20.0, hcal_mm=90.0, layers=10),  # ild-g4-general
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", help="events with truth")
    add_common_options(parser)


def run(args: argparse.Namespace) -> None:
    for path in args.files:
        events = read_events(path, entry_stop=args.events)
        n = len(events)
        print(f"{path}: {n} events, {float(ak.mean(ak.num(events.hits))):.0f} hits an event")
        print(f"{'ECAL, HCAL cell, layers':>25} {'tokens':>7} {'merging [ms]':>13} {'encoding [ms]':>14}")
        for merge in SETTINGS:
            recipe = dataclasses.replace(Recipe(), merge=merge)
            tokeniser = Tokeniser.fit([events], recipe)
            tokens = float(ak.mean(ak.num(select_hits(events, recipe).hits)))
            name = "none" if merge is None else f"{merge.ecal_mm:g} mm, {merge.hcal_mm:g} mm, {merge.layers}"
            merging = 0.0 if merge is None else fastest(args.runs, merge_hits, events, merge) / n
            encoding = fastest(args.runs, tokeniser.encode, events) / n
            print(f"{name:>25} {tokens:7.0f} {merging:13.2f} {encoding:14.2f}", flush=True)
