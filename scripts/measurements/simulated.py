"""Radius and field of an ILD-like detector, and sizes of merged cells, with `general` on events simulated for it.

Scans samples NAME.root of several detectors in a folder, each described by NAME.yaml, that share their primaries; and
counts pairs of photons in the simplified ILD. Writes tables and figures of RESULTS.md, which have the folder's name.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np

from measurements.rows import DATA, REPORT, RESULTS, fill, table
from measurements.scans import write
from measurements.shipped import GENERAL
from pflow.checkpoint import load_model
from pflow.event import jagged
from pflow.event.move import Move
from pflow.inference.events import reconstruct
from pflow.inference.scan import scan
from pflow.io.atomic import replacing
from pflow.io.open import read_events
from pflow.metrics.report import number_text
from pflow.metrics.scan import DIFFERENCES, ScanResult
from pflow.metrics.stats import Number, fraction
from pflow.physics.kinematics import angle_between
from pflow.plots import rendered
from pflow.plots.report import plot_scan

FIGURES = {"radius_field": "jet_energy", "radius_field_photons": "class.photon.efficiency"}  # beginning of a key
NOMINAL = "ild"  # file of the nominal detector
PAIRS = "pairs"  # file of pairs of photons
MERGED_MM = (5.0, 10.0, 20.0, 40.0)  # sizes of merged cells of the ECAL
CELLS = (1, 2, 4)  # factors on the ECAL's cells of 5 mm
OPENING_MRAD = (5.0, 10.0, 20.0, 40.0)  # bins of the angle between two photons


def add_options(parser: argparse.ArgumentParser) -> None:
    text = (
        "folders, called as in RESULTS.md (91, 200: GeV), with NAME.root and its description NAME.yaml, the nominal "
        f"one {NOMINAL}.root; pairs of photons are {PAIRS}.root of the first"
    )
    parser.add_argument("simulated", type=Path, nargs="+", metavar="DIR", help=text)
    parser.add_argument("--data-dir", type=Path, default=DATA, help="folder of g4 (%(default)s)")


def run(args: argparse.Namespace) -> None:
    for folder in args.simulated:
        scan_simulated(folder)
    merge_pairs(args.simulated[0] / f"{PAIRS}.root", args.data_dir / "g4" / "gammasep_val.root")


def scan_simulated(folder: Path) -> None:
    """Scan samples of several detectors; write the table and figures."""
    files = [path for path in sorted(folder.glob("*.root")) if path.stem != PAIRS]
    files.sort(key=lambda path: path.stem != NOMINAL)
    descriptions = [path.with_suffix(".yaml") for path in files]
    options = {"output": folder / "scan", "force": True}  # finished points stay
    result = scan(files, detector=descriptions, checkpoint=GENERAL, on_progress=print, **options)
    heads, sections = result.cells(result.headlines)
    rows = []  # the figure shows the points
    for algorithm, section in zip(result.algorithms, sections, strict=True):
        rows += [row for row in section if row[0].endswith(("nominal", "null test"))]
        for parameter, label in result.labels.items():
            numbers = [power(result, key, algorithm, parameter) for key in result.headlines]
            texts = [number_text(number, sign=True) for number in numbers]
            rows.append([f"{result.algorithms[algorithm]}, power of {label.partition(' ')[0].lower()}", *texts])
    write(f"scan_simulated_{folder.name}", heads, rows)
    print(*result.sentences, sep="\n")
    for name, beginning in FIGURES.items():
        key = next(key for key in result.headlines if key.startswith(beginning))
        with replacing(RESULTS / "figures" / f"{name}_{folder.name}.png", force=True) as partial:
            partial.write_bytes(rendered(plot_scan(result, key), "png"))


def power(result: ScanResult, key: str, algorithm: str, parameter: str) -> Number:
    """Power of a parameter in a number, by least squares of logarithms, weighted by events, with resampled error."""
    points = [point for point in result.points if point.point.kind != "null test" and algorithm in point.algorithms]
    numbers = [point.algorithms[algorithm].get(key) for point in points]
    if key.startswith(DIFFERENCES) or any(n is None or n.replicas is None for n in numbers):
        return Number.undefined()
    logarithms = np.log([[point.point.values[name] for name in result.labels] for point in points])
    weights = np.sqrt([[point.n_events] for point in points])
    terms = np.column_stack([np.ones(len(points)), logarithms])
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log([[n.value, *n.replicas] for n in numbers if n is not None and n.replicas is not None])
        fitted = np.linalg.pinv(weights * terms)[1 + list(result.labels).index(parameter)] @ (weights * values)
    return Number.resampled(float(fitted[0]), fitted[1:])


def merge_pairs(pairs: Path, one_or_two: Path) -> None:
    """Share of events of one or two photons with exactly as many particles, by angle and size of merged cells."""
    model, rows = load_model(GENERAL), []
    for file, all_cells in ((pairs, CELLS), (one_or_two, CELLS[:1])):
        events = read_events(file)
        primary = events.truth[events.truth["status"] == 1]
        photons = jagged.count(primary)
        both = primary[photons == 2]
        momenta = np.stack([jagged.flat(both[axis]).reshape(-1, 2) for axis in ("px", "py", "pz")], axis=-1)
        bins = np.where(photons == 1, 0, -1)
        angles = 1e3 * angle_between(momenta[:, 0], momenta[:, 1])
        bins[photons == 2] = np.maximum(1, np.digitize(angles, OPENING_MRAD))
        counts = {}
        for cells, size in itertools.product(all_cells, MERGED_MM):
            if size < 5 * cells:
                continue
            moved = Move(ecal_cells=cells, hcal_cells=cells).apply(events).without_truth()
            start = time.process_time()
            reco = reconstruct(moved, model, merge_mm=size)
            rate = f"{len(events) / (time.process_time() - start):.0f}"
            counts[f"cells of {5 * cells} mm, merged to {size:g} mm", rate] = jagged.count(reco.particles)
        if events.reference is not None:
            counts["PandoraPFA, cells of 5 mm", "-"] = jagged.count(events.reference)
        for (name, rate), found in counts.items():
            right = [found[chosen] == photons[chosen] for chosen in (bins == k for k in range(len(OPENING_MRAD)))]
            texts = (number_text(fraction(of.sum(), len(of))) if len(of) else "-" for of in right)
            rows.append([file.stem, name, *texts, rate])
    heads = [f"2 photons, {low:g} to {high:g} mrad" for low, high in itertools.pairwise(OPENING_MRAD)]
    fill(REPORT, {"merge_pairs": table(["events", "", "1 photon", *heads, "events a second"], rows, left=2)})
