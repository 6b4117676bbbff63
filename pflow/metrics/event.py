"""Metrics of whole events: numbers of particles, pairs of photons, visible energy, tracks, taus, and W, Z and H.

Modes of taus are by charged particles and photons, masses those of hadronic decays.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.event.events import Events
from pflow.event.truth import Ancestry, Targets
from pflow.metrics import stats
from pflow.metrics.jets import find_jets
from pflow.metrics.match import RESPONSE_EDGES, Matches, ParticleTable, frequencies, masses, response_numbers
from pflow.metrics.stats import Axis, Bootstrap, Distribution, Floats, Ints, Metrics, Tree
from pflow.physics.kinematics import angle_between, unit_vector
from pflow.physics.pdg import CLASSES, class_index

OPENING_ANGLE = Axis(
    name="opening_angle",
    label="True opening angle of the two photons",
    unit="mrad",
    edges=np.array([10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 90.0, 130.0, 200.0]),
    log=True,
)


def photon_events(truth: ParticleTable) -> npt.NDArray[np.int64]:
    """Number of photons of each event whose only targets are photons, else 0."""
    n_photons = np.bincount(truth.event[truth.classes == CLASSES.index("photon")], minlength=len(truth.counts))
    return np.where(n_photons == truth.counts, n_photons, 0)


class CountMetrics(Metrics):
    """Fraction of events with exactly the right number of particles, also of events of one or two photons.

    An event whose only targets are one or two photons needs exactly one or two reconstructed particles.
    """

    def update(self, truth: ParticleTable, reco: ParticleTable) -> None:
        """Count events."""
        n_photons = photon_events(truth)
        angles = np.full(len(n_photons), np.nan)  # mrad
        first = truth.offsets[:-1][n_photons == 2]
        angles[n_photons == 2] = 1e3 * angle_between(truth.momentum[first], truth.momentum[first + 1])
        difference = reco.counts - truth.counts
        self.add(truth.counts, difference=difference, n_photons=n_photons, angle=angles)

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Keys under ``count``."""
        difference, n_photons, angle = (self.columns[name] for name in ("difference", "n_photons", "angle"))
        right, n_bins = difference == 0, len(OPENING_ANGLE)
        single, pair = n_photons == 1, n_photons == 2
        wide, bins = pair & (angle >= 30.0), OPENING_ANGLE.index(angle)
        right_pairs, pairs = (np.bincount(bins[of], minlength=n_bins + 1)[:n_bins] for of in (pair & right, pair))
        values, numbers = np.unique(difference, return_counts=True)
        return {
            "exact_fraction": bootstrap.count(right),
            "one_vs_two_accuracy": bootstrap.count(right, single | pair),
            "one_vs_two_accuracy_above_30_mrad": bootstrap.count(right, single | wide),
            "difference": dict(zip(map(str, values.tolist()), numbers.tolist(), strict=True)),
            "two_photons_found": {
                "edges": OPENING_ANGLE.edges.tolist(),
                "unit": OPENING_ANGLE.unit,
                "n_events": pairs.tolist(),
                "efficiency": stats.fractions(right_pairs, pairs),
            },
        }


