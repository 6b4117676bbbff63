"""Particles of many events as flat columns, their assignment to true ones by momenta or by shared hits, and metrics of
matched particles: efficiency, fakes, purity, confusion, response and angle, by class and in bins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, ClassVar

import awkward as ak
import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from pflow.errors import InputError, check_choice, check_options, check_type
from pflow.event import jagged
from pflow.event.events import Reconstruction
from pflow.event.jagged import Links, sum_by_pair, with_same_source
from pflow.event.truth import Targets
from pflow.metrics import stats
from pflow.metrics.stats import Axis, Bootstrap, Columns, Distribution, Floats, Ints, Metrics, Number, Series, Tree
from pflow.physics.arrays import Index
from pflow.physics.kinematics import angle_between, unit_vector
from pflow.physics.pdg import CLASSES, class_index

NUMBERS = ("charge", "energy", "px", "py", "pz")


def find_faults(
    particles: ak.Array,
    *,
    name: str = "particles",
    file: str | None = None,
    entries: Ints | None = None,
    fields: Iterable[str] = NUMBERS,
) -> dict[int, InputError]:
    """For each event of records [event, particle] with one, by its index: a number not finite, or an energy below 0.

    The errors name `file` and the entry in it, of `entries` int64 [event], by default the index.
    """
    faults: dict[int, InputError] = {}
    event = jagged.event_index(jagged.count(particles))
    for field, values in jagged.quantities(particles, fields).items():
        # Energies below 0 would lower the fake energy, and can hide too much energy elsewhere in the event.
        least = 0.0 if field == "energy" else -np.inf
        for row in np.flatnonzero(~np.isfinite(values) | (values < least)).tolist():
            index = int(event[row])
            expected = "finite numbers" if not np.isfinite(values[row]) else "energies of at least 0 GeV"
            text = f"{name}: expected {expected}, found {values[row]}"
            entry = index if entries is None else int(entries[index])
            faults.setdefault(index, InputError(text, file=file, entry=entry, field=field))
    return faults


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParticleTable:
    """Particles of consecutive events: `counts` int64 [event]; pdg int64, charge [e], energy [GeV], momentum [N, 3]."""

    counts: Ints
    pdg: Ints
    charge: Floats
    energy: Floats
    momentum: Floats

    @classmethod
    def from_records(cls, particles: ak.Array) -> ParticleTable:
        """From records [event, particle]; jets get pdg and charge 0. InputError: the first of `find_faults`."""
        if absent := {"pdg", "charge"} - set(particles.fields):
            particles = jagged.replaced(particles, dict.fromkeys(absent, np.zeros(int(jagged.count(particles).sum()))))
        for error in find_faults(particles).values():
            raise error
        charge, energy, *momentum = jagged.quantities(particles, NUMBERS).values()
        pdg = jagged.flat(particles["pdg"], np.int64)
        counts = jagged.count(particles)
        return cls(counts=counts, pdg=pdg, charge=charge, energy=energy, momentum=np.stack(momentum, axis=1))

    def __len__(self) -> int:
        """Number of particles."""
        return len(self.pdg)

    def take(self, rows: npt.NDArray[Any]) -> ParticleTable:
        """The particles chosen by a mask, or by indices in the order of the events."""
        columns = {name: getattr(self, name)[rows] for name in ("pdg", "charge", "energy", "momentum")}
        return ParticleTable(counts=np.bincount(self.event[rows], minlength=len(self.counts)), **columns)

    @cached_property
    def event(self) -> Ints:
        """int64 [N]: index of each particle's event."""
        return jagged.event_index(self.counts)

    @cached_property
    def offsets(self) -> Ints:
        """int64 [event + 1]: index of each event's first particle, and the number of particles."""
        return jagged.offsets(self.counts)

    @cached_property
    def classes(self) -> Ints:
        """int64 [N]: index into `pflow.physics.pdg.CLASSES`."""
        return class_index(self.pdg)

    @cached_property
    def theta(self) -> Floats:
        """float64 [N]: polar angle of the momentum, rad."""
        return np.arctan2(np.hypot(self.momentum[:, 0], self.momentum[:, 1]), self.momentum[:, 2])

    @cached_property
    def distance(self) -> Floats:
        """float64 [N]: smallest angle, rad, to the momentum of another charged particle of the event; NaN for none."""
        unit = unit_vector(self.momentum, null=(np.nan, np.nan, np.nan))
        angles = np.full(len(self), np.nan)
        for first, last in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            charged = first + np.flatnonzero(self.charge[first:last])
            cosines = unit[first:last] @ unit[charged].T
            cosines[charged - first, np.arange(len(charged))] = np.nan  # itself
            # Without charged particles there is nothing to reduce, and numpy would raise.
            if cosines.shape[1] > 1 or (cosines.size and np.isfinite(cosines).any()):
                # fmax passes over the NaN; rounding can carry a cosine beyond 1, where arccos is NaN.
                angles[first:last] = np.arccos(np.clip(np.fmax.reduce(cosines, axis=1), -1, 1))
        return angles

    @cached_property
    def sums(self) -> Floats:
        """float64 [event, 4]: px, py, pz and energy of each event's particles, GeV."""
        columns = (*self.momentum.T, self.energy)
        sums = [np.bincount(self.event, column, len(self.counts)) for column in columns]
        return np.stack(sums, axis=1, dtype=np.float64)

    @cached_property
    def rank(self) -> Ints:
        """int64 [N]: place of each particle in its event by falling energy, from 0."""
        ranks = np.empty(len(self), dtype=np.int64)
        ranks[np.lexsort((-self.energy, self.event))] = jagged.local_index(self.counts)
        return ranks


