"""Jets: energy response of reconstructed jets that match a true jet.

FastJet (M. Cacciari, G. P. Salam, G. Soyez, EPJ C72 (2012) 1896) is an optional dependency; without it the results have
no jets.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import awkward as ak
import numpy as np

from pflow.errors import ConfigError, missing_package
from pflow.event import jagged
from pflow.metrics.match import Matching, ParticleTable, match
from pflow.metrics.particles import ANGLE_EDGES_DEG, RESPONSE_EDGES
from pflow.metrics.stats import (
    Bootstrap,
    Columns,
    Distribution,
    Tree,
    iqr_over_median,
    median,
    quantile_68,
    rms90,
    rms90_over_mean90,
)

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


def true_jets(visible: ParticleTable) -> dict[str, ParticleTable]:
    """The jets of all visible particles by `ALGORITHMS`, from `MIN_ENERGY` on."""
    jets = {name: find_jets(visible, **options) for name, (_, options) in ALGORITHMS.items()}
    return {name: of.take(of.energy >= MIN_ENERGY) for name, of in jets.items()}


class JetMetrics:
    """Response E_reco / E_true and angles of matched jets, and the matched fraction of true jets."""

    def __init__(self) -> None:
        self.n_events = 0
        self.true = {name: Columns() for name in ALGORITHMS}
        self.pairs = {name: Columns() for name in ALGORITHMS}

    def update(self, truth: Mapping[str, ParticleTable], reco: ParticleTable) -> None:
        """Count events by their `true_jets` and reconstructed particles."""
        for name, true in truth.items():
            jets = find_jets(reco, **ALGORITHMS[name][1])
            matches = match(true, jets, MATCHING)
            i, j = matches.truth, matches.reco
            event = (self.n_events + true.event).astype(np.int32)
            phi = (np.arctan2(table.momentum[k, 1], table.momentum[k, 0]) for table, k in ((jets, j), (true, i)))
            self.true[name].add(event=event, found=np.isin(np.arange(len(true)), i))
            self.pairs[name].add(
                event=event[i],
                response=jets.energy[j] / true.energy[i],
                angle=np.degrees(matches.cost),
                theta=1e3 * (jets.theta[j] - true.theta[i]),
                phi=1e3 * ((np.subtract(*phi) + np.pi) % (2 * np.pi) - np.pi),
            )
        self.n_events += len(reco.counts)

    def result(self, bootstrap: Bootstrap | None = None) -> Tree:
        """Keys under ``jets``."""
        bootstrap = bootstrap or Bootstrap(self.n_events, n=0)
        result: Tree = {}
        for name, (definition, _) in ALGORITHMS.items():
            event, matched = (self.true[name][column] for column in ("event", "found"))
            total, passed = (np.bincount(event, weights, self.n_events) for weights in (None, matched))
            values = {
                column: Distribution(self.pairs[name][column], self.pairs[name]["event"], bootstrap)
                for column in ("response", "angle", "theta", "phi")
            }
            result[name] = {
                "algorithm": definition,
                "n_true": len(event),
                "efficiency": bootstrap.fraction(passed, total),
                **values["response"].numbers(
                    response_median=median,
                    iqr_over_median=iqr_over_median,
                    rms90_over_mean90=rms90_over_mean90,
                ),
                **values["angle"].numbers(median_deg=median, q68_deg=quantile_68),
                **{f"{axis}_rms90_mrad": values[axis].number(rms90) for axis in ("theta", "phi")},
                "histogram": values["response"].histogram(RESPONSE_EDGES),
                "angle_histogram_deg": values["angle"].histogram(ANGLE_EDGES_DEG),
            }
        return result
