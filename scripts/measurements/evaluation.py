"""All numbers of one file: the metrics of pflow for every algorithm, and what RESULTS.md asks beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np

from measurements.files import rounded
from measurements.lost_energy import Losses
from measurements.separation import always_one, one_or_two
from pflow.cli.evaluate import zip_chunks
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.event.truth import select_targets
from pflow.io.open import iterate_events
from pflow.io.particles_root import iterate_reco
from pflow.metrics.evaluation import CLASSICAL, ORACLE, Evaluation, Settings, visible_truth
from pflow.metrics.match import Matching, match
from pflow.metrics.oracle import perfect_reconstruction
from pflow.metrics.oracle_calibration import load_calibration
from pflow.metrics.particles import ParticleMetrics
from pflow.metrics.pulls import PullMetrics, covariances
from pflow.metrics.report import document
from pflow.metrics.stats import Distribution, Floats, Tree, fraction
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import angle_between
from pflow.physics.pdg import CLASSES

ORACLE_NO_TRACKS = "oracle_no_tracks"
"""The oracle of the calorimeter alone, the reference of a model that reads no tracks."""
ALWAYS_ONE = "always_one"
"""An algorithm that finds one particle in each event; it has nothing but the fractions of `separation`."""
MIN_ENERGY_GEV = 2.0
"""True energy above which the class of a particle is also counted separately, GeV."""
SOFT_PHOTON_GEV = 1.0
"""True energy below which photons are also counted separately, GeV."""
PHOTON = CLASSES.index("photon")
CHUNK_SIZE = 200
KEPT = (
    *("n_events", "n_truth", "n_reco", "n_matched", "count", "energy", "angle", "charge", "pdg", "class"),
    *("fake_energy_fraction", "fake_energy_fraction_interval", "confusion"),
    *("energy_weighted_efficiency", "energy_weighted_efficiency_interval", "event", "jets", "legacy", "extra"),
)
"""Keys of metrics.json that are kept of an algorithm, beside its bins of energy."""


class Extras:
    """What is measured of one algorithm beside the metrics of pflow.

    The class of particles above an energy, soft photons found, the angle in events without a track, losses, pulls, and
    efficiency, fakes and class against every generator particle, visible or not.
    """

    def __init__(self) -> None:
        self.right = np.zeros((2, 3), dtype=np.int64)  # [all, above 2 GeV], [class right, matched, targets]
        self.soft_photons = np.zeros(2, dtype=np.int64)  # [matched, targets]
        self.angle_no_track = Distribution()
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
        """Count events: targets, generator particles, and reconstructed particles with their covariances, if any."""
        matches = match(truth, reco, matching)
        right = truth.classes[matches.truth] == reco.classes[matches.reco]
        for k, least in enumerate((0.0, MIN_ENERGY_GEV)):
            matched = truth.energy[matches.truth] > least
            self.right[k] += [np.sum(right & matched), np.sum(matched), np.sum(truth.energy > least)]
        soft = (truth.classes == PHOTON) & (truth.energy < SOFT_PHOTON_GEV)
        self.soft_photons += [np.sum(soft[matches.truth]), np.sum(soft)]
        n_tracks = np.zeros(len(events)) if events.tracks is None else ak.to_numpy(ak.num(events.tracks, axis=1))
        trackless = (n_tracks == 0)[truth.event[matches.truth]]
        angle = angle_between(truth.momentum[matches.truth], reco.momentum[matches.reco])
        self.angle_no_track.add(np.degrees(angle[trackless]))
        self.losses.update(events, truth, reco, matches)
        self.generator.update(visible, reco, match(visible, reco, matching))
        if covariance is not None:
            self.pulls = self.pulls or PullMetrics()
            self.pulls.update(truth, reco, covariance, matches)

    def result(self) -> Tree:
        """Keys under ``extra``."""
        generator = self.generator.result()
        return {
            "class_right": {
                name: {"of_matched": fraction(right, matched), "of_targets": fraction(right, targets)}
                for name, (right, matched, targets) in zip(("all", "above_2_gev"), self.right.tolist(), strict=True)
            },
            "generator": {
                "energy_weighted_efficiency": generator["energy_weighted_efficiency"],
                "fake_energy_fraction": generator["fake_energy_fraction"],
                "class_accuracy": generator["pdg"]["class_accuracy"],
            },
            "soft_photons": {"efficiency": fraction(*self.soft_photons.tolist())},
            "no_track": {"angle_mean_deg": self.angle_no_track.mean()},
            "losses": self.losses.result(),
            **({} if self.pulls is None else {"pulls": self.pulls.result()}),
        }


def evaluate_file(
    truth_file: Path,
    recos: Mapping[str, Path],
    *,
    rule: str,
    no_tracks: bool = False,
    truth_tracks: bool = False,
) -> dict[str, Any]:
    """Evaluate reconstructions of a file, Pandora's, and the oracle.

    Parameters
    ----------
    truth_file
        Events.
    recos
        Files of `pflow reconstruct` by the name of their algorithm.
    rule
        Truth rule.
    no_tracks
        Whether to add the oracle without tracks.
    truth_tracks
        As for `pflow.open_events`.

    Returns
    -------
    Plain data for JSON: settings, numbers of events, and ``algorithms``, each with the keys of ``metrics.json``.
    """
    matching = Matching()
    settings = Settings(rule=rule, matching=matching)
    evaluation = Evaluation(name=next(iter(recos)), settings=settings)
    extras: dict[str, Extras] = {}
    origins: set[str] = set()
    chunks = iterate_events(truth_file, truth_tracks=truth_tracks, chunk_size=CHUNK_SIZE)
    answers = {name: iterate_reco(path, chunk_size=CHUNK_SIZE) for name, path in recos.items()}
    for events, found in zip_chunks(chunks, answers, files=recos):
        targets = select_targets(events, rule=rule, e_min=settings.e_min)
        calibration = load_calibration(events.detector)
        origins.add(calibration.origin)
        algorithms: dict[str, Reconstruction] = {
            **{name: dataclasses.replace(answer, name=name) for name, answer in found.items()},
            ORACLE: perfect_reconstruction(events, targets, calibration),
        }
        if no_tracks:
            algorithms[ORACLE_NO_TRACKS] = perfect_reconstruction(events, targets, calibration, use_tracks=False)
        evaluation.update(events, algorithms)
        particles = {name: answer.particles for name, answer in algorithms.items()}
        if events.reference is not None:
            particles[CLASSICAL] = events.reference
        truth, visible = ParticleTable.from_records(targets.particles), visible_truth(events, targets)
        for name, records in particles.items():
            extras.setdefault(name, Extras()).update(
                events,
                truth=truth,
                visible=visible,
                reco=ParticleTable.from_records(records),
                matching=matching,
                covariance=covariances(records),
            )
    result = evaluation.result()
    for name, tree in result.algorithms.items():
        tree["extra"] = {**extras[name].result(), "separation": one_or_two(evaluation.algorithms[name].counts)}
    counts = evaluation.algorithms[next(iter(recos))].counts
    result.algorithms[ALWAYS_ONE] = {"extra": {"separation": always_one(counts)}}
    return _plain(document(result), list(recos), sorted(origins))


def _plain(content: dict[str, Any], models: list[str], origins: list[str]) -> dict[str, Any]:
    """What is kept of a ``metrics.json``: every algorithm on the same level, numbers to six digits."""
    trees = {models[0]: content, **content.get("compare", {})}
    trees.update({name: content[name] for name in (CLASSICAL, ORACLE) if name in content})
    kept = {}
    for name, tree in trees.items():
        kept[name] = {key: tree[key] for key in KEPT if key in tree}
        if "binned" in tree:
            kept[name]["binned"] = {"energy": tree["binned"]["energy"]}
    return {
        "settings": content["settings"],
        "versions": content["versions"],
        "oracle_calibration": origins,
        "n_events": content["n_events_read"],
        "n_max_particles": content["n_max_particles"],
        "models": models,
        "algorithms": rounded(kept),
    }