def check_particles(given: object, what: str) -> None:
    """A TypeError unless an array holds lists of four-momenta."""
    such = "such as pflow.select_targets(events).particles, pflow.reconstruct(...).particles, events.reference"
    expected = f"{what} [event, particle], {such}"
    check_type(given, ak.Array, expected)
    assert isinstance(given, ak.Array)  # for the type checker
    # `hasattr` computes a component, which takes longer than the clustering of jets.
    there = (name in given.fields or hasattr(given, name) for name in ("px", "py", "pz", "energy"))
    if given.ndim != 2 or not all(there):
        raise TypeError(f"expected {expected}; found an array of {str(given.type)[:60]}")
    jagged.columns(given)  # refuses objects that are None


def masses(momenta: Floats) -> Floats:
    """Invariant masses of four-momenta px, py, pz, E [N, 4]; 0 for a negative squared mass."""
    return np.asarray(np.sqrt(np.maximum(0.0, momenta[:, 3] ** 2 - np.sum(momenta[:, :3] ** 2, axis=1))))


CLOSE = 0.5
"""Largest cost of the matches that the headline efficiency counts: 50% of the energy, or 50 mrad; half the hits."""


def angle_energy(truth: ParticleTable, reco: ParticleTable, i: Ints, j: Ints) -> Floats:
    """Cost sqrt((dE / E_true)^2 + (angle / 0.1 rad)^2) of the pairs (i, j), float64 [P]."""
    relative = (reco.energy[j] - truth.energy[i]) / truth.energy[i]
    return np.asarray(np.hypot(relative, angle(truth, reco, i, j) / 0.1))


def angle(truth: ParticleTable, reco: ParticleTable, i: Ints, j: Ints) -> Floats:
    """Cost for jets: angle between the directions of the pairs (i, j), rad, float64 [P]; 90 deg without a direction."""
    # Between null vectors the angle would be 0, and particles without a direction would match best of all.
    return np.where(reco.momentum[j].any(axis=1), angle_between(truth.momentum[i], reco.momentum[j]), 0.5 * np.pi)


def rank(truth: ParticleTable, reco: ParticleTable, i: Ints, j: Ints) -> Floats:
    """Cost for the first paper's pairs: difference of the places of i and j in their events, by falling energy."""
    return np.asarray(np.abs(truth.rank[i] - reco.rank[j]), dtype=np.float64)


