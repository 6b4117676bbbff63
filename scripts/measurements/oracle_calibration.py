"""The calibration of the oracle's showers, fitted on training files: configs/oracle/DETECTOR.yaml."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import yaml

from pflow.config import to_plain
from pflow.event import jagged
from pflow.event.events import Events
from pflow.io.atomic import replacing
from pflow.io.open import iterate_events
from pflow.metrics.oracle import KINDS, ShowerCalibration, measure_showers, tracks_of_particles
from pflow.metrics.stats import Floats, Ints
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


def add_showers(fit: ShowerCalibrationFit, events: Events) -> None:
    """Add to a fit the showers that the oracle measures by hits: particles without a track."""
    assert events.truth is not None
    showers = measure_showers(events)
    showers = showers[~np.isin(showers.particle, tracks_of_particles(events)[1])]
    fit.update(
        kind=showers.kind,
        energy=showers.energy,
        abs_cos_theta=showers.abs_cos_theta,
        true_energy=jagged.flat(events.truth["energy"])[showers.particle],
    )


class ShowerCalibrationFit:
    """Fits a `ShowerCalibration` to showers in one pass and constant memory.

    The factors minimise the sum over showers of (sum_c f_c E_c - E_true)^2 / E_true, the weights of a resolution that
    goes as sqrt(E). The angular correction then sets the summed energy of each bin to the true one, which also removes
    the bias of least squares where the spread is large.
    """

    def __init__(self, detector: Detector) -> None:
        self._names = [calorimeter.name for calorimeter in detector.calorimeters]
        n = len(self._names)
        n_bins = len(COS_EDGES) - 1
        self._matrix = np.zeros((len(KINDS), n, n))
        self._vector = np.zeros((len(KINDS), n))
        self._measured = np.zeros((len(KINDS), n_bins, n))
        self._true = np.zeros((len(KINDS), n_bins))
        self._count = np.zeros((len(KINDS), n_bins), dtype=np.int64)

    def update(self, *, kind: Ints, energy: Floats, abs_cos_theta: Floats, true_energy: Floats) -> None:
        """Add showers: energies float64 [N, calorimeters] and true energies float64 [N], GeV."""
        bins = np.clip(np.searchsorted(COS_EDGES, abs_cos_theta, side="right") - 1, 0, len(COS_EDGES) - 2)
        for k in range(len(KINDS)):
            used = (kind == k) & (true_energy > MIN_ENERGY)
            e, t, b = energy[used], true_energy[used], bins[used]
            self._matrix[k] += (e / t[:, None]).T @ e
            self._vector[k] += e.sum(axis=0)
            np.add.at(self._measured[k], b, e)
            np.add.at(self._true[k], b, t)
            np.add.at(self._count[k], b, 1)

    def result(self, *, origin: str) -> ShowerCalibration:
        """The calibration so far, to four digits; kinds without showers have factors 1."""
        factors, angular = {}, {}
        for k, kind in enumerate(KINDS):
            n = len(self._vector[k])
            pull = RIDGE * max(float(np.trace(self._matrix[k])), 1e-12)
            solved = np.linalg.solve(self._matrix[k] + pull * np.eye(n), self._vector[k] + pull)
            measured = self._measured[k] @ solved
            total = self._true[k].sum() / measured.sum() if measured.sum() > 0 else 1.0
            enough = (self._count[k] >= MIN_SHOWERS) & (measured > 0)
            corrections = np.where(enough, self._true[k] / np.where(enough, measured, 1.0), total)
            factors[kind] = dict(zip(self._names, solved.round(4).tolist(), strict=True))
            angular[kind] = tuple(corrections.round(4).tolist())
        edges = tuple(COS_EDGES.round(4).tolist())
        return ShowerCalibration(origin=origin, factors=factors, cos_edges=edges, angular=angular)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--detector", required=True)
    parser.add_argument("-o", "--output", required=True, type=Path)


def run(args: argparse.Namespace) -> None:
    detector = load_detector(args.detector)
    fitted = ShowerCalibrationFit(detector)
    for path in args.files:
        for events in iterate_events(path, detector=detector, chunk_size=200):
            add_showers(fitted, events)
        print(f"read {path.name}", flush=True)
    calibration = fitted.result(origin=f"showers without a track in {', '.join(path.name for path in args.files)}")
    content = yaml.safe_dump(to_plain(calibration), sort_keys=False, default_flow_style=None, width=110)
    with replacing(args.output) as partial:
        partial.write_text(HEADER + content, "utf-8")
    print(f"wrote {args.output}")
