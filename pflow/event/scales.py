"""Measure the scales of events: what `pflow.event.checks` compares, and what a model keeps of its training.

`measure` measures a chunk: energies, layers, links to truth, and what tracks leave in the calorimeters
(`pflow.event.closure`). `Scales` of chunks add up in any order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.closure import ALONE, MIN_MOMENTUM, N_LAYERS, WIDTH, FlatHits, TrackDeposits, nearest_other
from pflow.event.events import Events
from pflow.event.jagged import Links, assigned_particle
from pflow.event.schema import PXYZ
from pflow.event.truth import STABLE_STATUS, select_targets
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import ECAL, HCAL, Detector
from pflow.physics.geometry import kind_index, layers_by_position
from pflow.physics.kinematics import Array, angle_between, momentum_from_track, unit_vector
from pflow.physics.pdg import decays_at_once, is_invisible, known_charges, mass_of

ELECTRON, MUON, TAU, PHOTON, NEUTRAL_HADRONS = 11, 13, 15, 22, (130, 2112)
HARD_TRUE = 3.0  # GeV, energy of a true particle whose hits tell its class
BEAM = 0.9998  # cosine of the polar angle beyond which nothing is seen
OF_CLASS = 0.1  # smallest part of an event's visible energy in a class of which its reference is looked at
SOFT = 0.1  # GeV, largest momentum of true particles that are not looked for twice
CHARGE_ROUNDING = 0.01  # largest difference, e, of a charge from the PDG's that counts as none

MAX_ROWS = 100_000  # of a table; more are thinned evenly
MAX_HITS = 5000  # of a calorimeter and chunk, from all its events, that are compared one by one with its description
ONE_IN = 16  # of so many cells, one is checked for a second hit
LARGEST = 30.0  # GeV that no hit of a layer has: found up to 13
MIN_FIFTH = 100  # fewest hits of an event of which the energy is given below which a fifth of them are
OFF_GRID = 0.29  # shift of positions before rounding, in quarters of a cell: cell centres may end in halves

OFF_BY = (0.1, 0.03)  # relative transverse momentum, and rad, that a track may be off its particle
HARD_TRACK = 5.0  # GeV
MIN_PHOTON, MIN_PION = 0.5, 2.0  # GeV, of photons and of their pairs
NEAR_PION = 0.3  # largest relative difference of a pair's mass from the neutral pion's
MIN_PARTICLES = 4  # fewest particles of an event with neutral pions
BESIDE, MIN_CROWD, CROWDS = 0.07, 300, 8  # rad; fewest hits of an event, and most events, where lone hits are counted
VERY_HARD = 10.0  # GeV, from which one track with a wrong momentum changes an event; 0.1% have no hits where they enter
MIN_LINKED = 20  # fewest hits of an event in a calorimeter whose links are looked at
MIN_IN_LAYER, MOST_IN_LAYER = 20, 300  # hits of a layer for the size of its cells
MIN_SHOWERS = 0.05  # smallest part of an event's visible energy in particles that shower, to compare it with hits
MIN_TYPICAL = 10  # fewest tracks of a typical one
BUSY = 12  # fewest tracks of an event whose momenta have a typical share of the energy of its hits
FIRST = 8  # hits by which an event is known to begin like another one
AT_TRACK = (0.1, 0.02)  # relative momentum, and rad, between a charged particle of the reference and its track
MIN_LARGE, MIN_MANY = 20.0, 100  # GeV and hits of an event that is compared by itself with its reference

Table = Mapping[str, npt.NDArray[Any]]
"""Columns of the same length."""

TRAILS: Mapping[str, float] = {"response": 0.5, "ecal_cell": 0.5, "hcal_cell": 0.25}
"""Columns of trails and the quantile that is a sample's typical value."""