COSTS: dict[str, tuple[Callable[[ParticleTable, ParticleTable, Ints, Ints], Floats], str]] = {
    "angle_energy": (angle_energy, "sqrt((dE/E_true)^2 + (angle/0.1 rad)^2)"),
    "angle": (angle, "angle in rad"),
    "rank": (rank, "difference of the ranks in energy"),
}
"""Costs by name, with the formula for reports."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matching:
    """A rule of assignment: a cost in `COSTS`, and the largest cost of a match, in the cost's own unit.

    3 is for ``angle_energy``: an angle of 3 rad would match any jets, for which 0.1 is usual, and ranks take 0.5.

    >>> print(Matching(cost="angle", cut=0.1).definition)
    one-to-one assignment of least total cost, angle in rad; pairs above cost 0.1 are not matches
    """

    cost: str = "angle_energy"
    cut: float = 3.0

    def __post_init__(self) -> None:
        check_choice(self.cost, COSTS, "matching cost")
        check_options(self, "matching", "a number above 0", lambda cut: 0 < cut < math.inf, "cut")

    @property
    def definition(self) -> str:
        """The rule in a sentence."""
        formula = COSTS[self.cost][1]
        return f"one-to-one assignment of least total cost, {formula}; pairs above cost {self.cut:g} are not matches"

    @property
    def close(self) -> Matching:
        """The same rule with a largest cost of `CLOSE`."""
        return dataclasses.replace(self, cut=min(self.cut, CLOSE))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Matches:
    """Matched pairs of true and reconstructed particles: their indices, int64 [M], by rising true one, and costs."""

    truth: Ints
    reco: Ints
    cost: Floats


def match(truth: Targets | ak.Array, reco: Reconstruction | ak.Array, matching: Matching | None = None) -> ak.Array:
    """Assign reconstructed to true particles, one to one, event by event: records [event, match].

    Of `Targets` and a `Reconstruction`, or of their particles or jets [event, particle]: the indices ``truth`` and
    ``reco`` in the event's lists, and the ``cost``. TypeError: something else, or true and reconstructed ones swapped.

    Without a rule, pairs up to three times the energy or 300 mrad apart match (``Matching()``); the efficiencies of
    `pflow.evaluate` count ``Matching(cut=0.5)``.

    The assignment maximises the sum of (cut - cost) over the matches, so that a pair above the cut never takes a
    partner away from a pair below it. Of equally good assignments the solver takes its first, which depends only on the
    particles' order.

    >>> events = pflow.read_events("multi_test_small.root", entry_stop=2)
    >>> true, reco = pflow.select_targets(events).particles, events.reference
    >>> pairs = match(true, reco, Matching(cut=0.5))
    >>> (reco[pairs.reco].energy / true[pairs.truth].energy).to_list()
    [[...], [...]]
    """
    check_type(matching, Matching | None, "a pflow.Matching")
    lists = [of.particles if isinstance(of, Targets | Reconstruction) else of for of in (truth, reco)]
    for name, given in zip(("true", "reconstructed"), lists, strict=True):
        check_particles(given, f"{name} particles")
    if "parent" in lists[1].fields and "parent" not in lists[0].fields:
        raise TypeError("expected the true particles first and then the reconstructed ones, found them swapped")
    if len(truth) != len(reco):
        raise ValueError(f"{len(truth)} events of true particles and {len(reco)} of reconstructed ones")
    true, measured = map(ParticleTable.from_records, lists)
    matches = match_tables(true, measured, matching or Matching())
    event = true.event[matches.truth]
    index = {"truth": matches.truth - true.offsets[event], "reco": matches.reco - measured.offsets[event]}
    return jagged.records({**index, "cost": matches.cost}, np.bincount(event, minlength=len(truth)))


def match_tables(truth: ParticleTable, reco: ParticleTable, matching: Matching) -> Matches:
    """The same of tables: pairs by their indices over all events."""
    pairs: list[Ints] = [np.empty((2, 0), dtype=np.int64)]
    costs: list[Floats] = [np.empty(0)]
    partners = reco.counts[truth.event]
    for first, last in _runs(np.cumsum(partners) // jagged.MAX_PAIRS):
        i = np.repeat(np.arange(first, last), partners[first:last])
        j = reco.offsets[truth.event[i]] + jagged.local_index(partners[first:last])
        with np.errstate(divide="ignore", invalid="ignore"):
            cost = COSTS[matching.cost][0](truth, reco, i, j)
        possible = cost <= matching.cut  # not where it is NaN: the true energy is 0
        pairs.append(np.stack([i, j])[:, possible])
        costs.append(cost[possible])
    i, j = np.concatenate(pairs, axis=1)
    return _best_pairs(truth.event, i, j, np.concatenate(costs), matching.cut)


def _runs(keys: Ints) -> list[tuple[int, int]]:
    """Start and end of each run of equal keys; the keys are at least 0."""
    # -1 differs from every key, so that a run starts at the first one.
    starts = np.flatnonzero(np.diff(keys, prepend=-1)).tolist()
    return list(zip(starts, [*starts[1:], len(keys)], strict=True)) if starts else []


def _best_pairs(event: Ints, i: Ints, j: Ints, cost: Floats, cut: float) -> Matches:
    """Choose among possible pairs (i, j), int64 [P], by the rule of `match`; `event` int64 [N], sorted."""
    # Pairs whose particles have no further possible partner need no solver.
    chosen = (np.bincount(i, minlength=1)[i] == 1) & (np.bincount(j, minlength=1)[j] == 1)
    rest = np.flatnonzero(~chosen)
    # A matrix for each event: one for all events would be almost empty and its solution far slower.
    for first, last in _runs(event[i[rest]]):
        pairs = rest[first:last]
        chosen[pairs[_assign(i[pairs], j[pairs], cost[pairs], cut)]] = True
    order = np.flatnonzero(chosen)[np.argsort(i[chosen])]
    return Matches(truth=i[order], reco=j[order], cost=cost[order])


def _assign(i: Ints, j: Ints, cost: Floats, cut: float) -> Ints:
    """Indices of the best pairs of one event among its possible pairs."""
    rows, row_of = np.unique(i, return_inverse=True)
    columns, column_of = np.unique(j, return_inverse=True)
    # An impossible pair costs one rounding step more than the cut, so that a pair at the cut is a match.
    matrix = np.full((len(rows), len(columns)), np.nextafter(cut, np.inf))
    matrix[row_of, column_of] = cost
    position = np.full(matrix.shape, -1)
    position[row_of, column_of] = np.arange(len(cost))
    chosen: Ints = position[linear_sum_assignment(matrix)]
    # The solver gives as many pairs as it can, impossible ones among them: -1.
    return chosen[chosen >= 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HitMatching:
    """Assignment by hits: a match needs an intersection over union of `min_overlap`, above 0 and at most 1.

    >>> HitMatching(min_overlap=0.5).cut  # the cost is 1 - overlap
    0.5
    """

    min_overlap: float = 0.25
    cost: ClassVar[str] = "hits"

    def __post_init__(self) -> None:
        check_options(self, "matching", "above 0 and at most 1", lambda overlap: 0 < overlap <= 1, "min_overlap")

    @property
    def cut(self) -> float:
        """Largest cost of a match, 1 - overlap."""
        return 1.0 - self.min_overlap

    @property
    def close(self) -> HitMatching:
        """The same rule with a largest cost of `CLOSE`."""
        return dataclasses.replace(self, min_overlap=max(self.min_overlap, 1.0 - CLOSE))

    @property
    def definition(self) -> str:
        """The rule in a sentence."""
        return (
            "one-to-one assignment of largest total intersection over union of energy-weighted hit sets, each at least "
            f"{self.min_overlap:g}; a particle without hits has no match"
        )


def match_by_hits(truth: Links, reco: Links, hits: ak.Array, n_true: Ints, n_reco: Ints, rule: HitMatching) -> Matches:
    """One-to-one assignment of the largest total overlap, or least total 1 - overlap.

    The overlap is the intersection over union of their energy-weighted hit sets (HitPF's rule): a hit counts
    min(weight_true, weight_reco) of its energy in the intersection and max(weight_true, weight_reco) in the union.
    """
    hit_energy, n_hits = jagged.flat(hits["energy"], np.float64), jagged.count(hits)
    true_hit, true_particle = truth.flat_source(n_hits), truth.flat_particle(n_true)
    reco_hit, reco_particle = reco.flat_source(n_hits), reco.flat_particle(n_reco)
    a, b = with_same_source(true_hit, reco_hit)
    true_weight, reco_weight = truth.weight.astype(np.float64), reco.weight.astype(np.float64)
    shared = np.minimum(true_weight[a], reco_weight[b]) * hit_energy[true_hit[a]]
    i, j, intersection = sum_by_pair(true_particle[a], reco_particle[b], shared)
    # max(a, b) = a + b - min(a, b): hits of only one of the two particles need no pair.
    union = np.bincount(true_particle, true_weight * hit_energy[true_hit], int(n_true.sum()))[i] - intersection
    union += np.bincount(reco_particle, reco_weight * hit_energy[reco_hit], int(n_reco.sum()))[j]
    # Particles whose hits have no energy would give 0 / 0.
    overlap = np.divide(intersection, union, out=np.zeros(len(i)), where=union > 0)
    # Compared as the cost that the solver sees: `overlap >= min_overlap` can round the other way.
    possible = 1.0 - overlap <= rule.cut
    return _best_pairs(jagged.event_index(n_true), i[possible], j[possible], 1.0 - overlap[possible], rule.cut)


ENERGY = Axis(
    name="energy",
    label="True energy",
    unit="GeV",
    edges=np.array([0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 250.0]),
    log=True,
)
THETA = Axis(name="theta", label="True polar angle", unit="deg", edges=np.linspace(0, 180, 13))

DISTANCE = Axis(
    name="distance",
    label="Angle to the next charged particle",
    unit="mrad",
    edges=np.array([1.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0, 3142.0]),
    log=True,
)
AXES = (ENERGY, THETA, DISTANCE)

UNITS = {"GeV": 1.0, "deg": np.degrees(1.0), "mrad": 1e3}
"""Units of the axes in units of a table: GeV and rad."""

RESPONSE_EDGES = np.linspace(0.5, 1.5, 101)
ANGLE_EDGES_DEG = np.logspace(-4, 2, 91)


class ParticleMetrics(Metrics):
    """Metrics of matched particles, also in bins of energy [GeV], polar angle [deg] and distance [mrad].

    `distance` is the angle to the next charged particle of the same list. Efficiency, response and angle are by the
    true particle's class and bin; fake rate and purity by the reconstructed particle's. Particles outside the bins
    count in all numbers without bins.
    """

    def __init__(self, *, axes: tuple[Axis, ...] = AXES) -> None:
        super().__init__()
        self.axes = axes
        self.truth, self.reco, self.pairs = Columns(), Columns(), Columns()

    def update(
        self,
        truth: ParticleTable,
        reco: ParticleTable,
        matches: Matches,
        close: Matches,
        *,
        sigma: Floats | None = None,
    ) -> None:
        """Count events; true energies must be above 0.

        `close`: the matches of the headline efficiency. `sigma`: stated errors of reconstructed energies, GeV, [reco].
        """
        i, j = matches.truth, matches.reco
        stated = np.full(len(reco), np.nan) if sigma is None else sigma
        with np.errstate(divide="ignore", invalid="ignore"):  # an energy or an error of 0
            pull = np.log(reco.energy[j] / truth.energy[i]) * reco.energy[j] / stated[j]
        true, measured = self._columns(truth), self._columns(reco)
        is_found, is_close = (np.isin(np.arange(len(truth)), of.truth) for of in (matches, close))
        self.truth.add(**true, found=is_found, close=is_close)
        self.reco.add(**measured, fake=~np.isin(np.arange(len(reco)), j))
        self.pairs.add(
            **{name: values[i] for name, values in true.items() if name != "energy"},
            reco_class=measured["class"][j],
            response=reco.energy[j] / truth.energy[i],
            pull=pull,
            angle=np.degrees(angle(truth, reco, i, j)),
            same_charge=np.rint(truth.charge[i]) == np.rint(reco.charge[j]),
            same_pdg=np.abs(truth.pdg[i]) == np.abs(reco.pdg[j]),
        )
        self.add(truth.counts)

    def _columns(self, table: ParticleTable) -> dict[str, npt.NDArray[Any]]:
        """Event, class, energy, and the bin on each axis (named as a property of the table) of its particles."""
        # Small types, because the columns of all particles of the sample are kept until the result.
        columns: dict[str, npt.NDArray[Any]] = {
            "event": (self.n_events + table.event).astype(np.int32),
            "class": table.classes.astype(np.int8),
        }
        for axis in self.axes:
            values = getattr(table, axis.name) * UNITS[axis.unit]
            columns[f"{axis.name}_bin"] = axis.index(values).astype(np.int8)
        return {**columns, "energy": table.energy}

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Keys of an algorithm's tree: energy, angle, charge, pdg, class, confusion, binned."""
        event, response, angle = (self.pairs[name] for name in ("event", "response", "angle"))
        responses, angles = (Distribution(values, event, bootstrap) for values in (response, angle))
        n, true, measured = len(CLASSES), self.truth["class"], self.reco["class"]
        confusion = frequencies((self.pairs["class"], self.pairs["reco_class"]), (n + 1, n + 1))
        confusion[:-1, -1] = np.bincount(true, minlength=n) - confusion[:-1].sum(axis=1)
        confusion[-1, :-1] = np.bincount(measured, minlength=n) - confusion[:, :-1].sum(axis=0)

        def of_pairs(right: npt.NDArray[Any]) -> Number:
            return bootstrap.fraction(*(np.bincount(event, w, self.n_events) for w in (right, np.ones(len(event)))))

        def of_energy(particles: Columns, passed: str) -> Number:
            weights = particles["energy"]
            columns = (weights * particles[passed], weights, weights**2)
            return bootstrap.fraction(*(np.bincount(particles["event"], w, self.n_events) for w in columns))

        return {
            "n_truth": len(true),
            "n_reco": len(measured),
            "n_matched": len(event),
            "energy": {
                "mean_abs_rel_error": Distribution(np.abs(response - 1), event, bootstrap).number(stats.mean),
                "mean_rel_error": Distribution(response - 1, event, bootstrap).number(stats.mean),
                **response_numbers(responses),
            },
            "angle": angles.numbers(mean_deg=stats.mean, median_deg=stats.median, q68_deg=stats.quantile_68),
            "charge": {"accuracy": of_pairs(self.pairs["same_charge"])},
            "pdg": {
                "accuracy": of_pairs(self.pairs["same_pdg"]),
                "class_accuracy": of_pairs(self.pairs["class"] == self.pairs["reco_class"]),
            },
            "class": self._by_class(bootstrap),
            "fake_energy_fraction": of_energy(self.reco, "fake"),
            "energy_weighted_efficiency": of_energy(self.truth, "close"),
            "energy_weighted_efficiency_loose": of_energy(self.truth, "found"),
            "confusion": {
                "true_classes": [*CLASSES, "fake"],
                "reco_classes": [*CLASSES, "missed"],
                "counts": confusion.tolist(),
            },
            "binned": {axis.name: self._binned(bootstrap, axis) for axis in self.axes},
            "histograms": {
                "response": responses.histogram(RESPONSE_EDGES),
                "angle_deg": angles.histogram(ANGLE_EDGES_DEG),
            },
        }

    def _by_class(self, bootstrap: Bootstrap) -> Tree:
        right = self.pairs["class"] == self.pairs["reco_class"]
        true, measured, matched = (self._sums(of)[:, :, 0] for of in (self.truth, self.reco, self.pairs))
        fractions = {
            "efficiency": (self._sums(self.truth, self.truth["close"]), true),
            "efficiency_loose": (self._sums(self.truth, self.truth["found"]), true),
            "fake_rate": (self._sums(self.reco, self.reco["fake"]), measured),
            "purity": (self._sums(self.pairs, right), measured),
            "identified": (self._sums(self.pairs, right), matched),
        }
        numbers = {name: bootstrap.fractions(passed[:, :, 0], total) for name, (passed, total) in fractions.items()}
        classes: Tree = {}
        for k, (name, rows) in enumerate(self._groups()):
            event, *columns = (self.pairs[column][rows] for column in ("event", "response", "angle"))
            response, angle = (Distribution(values, event, bootstrap) for values in columns)
            stated = rows & right & np.isfinite(self.pairs["pull"])  # a covariance holds if the class is right
            pull = Distribution(self.pairs["pull"][stated], self.pairs["event"][stated], bootstrap)
            classes[name] = {
                "n_truth": int(true[:, k].sum()),
                "n_reco": int(measured[:, k].sum()),
                **{key: values[k] for key, values in numbers.items()},
                **response_numbers(response),
                "pull_width": pull.number(stats.resolution_68),
                **angle.numbers(median_deg=stats.median, q68_deg=stats.quantile_68),
            }
        return classes

    def _binned(self, bootstrap: Bootstrap, axis: Axis) -> Tree:
        true, measured = (self._sums(of, axis=axis) for of in (self.truth, self.reco))
        passed = self._sums(self.truth, self.truth["close"], axis), self._sums(self.reco, self.reco["fake"], axis)
        bins, binned = self.pairs[f"{axis.name}_bin"], {"edges": axis.edges.tolist(), "unit": axis.unit}

        def of_bin(rows: Ints) -> dict[str, Number]:
            response, angle = (np.sort(self.pairs[name][rows]) for name in ("response", "angle"))
            middle = stats.by_rank(stats.quantile, response, 0.5)
            width = stats.by_rank(stats.resolution_68, response, stats.LEVEL)
            return {
                "response_median": middle,
                "resolution_68": width,
                # Numbers by rank have no resamples for a ratio: the interval is of the width alone.
                "resolution_68_over_median": width * (1 / middle.value) if middle.value else Number.undefined(),
                "median_deg": stats.by_rank(stats.quantile, angle, 0.5),
                "q68_deg": stats.by_rank(stats.quantile, angle, 0.68),
            }

        for k, (name, rows) in enumerate(self._groups()):
            binned[name] = {
                "n_truth": true[:, k].sum(axis=0).astype(int).tolist(),
                "n_reco": measured[:, k].sum(axis=0).astype(int).tolist(),
                "efficiency": Series.of(bootstrap.fractions(passed[0][:, k], true[:, k])),
                "fake_rate": Series.of(bootstrap.fractions(passed[1][:, k], measured[:, k])),
                **stats.series_in_bins(axis, np.where(rows, bins, len(axis)), of_bin),
            }
        return binned

    def _groups(self) -> list[tuple[str, npt.NDArray[np.bool_]]]:
        """Names, and the matched pairs, of all classes and of each true class."""
        classes = self.pairs["class"]
        return [("all", classes >= 0), *((name, classes == k) for k, name in enumerate(CLASSES))]

    def _sums(self, particles: Columns, passed: npt.NDArray[Any] | None = None, axis: Axis | None = None) -> Floats:
        """Number of particles that pass: float64 [event, all and each class, bins of the axis or 1]."""
        rows = slice(None) if passed is None else np.flatnonzero(passed)
        n_bins = 1 if axis is None else len(axis)
        event, classes = particles["event"][rows], particles["class"][rows]
        bins = 0 * event if axis is None else particles[f"{axis.name}_bin"][rows]
        # Particles outside of the axis are in one more bin, which is cut off.
        counts = frequencies((event, classes, bins), (self.n_events, len(CLASSES), n_bins + 1))[:, :, :n_bins]
        return np.concatenate([counts.sum(axis=1, keepdims=True), counts], axis=1).astype(np.float64)


def response_numbers(response: Distribution) -> dict[str, Number]:
    """Median, width, and width over median of a response."""
    numbers = response.numbers(response_median=stats.median, resolution_68=stats.resolution_68)
    return {**numbers, "resolution_68_over_median": stats.ratio(numbers["resolution_68"], numbers["response_median"])}


def frequencies(index: tuple[npt.NDArray[Any], ...], shape: tuple[int, ...]) -> Index:
    """Frequency of each combination of indices, int64 of the given shape."""
    return np.bincount(np.ravel_multi_index(index, shape), minlength=math.prod(shape)).reshape(shape)
