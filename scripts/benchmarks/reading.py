"""Reading events from a file, without truth as `pflow reconstruct` does and with it as `pflow fit` does."""

from __future__ import annotations

import argparse

from benchmarks.timing import add_common_options, fastest
from pflow.io.open import open_events

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+")
    add_common_options(parser)


def run(args: argparse.Namespace) -> None:
    print(f"{'file':40} {'events':>7} {'ms an event':>12} {'with truth':>11}")
    for path in args.files:
        with open_events(path) as file:
            n = min(args.events, file.num_entries)
            times = [fastest(args.runs, file.read, 0, n, truth=truth) / n for truth in (False, True)]
        print(f"{path:40} {n:7} {times[0]:12.2f} {times[1]:11.2f}")
