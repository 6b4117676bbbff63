"""Decay modes of taus: true against reconstructed, by charged particles and photons."""

from __future__ import annotations

import dataclasses

import numpy as np

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.truth import Ancestry, Targets
from pflow.metrics.match import Matches
from pflow.metrics.stats import Bootstrap, Columns, Floats, Ints, Tree
from pflow.metrics.table import ParticleTable
from pflow.physics.pdg import CLASSES, class_index

TAU, PI0 = 15, 111
RESONANCES = (113, 213, 221, 223, 313, 323, 331, 333, 20213, 20313, 20323, 100213, 100323, 10323, 24)
"""|PDG| of what generators put between a tau and its decay products: rho, a1, K*, eta, omega, phi, W."""
TRUE_MODES = ("e", "mu", "h", "h pi0", "h 2+ pi0", "3h", "3h pi0+", "other")
RECO_MODES = ("e", "mu", "h", "h 1-2 gamma", "h 3+ gamma", "3h", "3h gamma+", "other")
"""h is a charged hadron. Photons stand for pi0, as the two of an energetic pi0 are one shower."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Taus:
    """The T taus of a chunk of events, in their order: `event`, `mode` (index of `TRUE_MODES`), int64 [T].

    `direction` float64 [T, 3]: sum of the momenta of its targets, GeV; `of_target` int64 [target]: its tau, or -1.
    """

    event: Ints
    mode: Ints
    direction: Floats
    of_target: Ints


def find_taus(events: Events, targets: Targets) -> Taus:
    """The taus with targets among their descendants."""
    if TAU not in np.abs(jagged.columns(targets.truth)["pdg"]):
        none = np.zeros(0, dtype=np.int64)
        no_tau = np.full(len(targets.chosen), -1)
        return Taus(event=none, mode=none, direction=np.zeros((0, 3)), of_target=no_tau)
    ancestry = Ancestry(events, targets.truth)
    code, parent = np.abs(ancestry.pdg), ancestry.parent
    mother = np.where(parent >= 0, code[np.maximum(parent, 0)], 0)
    passing = (code == TAU) | np.isin(code, RESONANCES)
    # A copy of a tau that the generator makes has a tau as parent: the first one counts.
    tau = ancestry.topmost((code == TAU) & (mother != TAU))
    product = (tau >= 0) & ~passing & np.isin(mother, (TAU, *RESONANCES))
    of_target = tau[targets.chosen]
    taus = np.unique(of_target[of_target >= 0])
    number = np.full(ancestry.size + 1, -1)
    number[taus] = np.arange(len(taus))
    of_target, of_product = number[of_target], number[tau]
    kinds = (code == 11, code == 13, class_index(code) == CLASSES.index("charged_hadron"), code == PI0)
    electrons, muons, hadrons, neutral = (
        np.bincount(of_product[product & (of_product >= 0) & kind], minlength=len(taus)) for kind in kinds
    )
    momentum = np.stack([targets.column(name) for name in ("px", "py", "pz")], axis=1).astype(np.float64)
    direction = np.zeros((len(taus), 3))
    np.add.at(direction, of_target[of_target >= 0], momentum[of_target >= 0])
    return Taus(
        event=ancestry.event[taus],
        mode=modes_of(electrons, muons, hadrons, neutral, 2),
        direction=direction,
        of_target=of_target,
    )


def modes_of(electrons: Ints, muons: Ints, hadrons: Ints, neutral: Ints, many: int) -> Ints:
    """Index of `TRUE_MODES` or `RECO_MODES` by numbers of particles; `many` neutral ones are more than one pi0."""
    leptons = electrons + muons
    modes = np.full(len(leptons), TRUE_MODES.index("other"))
    alone = (hadrons == 0) & (leptons == 1)
    modes[alone & (electrons == 1)] = TRUE_MODES.index("e")
    modes[alone & (muons == 1)] = TRUE_MODES.index("mu")
    single, triple = ((leptons == 0) & (hadrons == n) for n in (1, 3))
    modes[single] = TRUE_MODES.index("h") + (neutral[single] > 0) + (neutral[single] >= many)
    modes[triple] = TRUE_MODES.index("3h") + (neutral[triple] > 0)
    return modes


class TauMetrics:
    """Matrix of true and reconstructed decay modes.

    A matched particle counts for the tau of its target; a fake for the tau nearest in angle.
    """

    def __init__(self) -> None:
        self.n_events = 0
        self.taus = Columns()

    def update(self, taus: Taus, reco: ParticleTable, matches: Matches) -> None:
        """Count events by their taus and reconstructed particles."""
        tau = np.full(len(reco), -1)
        tau[matches.reco] = taus.of_target[matches.truth]
        is_fake = ~np.isin(np.arange(len(reco)), matches.reco)
        direction = taus.direction / np.maximum(np.linalg.norm(taus.direction, axis=1, keepdims=True), 1e-30)
        first = np.searchsorted(taus.event, np.arange(len(reco.counts) + 1))
        for row in np.flatnonzero(is_fake).tolist():
            of_event = slice(first[reco.event[row]], first[reco.event[row] + 1])
            if of_event.start < of_event.stop:
                tau[row] = of_event.start + int(np.argmax(direction[of_event] @ reco.momentum[row]))
        electrons, muons, hadrons, photons = (
            np.bincount(tau[(tau >= 0) & (reco.classes == CLASSES.index(name))], minlength=len(taus.mode))
            for name in ("electron", "muon", "charged_hadron", "photon")
        )
        event = (self.n_events + taus.event).astype(np.int32)
        self.taus.add(event=event, true=taus.mode, reco=modes_of(electrons, muons, hadrons, photons, 3))
        self.n_events += len(reco.counts)

    def result(self, bootstrap: Bootstrap | None = None) -> Tree:
        """Keys under ``taus``; none without taus."""
        bootstrap = bootstrap or Bootstrap(self.n_events, n=0)
        event, true, reco = (self.taus[name] for name in ("event", "true", "reco"))
        if not len(event):
            return {}
        counts = np.zeros((len(TRUE_MODES), len(RECO_MODES)), dtype=np.int64)
        np.add.at(counts, (true, reco), 1)
        right, total = (np.bincount(event[rows], minlength=self.n_events) for rows in (true == reco, true >= 0))
        return {
            "n_taus": len(event),
            "mode_right": bootstrap.fraction(right, total),
            "modes": {"true_modes": list(TRUE_MODES), "reco_modes": list(RECO_MODES), "counts": counts.tolist()},
        }