OPENING = 0.98  # quantile of the opening angles of training events; few of these may have jets beside single particles


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleScales:
    """Typical energies, sizes and curvatures of a sample; None where it holds too few tracks.

    `max_energy`: largest energy of an event in hits, GeV; `opening`: quantile `OPENING` (in 0.3 median) of the opening
    angle of an event's energy, rad, whose cosine is |sum of E n| / sum of E over hits of energy E in the direction n
    from the origin; `b_field`: field that relates the tracks' curvature to their momentum, T; `trails`: values of
    `TRAILS`.

    A model for any detector has no scales that differ between detectors. It has the names of the `detectors` of its
    training, and the smallest and largest value of their `measures` (`pflow.physics.geometry.measures`).
    `calibrated_for`: digests of the calorimeters that a loaded model's photon energies were last calibrated for, by
    the detectors' names; None where it was not noted.
    """

    # In earlier models, and not read; `load_model` takes calibrated_for from the provenance.
    REMOVED: ClassVar = ("near_tracks", "ecal_hit", "hcal_hit", "max_hits", "calibrated_for")

    max_energy: float
    opening: float | None = None
    b_field: float | None
    detectors: tuple[str, ...] = ()
    measures: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    trails: Mapping[str, float] = dataclasses.field(default_factory=dict)
    calibrated_for: Mapping[str, str | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Scales:
    """Measured quantities of one or more chunks, in tables of at most `MAX_ROWS` rows; ``+`` joins them.

    `tables`, by name: ``events``, some of their ``hits``, their ``tracks``, ``trails`` (of tracks above
    `MIN_MOMENTUM`), and ``stubs`` (of charged particles that enter the ECAL). A table holds the entries that are
    multiples of its number in `steps`. `n_events`: number of all entries. `detectors` and `paths`: of the chunks,
    without repetition; the column ``file`` is an index into `paths`.
    """

    detectors: tuple[Detector, ...] = ()
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
    n_events: int = 0
    paths: tuple[str, ...] = ()

    def __add__(self, other: Scales) -> Scales:
        """The scales of the events of both."""
        paths = tuple(dict.fromkeys([*self.paths, *other.paths]))
        number = np.array([paths.index(path) for path in other.paths], dtype=np.int64)
        tables, steps = dict(self.tables), dict(self.steps)
        for name, theirs in other.tables.items():
            both = [*([tables[name]] if name in tables else ()), {**theirs, "file": number[theirs["file"]]}]
            # Steps are powers of 2, so the rows of the larger one are in both tables.
            step = max(steps.get(name, 1), other.steps.get(name, 1))
            entry = np.concatenate([table["entry"] for table in both])
            # Entry 0 is a multiple of every step: if it alone has too many rows, doubling would never end.
            while step <= entry.max() and np.count_nonzero(entry % step == 0) > MAX_ROWS:
                step *= 2
            # A chunk without truth lacks columns, and its sum with others must lack them, too.
            joined = {column: np.concatenate([of[column] for of in both]) for column in both[0] if column in both[-1]}
            kept = entry % step == 0
            tables[name] = joined if kept.all() else {column: values[kept] for column, values in joined.items()}
            steps[name] = step
        return Scales(
            detectors=tuple(dict.fromkeys([*self.detectors, *other.detectors])),
            tables=tables,
            steps=steps,
            n_events=self.n_events + other.n_events,
            paths=paths,
        )

    @property
    def detector(self) -> Detector | None:
        """The detector of all events; None if there are several, or no events."""
        return self.detectors[0] if len(self.detectors) == 1 else None

    def table(self, name: str) -> Table:
        """A table; without columns if there is nothing to put in."""
        return self.tables.get(name, {})

    def sample(self, *, opening: float = OPENING) -> SampleScales:
        """Typical values, stored with a model for its training sample; `opening`: quantile of the opening angles."""

        def typical(name: str, column: str, quantile: float = 0.5, least: int = MIN_TYPICAL) -> float | None:
            values = self.table(name).get(column, np.zeros(0))
            values = values[np.isfinite(values)]
            return float(np.quantile(values, quantile)) if len(values) >= least else None

        events = self.table("events")
        trails = {column: typical("trails", column, quantile) for column, quantile in TRAILS.items()}
        return SampleScales(
            max_energy=float(events.get("energy", np.zeros(1)).max(initial=0.0)),
            opening=typical("events", "opening", opening, least=1),
            b_field=typical("trails", "b_field"),
            trails={name: value for name, value in trails.items() if value is not None},
        )


def measure(events: Events, particles: ak.Array | None = None, *, targets: Mapping[str, Any] | None = None) -> Scales:
    """Measure a chunk of events: energies, truth and tracks of all, and `MAX_HITS` hits of a calorimeter.

    `particles`: of a reconstruction of these events, [event, particle]; `targets`: options of
    `pflow.event.truth.select_targets`, whose errors are raised, None: without targets. Takes 0.7 ms an event (Z -> qq,
    0.4 of them for tracks) on a busy core, and 1.6 ms with truth.
    """
    n, hits = len(events), FlatHits.of(events)
    measured = {"events": _of_events(events, hits, particles), "hits": _of_hits(events, hits)}
    measured["events"] |= _of_cells(events, hits) | _of_truth(events, hits, targets, measured["events"])
    if particles is not None:
        measured["pairs"] = _of_pairs(particles)
    if events.has_truth:
        measured["linked"] = _of_linked(events)
    if events.tracks is not None:
        deposits = TrackDeposits.of(events, hits)
        measured |= {"tracks": _of_tracks(events), "trails": deposits.trails, "stubs": deposits.stubs}
        measured["events"] |= _without_hits(hits, deposits) | {"trackless": deposits.trackless}
        measured["events"]["jets"] = np.where(_in_jets(events), measured["events"]["momentum"], np.nan)
    tables = {}
    for name, table in measured.items():
        event = table.pop("event")
        # Empty tables are left out, because `__add__` takes the largest entry of each.
        if len(event):
            tables[name] = {column: np.asarray(values, dtype=np.float32) for column, values in table.items()}
            tables[name] |= {"entry": events.entry[event], "file": np.zeros(len(event), dtype=np.int64)}
    return Scales((events.detector,), tables, {}, n, (events.path,))


def _total(records: ak.Array, values: npt.NDArray[Any]) -> Floats:
    """Sum of the values of each event's records, float64 [event]."""
    return jagged.total(values, jagged.offsets(jagged.count(records)))


def _busy(events: Events) -> Mask:
    """Whether each event has many tracks (`BUSY`)."""
    n_tracks = np.zeros(len(events)) if events.tracks is None else jagged.count(events.tracks)
    return n_tracks >= BUSY


def _in_jets(events: Events) -> Mask:
    """Whether each event has many tracks, and half of their momentum in some with another one within `ALONE` at the IP.

    Jets have a typical share of charged particles; of single ones it is any, and each is compared with what it leaves.
    """
    momentum, bounds = jagged.vectors(events.tracks, field="momentum"), jagged.offsets(jagged.count(events.tracks))
    size, (_, angle) = np.linalg.norm(momentum, axis=1), nearest_other(unit_vector(momentum), bounds)
    return _busy(events) & (2 * jagged.total(size * (angle < ALONE), bounds) > jagged.total(size, bounds))


def _by_part(
    detector: Detector, hits: FlatHits, chosen: Any, /, **values: npt.NDArray[Any]
) -> dict[str, npt.NDArray[Any]]:
    """Sums of values of the chosen hits in each event and calorimeter, as a column ``{name} {calorimeter}`` of each."""
    n, parts, table = len(hits.bounds) - 1, detector.calorimeters, dict[str, npt.NDArray[Any]]()
    cell = hits.event[chosen] * len(parts) + hits.part[chosen]
    for name, of in values.items():
        sums = np.bincount(cell, of, n * len(parts)).reshape(n, len(parts))
        table |= {f"{name} {part.name}": sums[:, i] for i, part in enumerate(parts)}
    return table


def _of_events(events: Events, hits: FlatHits, particles: ak.Array | None) -> dict[str, npt.NDArray[Any]]:
    """Energy and momentum of tracks of each event, GeV, numbers of its objects, in each calorimeter the energy below
    which a fifth of its hits are, GeV, the opening angle of its energy, rad, and sums over its first hits; NaN of few
    or left-out ones."""
    detector, n_hits, used = events.detector, np.diff(hits.bounds), hits.energy > 0
    table = {"event": np.arange(len(events)), "energy": hits.total(hits.energy), "n_hits": n_hits}
    table |= _by_part(detector, hits, slice(None), hits=used)
    for name, number in (("hits of the ECAL", ECAL), ("hits of the HCAL", HCAL)):
        mine = used & (hits.kind == number)
        table[name] = n_mine = hits.total(mine)
        table[f"lone {name}"] = _alone(hits, mine, np.flatnonzero(n_mine >= MIN_CROWD))
    for number, name in enumerate(part.name for part in detector.calorimeters):
        mine, fifth = used & (hits.part == number), np.full(len(events), np.nan)
        table[f"fifth {name}"] = fifth
        for i in np.flatnonzero(table[f"hits {name}"] >= MIN_FIFTH):
            of_event = slice(*hits.bounds[i : i + 2])
            energy = hits.energy[of_event][mine[of_event]]
            fifth[i] = np.partition(energy, len(energy) // 5)[len(energy) // 5]
    table["start"], table["place"] = first_hits(events).T
    weight = hits.energy / np.maximum(hits.distance, 1.0)  # hits that were left out are at the origin
    length = np.linalg.norm([hits.total(weight * along) for along in hits.position], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        table["opening"] = np.arccos(np.minimum(length / table["energy"], 1.0))
    if particles is not None:
        columns = jagged.columns(particles)
        table["reconstructed"] = _total(particles, columns["energy"])
        table["showering"] = _total(particles, columns["energy"] * (np.abs(columns["pdg"]) != MUON))
        scale = [part.electron_scale * (part.hadron_scale or 1.0) for part in detector.calorimeters]
        table["scaled"] = hits.total(hits.energy * np.array(scale, np.float32).take(hits.part))
    if events.tracks is not None:
        table["tracks"] = jagged.count(events.tracks)
        momentum = jagged.vectors(events.tracks, field="momentum")
        table["momentum"] = _total(events.tracks, np.linalg.norm(momentum, axis=1))
    most = np.maximum(table["energy"], table.get("momentum", 0.0))
    if particles is not None:
        table["most scaled"] = np.maximum(table["scaled"], table.get("momentum", 0.0))
    table["all most"], table["most"] = most, np.where((most > MIN_LARGE) & (n_hits >= MIN_MANY), most, np.nan)
    return table


def count_copies(event: Index, momentum: Array, n_events: int) -> Index:
    """Number of particles of each event above `SOFT` with a momentum that an earlier one has, int64 [event]."""
    hard = np.linalg.norm(momentum, axis=1) > SOFT
    event, momentum = event[hard], momentum[hard]
    once = np.unique(event + 1j * (momentum @ (1.0, 2.0, 3.0))).real.astype(np.int64)
    return np.bincount(event, minlength=n_events) - np.bincount(once, minlength=n_events)


def _alone(hits: FlatHits, mine: Mask, events: Index) -> Floats:
    """Number of hits of each of these `events` without another one within `BESIDE`, seen from the IP, NaN of others.

    At most `CROWDS` of the events, evenly spaced, are looked at: noise is in all of them.
    """
    from scipy.spatial import cKDTree  # here: its import takes a twentieth of the start of a reconstruction

    n_alone = np.full(len(hits.bounds) - 1, np.nan)
    for i in events[:: 1 + len(events) // CROWDS]:
        rows = hits.bounds[i] + np.flatnonzero(mine[slice(*hits.bounds[i : i + 2])])
        towards = (hits.position[:, rows] / hits.distance[rows]).T
        _, nearest = cKDTree(towards).query(towards, k=[2], distance_upper_bound=BESIDE)  # the first is the hit itself
        n_alone[i] = np.count_nonzero(nearest == len(rows))
    return n_alone


def first_hits(events: Events) -> Floats:
    """Sums of energies and of places over the first hits of each event, which mark it, float64 [event, 2].

    NaN where there are fewer than `FIRST` hits, or all of them were left out.
    """
    hits, counts = jagged.columns(events.hits), jagged.count(events.hits)
    sums, enough = np.full((len(counts), 2), np.nan), np.flatnonzero(counts >= FIRST)
    rows = jagged.offsets(counts)[enough, None] + np.arange(FIRST)
    x, y, z, energy = (hits[name][rows].astype(np.float64) for name in (*(f"position.{a}" for a in "xyz"), "energy"))
    sums[enough] = np.stack([energy.sum(axis=1), (x + 2 * y + 3 * z).sum(axis=1)], axis=1)
    return np.where(sums[:, :1] > 0, sums, np.nan)


def _of_truth(
    events: Events, hits: FlatHits, targets: Mapping[str, Any] | None, counted: Table
) -> dict[str, npt.NDArray[Any]]:
    """Energies of each event by what they belong to, GeV; NaN where they say nothing. `counted`: as of `_of_events`."""
    total, table = counted["energy"], dict[str, npt.NDArray[Any]]()
    with_hits = np.where(total > 0, 1.0, np.nan)  # an event without hits says nothing of their energy
    if (reference := events.reference) is not None:
        vectors, reference_columns = jagged.vectors(reference[[*PXYZ]]), jagged.columns(reference)
        momentum = np.linalg.norm(vectors, axis=1)
        for name, values in (("reference", reference_columns["energy"]), ("reference momentum", momentum)):
            table[name] = with_hits * _total(reference, values)
        table["n of reference"] = n_of_reference = jagged.count(reference)
        table["copies of reference"] = count_copies(jagged.event_index(n_of_reference), vectors, len(events))
        off = np.abs(known_charges(reference_columns["pdg"]) - reference_columns["charge"])
        table["wrong reference"] = _total(reference, ~(off < CHARGE_ROUNDING))
        if events.tracks is not None:
            table["charged reference"], table["without track"] = charged_without_track(events, reference)
    if events.truth is None:
        return table
    detector, truth, counts = events.detector, jagged.columns(events.truth), jagged.count(events.truth)
    event, code = jagged.event_index(counts), np.abs(truth["pdg"])
    stable = np.isin(truth["status"], tuple((targets or {}).get("stable_status", STABLE_STATUS)))
    made = truth["status"] == 0  # by the simulation
    visible = stable & ~is_invisible(truth["pdg"])
    showers = visible & (code != MUON)  # muons cross the calorimeters and leave little of their energy
    total_of = functools.partial(_total, events.truth)
    of_showers, of_all = (total_of(truth["energy"] * some) for some in (showers, visible))
    # Beside a hard muon what showers may have less energy than the muon leaves.
    enough = np.where(of_showers > MIN_SHOWERS * of_all, with_hits, np.nan)
    overlay = truth.get("overlay", np.zeros(len(showers)))
    table["true"], table["n true"] = enough * of_showers, total_of(showers)
    table["overlay"] = enough * total_of(truth["energy"] * showers * overlay)
    # A tau that the simulation decays takes its neutrinos along.
    whole = np.where(total_of(visible & (code == TAU)) > 0, np.nan, with_hits)
    table["visible"], table["n visible"] = whole * of_all, whole * total_of(visible)

    # Stable particles that are there again, as of the generator and of the simulation; those that nothing sees.
    momentum = jagged.vectors(events.truth[[*PXYZ]])
    p = np.linalg.norm(momentum, axis=1)
    table["n stable"] = total_of(visible & (p > SOFT))
    table["copies"] = count_copies(event[visible], momentum[visible], len(events))
    table["along the beam"] = total_of(truth["energy"] * (visible & (np.abs(momentum[:, 2]) > BEAM * p)))
    table["seen"] = table["visible"] - table["along the beam"]
    # A forward particle beyond the calorimeters is in no reference, and has no hits.
    table["least seen"] = np.minimum(table["seen"], total)
    if reference is not None:
        neutral, photon = truth["charge"] == 0, code == PHOTON
        theirs, of_photons = reference_columns["charge"] == 0, reference_columns["pdg"] == PHOTON
        for name, true, ours in (
            ("photons", photon, of_photons),
            ("neutral hadrons", neutral & ~photon, theirs & ~of_photons),
        ):
            seen = visible & true & (np.abs(momentum[:, 2]) <= BEAM * p)
            energy_of = total_of(truth["energy"] * seen)
            # A few of a class are fewer than the particles of other classes that are taken for them.
            several = np.where(energy_of > OF_CLASS * of_all, whole, np.nan)
            table[f"n {name}"] = np.where(several > 0, total_of(seen & (p > MIN_MOMENTUM)), 0)
            table[f"true {name}"] = several * energy_of
            table[f"found {name}"] = several * _total(reference, reference_columns["energy"] * ours)

    # Where the code is in no table its charge is NaN, which is near to nothing.
    off = ~(np.abs(known_charges(truth["pdg"]) - truth["charge"]) < CHARGE_ROUNDING)
    table["particles"], table["wrong charges"] = counts, total_of(off & (truth["energy"] > 0))
    # Particles of a stable one or of the simulation need a parent, are not stable, and have no more energy than it;
    # without a parent it is the appended one. What a nucleus gives away has the energy of its mass in addition.
    has_parent, kinetic = truth["parent"] >= 0, truth["energy"] - truth["rest_mass"]
    above = np.where(has_parent, truth["parent"] + np.repeat(jagged.offsets(counts)[:-1], counts), len(stable))
    gains = kinetic > 1.01 * np.append(truth["energy"], np.inf)[above] + 0.1
    of_stable = np.append(stable, False)[above]
    astray = made & (~has_parent | gains) | (stable & of_stable)
    # Without any stable particle nothing is known of the status: the first paper's files have none.
    table["astray"] = total_of(astray & stable.any())
    table["n of parents"] = total_of((made | of_stable) & stable.any())

    # The simulation's farthest vertex over the ECAL's face: in radius or along z, whichever is larger.
    x, y, z = (truth[f"vertex.{axis}"].astype(np.float64) for axis in "xyz")
    place = np.maximum(np.hypot(x, y) / detector.ecal_inner_radius, np.abs(z) / detector.ecal_inner_z)
    table["vertex"] = np.full(len(events), np.nan)
    np.fmax.at(table["vertex"], event[made], place[made])
    outwards = np.einsum("pa,pa->p", np.nan_to_num(np.stack([x, y, z], axis=1)), momentum) > 0  # not of cosmic rays
    table["born outside"] = total_of(truth["energy"] * (visible & (place > 1) & outwards))
    if events.hit_links is not None:
        sums = _by_part(detector, hits, slice(None), energy=hits.energy, linked=hits.energy * (hits.particle >= 0))
        for part in (part.name for part in detector.calorimeters):
            sums[f"energy {part}"] = np.where(counted[f"hits {part}"] >= MIN_LINKED, sums[f"energy {part}"], np.nan)
        table |= sums
    if targets is not None and events.has_truth:
        by_choice = ("e_min", "invisible")  # the user knows that hits of these belong to no target
        chosen = select_targets(events, **{key: value for key, value in targets.items() if key not in by_choice})
        bounds = jagged.offsets(chosen.counts)
        table["no target"] = total - jagged.total(chosen.column("hit_energy"), bounds)
        table["n targets"] = chosen.counts
        table["decayed"] = jagged.total(decays_at_once(chosen.column("pdg")), bounds)
    return table


def _of_linked(events: Events) -> dict[str, npt.NDArray[Any]]:
    """Columns of the true particles above `MIN_MOMENTUM` from before the calorimeter that have hits, NaN where they do
    not apply: of photons the ratio of their hits' energy to their own (``photon``) and the angle, rad, between the
    barycentre of this energy, seen from the vertex, and their direction (``angle``); of those above `HARD_TRUE` the
    ratio for muons (``muon``) and neutral hadrons (``neutral``), and the share in an HCAL of the energy of neutral
    hadrons and electrons (``neutral share``, ``electron share``). Only of muons, energies are those of the file."""
    assert events.truth is not None  # for the type checker
    detector, hits, truth = events.detector, jagged.columns(events.hits), jagged.columns(events.truth)
    links, counts = Links.of(events.hit_links), jagged.count(events.truth)
    vertex = np.nan_to_num(jagged.vectors(events.truth, field="vertex"))
    code, inside = np.abs(truth["pdg"]), np.hypot(*vertex[:, :2].T) < detector.ecal_inner_radius
    inside &= (np.abs(vertex[:, 2]) < detector.ecal_inner_z) & (truth["energy"] > MIN_MOMENTUM)
    inside &= np.isin(code, (PHOTON, MUON, ELECTRON, *NEUTRAL_HADRONS))
    source, particle = links.flat_source(jagged.count(events.hits)), links.flat_particle(counts)
    used = np.flatnonzero(inside[particle])
    source, particle, weight = source[used], particle[used], links.weight[used] * hits["energy"][source[used]]
    size, part = len(vertex), hits["subdetector"][source]
    moment = [np.bincount(particle, weight * hits[f"position.{axis}"][source], size) for axis in "xyz"]
    scale = np.array([of.electron_scale * (of.hadron_scale or 1.0) for of in detector.calorimeters])[part]
    energy, calibrated = np.bincount(particle, weight, size), np.bincount(particle, weight * scale, size)
    in_hcal = np.bincount(particle, weight * (kind_index(detector)[part] == HCAL), size)
    seen = np.flatnonzero(energy > 0)
    along = np.stack(moment, axis=1)[seen] / energy[seen, None] - vertex[seen]
    angle = angle_between(along, jagged.vectors(events.truth[[*PXYZ]])[seen])
    code, share, ratio = code[seen], in_hcal[seen] / energy[seen], energy[seen] / truth["energy"][seen]
    scaled = calibrated[seen] / truth["energy"][seen]
    hard, photon = truth["energy"][seen] > HARD_TRUE, code == PHOTON
    neutral, electron = hard & np.isin(code, NEUTRAL_HADRONS), hard & (code == ELECTRON)
    return {
        "event": jagged.event_index(counts)[seen],
        "angle": np.where(photon, angle, np.nan),
        "photon": np.where(photon, scaled, np.nan),
        "muon": np.where(hard & (code == MUON), ratio, np.nan),
        "neutral": np.where(neutral, scaled, np.nan),
        "neutral share": np.where(neutral, share, np.nan),
        "electron share": np.where(electron, share, np.nan),
    }


def charged_without_track(events: Events, particles: ak.Array, *, near: float = AT_TRACK[0]) -> Floats:
    """Numbers of each event's charged `particles` above `MIN_MOMENTUM`, and of those without a track of their charge,
    direction (`AT_TRACK`) and, to the fraction `near`, momentum, float64 [2, event]."""
    assert events.tracks is not None
    counts, charge = jagged.count(particles), jagged.flat(particles.charge)
    momentum, of_track = jagged.momenta(particles), jagged.vectors(events.tracks, field="momentum")
    p, p_track = np.linalg.norm(momentum, axis=1), np.linalg.norm(of_track, axis=1)
    chosen, track_charge = (charge != 0) & (p > MIN_MOMENTUM), jagged.flat(events.tracks.charge)
    along, along_track, alone = unit_vector(momentum), unit_vector(of_track), np.zeros(len(p), dtype=np.bool_)
    for mine, theirs in jagged.blocks(jagged.offsets(counts), jagged.offsets(jagged.count(events.tracks))):
        fits = along[mine] @ along_track[theirs].T > np.cos(AT_TRACK[1])
        fits &= np.abs(p_track[theirs] - p[mine, None]) < near * p[mine, None]
        fits &= charge[mine, None] * track_charge[theirs] > 0
        alone[mine] = chosen[mine] & ~fits.any(axis=1)
    return np.stack([_total(particles, of) for of in (chosen, alone)])


def _of_pairs(particles: ak.Array) -> dict[str, npt.NDArray[Any]]:
    """Masses of pairs of photons that are nearest to each other, over the neutral pion's, if they are `NEAR_PION`.

    Events of fewer than `MIN_PARTICLES` particles have none: two photons shot at one angle make a peak, too.
    """
    columns, counts = jagged.columns(particles), jagged.count(particles)
    event = jagged.event_index(counts)
    photons = (columns["pdg"] == PHOTON) & (columns["energy"] > MIN_PHOTON) & (counts >= MIN_PARTICLES)[event]
    photons = np.flatnonzero(photons)
    event, energy = event[photons], columns["energy"][photons].astype(np.float64)
    momentum = jagged.momenta(particles)[photons]
    nearest, _ = nearest_other(unit_vector(momentum), np.searchsorted(event, np.arange(len(particles) + 1)))
    number = np.arange(len(nearest))
    first = np.flatnonzero((nearest[nearest] == number) & (number < nearest))
    both = np.stack([first, nearest[first]], axis=1)
    total = energy[both].sum(axis=1)
    mass = np.sqrt(np.maximum(total**2 - (momentum[both].sum(axis=1) ** 2).sum(axis=1), 0.0))
    mass /= mass_of(111)
    chosen = (total > MIN_PION) & (np.abs(mass - 1) < NEAR_PION)
    return {"event": event[both[chosen, 0]], "mass": mass[chosen]}


def _of_cells(events: Events, hits: FlatHits) -> dict[str, npt.NDArray[Any]]:
    """Of each event and calorimeter, the number of hits in one of `ONE_IN` cells, and of those not alone in theirs;
    ``absurd``: energy in hits of layers with more than `LARGEST`, GeV."""
    parts, n = events.detector.calorimeters, len(events)
    # In quarters of a cell. The calorimeter does not count, as hits may be there again in another one.
    quarter = np.array([min(1.0, (part.cell_size or 4.0) / 4) for part in parts], np.float32).take(hits.part)
    place = np.rint(hits.position / quarter + np.float32(OFF_GRID)).astype(np.int64).view(np.uint64)
    x, y, z = place * np.array([[73_856_093], [19_349_663], [83_492_791]], np.uint64)
    # Cells are chosen by a hash of their places, so that all hits of one are looked at or none.
    cell = (x ^ y ^ z) * np.uint64(0x9E37_79B9_7F4A_7C15)
    chosen = np.flatnonzero((cell < np.uint64(2**64 // ONE_IN)) & (hits.energy > 0))
    _, cell, n_hits = np.unique(
        cell[chosen] + hits.event[chosen].astype(np.uint64), return_inverse=True, return_counts=True
    )
    sums = _by_part(events.detector, hits, chosen, cells=np.ones(len(chosen)), twice=n_hits[cell] > 1)

    layered = np.array([part.n_layers >= N_LAYERS for part in parts])
    absurd = np.flatnonzero(hits.energy > LARGEST)
    absurd = absurd[layered[hits.part[absurd]]]
    return sums | {"absurd": np.bincount(hits.event[absurd], hits.energy[absurd], n)}


def _of_hits(events: Events, hits: FlatHits) -> dict[str, npt.NDArray[Any]]:
    """Columns of up to `MAX_HITS` hits of each ECAL and HCAL: number of their `part`, `energy`, GeV, `layer`, `time`,
    ns, `depth` behind the face, `x`, `y` and `z`, mm; and, for the size of cells, distance to the nearest hit,
    `neighbour`, mm, in the fullest layer of each calorimeter, of the event with the most hits in it; NaN if not known.
    """
    from scipy.spatial import KDTree  # here: its import takes a twentieth of the start of a reconstruction

    columns, used = jagged.columns(events.hits), hits.energy > 0
    neighbour, chosen = np.full(len(used), np.nan), np.zeros(len(used), dtype=np.bool_)
    for i, part in enumerate(events.detector.calorimeters):
        if part.kind not in ("ecal", "hcal") or not len(mine := np.flatnonzero(used & (hits.part == i))):
            continue
        chosen[mine[:: -(-len(mine) // MAX_HITS)]] = True
        bounds = np.searchsorted(mine, hits.bounds)
        event = np.diff(bounds).argmax()
        mine = mine[bounds[event] : bounds[event + 1]]
        if np.isfinite(hits.depth[mine]).all():  # else its face is not described
            layer = layers_by_position(hits.depth[mine].astype(np.float64))
            fullest = mine[layer == np.bincount(layer).argmax()][:MOST_IN_LAYER]
            if len(fullest) >= MIN_IN_LAYER:
                place = hits.position[:, fullest].T
                # The nearest of two is the hit itself.
                neighbour[fullest] = KDTree(place).query(place, k=2)[0][:, 1]
                chosen[fullest] = True
    some = hits.take(rows := np.flatnonzero(chosen))
    table = {name: getattr(some, name) for name in ("event", "part", "energy", "depth")}
    table |= dict(zip("xyz", some.position, strict=True)) | {"neighbour": neighbour[rows]}
    table["busy"] = _busy(events)[some.event]
    return table | {name: columns[name][rows] for name in ("layer", "time")}


def _without_hits(hits: FlatHits, deposits: TrackDeposits) -> dict[str, npt.NDArray[Any]]:
    """Momentum, GeV, and number of each event's tracks above `VERY_HARD` that enter the ECAL where there are no hits,
    or whose helix leads elsewhere than their state: hits confirm the place, and so the momentum, of all others."""
    trails, n_events = deposits.trails, len(hits.bounds) - 1
    confirmed = trails["trail"] & (trails["helix"] != 0)
    odd = ~confirmed & (deposits.momentum > VERY_HARD)
    # Nothing confirms a track that goes through the hole of an endcap.
    hole = np.hypot(*hits.position[:2, (hits.kind == ECAL) & (hits.energy > 0)]).min(initial=np.inf)
    odd &= ~(trails["endcap"] & (np.hypot(trails["x"], trails["y"]) < hole + WIDTH["ecal"]))
    # Where half of an event's tracks have no hits, not the tracks are wrong.
    n_confirmed, n = (np.bincount(trails["event"], of, n_events) for of in (confirmed, np.ones(len(confirmed))))
    odd &= (2 * n_confirmed > n)[trails["event"]]
    momentum, number = (np.bincount(trails["event"], of, n_events) for of in (odd * deposits.momentum, odd))
    return {"without hits": momentum, "n without hits": number}


def _near(momentum: Array, other: Array) -> tuple[Array, Array, Mask]:
    """Ratio of transverse momenta, angle, rad, and whether both are near (`OFF_BY`) of each track [track]."""
    with np.errstate(divide="ignore", invalid="ignore"):  # of straight tracks, and null momenta
        ratio = np.hypot(*momentum[:, :2].T) / np.hypot(*other[:, :2].T)
        angle = angle_between(momentum, other)
    return ratio, angle, (np.abs(ratio - 1) < OFF_BY[0]) & (angle < OFF_BY[1])


def _of_tracks(events: Events) -> dict[str, npt.NDArray[Any]]:
    """Columns of each track, compared with its particle; NaN where one does not apply."""
    assert events.tracks is not None  # for the type checker
    tracks, counts = jagged.columns(events.tracks), jagged.count(events.tracks)
    table: dict[str, npt.NDArray[Any]] = {"event": jagged.event_index(counts)}
    momentum = jagged.vectors(events.tracks, field="momentum")
    omega, phi, tan_lambda = (tracks[name] for name in ("omega", "phi", "tan_lambda"))
    of_helix = np.stack(momentum_from_track(omega, phi, tan_lambda, events.detector.b_field), axis=1)
    own = _near(momentum, of_helix)[2] & (tracks["charge"] * omega > 0)
    table["own"] = np.where(np.isfinite(of_helix).all(axis=1), own, np.nan)
    if events.truth is None:
        return table
    if events.track_links is None:
        return table | {"linked": np.zeros(len(tracks["charge"]))}
    of, truth = jagged.flat(assigned_particle(events.track_links, events.tracks)), jagged.columns(events.truth)
    linked = of >= 0
    table["linked"] = linked
    of = np.where(linked, of + jagged.offsets(jagged.count(events.truth))[:-1][table["event"]], 0)
    true = {name: np.append(values, 0)[of] for name, values in truth.items()}  # one more: there may be no particle
    along = np.stack([true[axis] for axis in PXYZ], axis=1).astype(np.float64)
    (ratio, angle, near), true_p = _near(momentum, along), np.linalg.norm(along, axis=1)
    # Electrons radiate, and particles that were left out have no energy.
    linked = linked & (np.abs(true["pdg"]) != ELECTRON) & (true["energy"] > 0)
    hard, very_hard = (linked & (true_p > least) for least in (MIN_MOMENTUM, HARD_TRACK))
    right = near & (tracks["charge"] * true["charge"] >= 0)
    table |= dict(zip("xyz", along.T, strict=True)) | {"pt_ratio": np.where(linked, ratio, np.nan)}
    table |= {"angle": np.where(hard, angle, np.nan), "right": np.where(hard, right, np.nan)}
    return table | {"hard right": np.where(very_hard, right, np.nan)}