class PhotonPairMetrics(Metrics):
    """Opening angle and mass of pairs of photons, reconstructed over true, and the angle of each photon.

    Counts events whose only targets are two photons, if both have a match and their directions differ. The mass is of
    massless photons; photons have their rank by true energy, the first one is the harder.
    """

    n_pairs = 0
    """Pairs so far, found or not."""

    def update(self, truth: ParticleTable, reco: ParticleTable, matches: Matches) -> None:
        """Count events."""
        is_pair = photon_events(truth) == 2
        partner = np.full(len(truth), -1)
        partner[matches.truth] = matches.reco
        first = truth.offsets[:-1][is_pair]
        both = (partner[first] >= 0) & (partner[first + 1] >= 0)
        both &= angle_between(truth.momentum[first], truth.momentum[first + 1]) > 0  # else there is no ratio of angles
        self.n_pairs += len(first)
        true = np.stack([first[both], first[both] + 1])
        true = np.take_along_axis(true, truth.rank[true], axis=0)  # [2, pairs], the harder photon first
        measured = partner[true]
        pairs = ((truth.momentum[true], truth.energy[true]), (reco.momentum[measured], reco.energy[measured]))
        true_opening, opening = (angle_between(*momenta) for momenta, _ in pairs)
        # m = 2 sqrt(E1 E2) sin(angle / 2): the factor 2 cancels in the ratio.
        true_roots, roots = (np.sqrt(energies[0] * energies[1]) for _, energies in pairs)
        angles = np.degrees(angle_between(truth.momentum[true], reco.momentum[measured]))
        self.add(
            truth.counts,
            event=truth.event[true[0]],
            bin=OPENING_ANGLE.index(1e3 * true_opening),
            opening=opening / true_opening,
            mass=(roots * np.sin(0.5 * opening)) / (true_roots * np.sin(0.5 * true_opening)),
            angle_1=angles[0],
            angle_2=angles[1],
        )

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Keys under ``photon_pairs``; none without pairs."""
        if not self.n_pairs:
            return {}
        event, bins = self.columns["event"], self.columns["bin"]

        def numbers(rows: npt.NDArray[Any]) -> Tree:
            values = {
                name: Distribution(self.columns[name][rows], event[rows], bootstrap)
                for name in ("opening", "mass", "angle_1", "angle_2")
            }
            return {
                "opening_response": values["opening"].number(stats.median),
                **values["mass"].numbers(mass_response=stats.median, mass_width=stats.resolution_68),
                **{f"{name}_mean_deg": values[name].number(stats.mean) for name in ("angle_1", "angle_2")},
            }

        return {
            "n_pairs": self.n_pairs,
            "n_found": len(event),
            **numbers(np.arange(len(event))),
            "binned": stats.in_bins(OPENING_ANGLE, bins, numbers, count="n_found"),
        }


class EventMetrics(Metrics):
    """Response of the visible energy and mass: reconstructed over true, of all visible particles, target or not."""

    def update(self, visible: ParticleTable, reco: ParticleTable) -> None:
        """Count events by their visible truth and the plain sums of their reconstructed particles."""
        (true_energy, true_mass), (energy, mass) = ((of.sums[:, 3], masses(of.sums)) for of in (visible, reco))
        self.add(reco.counts, true_energy=true_energy, true_mass=true_mass, energy=energy, mass=mass)

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Keys under ``event``."""
        columns = {name: self.columns[name] for name in ("true_energy", "true_mass", "energy", "mass")}
        # An event without visible particles has no response, but keeps its place in the bootstrap.
        used = columns["true_energy"] > 0
        massive = used & (columns["true_mass"] > 0.01 * columns["true_energy"])  # no single particles
        result = {}
        for name, rows in (("energy", np.flatnonzero(used)), ("mass", np.flatnonzero(massive))):
            response = Distribution(columns[name][rows] / columns[f"true_{name}"][rows], rows, bootstrap)
            result[f"visible_{name}"] = {
                "n_events": len(response),
                **response_numbers(response),
                **response.numbers(rms90=stats.rms90, mean90=stats.mean90, rms90_over_mean90=stats.rms90_over_mean90),
                "histogram": response.histogram(RESPONSE_EDGES),
            }
        return result


