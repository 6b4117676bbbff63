"""Large events: time and memory of encoder and decoder against the number of hits, with and without merged cells.

Events of a file are joined (as by `pflow overlay`) until there are so many hits. Each stage is done once: sizes show
how it grows. Memory is the peak of the whole process, and what a stage added to what was in use before. One thread.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import awkward as ak
import torch

from benchmarks.memory import peak_mb, reset_peak, resident_mb
from benchmarks.timing import N_HITS, joined
from measurements.files import RESULTS, write_json
from pflow.checkpoint.load import Model, load_model
from pflow.data.collate import collate
from pflow.event.events import Events, Flag
from pflow.inference.events import reconstruct
from pflow.io.open import read_events
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.generate import decode_first_stage

Result = TypeVar("Result")

STAGES = ("encoder", "decoder", "whole")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--checkpoint", default="ild-g4-general", help="default: %(default)s")
    parser.add_argument("--sizes", type=int, nargs="+", default=N_HITS, help="numbers of hits (default: 500 to 16,000)")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS / 'large_events.json'}")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    merged = load_model(args.checkpoint)
    models = {"merged": merged, "all cells": without_merging(merged)}
    rows = []
    head = f"{'file':22} {'cells':10} {'hits':>6} {'tokens':>7} {'particles':>9}"
    print(f"{head}   s and MB added: {', '.join(STAGES)}; peak MB")
    for path in args.files:
        events = read_events(path, entry_stop=100)
        reconstruct(events[:1], merged, device="cpu")  # what is made once is made
        for size in sorted(args.sizes):
            event = joined(events, size)
            for cells, model in models.items():
                row = {"file": path.name, "cells": cells, **measure(event, model)}
                rows.append(row)
                numbers = [f"{row['s'][stage]:8.2f} {row['added_mb'][stage]:7.0f}" for stage in STAGES]
                start = f"{path.name:22} {cells:10} {row['hits']:6} {row['tokens']:7} {row['particles']:9}"
                print(start, *numbers, f"{row['peak_mb']:8.0f}", flush=True)
    if args.save:
        result = {"model": args.checkpoint, "torch": torch.__version__, "rows": rows}
        write_json(RESULTS / "large_events.json", result)


def without_merging(model: Model) -> Model:
    """The model on all cells, each a token: it was not trained so, and decodes as if."""
    tokeniser = copy.copy(model.tokeniser)
    recipe = dataclasses.replace(tokeniser.recipe, merge=None)
    tokeniser = dataclasses.replace(tokeniser, recipe=recipe)
    return dataclasses.replace(model, tokeniser=tokeniser)


def measure(event: Events, model: Model) -> dict[str, Any]:
    """Time and memory of each stage of one event."""
    network, decoding = model.reconstructor.network, model.reconstructor.decoding
    with torch.inference_mode():
        batch = collate(model.tokeniser.encode(event, truth=False))
        source, *encoder = measured(lambda: network.encode(batch))
        _, *decoder = measured(lambda: decode_first_stage(network, source, decoding, Sampler()))
    found, *whole = measured(lambda: reconstruct(event, model, batch_size=1, device="cpu"))
    stages = dict(zip(STAGES, (encoder, decoder, whole), strict=True))
    return {
        "hits": int(ak.num(event.hits)[0]),
        "tokens": int(batch.hits.mask.sum()) + (0 if batch.tracks is None else int(batch.tracks.mask.sum())),
        "particles": int(ak.num(found.particles)[0]),
        "cut": bool(found.flags[0] & Flag.MAX_PARTICLES),
        "s": {stage: seconds for stage, (seconds, _, _) in stages.items()},
        "added_mb": {stage: added for stage, (_, added, _) in stages.items()},
        "peak_mb": max(peak for _, _, peak in stages.values()),
    }


def measured(work: Callable[[], Result]) -> tuple[Result, float, float, float]:
    """Result of a call, its time in s, and the memory that it added and the process had at most, MB."""
    reset_peak()
    before, start = resident_mb(), time.perf_counter()
    result = work()
    return result, time.perf_counter() - start, peak_mb() - before, peak_mb()
