"""Jets: energy response of reconstructed jets that match a true one.

Jets are found by FastJet (M. Cacciari, G. P. Salam, G. Soyez, EPJ C72 (2012) 1896), an optional dependency: without it
there are no jets in the results, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from typing import Any

import awkward as ak
import numpy as np

from pflow.errors import ConfigError
from pflow.metrics.distribution import Distribution
from pflow.metrics.intervals import fraction
from pflow.metrics.match import Matching, match
from pflow.metrics.number import Tree
from pflow.metrics.table import ParticleTable

__all__ = ["ALGORITHMS", "JetMetrics", "available", "find_jets"]

ALGORITHMS = {
    "genkt_r04": "e+e- generalised kt, p = -1, R = 0.4, inclusive",
    "genkt_r07": "e+e- generalised kt, p = -1, R = 0.7, inclusive",
    "durham_2": "e+e- kt (Durham), exclusive, two jets",
}
"""Names in the results, and what they are."""

MIN_ENERGY = 10.0
"""Energy in GeV that a true jet needs to be counted. A reconstructed one needs none."""
MATCHING = Matching(cost="angle", cut=0.1)
"""Within 0.1 rad, one to one, at the least sum of angles."""


def available() -> bool:
    """Whether the package fastjet is installed."""
    return importlib.util.find_spec("fastjet") is not None


def find_jets(particles: ParticleTable, algorithm: str) -> ParticleTable:
    """Cluster each event's particles into jets (E scheme); their code is 0.

    Events with fewer particles than an exclusive algorithm makes jets have none.

    Raises
    ------
    ConfigError
        No such algorithm, or fastjet is not installed.
    """
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"no jet algorithm '{algorithm}': expected one of {', '.join(ALGORITHMS)}")
    if not available():
        raise ConfigError("jets need the package fastjet: pip install 'pflow[jets]'")
    fastjet = _fastjet()
    enough = particles.counts >= (2 if algorithm == "durham_2" else 1)
    counts = np.zeros_like(particles.counts)
    if not enough.any():
        return _table(counts, np.zeros((0, 4)))
    columns = {"px": particles.momentum[:, 0], "py": particles.momentum[:, 1], "pz": particles.momentum[:, 2]}
    inputs = ak.unflatten(ak.zip({**columns, "E": particles.energy}), particles.counts)[enough]
    if algorithm == "durham_2":
        definition = fastjet.JetDefinition0Param(fastjet.ee_kt_algorithm)
        with warnings.catch_warnings():
            # The wrapper knows hadron colliders' kt alone; Durham is made for exclusive jets.
            warnings.filterwarnings("ignore", message="dcut and exclusive jets")
            jets = fastjet.ClusterSequence(inputs, definition).exclusive_jets(2)
    else:
        radius = {"genkt_r04": 0.4, "genkt_r07": 0.7}[algorithm]
        definition = fastjet.JetDefinition(fastjet.ee_genkt_algorithm, radius, -1.0)
        jets = fastjet.ClusterSequence(inputs, definition).inclusive_jets()
    counts[enough] = ak.to_numpy(ak.num(jets, axis=1))
    flat = ak.flatten(jets, axis=1)
    return _table(counts, np.stack([ak.to_numpy(flat[name]) for name in ("E", "px", "py", "pz")], axis=1))


def _fastjet() -> Any:
    import fastjet

    # The banner would go to standard output, into whatever reads our table; the module's docstring cites the authors.
    with contextlib.suppress(AttributeError):
        fastjet._swig.ClusterSequence.set_fastjet_banner_stream(None)
    return fastjet


def _table(counts: Any, four_momenta: Any) -> ParticleTable:
    n = len(four_momenta)
    return ParticleTable(
        counts=counts,
        pdg=np.zeros(n, dtype=np.int64),
        charge=np.zeros(n),
        energy=four_momenta[:, 0],
        momentum=four_momenta[:, 1:],
    )


class JetMetrics:
    """Response E_reco / E_true of matched jets, and how many true jets are matched, for each algorithm.

    The truth is what is visible in the event, as for the visible energy.
    """

    def __init__(self) -> None:
        self.response = {name: Distribution() for name in ALGORITHMS}
        self.counts = {name: [0, 0] for name in ALGORITHMS}  # matched, all true jets

    def update(self, visible: ParticleTable, reco: ParticleTable) -> None:
        """Count events: their visible truth and what was reconstructed."""
        for name, response in self.response.items():
            true_jets = find_jets(visible, name)
            true_jets = true_jets.take(true_jets.energy >= MIN_ENERGY)
            jets = find_jets(reco, name)
            matches = match(true_jets, jets, MATCHING)
            response.add(jets.energy[matches.reco] / true_jets.energy[matches.truth])
            self.counts[name][0] += len(matches.truth)
            self.counts[name][1] += len(true_jets)

    def merge(self, other: JetMetrics) -> None:
        """Count what another one has counted."""
        for name in ALGORITHMS:
            self.response[name].merge(other.response[name])
            self.counts[name] = [a + b for a, b in zip(self.counts[name], other.counts[name], strict=True)]

    def result(self) -> Tree:
        """Keys under ``jets``."""
        return {
            name: {
                "algorithm": text,
                "n_true": self.counts[name][1],
                "efficiency": fraction(*self.counts[name]),
                "response_median": self.response[name].median(),
                "iqr_over_median": self.response[name].iqr_over_median(),
            }
            for name, text in ALGORITHMS.items()
        }
