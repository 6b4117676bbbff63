"""Jets: energy response of reconstructed jets that match a true jet.

FastJet (M. Cacciari, G. P. Salam, G. Soyez, EPJ C72 (2012) 1896) is an optional dependency; without it the results have
no jets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import awkward as ak
import numpy as np

from pflow.errors import ConfigError, missing_package
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.truth import Ancestry, Targets
from pflow.metrics.match import Matches, Matching, match
from pflow.metrics.particles import ANGLE_EDGES_DEG, RESPONSE_EDGES, response_numbers
from pflow.metrics.stats import (
    Bootstrap,
    Columns,
    Distribution,
    Floats,
    Ints,
    Tree,
    iqr_over_median,
    median,
    quantile_68,
    rms90,
    rms90_over_mean90,
)
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import angle_between

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


BOSONS = {23: "Z", 24: "W", 25: "H"}
"""By |PDG|, the bosons whose hadronic decays have a mass in the results."""
PARTONS = (1, 2, 3, 4, 5, 6, 21)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Bosons:
    """The K hadronically decaying bosons of a chunk of events, in their order: `event`, |`pdg`|, int64 [K].

    `momentum` float64 [K, 4]: px, py, pz, E of its targets, GeV; `of_target` int64 [target]: its boson, or -1.
    """

    event: Ints
    pdg: Ints
    momentum: Floats
    of_target: Ints


def find_bosons(events: Events, targets: Targets) -> Bosons:
    """The bosons of the truth that decay to quarks or gluons, with targets among their descendants."""
    code = np.abs(jagged.columns(targets.truth)["pdg"])
    none = np.zeros(0, dtype=np.int64)
    if not np.isin(code, list(BOSONS)).any():
        return Bosons(event=none, pdg=none, momentum=np.zeros((0, 4)), of_target=np.full(len(targets.chosen), -1))
    ancestry = Ancestry(events, targets.truth)
    is_boson = np.zeros(ancestry.size, dtype=np.bool_)
    is_boson[ancestry.parent[np.isin(code, PARTONS) & (ancestry.parent >= 0)]] = True
    boson = ancestry.nearest(is_boson & np.isin(code, list(BOSONS)))[targets.chosen]
    rows, number = np.unique(boson, return_inverse=True)
    of_target, rows = number - int(np.any(boson < 0)), rows[rows >= 0]
    columns = (targets.column(name)[of_target >= 0] for name in ("px", "py", "pz", "energy"))
    sums = [np.bincount(of_target[of_target >= 0], column, len(rows)) for column in columns]
    momentum = np.stack(sums, axis=1).astype(np.float64)
    return Bosons(event=ancestry.event[rows], pdg=code[rows], momentum=momentum, of_target=of_target)


class BosonMetrics:
    """Mass of the two jets of a hadronic Z, W or H, reconstructed over true (of the boson's targets).

    In events with one or two such bosons, particles matched to a target of no boson, such as leptons, are removed, and
    the rest is clustered into two jets per boson (Durham). Each boson gets the pair of jets nearest in angle.
    """

    def __init__(self) -> None:
        self.n_events = 0
        self.bosons = Columns()

    def update(self, bosons: Bosons, reco: ParticleTable, matches: Matches) -> None:
        """Count events by their bosons, reconstructed particles and matches."""
        used = np.ones(len(reco), dtype=np.bool_)
        used[matches.reco] = bosons.of_target[matches.truth] >= 0
        n_bosons = np.bincount(bosons.event, minlength=len(reco.counts))
        first = np.cumsum(n_bosons) - n_bosons
        for n in (1, 2):
            if not (n_bosons == n).any():
                continue
            jets = find_jets(reco.take(used & (n_bosons == n)[reco.event]), n_jets=2 * n)
            momenta = np.column_stack([jets.momentum, jets.energy])
            for event in np.flatnonzero(jets.counts == 2 * n).tolist():
                of_event = slice(first[event], first[event] + n)
                pairs = _pairs(momenta[jets.offsets[event] : jets.offsets[event + 1]], bosons.momentum[of_event])
                self.bosons.add(
                    event=np.full(n, self.n_events + event),
                    pdg=bosons.pdg[of_event],
                    mass=_mass(pairs),
                    true_mass=_mass(bosons.momentum[of_event]),
                )
        self.n_events += len(reco.counts)

    def result(self, bootstrap: Bootstrap | None = None) -> Tree:
        """Keys under ``hadronic_mass``, by boson; none without bosons."""
        bootstrap = bootstrap or Bootstrap(self.n_events, n=0)
        result: Tree = {}
        for pdg, name in BOSONS.items():
            rows = np.flatnonzero((self.bosons["pdg"] == pdg) & (self.bosons["true_mass"] > 0))
            if len(rows):
                event, mass = self.bosons["event"][rows], self.bosons["mass"][rows]
                response = Distribution(mass / self.bosons["true_mass"][rows], event, bootstrap)
                result[name] = {
                    "n_bosons": len(rows),
                    "median_gev": Distribution(mass, event, bootstrap).number(median),
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


def _mass(momenta: Floats) -> Floats:
    return np.asarray(np.sqrt(np.maximum(0.0, momenta[:, 3] ** 2 - np.sum(momenta[:, :3] ** 2, axis=1))))
