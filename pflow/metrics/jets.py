"""Jets: energy response of reconstructed jets that match a true one.

FastJet (M. Cacciari, G. P. Salam, G. Soyez, EPJ C72 (2012) 1896) is an optional dependency; without it the results have
no jets.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings

import awkward as ak
import numpy as np

from pflow.errors import check_choice, missing_package
from pflow.metrics.match import Matching, match
from pflow.metrics.particles import RESPONSE_EDGES
from pflow.metrics.stats import Distribution, Tree, fraction
from pflow.metrics.table import ParticleTable

ALGORITHMS = {
    "genkt_r04": "e+e- generalised kt, p = -1, R = 0.4, inclusive",
    "genkt_r07": "e+e- generalised kt, p = -1, R = 0.7, inclusive",
    "durham_2": "e+e- kt (Durham), exclusive, two jets",
}
"""Names in the results, and their definitions."""

MIN_ENERGY = 10.0
"""Energy that a true jet needs to be counted, GeV. A reconstructed one needs none."""
MATCHING = Matching(cost="angle", cut=0.1)


def available() -> bool:
    """Whether the package fastjet is installed."""
    return importlib.util.find_spec("fastjet") is not None


def find_jets(particles: ParticleTable, algorithm: str) -> ParticleTable:
    """Each event's jets (E scheme), PDG and charge 0; none of fewer particles than jets; ConfigError: no fastjet."""
    check_choice(algorithm, ALGORITHMS, "jet algorithm")
    if not available():
        raise missing_package("fastjet", "jets", extra="jets")
    enough = particles.counts >= (2 if algorithm == "durham_2" else 1)
    counts, four_momenta = np.zeros_like(particles.counts), np.zeros((0, 4))
    if enough.any():
        px, py, pz = particles.momentum.T
        inputs = ak.zip({"px": px, "py": py, "pz": pz, "E": particles.energy})
        jets = _cluster(ak.unflatten(inputs, particles.counts)[enough], algorithm)
        counts[enough] = ak.to_numpy(ak.num(jets, axis=1))
        flat = ak.flatten(jets, axis=1)
        four_momenta = np.stack([ak.to_numpy(flat[name]) for name in ("E", "px", "py", "pz")], axis=1)
    nothing = np.zeros(len(four_momenta))
    return ParticleTable(
        counts=counts,
        pdg=nothing.astype(np.int64),
        charge=nothing,
        energy=four_momenta[:, 0],
        momentum=four_momenta[:, 1:],
    )


def _cluster(inputs: ak.Array, algorithm: str) -> ak.Array:
    import fastjet

    # Keep FastJet's banner off standard output; the module's docstring cites the authors.
    with contextlib.suppress(AttributeError):
        fastjet._swig.ClusterSequence.set_fastjet_banner_stream(None)
    if algorithm == "durham_2":
        definition = fastjet.JetDefinition0Param(fastjet.ee_kt_algorithm)
        with warnings.catch_warnings():
            # The wrapper warns of exclusive jets with anything but the hadron colliders' kt.
            warnings.filterwarnings("ignore", message="dcut and exclusive jets")
            return fastjet.ClusterSequence(inputs, definition).exclusive_jets(2)
    radius = {"genkt_r04": 0.4, "genkt_r07": 0.7}[algorithm]
    definition = fastjet.JetDefinition(fastjet.ee_genkt_algorithm, radius, -1.0)
    return fastjet.ClusterSequence(inputs, definition).inclusive_jets()


class JetMetrics:
    """Response E_reco / E_true of matched jets, and the matched fraction of true jets, made of all that is visible."""

    def __init__(self) -> None:
        self.response = {name: Distribution() for name in ALGORITHMS}
        self.n_true = dict.fromkeys(ALGORITHMS, 0)

    def update(self, visible: ParticleTable, reco: ParticleTable) -> None:
        """Count events: their visible truth and what was reconstructed."""
        for name, response in self.response.items():
            true_jets = find_jets(visible, name)
            true_jets = true_jets.take(true_jets.energy >= MIN_ENERGY)
            jets = find_jets(reco, name)
            matches = match(true_jets, jets, MATCHING)
            response.add(jets.energy[matches.reco] / true_jets.energy[matches.truth])
            self.n_true[name] += len(true_jets)

    def result(self) -> Tree:
        """Keys under ``jets``."""
        return {
            name: {
                "algorithm": text,
                "n_true": self.n_true[name],
                "efficiency": fraction(self.response[name].count, self.n_true[name]),
                "response_median": self.response[name].median(),
                "iqr_over_median": self.response[name].iqr_over_median(),
                "histogram": self.response[name].histogram(RESPONSE_EDGES),
            }
            for name, text in ALGORITHMS.items()
        }
