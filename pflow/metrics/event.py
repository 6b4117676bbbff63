"""Metrics of whole events: numbers of particles, pairs of photons, visible energy and mass, and momentum of tracks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.metrics.match import Matches, ParticleTable, masses
from pflow.metrics.particles import RESPONSE_EDGES, response_numbers
from pflow.metrics.stats import (
    Axis,
    Bootstrap,
    Columns,
    Distribution,
    Floats,
    Tree,
    fractions,
    in_bins,
    mean,
    mean90,
    median,
    resolution_68,
    rms90,
    rms90_over_mean90,
)
from pflow.physics.kinematics import angle_between
from pflow.physics.pdg import CLASSES

OPENING_ANGLE = Axis(
    name="opening_angle",
    label="True opening angle of the two photons",
    unit="mrad",
    edges=np.array([10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 90.0, 130.0, 200.0]),
    log=True,
)
MIN_WIDE_MRAD = 30.0
"""Smallest opening angle of a wide pair of photons; an edge of the bins."""
PHOTON = CLASSES.index("photon")


def photon_events(truth: ParticleTable) -> npt.NDArray[np.int64]:
    """Number of photons of each event whose only targets are photons, else 0."""
    n_photons = np.bincount(truth.event[truth.classes == PHOTON], minlength=len(truth.counts))
    return np.where(n_photons == truth.counts, n_photons, 0)


def opening_angles(truth: ParticleTable, pair: npt.NDArray[Any]) -> Floats:
    """Angle between the two particles of each event of `pair`, mrad."""
    first = truth.offsets[pair]
    return np.asarray(1e3 * angle_between(truth.momentum[first], truth.momentum[first + 1]))


class CountMetrics:
    """Fraction of events with exactly the right number of particles, also of events of one or two photons.

    An event whose only targets are one or two photons needs exactly one or two reconstructed particles.
    """

    def __init__(self, *, axis: Axis = OPENING_ANGLE) -> None:
        self.axis = axis
        self.events = Columns()

    def update(self, truth: ParticleTable, reco: ParticleTable) -> None:
        """Count events."""
        n_photons = photon_events(truth)
        angles = np.full(len(n_photons), np.nan)
        pair = np.flatnonzero(n_photons == 2)
        angles[pair] = opening_angles(truth, pair)
        self.events.add(difference=reco.counts - truth.counts, n_photons=n_photons, bin=self.axis.index(angles))

    def result(self, bootstrap: Bootstrap | None = None) -> Tree:
        """Keys under ``count``."""
        difference, n_photons, bins = (self.events[name] for name in ("difference", "n_photons", "bin"))
        bootstrap = bootstrap or Bootstrap(len(difference), n=0)
        right, n_bins = difference == 0, len(self.axis)
        single, pair = n_photons == 1, n_photons == 2
        wide = pair & np.isin(bins, np.flatnonzero(self.axis.edges[:-1] >= MIN_WIDE_MRAD))
        right_pairs, pairs = (np.bincount(bins[of], minlength=n_bins + 1)[:n_bins] for of in (pair & right, pair))
        numbers = Counter(difference.tolist())
        return {
            "exact_fraction": bootstrap.count(right),
            "one_vs_two_accuracy": bootstrap.count(right, single | pair),
            "one_vs_two_accuracy_above_30_mrad": bootstrap.count(right, single | wide),
            "difference": {str(value): numbers[value] for value in sorted(numbers)},
            "two_photons_found": {
                "edges": self.axis.edges.tolist(),
                "unit": self.axis.unit,
                "n_events": pairs.tolist(),
                "efficiency": fractions(right_pairs, pairs),
            },
        }


class PhotonPairMetrics:
    """Opening angle and mass of pairs of photons, reconstructed over true, and the angle of each photon.

    Counts events whose only targets are two photons, if both have a match. The mass is of massless photons; photons
    have their rank by true energy, the first one is the harder.
    """

    def __init__(self, *, axis: Axis = OPENING_ANGLE) -> None:
        self.axis = axis
        self.n_events = self.n_pairs = 0
        self.pairs = Columns()

    def update(self, truth: ParticleTable, reco: ParticleTable, matches: Matches) -> None:
        """Count events."""
        is_pair = photon_events(truth) == 2
        partner = np.full(len(truth), -1)
        partner[matches.truth] = matches.reco
        first = truth.offsets[:-1][is_pair]
        both = (partner[first] >= 0) & (partner[first + 1] >= 0)
        self.n_pairs += len(first)
        true = np.stack([first[both], first[both] + 1])
        true = np.take_along_axis(true, truth.rank[true], axis=0)  # [2, pairs], the harder photon first
        measured = partner[true]
        opening, energy = {}, {}
        for name, table, (a, b) in (("true", truth, true), ("reco", reco, measured)):
            opening[name] = angle_between(table.momentum[a], table.momentum[b])
            energy[name] = np.sqrt(table.energy[a] * table.energy[b])
        mass = {name: energy[name] * np.sin(0.5 * opening[name]) for name in opening}
        angles = np.degrees(angle_between(truth.momentum[true], reco.momentum[measured]))
        self.pairs.add(
            event=(self.n_events + truth.event[true[0]]).astype(np.int32),
            bin=self.axis.index(1e3 * opening["true"]),
            opening=opening["reco"] / opening["true"],
            mass=mass["reco"] / mass["true"],
            angle_1=angles[0],
            angle_2=angles[1],
        )
        self.n_events += len(truth.counts)

    def result(self, bootstrap: Bootstrap | None = None) -> Tree:
        """Keys under ``photon_pairs``; none without pairs."""
        if not self.n_pairs:
            return {}
        bootstrap = bootstrap or Bootstrap(self.n_events, n=0)
        event, bins = self.pairs["event"], self.pairs["bin"]

        def numbers(rows: npt.NDArray[Any]) -> Tree:
            values = {
                name: Distribution(self.pairs[name][rows], event[rows], bootstrap)
                for name in ("opening", "mass", "angle_1", "angle_2")
            }
            return {
                "opening_response": values["opening"].number(median),
                **{f"mass_{key}": n for key, n in values["mass"].numbers(response=median, width=resolution_68).items()},
                **{f"{name}_mean_deg": values[name].number(mean) for name in ("angle_1", "angle_2")},
            }

        return {
            "n_pairs": self.n_pairs,
            "n_found": len(event),
            **numbers(np.arange(len(event))),
            "binned": in_bins(self.axis, bins, numbers, count="n_found"),
        }


MIN_MASS_FRACTION = 0.01
"""Smallest ratio of true visible mass and energy for a mass response; excludes single particles."""


class EventMetrics:
    """Response of the visible energy and mass: reconstructed over true, of all visible particles, target or not."""

    def __init__(self) -> None:
        self.events = Columns()

    def update(self, visible: ParticleTable, reco: ParticleTable) -> None:
        """Count events by their visible truth and the plain sums of their reconstructed particles."""
        (true_energy, true_mass), (energy, mass) = ((of.sums[:, 3], masses(of.sums)) for of in (visible, reco))
        self.events.add(true_energy=true_energy, true_mass=true_mass, energy=energy, mass=mass)

    def result(self, bootstrap: Bootstrap | None = None) -> Tree:
        """Keys under ``event``."""
        columns = {name: self.events[name] for name in ("true_energy", "true_mass", "energy", "mass")}
        bootstrap = bootstrap or Bootstrap(len(columns["energy"]), n=0)
        used = columns["true_energy"] > 0
        massive = used & (columns["true_mass"] > MIN_MASS_FRACTION * columns["true_energy"])
        result = {}
        for name, rows in (("energy", np.flatnonzero(used)), ("mass", np.flatnonzero(massive))):
            response = Distribution(columns[name][rows] / columns[f"true_{name}"][rows], rows, bootstrap)
            result[f"visible_{name}"] = {
                "n_events": len(response),
                **response_numbers(response),
                **response.numbers(rms90=rms90, mean90=mean90, rms90_over_mean90=rms90_over_mean90),
                "histogram": response.histogram(RESPONSE_EDGES),
            }
        return result


MIN_NONE = 1e-5
"""Smallest fraction of the tracks' momentum in no particle that is not rounding."""


class TrackMetrics:
    """Fractions of the track momentum in neutral particles, and in no particle."""

    def __init__(self) -> None:
        self.events = Columns()

    def update(self, momentum: Floats) -> None:
        """Count events by their `pflow.event.particles.Reconstruction.track_momentum`."""
        total, neutral, none = momentum.T
        rounded = np.where(none > MIN_NONE * total, none, 0.0)  # differences of sums in float32
        self.events.add(total=total, neutral=neutral, none=rounded)

    def result(self, bootstrap: Bootstrap | None = None) -> Tree:
        """Keys under ``track_momentum``."""
        total, neutral, none = (self.events[name].astype(np.float64) for name in ("total", "neutral", "none"))
        bootstrap = bootstrap or Bootstrap(len(total), n=0)
        linked = np.where(np.isnan(neutral), 0.0, total)  # the part in neutrals is unknown without links from tracks
        return {
            "in_neutral": bootstrap.fraction(np.nan_to_num(neutral), linked, linked**2),
            "in_none": bootstrap.fraction(none, total, total**2),
        }
