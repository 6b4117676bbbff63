"""Jets and summed energies: the response of reconstructed jets that match a true jet, jet energy resolution as
linear-collider studies define it, and the confusion budget.

FastJet (M. Cacciari, G. P. Salam, G. Soyez, EPJ C72 (2012) 1896) is an optional dependency; without it the results have
no jets; the energies of events and the budget need none.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_type, missing_package, warn
from pflow.event import jagged
from pflow.event.events import Events, ImplausibleWarning
from pflow.event.truth import Ancestry
from pflow.metrics import stats
from pflow.metrics.match import (
    ANGLE_EDGES_DEG,
    RESPONSE_EDGES,
    Matches,
    Matching,
    ParticleTable,
    check_particles,
    find_faults,
    match_tables,
)
from pflow.metrics.stats import Axis, Bootstrap, Columns, Distribution, Floats, Metrics, Number, Tree
from pflow.physics.pdg import CLASSES

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


def available() -> bool:
    """Whether the package fastjet is installed."""
    # Finding the package does not import it: only clustering pays for that.
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
    """The jets of each event, from particles of a `Reconstruction`, targets or any four-momenta in GeV.

    Targets are ``pflow.select_targets(events).particles``: ``events.truth`` has the particles of the generator and of
    the simulation that decay or shower, too, whose energy would count several times.

    `n_jets` is the number of jets of an exclusive e+e- kt (Durham) clustering; an event with fewer particles has no
    jets. `radius`, rad, is for the inclusive e+e- generalised kt algorithm with p = -1. Jets, [event, jet], are
    four-momenta (E scheme) by falling energy. With `constituents` also the index of each jet's particles in the event's
    list, int64 [event, jet, particle]. ConfigError: neither or both are given or one is out of range. PflowError: the
    package fastjet is not installed. TypeError: no lists of four-momenta, or no number. InputError: numbers that are
    not finite, or energies below 0.

    >>> events = pflow.read_events("zqq_test_small.root", entry_stop=2)
    >>> find_jets(events.reference, n_jets=2).energy
    <Array [[...], [...]] type='2 * var * float64'>
    >>> jets, index = find_jets(events.reference, n_jets=2, constituents=True)
    >>> ak.num(index[0], axis=1)  # particles in each jet of the first event
    <Array [...] type='2 * int64'>
    """
    if (n_jets is None) == (radius is None):
        raise ConfigError("jets need either n_jets, their number, or radius, their size in rad")
    check_type(radius, int | float | np.number | None, "radius, a number in rad")
    whole = isinstance(n_jets, int | np.integer) and n_jets is not True and n_jets >= 1
    right = whole if radius is None else 0 < radius <= np.pi
    if not right:
        found = radius if n_jets is None else n_jets
        raise ConfigError(f"expected a whole n_jets of at least 1 or a radius above 0 to pi rad, found {found}")
    if not available():
        raise missing_package("fastjet", "jets", extra="jets")
    if isinstance(particles, ParticleTable):
        counts, momenta = particles.counts, (*particles.momentum.T, particles.energy)
    else:
        _check_momenta(particles)
        counts, momenta = jagged.count(particles), (*jagged.quantities(particles, COMPONENTS).values(),)
    inputs = jagged.records(dict(zip(COMPONENTS.values(), momenta, strict=True)), counts)
    enough, n_clustered = counts >= (n_jets or 1), np.zeros_like(counts)
    columns = dict.fromkeys(COMPONENTS, np.zeros(0))
    # An empty list of lists, so that the result has the same depth without any jets.
    members = ak.Array([[0]])[:0]
    if enough.any():
        jets, index = _cluster(inputs[enough], n_jets, None if radius is None else float(radius))
        n_clustered[enough] = ak.to_numpy(ak.num(jets, axis=1))
        order = np.lexsort((-jagged.flat(jets["E"]), jagged.event_index(n_clustered)))
        columns = {component: jagged.flat(jets[name])[order] for component, name in COMPONENTS.items()}
        members = ak.flatten(index(), axis=1)[order] if constituents else members
    clustered = jagged.records(columns, n_clustered)
    if isinstance(particles, ParticleTable):
        return ParticleTable.from_records(clustered)
    return (clustered, ak.unflatten(ak.values_astype(members, np.int64), n_clustered)) if constituents else clustered


def _check_momenta(particles: ak.Array) -> None:
    """Errors of `find_jets` for records that are no lists of four-momenta, and its warning of truth."""
    check_particles(particles, "particles")
    for error in find_faults(particles, fields=COMPONENTS).values():
        raise error
    # Targets, which have an index, may have any status, and none is of another one.
    is_truth = "status" in particles.fields and "index" not in particles.fields
    if is_truth and len(status := np.unique(jagged.flat(particles.status))) > 1:
        text = f"true particles of status {', '.join(map(str, status))} may be products of each other"
        remedy = "take pflow.select_targets(events).particles"
        warn(f"{text}, and their energy counts several times: {remedy}", ImplausibleWarning)


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


class JetMetrics(Metrics):
    """Response E_reco / E_true and angles of matched jets, and the matched fraction of true jets."""

    def __init__(self) -> None:
        super().__init__()
        self.jets = {name: Columns() for name in ALGORITHMS}

    def update(self, truth: Mapping[str, ParticleTable], reco: ParticleTable) -> None:
        """Count events by their `true_jets` and reconstructed particles."""
        for name, true in truth.items():
            jets = find_jets(reco, **ALGORITHMS[name][1])
            matches = match_tables(true, jets, Matching(cost="angle", cut=0.1))
            i, j = matches.truth, matches.reco
            phi = (np.arctan2(table.momentum[k, 1], table.momentum[k, 0]) for table, k in ((jets, j), (true, i)))
            of_true = np.full((4, len(true)), np.nan)  # NaN without a match
            of_true[:, i] = (
                jets.energy[j] / true.energy[i],
                np.degrees(matches.cost),
                1e3 * (jets.theta[j] - true.theta[i]),
                # Azimuths are taken modulo 2 pi: jets on the two sides of phi = pi are close.
                1e3 * ((np.subtract(*phi) + np.pi) % (2 * np.pi) - np.pi),
            )
            columns = dict(zip(("response", "angle", "theta", "phi"), of_true, strict=True))
            self.jets[name].add(event=self.n_events + true.event, **columns)
        self.add(reco.counts)

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Keys under ``jets``."""
        result: Tree = {}
        for name, (definition, _) in ALGORITHMS.items():
            event = self.jets[name]["event"]
            found = np.flatnonzero(np.isfinite(self.jets[name]["response"]))
            total, passed = (np.bincount(of, minlength=self.n_events) for of in (event, event[found]))
            values = {
                column: Distribution(self.jets[name][column][found], event[found], bootstrap)
                for column in ("response", "angle", "theta", "phi")
            }
            result[name] = {
                "algorithm": definition,
                "n_true": len(event),
                "efficiency": bootstrap.fraction(passed, total),
                **values["response"].numbers(
                    response_median=stats.median,
                    iqr_over_median=stats.iqr_over_median,
                    rms90_over_mean90=stats.rms90_over_mean90,
                ),
                **values["angle"].numbers(median_deg=stats.median, q68_deg=stats.quantile_68),
                **{f"{axis}_rms90_mrad": values[axis].number(stats.rms90) for axis in ("theta", "phi")},
                "histogram": values["response"].histogram(RESPONSE_EDGES),
                "angle_histogram_deg": values["angle"].histogram(ANGLE_EDGES_DEG),
            }
        return result


