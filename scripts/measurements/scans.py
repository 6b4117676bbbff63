"""Scan variants of the simplified ILD and CLD with `general` on validation events; write the tables of RESULTS.md."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from measurements.rows import DATA, REPORT, fill, table
from measurements.shipped import GENERAL
from pflow.inference.scan import scan

VARIED = {"cells": (1, 2, 4), "layers": (1, 2), "hcal_layers": (40, 32)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=DATA, help="folder of g4 and cld_g4 (%(default)s)")
    parser.add_argument("--folder", choices=("g4", "cld_g4"), action="append", help="default: both")
    parser.add_argument("--events", type=int, default=150, help="of each detector (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    for folder in args.folder or ("g4", "cld_g4"):
        file = args.data_dir / folder / "zqq_val.root"
        result = scan(file, vary=VARIED, entries=args.events, checkpoint=GENERAL, on_progress=print)
        heads, sections = result.cells()
        texts = [[row[0], *row[3:-1]] for row in itertools.chain(*sections)]  # without hits, tokens and limits
        rows = [[cell.replace("PFlow", f"`{GENERAL}`") for cell in row] for row in texts]
        fill(REPORT, {f"scan_{folder}": table(["", *heads[3:-1]], rows)})
        print(*result.sentences, sep="\n")
