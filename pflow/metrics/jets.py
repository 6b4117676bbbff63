"""Jets: energy response of reconstructed jets that match a true jet.

FastJet (M. Cacciari, G. P. Salam, G. Soyez, EPJ C72 (2012) 1896) is an optional dependency; without it the results have
no jets.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, Literal, overload

import awkward as ak
import numpy as np

from pflow.errors import ConfigError, missing_package
from pflow.event import jagged
from pflow.metrics.match import Matching, match
from pflow.metrics.particles import RESPONSE_EDGES
from pflow.metrics.stats import Distribution, Tree, fraction
from pflow.metrics.table import ParticleTable

ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "genkt_r04": ("e+e- generalised kt, p = -1, R = 0.4, inclusive", {"radius": 0.4}),
    "genkt_r07": ("e+e- generalised kt, p = -1, R = 0.7, inclusive", {"radius": 0.7}),
    "durham_2": ("e+e- kt (Durham), exclusive, 2 jets", {"n_jets": 2}),
}
"""By their names in the results: the definition, and options of `find_jets`."""

COMPONENTS = {"px": "px", "py": "py", "pz": "pz", "energy": "E"}
"""Components of a four-momentum, and FastJet's names."""

MIN_ENERGY = 10.0
"""Smallest energy of a true jet, GeV; reconstructed jets have no minimum."""
MATCHING = Matching(cost="angle", cut=0.1)


def available() -> bool:
    """Whether the package fastjet is installed."""
    return importlib.util.find_spec("fastjet") is not None


@overload
def find_jets(particles: ParticleTable, *, n_jets: int | None = ..., radius: float | None = ...) -> ParticleTable: ...
@overload
def find_jets(particles: ak.Array, *, n_jets: int | None = ..., radius: float | None = ...) -> ak.Array: ...
@overload
def find_jets(
    particles: ak.Array, *, n_jets: int | None = ..., radius: float | None = ..., constituents: Literal[True]
) -> tuple[ak.Array, ak.Array]: ...
def find_jets(
    particles: Any, *, n_jets: int | None = None, radius: float | None = None, constituents: bool = False
) -> Any:
    """The jets of each event, from particles of a `Reconstruction`, ``Events.truth`` or any four-momenta in GeV.

    `n_jets` is the number of jets of an exclusive e+e- kt (Durham) clustering; an event with fewer particles has no
    jets. `radius`, rad, is for the inclusive e+e- generalised kt algorithm with p = -1. Jets, [event, jet], are
    four-momenta (E scheme). With `constituents` also the index of each jet's particles in the event's list, int64
    [event, jet, particle]. ConfigError: neither or both are given or one is out of range, or the package fastjet is
    not installed.

    >>> events = pflow.read_events("zqq_test_small.root", entry_stop=2)
    >>> find_jets(events.reference, n_jets=2).energy
    <Array [[...], [...]] type='2 * var * float64'>
    >>> jets, index = find_jets(events.reference, n_jets=2, constituents=True)
    >>> ak.num(index[0], axis=1)  # particles in each jet of the first event
    <Array [...] type='2 * int64'>
    """
    if (n_jets is None) == (radius is None):
        raise ConfigError("jets need either n_jets, their number, or radius, their size in rad")
    if (n_jets is not None and n_jets < 1) or (radius is not None and not 0 < radius <= np.pi):
        raise ConfigError(f"expected n_jets of at least 1 or a radius above 0 to pi rad, found {n_jets or radius}")
    if not available():
        raise missing_package("fastjet", "jets", extra="jets")
    if isinstance(particles, ParticleTable):
        momenta = dict(zip(COMPONENTS, (*particles.momentum.T, particles.energy), strict=True))
        jets = find_jets(jagged.records(momenta, particles.counts), n_jets=n_jets, radius=radius)
        zeros = np.zeros(int(jagged.count(jets).sum()))
        return ParticleTable.from_records(jagged.replaced(jets, {"pdg": zeros, "charge": zeros}))
    inputs = ak.zip({name: getattr(particles, component) for component, name in COMPONENTS.items()})
    counts = jagged.count(particles)
    enough, n_clustered = counts >= (n_jets or 1), np.zeros_like(counts)
    columns = dict.fromkeys(COMPONENTS, np.zeros(0))
    members = ak.Array([[0]])[:0]
    if enough.any():
        jets, index = _cluster(inputs[enough], n_jets, radius)
        n_clustered[enough] = ak.to_numpy(ak.num(jets, axis=1))
        columns = {component: jagged.flat(jets[name]) for component, name in COMPONENTS.items()}
        members = ak.flatten(index(), axis=1) if constituents else members
    clustered = jagged.records(columns, n_clustered)
    return (clustered, ak.unflatten(ak.values_astype(members, np.int64), n_clustered)) if constituents else clustered


def _cluster(inputs: ak.Array, n_jets: int | None, radius: float | None) -> tuple[ak.Array, Callable[[], ak.Array]]:
    """Jets, and a function for the indices of their constituents, [event, jet, particle]."""
    import fastjet

    # Keep FastJet's banner off standard output; the module's docstring cites the authors.
    with contextlib.suppress(AttributeError):
        fastjet._swig.ClusterSequence.set_fastjet_banner_stream(None)
    if n_jets is not None:
        definition = fastjet.JetDefinition0Param(fastjet.ee_kt_algorithm)
        with warnings.catch_warnings():
            # The wrapper warns about exclusive jets of any algorithm but the hadron colliders' kt.
            warnings.filterwarnings("ignore", message="dcut and exclusive jets")
            sequence = fastjet.ClusterSequence(inputs, definition)
            return sequence.exclusive_jets(n_jets), functools.partial(sequence.exclusive_jets_constituent_index, n_jets)
    sequence = fastjet.ClusterSequence(inputs, fastjet.JetDefinition(fastjet.ee_genkt_algorithm, radius, -1.0))
    return sequence.inclusive_jets(), sequence.constituent_index


class JetMetrics:
    """Response E_reco / E_true of matched jets, and the matched fraction of true jets of all visible particles."""

    def __init__(self) -> None:
        self.response = {name: Distribution() for name in ALGORITHMS}
        self.n_true = dict.fromkeys(ALGORITHMS, 0)

    def update(self, visible: ParticleTable, reco: ParticleTable) -> None:
        """Count events by their visible truth and reconstructed particles."""
        for name, response in self.response.items():
            true_jets, jets = (find_jets(particles, **ALGORITHMS[name][1]) for particles in (visible, reco))
            true_jets = true_jets.take(true_jets.energy >= MIN_ENERGY)
            matches = match(true_jets, jets, MATCHING)
            response.add(jets.energy[matches.reco] / true_jets.energy[matches.truth])
            self.n_true[name] += len(true_jets)

    def result(self) -> Tree:
        """Keys under ``jets``."""
        return {
            name: {
                "algorithm": definition,
                "n_true": self.n_true[name],
                "efficiency": fraction(self.response[name].count, self.n_true[name]),
                "response_median": self.response[name].median(),
                "iqr_over_median": self.response[name].iqr_over_median(),
                "histogram": self.response[name].histogram(RESPONSE_EDGES),
            }
            for name, (definition, _) in ALGORITHMS.items()
        }