ABS_COS_THETA = Axis(
    name="abs_cos_theta",
    label=r"$|\cos\,\theta|$ of the quarks or the thrust axis",
    unit="",
    edges=np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.925, 0.95, 0.975, 1.0]),
)
"""Bins of ILDPerformance's UdsAnalysis."""
AT_REST = 0.005
"""Largest momentum over energy of all visible true particles: no neutrino, and no photon lost along the beam."""
SAME_ENERGY = 0.01
"""Largest relative difference of neighbouring energies that count as one; of all of them twice as much."""


def jet_axes(events: Events, visible: ParticleTable) -> dict[str, Floats]:
    """Energy [GeV], |cos theta| of the axis, and thrust of each event at rest, else NaN, float64 [event] each.

    The axis is the direction of the hardest of the first quarks where the truth has them, else the thrust axis. Events
    that may be at rest but for a boost along x count; `along_x` and `across` are their momentum over energy.
    """
    energy, momentum = visible.sums[:, 3], visible.sums[:, :3]
    with np.errstate(divide="ignore", invalid="ignore"):
        along_x, across = momentum[:, 0] / energy, np.linalg.norm(momentum[:, 1:], axis=1) / energy
    # Beams that cross in the x-z plane boost along x: by 0.015 (FCC-ee), 0.0165 (CEPC), 0.007 (ILC).
    at_rest = (energy > 0) & (np.abs(along_x) < 0.02) & (across < AT_REST)
    # Particles that are all at rest, such as a neutron, have no axis.
    at_rest &= np.bincount(visible.event, visible.momentum.any(axis=1), len(energy)) > 0
    thrusts, cosines = np.full((2, len(energy)), np.nan)
    for event in np.flatnonzero(at_rest).tolist():
        momenta = visible.momentum[visible.offsets[event] : visible.offsets[event + 1]]
        thrusts[event], axis = thrust(momenta)
        cosines[event] = abs(axis[2])
    quark = _first_quarks(events)
    cosines = np.where(at_rest & ~np.isnan(quark), quark, cosines)
    columns = {"sqrt_s": energy, "along_x": along_x, "across": across}
    columns = {name: np.where(at_rest, values, np.nan) for name, values in columns.items()}
    return {**columns, "abs_cos_theta": cosines, "thrust": thrusts}