class TrackMetrics(Metrics):
    """Fractions of the track momentum in neutral particles, and in no particle."""

    def update(self, momentum: Floats) -> None:
        """Count events by their `pflow.event.events.Reconstruction.track_momentum`."""
        total, neutral, none = momentum.T
        rounded = np.where(none > 1e-5 * total, none, 0.0)  # differences of sums in float32
        self.add(total, total=total, neutral=neutral, none=rounded)

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Keys under ``track_momentum``."""
        total, neutral, none = (self.columns[name].astype(np.float64) for name in ("total", "neutral", "none"))
        linked = np.where(np.isnan(neutral), 0.0, total)  # the part in neutrals is unknown without links from tracks
        return {
            "in_neutral": bootstrap.fraction(np.nan_to_num(neutral), linked, linked**2),
            "in_none": bootstrap.fraction(none, total, total**2),
        }


TAU, PI0 = 15, 111
RESONANCES = (113, 213, 221, 223, 313, 323, 331, 333, 20213, 20313, 20323, 100213, 100323, 10323, 24)
"""|PDG| of what generators put between a tau and its decay products: rho, a1, K*, eta, omega, phi, W."""
TRUE_MODES = ("e", "mu", "h", "h pi0", "h 2+ pi0", "3h", "3h pi0+", "other")
RECO_MODES = ("e", "mu", "h", "h 1-2 gamma", "h 3+ gamma", "3h", "3h gamma+", "other")
"""h is a charged hadron. Photons stand for pi0, as the two of an energetic pi0 are one shower."""

BOSONS = {23: "Z", 24: "W", 25: "H"}
"""By |PDG|, the bosons whose hadronic decays have a mass in the results."""


class Decays:
    """The K taus or bosons of a chunk of events, in their order: `event`, and `kind`, int64 [K].

    `kind` is the mode of a tau, an index of `TRUE_MODES`, or the |PDG| of a boson. `momentum` float64 [K, 4]: px, py,
    pz, E of its targets, GeV; `of_target` int64 [target]: its tau or boson, or -1.
    """

    def __init__(self, ancestry: Ancestry, targets: Targets, above: Ints, kind: Ints) -> None:
        """By particle, int64 [N]: the tau or boson that it is or comes from, -1 for none, and of which kind this is."""
        rows, number = np.unique(above[targets.chosen], return_inverse=True)
        # -1, no tau or boson, sorts first: without it all numbers are lower by one.
        self.of_target, rows = number - int(np.any(rows < 0)), rows[rows >= 0]
        self.event, self.kind = ancestry.event[rows], kind[rows]
        has = self.of_target >= 0
        columns = (targets.column(name)[has].astype(np.float64) for name in ("px", "py", "pz", "energy"))
        sums = [np.bincount(self.of_target[has], column, len(rows)) for column in columns]
        self.momentum = np.stack(sums, axis=1, dtype=np.float64)


def find_taus(events: Events, targets: Targets) -> Decays:
    """The taus with targets among their descendants."""
    ancestry = Ancestry(events, targets.truth)
    code = np.abs(ancestry.pdg)
    passing = (code == TAU) | np.isin(code, RESONANCES)
    # A copy of a tau that the generator makes has a tau as parent: the first one counts.
    tau = ancestry.topmost(code == TAU)
    # A resonance may also come from a decay product's interaction with matter.
    above = ancestry.nearest(~passing | (tau == np.arange(ancestry.size)))[ancestry.parent]
    product = (tau >= 0) & ~passing & (above == tau)
    kinds = (code == 11, code == 13, class_index(code) == CLASSES.index("charged_hadron"), code == PI0)
    electrons, muons, hadrons, neutral = (np.bincount(tau[product & of], minlength=ancestry.size) for of in kinds)
    return Decays(ancestry, targets, tau, modes_of(electrons, muons, hadrons, neutral, 2))


def find_bosons(events: Events, targets: Targets) -> Decays:
    """The bosons of the truth that decay to quarks or gluons, with targets among their descendants."""
    ancestry = Ancestry(events, targets.truth)
    code = np.abs(ancestry.pdg)
    # Of the copies that a generator makes of a boson, only the last one has quarks or gluons as children.
    is_boson = np.zeros(ancestry.size, dtype=np.bool_)
    is_boson[ancestry.parent[np.isin(code, (1, 2, 3, 4, 5, 6, 21)) & (ancestry.parent >= 0)]] = True
    return Decays(ancestry, targets, ancestry.nearest(is_boson & np.isin(code, list(BOSONS))), code)


def modes_of(electrons: Ints, muons: Ints, hadrons: Ints, neutral: Ints, many: int) -> Ints:
    """Index of `TRUE_MODES` or `RECO_MODES` by numbers of particles; `many` neutral ones are more than one pi0."""
    leptons = electrons + muons
    # Both lists of modes have the same order, so that one index serves for true and reconstructed ones.
    modes = np.full(len(leptons), TRUE_MODES.index("other"))
    alone = (hadrons == 0) & (leptons == 1)
    modes[alone & (electrons == 1)] = TRUE_MODES.index("e")
    modes[alone & (muons == 1)] = TRUE_MODES.index("mu")
    single, triple = ((leptons == 0) & (hadrons == n) for n in (1, 3))
    modes[single] = TRUE_MODES.index("h") + (neutral[single] > 0) + (neutral[single] >= many)
    modes[triple] = TRUE_MODES.index("3h") + (neutral[triple] > 0)
    return modes


class TauMetrics(Metrics):
    """Matrix of true and reconstructed decay modes.

    A matched particle counts for the tau of its target; a fake for the tau nearest in angle.
    """

    def update(self, taus: Decays, reco: ParticleTable, matches: Matches) -> None:
        """Count events by their taus and reconstructed particles."""
        tau = np.full(len(reco), -1)
        tau[matches.reco] = taus.of_target[matches.truth]
        is_fake = ~np.isin(np.arange(len(reco)), matches.reco)
        direction = unit_vector(taus.momentum[:, :3])
        first = np.searchsorted(taus.event, np.arange(len(reco.counts) + 1))
        for row in np.flatnonzero(is_fake).tolist():
            of_event = slice(first[reco.event[row]], first[reco.event[row] + 1])
            if of_event.start < of_event.stop:
                # The momentum needs no normalisation: its length is the same for all taus.
                tau[row] = of_event.start + int(np.argmax(direction[of_event] @ reco.momentum[row]))
        electrons, muons, hadrons, photons = (
            np.bincount(tau[(tau >= 0) & (reco.classes == CLASSES.index(name))], minlength=len(taus.kind))
            for name in ("electron", "muon", "charged_hadron", "photon")
        )
        modes = modes_of(electrons, muons, hadrons, photons, 3)
        self.add(reco.counts, event=taus.event, true=taus.kind, reco=modes)

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Keys under ``taus``; none without taus."""
        event, true, reco = (self.columns[name] for name in ("event", "true", "reco"))
        if not len(event):
            return {}
        counts = frequencies((true, reco), (len(TRUE_MODES), len(RECO_MODES)))
        right, total = (np.bincount(event[rows], minlength=self.n_events) for rows in (true == reco, true >= 0))
        return {
            "n_taus": len(event),
            "mode_right": bootstrap.fraction(right, total),
            "modes": {"true_modes": list(TRUE_MODES), "reco_modes": list(RECO_MODES), "counts": counts.tolist()},
        }


