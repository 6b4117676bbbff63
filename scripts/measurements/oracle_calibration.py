"""The calibration of the oracle's showers, fitted on training files: configs/oracle/DETECTOR.yaml."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from pflow.config import to_plain
from pflow.event import jagged
from pflow.event.events import Events
from pflow.io.atomic import replacing
from pflow.io.open import iterate_events
from pflow.metrics.oracle import KINDS, ShowerCalibration, measure_showers, tracks_of_particles
from pflow.metrics.stats import Floats
from pflow.physics.detector import Detector, load_detector

HEADER = "# Calibration of showers for the oracle. Written by scripts/results.py.\n"

COS_EDGES = np.linspace(0.0, 1.0, 26)
"""Bins of |cos theta| in which the angular dependence is fitted."""
MIN_ENERGY = 0.5
"""True energy that a shower needs for the fit, GeV."""
MIN_SHOWERS = 20
"""Showers that a bin of the angle needs for a correction of its own."""
RIDGE = 1e-3
"""Ridge term that pulls every factor towards 1, relative to the trace of the normal matrix; matters only for
calorimeters with next to no energy."""


def fit(detector: Detector, showers: Sequence[Floats], *, origin: str) -> ShowerCalibration:
    """The calibration, to four digits; kinds without showers have factors 1.

    The factors minimise the sum over showers of (sum_c f_c E_c - E_true)^2 / E_true, the weights of a resolution that
    goes as sqrt(E). The angular correction then sets the summed energy of each bin to the true one, which also removes
    the bias of least squares where the spread is large. `showers` are of `showers_without_track`.
    """
    kind, energy, abs_cos_theta, true_energy = showers
    names, n_bins = [calorimeter.name for calorimeter in detector.calorimeters], len(COS_EDGES) - 1
    bins = np.clip(np.searchsorted(COS_EDGES, abs_cos_theta, side="right") - 1, 0, n_bins - 1)
    factors, angular = {}, {}
    for k, name in enumerate(KINDS):
        used = (kind == k) & (true_energy > MIN_ENERGY)
        e, t, b = energy[used], true_energy[used], bins[used]
        matrix = (e / t[:, None]).T @ e
        pull = RIDGE * max(float(np.trace(matrix)), 1e-12)
        solved = np.linalg.solve(matrix + pull * np.eye(len(names)), e.sum(axis=0) + pull)
        measured, true = (np.bincount(b, weights=sums, minlength=n_bins) for sums in (e @ solved, t))
        total = true.sum() / measured.sum() if measured.sum() > 0 else 1.0
        enough = (np.bincount(b, minlength=n_bins) >= MIN_SHOWERS) & (measured > 0)
        corrections = np.where(enough, true / np.where(enough, measured, 1.0), total)
        factors[name] = dict(zip(names, solved.round(4).tolist(), strict=True))
        angular[name] = tuple(corrections.round(4).tolist())
    edges = tuple(COS_EDGES.round(4).tolist())
    return ShowerCalibration(origin=origin, factors=factors, cos_edges=edges, angular=angular)


def showers_without_track(events: Events) -> tuple[Floats, ...]:
    """Kind, energies [shower, calorimeter], |cos theta| and true energy of what the oracle measures by hits; GeV."""
    showers = measure_showers(events)
    showers = showers[~np.isin(showers.particle, tracks_of_particles(events)[1])]
    true_energy = jagged.flat(events.truth["energy"])[showers.particle]
    return showers.kind, showers.energy, showers.abs_cos_theta, true_energy


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--detector", required=True)
    parser.add_argument("-o", "--output", required=True, type=Path)


def run(args: argparse.Namespace) -> None:
    detector = load_detector(args.detector)
    parts = []
    for path in args.files:
        parts += map(showers_without_track, iterate_events(path, detector=detector, chunk_size=200))
        print(f"read {path.name}", flush=True)
    origin = f"showers without a track in {', '.join(path.name for path in args.files)}"
    calibration = fit(detector, [np.concatenate(columns) for columns in zip(*parts, strict=True)], origin=origin)
    content = yaml.safe_dump(to_plain(calibration), sort_keys=False, default_flow_style=None, width=110)
    with replacing(args.output, force=True) as partial:
        partial.write_text(HEADER + content, "utf-8")
    print(f"wrote {args.output}")