def _first_quarks(events: Events) -> Floats:
    """|cos theta| of the hardest quark that comes from no particle, a photon, a Z or a beam; NaN without, [event]."""
    truth = events.truth
    assert truth is not None  # the events are evaluated
    ancestry = Ancestry(events, truth)
    code = np.abs(ancestry.pdg)
    parent = np.where(ancestry.parent < 0, 0, code[ancestry.parent])
    is_quark = (code <= 6) & (code != 0) & np.isin(parent, (0, 11, 22, 23))
    event, momentum = ancestry.event[is_quark], jagged.momenta(truth)[is_quark]
    length = np.linalg.norm(momentum, axis=1)
    cosines = np.full(len(ancestry.counts), np.nan)
    order = np.argsort(length)  # the hardest is the last one to be written
    with np.errstate(invalid="ignore"):
        cosines[event[order]] = np.abs(momentum[order, 2] / length[order])
    return cosines


def thrust(momenta: Floats) -> tuple[float, Floats]:
    """Thrust max_n sum |p.n| / sum |p|, and its axis, float64 [3], of momenta [N, 3].

    Iterates n = sum sign(p.n) p, from all signs of the four hardest momenta, as PYTHIA does (hep-ph/0603175).
    """
    momenta = momenta.astype(np.float64)
    length = np.linalg.norm(momenta, axis=1)
    hardest = momenta[np.argsort(length)[::-1][:4]]
    # The first sign is fixed, because n and -n are the same axis: 8 starts instead of 16.
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=max(len(hardest) - 1, 0))))
    axes = hardest[:1] + signs @ hardest[1:] if len(hardest) > 1 else hardest
    for _ in range(20):
        # np.sign would be 0 for a momentum across the axis, which then counts for no side.
        sides = np.where(momenta @ axes.T >= 0, 1.0, -1.0)  # [N, starts]
        following = sides.T @ momenta
        if np.array_equal(following, axes):
            break
        axes = following
    sums = np.linalg.norm(axes, axis=1)
    best = int(np.argmax(sums))
    return float(sums[best] / length.sum()), axes[best] / sums[best]