class BosonMetrics(Metrics):
    """Mass of the two jets of a hadronic Z, W or H, reconstructed over true (of the boson's targets).

    In events with one or two such bosons, particles matched to a target of no boson, such as leptons, are removed, and
    the rest is clustered into two jets per boson (Durham). Each boson gets the pair of jets nearest in angle; without
    enough particles its mass is 0.
    """

    def update(self, bosons: Decays, reco: ParticleTable, matches: Matches) -> None:
        """Count events by their bosons, reconstructed particles and matches."""
        # Fakes stay in the jets: they have no target that could exclude them.
        used = np.ones(len(reco), dtype=np.bool_)
        used[matches.reco] = bosons.of_target[matches.truth] >= 0
        n_bosons = np.bincount(bosons.event, minlength=len(reco.counts))
        first = np.cumsum(n_bosons) - n_bosons
        # A clustering has one number of jets, so that events of one and of two bosons are clustered apart.
        momenta = np.zeros((len(bosons.kind), 4))
        for n in (1, 2):
            if not (n_bosons == n).any():
                continue
            jets = find_jets(reco.take(used & (n_bosons == n)[reco.event]), n_jets=2 * n)
            of_jets = np.column_stack([jets.momentum, jets.energy])
            # Too few particles for the jets: left out, the events that an algorithm loses would flatter it.
            for event in np.flatnonzero((n_bosons == n) & (jets.counts == 2 * n)).tolist():
                mine, of_event = jets.offsets[event] + np.arange(2 * n), first[event] + np.arange(n)
                momenta[of_event] = _pairs(of_jets[mine], bosons.momentum[of_event])
        rows = n_bosons[bosons.event] <= 2
        mass, true_mass = (masses(of[rows]) for of in (momenta, bosons.momentum))
        self.add(reco.counts, event=bosons.event[rows], pdg=bosons.kind[rows], mass=mass, true_mass=true_mass)

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Keys under ``hadronic_mass``, by boson; none without bosons."""
        result: Tree = {}
        for pdg, name in BOSONS.items():
            rows = np.flatnonzero((self.columns["pdg"] == pdg) & (self.columns["true_mass"] > 0))
            if len(rows):
                event, mass = self.columns["event"][rows], self.columns["mass"][rows]
                response = Distribution(mass / self.columns["true_mass"][rows], event, bootstrap)
                result[name] = {
                    "n_bosons": len(rows),
                    "median_gev": Distribution(mass, event, bootstrap).number(stats.median),
                    **response_numbers(response),
                    "histogram": response.histogram(RESPONSE_EDGES),
                }
        return result


def _pairs(jets: Floats, bosons: Floats) -> Floats:
    """Sum of the two jets of each boson, four-momenta [bosons, 4], of the assignment with the least sum of angles."""
    orders = itertools.permutations(range(len(jets)))
    sums = [
        np.array([jets[list(order[2 * k : 2 * k + 2])].sum(axis=0) for k in range(len(bosons))]) for order in orders
    ]
    return min(sums, key=lambda pairs: float(np.sum(angle_between(pairs[:, :3], bosons[:, :3]))))
