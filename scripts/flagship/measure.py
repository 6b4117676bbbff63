"""All numbers of one file: our evaluation of every line, and what it does not count."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
from separation import told_apart

from flagship.losses import Losses
from pflow.cli.evaluate import in_step
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.event.truth import select_targets
from pflow.io.open import iterate_events
from pflow.io.particles_root import iterate_reco
from pflow.metrics.evaluation import CLASSICAL, LIMIT, Evaluation, Settings, visible_truth
from pflow.metrics.intervals import fraction
from pflow.metrics.match import Matches, Matching, match
from pflow.metrics.number import Floats, Tree
from pflow.metrics.oracle import perfect_reconstruction
from pflow.metrics.oracle_calibration import load_calibration
from pflow.metrics.particles import ParticleMetrics
from pflow.metrics.pulls import PullMetrics, covariances
from pflow.metrics.report import document
from pflow.metrics.sums import Mean
from pflow.metrics.table import Ints, ParticleTable
from pflow.physics.kinematics import angle_between

__all__ = ["ABOVE_GEV", "LIMIT_NO_TRACKS", "LineExtras", "measure"]

LIMIT_NO_TRACKS = "limit_no_tracks"
"""Line of the limit of the calorimeter alone, which a model that reads no tracks has to be held against."""
ABOVE_GEV = 2.0
"""True energy from which on the class of a particle is also counted apart, GeV."""
STEP = 200
KEPT = (
    *("n_events", "n_truth", "n_reco", "n_matched", "count", "energy", "angle", "charge", "pdg", "class"),
    *("fake_energy_fraction", "fake_energy_fraction_interval", "confusion"),
    *("energy_weighted_efficiency", "energy_weighted_efficiency_interval", "event", "jets", "extra"),
)
"""Keys of a line that are kept, beside its bins of energy."""


class LineExtras:
    """What is asked of one line beside the evaluation.

    The class of particles above an energy, the angle in events without a track, losses, pulls; and efficiency, fakes
    and class against every generator particle, visible or not.
    """

    def __init__(self) -> None:
        self.right = np.zeros((2, 3), dtype=np.int64)  # [all, above 2 GeV], [class right, matched, targets]
        self.angle_no_track = Mean()
        self.generator = ParticleMetrics()
        self.losses = Losses()
        self.pulls: PullMetrics | None = None

    def update(
        self,
        events: Events,
        *,
        truth: ParticleTable,
        visible: ParticleTable,
        reco: ParticleTable,
        matching: Matching,
        covariance: Floats | None = None,
    ) -> None:
        """Count events: targets, generator particles, and what was reconstructed with its covariances, if any."""
        matches = match(truth, reco, matching)
        self._count_classes(truth, reco, matches)
        trackless = (_n_tracks(events) == 0)[truth.event[matches.truth]]
        angle = angle_between(truth.momentum[matches.truth], reco.momentum[matches.reco])
        self.angle_no_track.add(np.degrees(angle[trackless]))
        self.losses.update(events, truth, reco, matches)
        self.generator.update(visible, reco, match(visible, reco, matching))
        if covariance is not None:
            self.pulls = self.pulls or PullMetrics()
            self.pulls.update(truth, reco, covariance, matches)

    def _count_classes(self, truth: ParticleTable, reco: ParticleTable, matches: Matches) -> None:
        right = truth.classes[matches.truth] == reco.classes[matches.reco]
        for k, least in enumerate((0.0, ABOVE_GEV)):
            matched = truth.energy[matches.truth] > least
            self.right[k] += [np.sum(right & matched), np.sum(matched), np.sum(truth.energy > least)]

    def result(self) -> Tree:
        """Keys under ``extra``."""
        generator = self.generator.result()
        names = ("all", "above_2_gev")
        return {
            "class_right": {
                name: {"of_matched": fraction(right, matched), "of_targets": fraction(right, targets)}
                for name, (right, matched, targets) in zip(names, self.right.tolist(), strict=True)
            },
            "generator": {
                "energy_weighted_efficiency": generator["energy_weighted_efficiency"],
                "fake_energy_fraction": generator["fake_energy_fraction"],
                "class_accuracy": generator["pdg"]["class_accuracy"],
            },
            "no_track": {"angle_mean_deg": self.angle_no_track.result()},
            "losses": self.losses.result(),
            **({} if self.pulls is None else {"pulls": self.pulls.result()}),
        }


def _n_tracks(events: Events) -> Ints:
    """Tracks of each event, int64 [event]."""
    if events.tracks is None:
        return np.zeros(len(events), dtype=np.int64)
    return np.asarray(ak.to_numpy(ak.num(events.tracks, axis=1)), dtype=np.int64)


def measure(truth_file: Path, recos: Mapping[str, Path], *, rule: str, no_tracks: bool) -> dict[str, Any]:
    """Evaluate reconstructions of a file, Pandora's, and the limit.

    Parameters
    ----------
    truth_file
        Events.
    recos
        Files of `pflow reconstruct` by the name of their line.
    rule
        Truth rule.
    no_tracks
        Whether to add the limit without tracks.

    Returns
    -------
    Plain data for JSON: settings, numbers of events, and ``lines``, each with the keys of ``metrics.json``.
    """
    matching = Matching()
    settings = Settings(rule=rule, matching=matching)
    evaluation = Evaluation(name=next(iter(recos)), settings=settings)
    extras: dict[str, LineExtras] = {}
    origins: set[str] = set()
    chunks = iterate_events(truth_file, step=STEP)
    answers = {line: iterate_reco(path, step=STEP) for line, path in recos.items()}
    for events, found in in_step(chunks, answers, files=recos):
        targets = select_targets(events, rule=rule, e_min=settings.e_min)
        calibration = load_calibration(events.detector)
        origins.add(calibration.origin)
        lines: dict[str, Reconstruction] = {
            **{line: dataclasses.replace(answer, name=line) for line, answer in found.items()},
            LIMIT: perfect_reconstruction(events, targets, calibration),
        }
        if no_tracks:
            lines[LIMIT_NO_TRACKS] = perfect_reconstruction(events, targets, calibration, use_tracks=False)
        evaluation.update(events, lines)
        particles = {line: answer.particles for line, answer in lines.items()}
        if events.reference is not None:
            particles[CLASSICAL] = events.reference
        truth, visible = ParticleTable.from_records(targets.particles), visible_truth(events, targets)
        for line, records in particles.items():
            extras.setdefault(line, LineExtras()).update(
                events,
                truth=truth,
                visible=visible,
                reco=ParticleTable.from_records(records),
                matching=matching,
                covariance=covariances(records),
            )
    result = evaluation.result()
    for line, tree in result.lines.items():
        tree["extra"] = {**extras[line].result(), "separation": told_apart(evaluation.lines[line].counts)}
    return _plain(document(result), list(recos), sorted(origins))


def _plain(content: dict[str, Any], models: list[str], origins: list[str]) -> dict[str, Any]:
    """What is kept of a ``metrics.json``: every line on the same level, numbers to six digits."""
    lines = {models[0]: content, **content.get("compare", {})}
    lines.update({line: content[line] for line in (CLASSICAL, LIMIT) if line in content})
    kept = {
        line: {key: tree[key] for key in KEPT if key in tree} | {"binned": {"energy": tree["binned"]["energy"]}}
        for line, tree in lines.items()
    }
    return {
        "settings": content["settings"],
        "versions": content["versions"],
        "limit_calibration": origins,
        "n_events": content["n_events_read"],
        "n_max_particles": content["n_max_particles"],
        "models": models,
        "lines": _rounded(kept),
    }


def _rounded(content: Any) -> Any:
    """Floats of plain data to six digits: the file stays small."""
    if isinstance(content, dict):
        return {key: _rounded(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_rounded(value) for value in content]
    return float(f"{content:.6g}") if isinstance(content, float) else content