class JetEnergyMetrics(Metrics):
    """Jet energy resolution and scale by the summed energy of events of two jets at rest, by their energy and axis.

    Resolution: sqrt(2) RMS90 / Mean90 of the plain sum of the particles' energies; scale: Mean90 / sqrt(s); in bins of
    |cos theta| of the quarks or the thrust axis, below and above 0.7 (ILDPerformance, UdsAnalysis; M. Thomson, NIM A
    611 (2009) 25). sqrt(s) is the energy of all visible true particles; events with neutrinos are not at rest. A boost
    along x that a fifth of the events have, by beams that cross, does not count.
    """

    def update(self, axes: dict[str, Floats], reco: ParticleTable) -> None:
        """Count events by their `jet_axes` and reconstructed particles."""
        self.add(reco.counts, **axes, energy=reco.sums[:, 3])

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Keys under ``jet_energy``: by sqrt(s) in GeV; none without events of two jets."""
        sqrt_s, cosine, thrusts, energy = (
            self.columns[name].astype(np.float64) for name in ("sqrt_s", "abs_cos_theta", "thrust", "energy")
        )
        along_x, across = (self.columns[name].astype(np.float64) for name in ("along_x", "across"))
        # Beams that cross boost many events alike; otherwise a boost is of a neutrino, or of a photon that is lost.
        boosted = np.abs(along_x) > AT_REST
        some = 0.2 * np.isfinite(along_x).sum()
        boost = np.median(along_x[boosted]) if boosted.sum() > some else 0.0
        # Where most are boosted, the beams of all cross: an event that is not boosted has lost what moved with it.
        head_on = boost if boosted.sum() > 4 * some else 0.0
        at_rest = np.hypot(np.where(boosted, along_x - boost, along_x - head_on), across) < AT_REST
        order = np.argsort(sqrt_s)
        order = order[at_rest[order]]
        groups = np.split(order, np.flatnonzero(np.diff(sqrt_s[order]) > SAME_ENERGY * sqrt_s[order][:-1]) + 1)

        def of_events(rows: npt.NDArray[Any]) -> dict[str, Number]:
            relative = Distribution(energy[rows] / sqrt_s[rows], rows, bootstrap)
            return relative.numbers(resolution=stats.jet_energy_resolution, scale=stats.mean90)

        result: Tree = {}
        for group in groups:
            # Close neighbours can chain up to a wide spectrum, so that the whole range has a limit, too.
            one_energy = len(group) >= 10 and np.ptp(sqrt_s[group]) <= 2 * SAME_ENERGY * sqrt_s[group].min()
            if not one_energy or np.median(thrusts[group]) < 0.9:  # events of two jets have more
                continue
            rows, nominal = np.sort(group), float(np.median(sqrt_s[group]))
            # Events of other energies are outside of the bins and not counted there.
            bins = np.full(len(cosine), len(ABS_COS_THETA))
            bins[rows] = ABS_COS_THETA.index(cosine[rows])
            parts = {"": rows, "_barrel": rows[cosine[rows] < 0.7], "_endcap": rows[cosine[rows] >= 0.7]}
            result[f"{nominal:.0f}"] = {
                "sqrt_s_gev": nominal,
                "n_events": len(rows),
                **{f"{key}{part}": number for part, of in parts.items() for key, number in of_events(of).items()},
                "binned": stats.in_bins(ABS_COS_THETA, bins, of_events, count="n_events"),
            }
        return result


KINDS = {"photons": "photon", "neutral_hadrons": "neutral_hadron", "charged": None}
"""What is replaced together, in this order, and its class; `charged` has the other classes."""


def energy_by_kind(table: ParticleTable, classes: npt.NDArray[Any] | None = None) -> Floats:
    """Sum of energies of each event by `KINDS`, GeV, float64 [event, kinds]; `classes` replace the particles'."""
    order = list(KINDS.values())
    kind_of = np.array([order.index(name if name in order else None) for name in CLASSES])
    kinds, n = kind_of[table.classes if classes is None else classes], len(table.counts)
    sums = np.bincount(table.event * len(KINDS) + kinds, table.energy, n * len(KINDS))
    return sums.astype(np.float64).reshape(n, len(KINDS))


