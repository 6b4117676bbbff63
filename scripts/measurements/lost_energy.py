"""Energy that a reconstruction missed or invented, by class and event by event."""

from __future__ import annotations

import numpy as np

from pflow.event.events import Events
from pflow.metrics.match import Matches
from pflow.metrics.stats import Tree
from pflow.metrics.table import ParticleTable
from pflow.physics.pdg import CLASSES

N_WORST = 3
"""Events that are listed for each algorithm."""


class Losses:
    """Energy of targets without a match (missed) and of reconstructed particles without one (fake), GeV.

    The worst events are those whose missed and fake energy together are the largest share of the targets' energy.
    """

    def __init__(self) -> None:
        self.true_energy = 0.0
        self.missed = np.zeros(len(CLASSES))
        self.fake = np.zeros(len(CLASSES))
        self.worst: list[Tree] = []

    def update(self, events: Events, truth: ParticleTable, reco: ParticleTable, matches: Matches) -> None:
        """Count events; `events` gives their entries and numbers."""
        missed, fake = truth.energy.copy(), reco.energy.copy()
        missed[matches.truth] = 0.0
        fake[matches.reco] = 0.0
        self.true_energy += float(truth.energy.sum())
        self.missed += np.bincount(truth.classes, missed, len(CLASSES))
        self.fake += np.bincount(reco.classes, fake, len(CLASSES))

        true = truth.sum_by_event(truth.energy)
        lost, invented = truth.sum_by_event(missed), reco.sum_by_event(fake)
        share = np.divide(lost + invented, true, out=np.full(len(true), -1.0), where=true > 0)
        self.worst += [
            {
                "entry": int(events.entry[k]),
                "event": int(events.event[k]),
                "n_true": int(truth.counts[k]),
                "n_reco": int(reco.counts[k]),
                "true_energy": float(true[k]),
                "missed_energy": float(lost[k]),
                "fake_energy": float(invented[k]),
                "share": float(share[k]),
            }
            for k in np.argsort(-share, kind="stable")[:N_WORST].tolist()
            if share[k] > 0
        ]
        self.worst = sorted(self.worst, key=lambda event: -float(event["share"]))[:N_WORST]

    def result(self) -> Tree:
        """Shares of the targets' energy by class, and the worst events."""
        total = self.true_energy
        shares = {
            name: {key: float(x) / total if total else None for key, x in zip(CLASSES, energy, strict=True)}
            for name, energy in (("missed", self.missed), ("fake", self.fake))
        }
        return {**shares, "worst": self.worst}
