"""How near simulated files, read as the detector describes, come to reconstructed ones: simulated.json and two tables.

Cells: the real CLD event after and before the standard digitisation, calorimeter by calorimeter. Tracks: those made
from Monte Carlo particles beside the standard tracking on that event, and their number on three simulated events.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
from rich.console import Console
from rich.table import Table

from measurements.files import DATA, RESULTS, rounded, write_json
from pflow.event import jagged
from pflow.event.events import Events
from pflow.io.open import read_events

FOLDER = DATA.parent / "edm4hep"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=FOLDER, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=RESULTS / "simulated.json")


def run(args: argparse.Namespace) -> None:
    standard = read_events(args.data_dir / "cld_rec.edm4hep.root", detector="cld")
    digitised = read_events(args.data_dir / "cld_sim.edm4hep.root", detector="cld", truth_tracks=True)
    more = read_events(args.data_dir / "cld_zuds100_sim.edm4hep.root", detector="cld", truth_tracks=True)
    cells, tracks, zuds = compare_cells(standard, digitised), compare_tracks(standard, digitised), count_tracks(more)
    show("calorimeter", cells)
    show("tracks", {"cld_sim against cld_rec": tracks})
    show("cld_zuds100_sim", {f"entry {number}": row for number, row in enumerate(zuds)})
    write_json(args.output, rounded({"cells": cells, "tracks": tracks, "zuds100": zuds}))


def compare_cells(standard: Events, digitised: Events) -> dict[str, dict[str, Any]]:
    """Hits and energies (GeV) of each calorimeter, and how cells of the same position differ."""
    table: dict[str, dict[str, Any]] = {}
    for number, calorimeter in enumerate(standard.detector.calorimeters):
        cells = [_cells(events, number) for events in (standard, digitised)]
        ours, theirs = cells[1], cells[0]
        common = sorted(ours.keys() & theirs.keys())
        energy = np.array([(theirs[cell][0], ours[cell][0]) for cell in common]).reshape(-1, 2)
        time = np.array([(theirs[cell][1], ours[cell][1]) for cell in common]).reshape(-1, 2)
        deviation = np.abs(energy[:, 1] / energy[:, 0] - 1)
        table[calorimeter.name] = {
            "hits_standard": len(theirs),
            "hits": len(ours),
            "hits_common": len(common),
            "energy_standard": sum(cell[0] for cell in theirs.values()),
            "energy": sum(cell[0] for cell in ours.values()),
            "median_deviation": float(np.median(deviation)) if common else None,
            "largest_deviation": float(np.max(deviation)) if common else None,
            "cells_off_by_1_percent": int(np.sum(deviation > 0.01)),
            "median_time_deviation_ns": float(np.median(np.abs(time[:, 1] - time[:, 0]))) if common else None,
        }
    return table


def compare_tracks(standard: Events, seeded: Events) -> dict[str, Any]:
    """Tracks of the same particles: how many, and medians of how they differ (mm and degrees at the calorimeter)."""
    assert standard.tracks is not None
    assert seeded.tracks is not None
    ours, theirs = _tracks(seeded), _tracks(standard)
    common = sorted(ours.keys() & theirs.keys())
    pairs = [(seeded.tracks[key[0]][ours[key]], standard.tracks[key[0]][theirs[key]]) for key in common]
    momenta = np.array([[track.momentum.pt for track in pair] for pair in pairs])
    places = np.array([[[track.calo_position[axis] for axis in "xyz"] for track in pair] for pair in pairs])
    angles = np.degrees([pair[0].calo_momentum.deltaangle(pair[1].calo_momentum) for pair in pairs])
    return {
        "standard": len(theirs),
        "made": len(ours),
        "common": len(common),
        "median_pt_deviation": float(np.median(np.abs(momenta[:, 0] / momenta[:, 1] - 1))),
        "median_distance_mm": float(np.median(np.linalg.norm(places[:, 0] - places[:, 1], axis=1))),
        "median_angle_deg": float(np.median(angles)),
    }


def count_tracks(events: Events) -> list[dict[str, int]]:
    """Of each event: charged stable particles, tracks, tracks of those particles."""
    assert events.truth is not None
    assert events.track_links is not None
    rows = []
    for truth, links in zip(events.truth, events.track_links, strict=True):
        stable = ak.to_numpy((truth.status == 1) & (truth.charge != 0))
        rows.append(
            {
                "charged_stable": int(stable.sum()),
                "tracks": len(links),
                "of_charged_stable": int(stable[ak.to_numpy(links.particle)].sum()),
            }
        )
    return rows


def show(title: str, rows: dict[str, dict[str, Any]]) -> None:
    """Print rows of the same columns."""
    columns = list(next(iter(rows.values())))
    table = Table(title, *[column.replace("_", " ") for column in columns])
    for name, row in rows.items():
        values = [row[column] for column in columns]
        table.add_row(name, *["" if value is None else f"{value:.5g}" for value in values])
    Console(width=160).print(table)


def _cells(events: Events, subdetector: int) -> dict[tuple[float, ...], tuple[float, float]]:
    """Energy and time of each cell, by entry and position."""
    entry = jagged.event_index(jagged.count(events.hits))
    place = np.column_stack([entry, jagged.vectors(events.hits.position)])
    mine = jagged.flat(events.hits.subdetector) == subdetector
    energy, time = jagged.flat(events.hits.energy, np.float64), jagged.flat(events.hits.time, np.float64)
    return {tuple(cell): (float(e), float(t)) for cell, e, t in zip(place[mine], energy[mine], time[mine], strict=True)}


def _tracks(events: Events) -> dict[tuple[int, int], int]:
    """Index of each track, by entry and particle."""
    assert events.track_links is not None
    return {
        (entry, int(link.particle)): int(link.source)
        for entry, links in enumerate(events.track_links)
        for link in links
    }