class ConfusionBudget(Metrics):
    """Resolution of the visible energy when kinds of particles are replaced by truth, kind by kind.

    As ILDConfig's PerfectPhoton, PerfectPhotonNeutronK0L and PerfectPFA (M. Thomson, NIM A 611 (2009) 25), which change
    the reconstruction; here the particles are replaced. First, for each kind of `KINDS`, matched particles get the
    oracle's energies, fakes are removed and missed particles added: the gain is the confusion. Then the kinds get the
    true energies in the same order: the gain is the resolution of the calorimeters (charged: of the tracks). The rest
    comes from true particles that are not targets. Without the oracle the first steps take true energies, and their
    gain is both. A gain is the root of the difference of squares, negative if the resolution gets worse.
    """

    def update(
        self, visible: ParticleTable, truth: ParticleTable, reco: ParticleTable, matches: Matches, oracle: Floats | None
    ) -> None:
        """Count events; `oracle`: its `energy_by_kind`."""
        classes = reco.classes.copy()
        # By true classes, or a photon taken for a hadron would count twice once the photons are replaced.
        classes[matches.reco] = truth.classes[matches.truth]
        measured = energy_by_kind(reco)
        # The oracle's particles have their true classes, whichever matches which.
        is_oracle = oracle is not None and np.array_equal(measured, oracle)
        self.add(
            reco.counts,
            visible=energy_by_kind(visible).sum(axis=1),
            reco=measured if is_oracle else energy_by_kind(reco, classes),
            **({} if oracle is None else {"oracle": oracle}),
            true=energy_by_kind(truth),
        )

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Keys under ``confusion_budget``."""
        visible, has_oracle = self.columns["visible"].astype(np.float64), "oracle" in self.columns.chunks
        rows = np.flatnonzero(visible > 0)
        names = ("reco", "oracle", "true") if has_oracle else ("reco", "true")
        sources = [self.columns[name].reshape(-1, len(KINDS)) for name in names]
        steps = ["measured", *KINDS, *(f"measurement_{kind}" for kind in KINDS if has_oracle)]

        def resolution(energy: Floats) -> Number:
            return Distribution(energy[rows] / visible[rows], rows, bootstrap).number(stats.rms90_over_mean90)

        energies = [sources[0]]
        for source, k in itertools.product(sources[1:], range(len(KINDS))):
            energies.append(np.concatenate([source[:, : k + 1], energies[-1][:, k + 1 :]], axis=1))
        resolutions = [resolution(energy.sum(axis=1)) for energy in energies]
        gains = {
            step: stats.in_quadrature(a, b)
            for step, a, b in zip(steps[1:], resolutions[:-1], resolutions[1:], strict=True)
        }
        result: Tree = {
            "replaced_by": "the oracle's, then true particles" if has_oracle else "true particles",
            "resolution": dict(zip(steps, resolutions, strict=True)),
            "gain": {**gains, "rest": resolutions[-1]},
        }
        if has_oracle:
            measured, perfect = (result["resolution"][step] for step in ("measured", "charged"))
            result |= {"confusion": stats.in_quadrature(measured, perfect), "measurement": perfect}
        return result
