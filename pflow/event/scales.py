"""Scales of events: what tracks leave in the calorimeters, energies, layers, links to truth; summed over chunks.

`measure` measures a chunk, `Scales` of chunks add up in any order, and `pflow.event.checks` reports implausible values.

A charged particle leaves one hit in nearly every layer that it enters, whatever becomes of it later. So each track has
a trail: the hits in the first `N_LAYERS` layers close to the line on which it enters. The trail shows where the
calorimeter is (to a millimetre a track), how many hits are lost, and the energy of a minimum ionising particle in a
cell. The energy behind isolated tracks shows the scale of whole showers. The distance of the trail from the helix of
the IP, along the direction in which another momentum would move it, gives the relative error of momentum and field.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import Links, assigned_particle
from pflow.event.truth import STABLE_STATUS, select_targets
from pflow.physics.arrays import Floats, Mask
from pflow.physics.detector import Calorimeter, Detector
from pflow.physics.geometry import distance_to_sides, kind_index, layers_by_position, medians
from pflow.physics.kinematics import (
    GEV_PER_TESLA_MM,
    angle_between,
    follow_to_calorimeter,
    tangent_basis,
    unit_vector,
)
from pflow.physics.pdg import is_invisible

ELECTRON, MUON = 11, 13
ECAL, HCAL = 0, 1  # columns of quantities measured by kind of calorimeter
KINDS = ("ecal", "hcal")  # of the calorimeters that are looked at

MAX_ROWS = 100_000  # of a table; more are thinned evenly
MAX_HITS = 10_000  # of a chunk, from all its events, that are compared one by one with their calorimeter's description
ONE_IN = 16  # cells of which one is looked at for a second hit,
OFF_GRID = 0.29  # and a shift of them, in quarters of a cell: places of cells may end in halves

MIN_MOMENTUM = 1.0  # GeV. Softer tracks curl, and scatter in the tracker
NARROW, ALONE = 0.08, 0.16  # cones, rad: in the first are a hadron's hits, in the second enters no other track
APART = 0.1  # rad. What enters farther than this from the entries of all tracks has no track
N_LAYERS = 6  # layers of a calorimeter, from its face, in which a trail is looked for
WIDTH = {"ecal": 25.0, "hcal": 100.0}  # mm, half width of a trail by kind,
CELLS = 3.0  # and in cells where these are larger
IN_FRONT = 60.0  # mm along the line before the entry in which the hits of a trail lie,
BEHIND = {"ecal": 150.0, "hcal": 1500.0}  # and behind it
PITCH = {"ecal": 6.0, "hcal": 30.0}  # mm, of layers that the detector does not describe
MIN_LAYERS = 2  # fewest layers with hits of a trail: fewer are a coincidence
SHOWER = 2.0  # hits a layer from which a trail is a shower: an electron's
STEP = 0.01  # relative change of momentum by which the entry's dependence on it is measured
LEVER = (100.0, 1500.0)  # mm by which the whole momentum moves an entry: straighter tracks show no error, curlers wrap
HARD = 3.0  # GeV, momentum from which most hadrons leave hits in the HCAL
NEAR = 100.0  # mm between state and helix
SAME = 1e-3  # rad, largest angle between the entries of two copies of a track
REACH = 1.1  # largest plausible ratio of the radius of a state to the diameter of the track's circle

HADRON_RESPONSE = 0.73  # median energy in `NARROW` around isolated hadrons over their momentum, of ild_g4
HADRONS = (3.0, 50.0)  # GeV, momenta of the hadrons used
MAX_AROUND = 0.1  # largest energy of hits between the two cones of an isolated track, over its momentum
MIN_HADRONIC = 0.2  # smallest energy in the HCAL of a hadron over its momentum: electrons and muons have less
ROUNDS = 5  # iterations of scale and selection of hadrons, which depend on each other

STUB, STUB_CELLS = 12.0, 2.4  # mm and cells (the larger) around a line from the IP, in which the hits of a stub lie
MIN_PER_EVENT, FEW_EVENTS, FULL = 3, 5, 12
"""Stubs need tracks in events with 3 tracks, or 12 tracks and stubs, and in chunks of 3 stubs an event, at least 15."""
MIN_LINKED = 20  # fewest hits of an event in a calorimeter whose links are looked at
MIN_IN_LAYER, MOST_IN_LAYER = 20, 300  # hits of a layer for the size of its cells
MIN_TYPICAL = 10  # fewest tracks of a typical one

Table = Mapping[str, npt.NDArray[Any]]
"""Columns of the same length."""

TRAILS: Mapping[str, float] = {"response": 0.5, "ecal_cell": 0.5, "hcal_cell": 0.25}
"""Columns of trails and the quantile that is a sample's typical value."""

OPENING = 0.98  # quantile of the opening angles of training events; few of these may have jets beside single particles


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleScales:
    """Typical energies, sizes and curvatures of a sample; None where it holds too few tracks.

    `max_energy`: largest energy of an event in hits, GeV;
    `max_hits`: largest number of hits of an event; `opening`: quantile `OPENING` (in 0.3 median) of the opening angle
    of an event's energy, rad, whose cosine is |sum of E n| / sum of E over hits of energy E in the direction n from the
    origin; `b_field`: field that relates the tracks' curvature to their momentum, T; `trails`: values of `TRAILS`.

    A model for any detector has no scales that differ between detectors. It has the names of the `detectors` of its
    training, and the smallest and largest value of their `measures` (`pflow.physics.geometry.measures`).
    """

    REMOVED: ClassVar = ("near_tracks", "ecal_hit", "hcal_hit")  # in earlier models, and not read

    max_energy: float
    max_hits: float | None = None
    opening: float | None = None
    b_field: float | None
    detectors: tuple[str, ...] = ()
    measures: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    trails: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Scales:
    """Measured quantities of one or more chunks, in tables of at most `MAX_ROWS` rows; ``+`` joins them.

    `tables`, by name: ``events``, some of their ``hits``, their ``tracks``, ``trails`` (of tracks above `MIN_MOMENTUM`)
    and ``stubs`` (of charged particles that enter the ECAL). A table holds the entries that are multiples of its number
    in `steps`. `n_events`: number of all entries. `detectors` and
    `paths`: of the chunks, without repetition; the column ``file`` is an index into `paths`.
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
            both: list[Table] = [tables[name]] if name in tables else []
            both.append({**theirs, "file": number[theirs["file"]]})
            step = max(steps.get(name, 1), other.steps.get(name, 1))
            entry = np.concatenate([table["entry"] for table in both])
            while step <= entry.max() and np.count_nonzero(entry % step == 0) > MAX_ROWS:
                step *= 2
            joined = {column: np.concatenate([of[column] for of in both]) for column in both[0] if column in both[-1]}
            tables[name] = {column: values[entry % step == 0] for column, values in joined.items()}
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
            max_hits=float(events.get("n_hits", np.zeros(1)).max(initial=0.0)),
            opening=typical("events", "opening", opening, least=1),
            b_field=typical("trails", "b_field"),
            trails={name: value for name, value in trails.items() if value is not None},
        )


def measure(events: Events, particles: ak.Array | None = None, *, targets: Mapping[str, Any] | None = None) -> Scales:
    """Measure a chunk of events: energies, truth and tracks of all, and some `MAX_HITS` hits, evenly spaced.

    `particles`: of a reconstruction of these events, [event, particle]; `targets`: options of
    `pflow.event.truth.select_targets`, whose errors are raised, None: without targets. Takes 1.1 ms an event (Z -> qq,
    0.8 of them for tracks) on a busy core, and 1.6 ms with truth.
    """
    n, depth = len(events), _depths(events)
    measured = {"events": _of_events(events, particles), "hits": _of_hits(events, depth)}
    measured["events"] |= _of_cells(events) | _of_truth(events, targets)
    if events.tracks is not None:
        deposits = TrackDeposits.of(events, depth)
        measured |= {"tracks": _of_tracks(events), "trails": deposits.trails, "stubs": deposits.stubs}
    tables = {}
    for name, table in measured.items():
        event = table.pop("event")
        if len(event):
            tables[name] = {column: np.asarray(values, dtype=np.float32) for column, values in table.items()}
            tables[name] |= {"entry": events.entry[event], "file": np.zeros(len(event), dtype=np.int64)}
    return Scales((events.detector,), tables, {}, n, (events.path,))


def _of_events(events: Events, particles: ak.Array | None) -> dict[str, npt.NDArray[Any]]:
    """Energy, number of hits and momentum of tracks of each event, GeV, typical energy of its hits in the ECAL, and the
    opening angle of its energy, rad."""
    n, hits, counts = len(events), jagged.columns(events.hits), jagged.count(events.hits)
    event, energy = jagged.event_index(counts), hits["energy"]
    in_ecal = np.array([part.kind == "ecal" for part in events.detector.calorimeters])[hits["subdetector"]]
    used = np.flatnonzero(in_ecal & (energy > 0))
    total = np.bincount(event, energy, n)
    table = {"event": np.arange(n), "energy": total, "n_hits": counts}
    x, y, z = (hits[f"position.{axis}"].astype(np.float64) for axis in "xyz")
    weight = energy / np.maximum(np.sqrt(x * x + y * y + z * z), 1.0)  # hits that were left out are at the origin
    sums = np.stack([np.bincount(event, weight * along, n) for along in (x, y, z)], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        table["opening"] = np.arccos(np.minimum(np.linalg.norm(sums, axis=1) / total, 1.0))
        logarithm = np.bincount(event[used], np.log(energy[used]), n) / np.bincount(event[used], minlength=n)
    table["typical"] = np.exp(logarithm)
    if particles is not None:
        of_particle = jagged.event_index(jagged.count(particles))
        table["reconstructed"] = np.bincount(of_particle, jagged.columns(particles)["energy"], n)
    if events.tracks is not None:
        momentum = np.linalg.norm(jagged.vectors(events.tracks, field="momentum"), axis=1)
        table["momentum"] = np.bincount(jagged.event_index(jagged.count(events.tracks)), momentum, n)
    return table


def _of_truth(events: Events, targets: Mapping[str, Any] | None) -> dict[str, npt.NDArray[Any]]:
    """Energies of each event by what they belong to, GeV; NaN where they say nothing."""
    n, parts = len(events), events.detector.calorimeters
    hits, counts = jagged.columns(events.hits), jagged.count(events.hits)
    event, energy = jagged.event_index(counts), hits["energy"]
    total, table = np.bincount(event, energy, n), dict[str, npt.NDArray[Any]]()
    with_hits = np.where(total > 0, 1.0, np.nan)  # an event without hits says nothing of their energy
    if events.reference is not None:
        of_particle = jagged.event_index(jagged.count(events.reference))
        table["reference"] = with_hits * np.bincount(of_particle, jagged.columns(events.reference)["energy"], n)
    if events.truth is None:
        return table
    truth, status = jagged.columns(events.truth), tuple((targets or {}).get("stable_status", STABLE_STATUS))
    showers = np.isin(truth["status"], status) & ~is_invisible(truth["pdg"]) & (np.abs(truth["pdg"]) != MUON)
    of_particle = jagged.event_index(jagged.count(events.truth))
    table["true"] = with_hits * np.bincount(of_particle, truth["energy"] * showers, n)
    table["n true"] = np.bincount(of_particle, showers, n)
    if events.hit_links is not None:
        linked = np.zeros(len(energy), dtype=np.bool_)
        linked[Links.of(events.hit_links).flat_source(counts)] = True
        cell, size = event * len(parts) + hits["subdetector"], n * len(parts)
        sums = (np.bincount(cell, weight, size).reshape(n, -1).T for weight in (energy, energy * linked))
        for part, of_part, of_linked in zip(parts, *sums, strict=True):
            table[f"energy {part.name}"] = np.where(of_part >= MIN_LINKED, of_part, np.nan)
            table[f"linked {part.name}"] = of_linked
    if targets is not None and events.has_truth:
        by_choice = ("e_min", "invisible")  # the user knows that hits of these belong to no target
        chosen = select_targets(events, **{key: value for key, value in targets.items() if key not in by_choice})
        of_targets = np.bincount(jagged.event_index(chosen.counts), chosen.column("hit_energy"), n)
        table["no target"] = total - of_targets
    return table


def _of_cells(events: Events) -> dict[str, npt.NDArray[Any]]:
    """Of each event and calorimeter, the number of hits in one of `ONE_IN` cells, and of those not alone in theirs."""
    detector, hits = events.detector, jagged.columns(events.hits)
    number, n, n_parts = hits["subdetector"], len(events), len(detector.calorimeters)
    inverse = np.array([1 / min(1.0, (part.cell_size or 4.0) / 4) for part in detector.calorimeters], np.float32)
    code = number.astype(np.int64)
    for axis in "xyz":
        place = np.nan_to_num(hits[f"position.{axis}"]) * inverse[number] + OFF_GRID
        code = code * 1_000_003 + np.rint(place).astype(np.int64)
    # Cells are chosen by a hash of their places, so that all hits of one are looked at or none.
    code = (code ^ (code >> 29)) * 0x3F58476D1CE4E5B9
    looked = (code >> 32) % ONE_IN == 0
    chosen = np.flatnonzero(looked & (hits["energy"] > 0) & (kind_index(detector)[number] <= HCAL))
    event = jagged.event_index(jagged.count(events.hits))[chosen]
    part = event * n_parts + number[chosen]
    _, cell, n_hits = np.unique(code[chosen] + event, return_inverse=True, return_counts=True)
    weights = np.ones(len(part)), n_hits[cell] > 1
    sums = (np.bincount(part, weight, n * n_parts).reshape(n, -1).T for weight in weights)
    table: dict[str, npt.NDArray[Any]] = {}
    for calorimeter, of_part, twice in zip(detector.calorimeters, *sums, strict=True):
        table |= {f"cells {calorimeter.name}": of_part, f"twice {calorimeter.name}": twice}
    return table


def _of_hits(events: Events, depth: Floats) -> dict[str, npt.NDArray[Any]]:
    """Columns of some `MAX_HITS` hits of ECAL and HCAL: number of their `part`, `energy`, GeV, `layer`, and `depth`
    behind the face, mm; and, for the size of cells, distance to the nearest hit, `neighbour`, mm, in the fullest layer
    of each calorimeter, of the event with the most hits in it; NaN if not known."""
    from scipy.spatial import KDTree  # here: its import takes a twentieth of the start of a reconstruction

    hits = jagged.columns(events.hits)
    position = jagged.vectors(events.hits, np.float32, field="position")
    event, kind = jagged.event_index(jagged.count(events.hits)), kind_index(events.detector)[hits["subdetector"]]
    used = np.flatnonzero((hits["energy"] > 0) & (kind <= HCAL))
    neighbour, of_part = np.full(len(event), np.nan), hits["subdetector"][used]
    rows = [used[:: max(1, -(-len(used) // MAX_HITS))]]
    for i in np.flatnonzero(np.bincount(of_part, minlength=1)):
        mine = used[of_part == i]
        mine = mine[event[mine] == np.bincount(event[mine]).argmax()]
        if not np.isfinite(depth[mine]).all():  # its face is not described
            continue
        layer = layers_by_position(depth[mine])
        fullest = mine[layer == np.bincount(layer).argmax()][:MOST_IN_LAYER]
        if len(fullest) >= MIN_IN_LAYER:
            neighbour[fullest] = KDTree(position[fullest]).query(position[fullest], k=2)[0][:, 1]
            rows.append(fullest)
    columns = {"part": hits["subdetector"], "energy": hits["energy"], "layer": hits["layer"]}
    columns |= {"event": event, "depth": depth, "neighbour": neighbour}
    chosen = np.unique(np.concatenate(rows))
    return {name: values[chosen] for name, values in columns.items()}


def _of_tracks(events: Events) -> dict[str, npt.NDArray[Any]]:
    """Columns of each track, compared with the detector's field and its particle; NaN where one does not apply."""
    tracks, counts = jagged.columns(events.tracks), jagged.count(events.tracks)
    momentum, state = (jagged.vectors(events.tracks, field=name) for name in ("momentum", "calo_position"))
    # A chord of a circle is at most twice its radius long.
    reach = 2 * np.hypot(*momentum[:, :2].T) / (GEV_PER_TESLA_MM * abs(events.detector.b_field))
    radius = np.hypot(*state[:, :2].T) - np.abs(np.nan_to_num(tracks["d0"]))
    beyond = np.where(np.isfinite(radius), radius > REACH * reach, np.nan)
    table = {"event": jagged.event_index(counts), "beyond": beyond}
    if events.truth is None:
        return table
    if events.track_links is None:
        return table | {"linked": np.zeros(len(beyond))}
    of, truth = jagged.flat(assigned_particle(events.track_links, events.tracks)), jagged.columns(events.truth)
    linked = of >= 0
    table["linked"] = linked
    of = np.where(linked, of + jagged.offsets(jagged.count(events.truth))[:-1][table["event"]], 0)
    true = {name: np.append(values, 0)[of] for name, values in truth.items()}  # one more: there may be no particle
    along = np.stack([true[axis] for axis in ("px", "py", "pz")], axis=1).astype(np.float64)
    # Electrons radiate, and particles that were left out have no energy.
    linked = linked & (np.abs(true["pdg"]) != ELECTRON) & (true["energy"] > 0)
    hard = linked & (np.linalg.norm(along, axis=1) > MIN_MOMENTUM)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.hypot(*momentum[:, :2].T) / np.hypot(*along[:, :2].T)
    return table | {
        "pt_ratio": np.where(linked, ratio, np.nan),
        "angle": np.where(hard, angle_between(momentum, along), np.nan),
        "opposite": np.where(linked, tracks["charge"] * true["charge"] < 0, np.nan),
    }


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TrackDeposits:
    """Tracks above `MIN_MOMENTUM` in events with hits, and their deposits; lengths in mm, energies in GeV.

    Float64: `momentum` [track]; `narrow` and `around` [track, 2], energy in `NARROW` around the entry, and between it
    and `ALONE`, in an HCAL and elsewhere; `separation` [track], angle to the nearest entry of these tracks, rad, pi
    without one; energies are 0 where it is below `ALONE`.

    `stubs`: columns for `Scales` of charged particles that enter the ECAL, known by their hits alone: on a line
    from the IP they have a hit in each of the first layers and at most one more; photons convert later, and leave many.
    ``lost``: whether no track enters within `APART`; NaN in events with few tracks, where most may be secondary
    particles of a neutral one.
    `trails`: columns for `Scales`, lengths in cells, NaN where one does not apply: entry (``x``, ``y``, ``z``);
    ``trail``, whether there is one in the ECAL; ``layers``, the share of the first ones that have hits of it; median
    distance of the hits from the line (``ecal_azimuth``, ``ecal_polar``); median energy of these hits at normal
    incidence (``ecal_cell``); the same of the HCAL (``behind``: whether there are hits); ``helix``, whether the helix
    from the IP leads to ``calo_position``; ``momentum``, relative error of momentum and field by the place of the
    trail; ``response``, energy in `NARROW` over momentum of hadrons; ``twice``, whether another track enters there;
    ``own``, share of the hits that are linked to the track's particle.
    """

    momentum: Floats
    narrow: Floats
    around: Floats
    separation: Floats
    trails: dict[str, npt.NDArray[Any]]
    stubs: dict[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, events: Events, depth: Floats | None = None) -> TrackDeposits:
        """Measure the tracks of the events; `depth`: of their hits as of `_depths`, if it is known."""
        detector, parts, columns = events.detector, events.detector.calorimeters, jagged.columns(events.hits)
        number, energies = columns["subdetector"], np.maximum(columns["energy"], 0.0)  # 0 of hits that were left out
        positions = jagged.vectors(events.hits, np.float32, field="position")  # enough: some metres to 0.1 mm
        sizes, of_hit = np.array([_trail_sizes(part) for part in parts], np.float32), kind_index(detector)[number]
        depth, is_hcal = (_depths(events) if depth is None else depth) / sizes[number, 0], of_hit == HCAL
        shallow = (depth >= 0) & (depth < N_LAYERS) & (of_hit <= HCAL) & (energies > 0)
        place = np.flatnonzero(shallow)  # the hits of the first layers
        kind, energy, position, layer = 1 * is_hcal[place], energies[place], positions[place], depth[place].astype(int)
        length, width = sizes[number[place], 1:].T
        in_layer = np.identity(N_LAYERS, np.float32)[layer] * (kind == ECAL)[:, None]
        distances = np.sqrt(np.einsum("hc,hc->h", positions, positions))
        towards = position / distances[place, None]

        counts, every = jagged.count(events.tracks), jagged.columns(events.tracks)
        event, momentum = jagged.event_index(counts), jagged.vectors(events.tracks, field="momentum")
        p, pt, phi = np.linalg.norm(momentum, axis=1), np.hypot(*momentum[:, :2].T), np.arctan2(*momentum[:, 1::-1].T)
        state, at_state = (jagged.vectors(events.tracks, field=f"calo_{x}") for x in ("position", "momentum"))
        d0, z0, charge = (np.nan_to_num(every[name].astype(np.float64)) for name in ("d0", "z0", "charge"))
        start = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=1)
        by_helix, at_helix = follow_to_calorimeter(start, momentum, charge, detector)
        has_state = np.isfinite(state).all(axis=1)[:, None]
        entry = np.where(has_state, state, by_helix)
        direction = unit_vector(np.where(has_state & np.isfinite(at_state).all(axis=1)[:, None], at_state, at_helix))
        enters = np.nan_to_num(unit_vector(entry))
        index = np.flatnonzero((p > MIN_MOMENTUM) & (jagged.count(events.hits)[event] > 0))
        momentum, p, pt, start, charge, state, by_helix, entry, direction = (
            np.asarray(values, dtype=np.float64)[index]
            for values in (momentum, p, pt, start, charge, state, by_helix, entry, direction)
        )
        event = event[index]
        n, moved = len(index), follow_to_calorimeter(start, (1 + STEP) * momentum, charge, detector)[0]
        axes = np.stack(tangent_basis(direction)[::-1], axis=1)  # [track, 2, 3], along azimuth and polar angle
        endcap = np.abs(entry[:, 2]) > detector.ecal_inner_z - 1.0
        to_normal = np.where(endcap, np.abs(direction[:, 2]), np.hypot(direction[:, 0], direction[:, 1]))  # cosine

        points, along, unit = (x.astype(np.float32) for x in (entry, direction, enters[index]))
        (narrow, wide), separation = np.zeros((2, n, 2)), np.full(n, np.inf)
        pairs, stubs, lost = [np.zeros((2, 0), dtype=np.int64)], np.zeros(len(place), bool), np.full(len(place), np.nan)
        size = max([part.cell_size or 5.0 for part in parts if part.kind == "ecal"], default=5.0)
        stub = np.cos(max(STUB, STUB_CELLS * size) / detector.ecal_inner_radius)
        bounds = jagged.offsets(jagged.count(events.hits))
        of_place, of_index = np.searchsorted(place, bounds), np.searchsorted(event, np.arange(len(bounds)))
        for begin, end in itertools.pairwise(zip(bounds, of_place, jagged.offsets(counts), of_index, strict=True)):
            hit, near, every_track, track = map(slice, begin, end)
            first = near.start + np.flatnonzero((layer[near] == 0) & (kind[near] == ECAL))
            in_layers = (towards[first] @ towards[near].T > stub).astype(np.float32) @ in_layer[near]
            first = first[(in_layers > 0).all(axis=1) & (in_layers.sum(axis=1) <= N_LAYERS + 1)]
            stubs[first] = True
            lost[first] = (towards[first] @ enters[every_track].T).max(axis=1, initial=-1.0) < np.cos(APART)

            behind = along[track] @ position[near].T - (points * along)[track].sum(axis=1)[:, None]  # [track, hit]
            squared = distances[place[near]] ** 2 - 2 * points[track] @ position[near].T
            across = squared + (points[track] ** 2).sum(axis=1)[:, None] - behind**2
            inside = (across < width[near] ** 2) & (behind > -IN_FRONT) & (behind < length[near])
            pairs.append(np.argwhere(inside).T + np.array([[track.start], [near.start]]))
            between = enters[index[track]] @ enters[index[track]].T
            np.fill_diagonal(between, -1.0)
            separation[track] = np.arccos(np.clip(between.max(axis=1, initial=-1.0), -1.0, 1.0))
            if len(alone := track.start + np.flatnonzero(separation[track] > ALONE)):
                along_unit = unit[alone] @ positions[hit].T
                by_kind = energies[hit, None] * np.stack([is_hcal[hit], ~is_hcal[hit]], axis=1)
                narrow[alone], wide[alone] = (
                    (along_unit > np.cos(cone) * distances[hit]) @ by_kind for cone in (NARROW, ALONE)
                )

        pair = np.concatenate(pairs, axis=1)  # of a track and a hit near its line
        n_hits, n_layers, cell = np.zeros((3, 2, n))
        offset = np.full((2, 2, n), np.nan)  # [kind, axis, track]
        for k in (ECAL, HCAL):
            track, hit = pair[:, kind[pair[1]] == k]
            n_hits[k] = np.bincount(track, minlength=n)
            n_layers[k] = np.bincount(np.unique(track * N_LAYERS + layer[hit]) // N_LAYERS, minlength=n)
            cell[k] = medians(track, energy[hit] * to_normal[track], n)
            step = np.einsum("hac,hc->ah", axes[track], position[hit] - entry[track])
            offset[k] = [medians(track, along_axis, n) for along_axis in step]
        n_described = [[sum(layers.count for layers in part.layers) for part in parts if part.kind == k] for k in KINDS]
        expected = [min(max(of_kind, default=0) or N_LAYERS, N_LAYERS) for of_kind in n_described]  # 1 of crystals
        trail = n_layers[ECAL] >= min(MIN_LAYERS, expected[ECAL])
        straight = trail & (n_hits[ECAL] < SHOWER * n_layers[ECAL])
        # An electron leaves nothing in the HCAL; without a trail it is not known what a track is.
        in_hcal = straight & (p > HARD) & np.isfinite([_face(detector, x) for x in parts if x.kind == "hcal"]).any()

        lever = np.einsum("tac,tc->at", axes, (moved - by_helix) / STEP)
        off = np.einsum("tac,tc->at", axes, entry - by_helix) + offset[ECAL]
        reach = np.linalg.norm(lever, axis=0)
        known = straight & (reach > LEVER[0]) & (reach < LEVER[1])
        near_helix = np.linalg.norm(by_helix - state, axis=1)
        scales = [
            [x.electron_scale if k == "ecal" else x.hadron_scale or 1.0 for x in parts if x.kind == k] for k in KINDS
        ]
        calibrated = np.array([np.mean(of_kind or [1.0]) for of_kind in scales[::-1]])

        def where(applies: Mask, values: npt.NDArray[Any]) -> Floats:
            return np.where(applies, values, np.nan)

        def place_of(k: int, applies: Mask) -> dict[str, Floats]:
            size = max([part.cell_size or 5.0 for part in parts if part.kind == KINDS[k]], default=5.0)
            names = (f"{KINDS[k]}_azimuth", f"{KINDS[k]}_polar")
            return {x: where(applies, values / size) for x, values in zip(names, offset[k], strict=True)}

        with np.errstate(divide="ignore", invalid="ignore"):
            trails = {
                "event": event,
                "endcap": endcap,
                **dict(zip("xyz", entry.T, strict=True)),
                "b_field": np.abs(every["omega"][index]) * pt / GEV_PER_TESLA_MM,
                "trail": trail,
                "layers": where(trail, n_layers[ECAL] / expected[ECAL]),
                **place_of(ECAL, trail),
                "helix": where(straight & np.isfinite(near_helix), near_helix < NEAR),
                "momentum": where(known, -(off * lever).sum(axis=0) / reach**2),
                "behind": where(in_hcal, n_layers[HCAL] > 0),
                **place_of(HCAL, in_hcal & (n_layers[HCAL] >= min(MIN_LAYERS, expected[HCAL]))),
                "response": (narrow @ calibrated) / p,
                "ecal_cell": where(straight, cell[ECAL]),
                "hcal_cell": where(in_hcal, cell[HCAL]),
                "twice": separation < SAME,
            }
        if events.hit_links is not None and events.track_links is not None:
            track, hit = pair[:, kind[pair[1]] == ECAL]
            of_hit = jagged.flat(assigned_particle(events.hit_links, events.hits))[place[hit]]
            of_track = jagged.flat(assigned_particle(events.track_links, events.tracks))[index][track]
            linked = (of_hit >= 0) & (of_track >= 0)
            n_linked, n_own = (np.bincount(track[x], minlength=n) for x in (linked, linked & (of_hit == of_track)))
            trails["own"] = where(straight & (n_linked > 0), n_own / np.maximum(n_linked, 1))
        begins = np.flatnonzero(stubs)
        in_event = np.searchsorted(bounds, place[begins], side="right") - 1
        n_stubs = np.bincount(in_event, minlength=len(counts))
        full = n_stubs.sum() >= MIN_PER_EVENT * max(len(counts), FEW_EVENTS)  # all tracks may be lost
        enough = (counts >= MIN_PER_EVENT) | (counts + n_stubs >= FULL) | full
        found = {
            "event": in_event,
            "endcap": np.abs(position[begins, 2]) > detector.ecal_inner_z - 1.0,
            **dict(zip("xyz", position[begins].T, strict=True)),
            "lost": where(enough[in_event], lost[begins]),
        }
        deposits = cls(
            momentum=p, narrow=narrow, around=wide - narrow, separation=separation, trails=trails, stubs=found
        )
        trails["response"] = where(deposits.hadrons(float(calibrated[0])), trails["response"])
        return deposits

    def isolated(self, scale: float = 1.0) -> Mask:
        """Isolated tracks, without another track or energy around, bool [track]; `scale`: factor on HCAL energies."""
        around = self.around @ np.array([scale, 1.0])
        return np.asarray((self.separation > ALONE) & (around < MAX_AROUND * self.momentum))

    def hadrons(self, scale: float) -> Mask:
        """Isolated tracks of hadrons that shower, bool [track], by momentum and energy in an HCAL times `scale`."""
        p, hadronic = self.momentum, scale * self.narrow[:, 0]
        return self.isolated(scale) & (p > HADRONS[0]) & (p < HADRONS[1]) & (hadronic > MIN_HADRONIC * p)

    def hadron_scales(self) -> Floats:
        """`pflow.physics.detector.Calorimeter.hadron_scale` by each isolated charged hadron, [hadron]; use the median.

        Tails are wide, single values may be negative. Neutral particles near tracks lower it, by 6% in Z -> qq of
        ild_g4. Tracks below `MIN_MOMENTUM` are not followed, so they may enter near an isolated one.
        """
        scale, scales = 1.0, np.zeros(0)
        for _ in range(ROUNDS):
            hadron = self.hadrons(scale)
            in_hcal, elsewhere = self.narrow[hadron].T
            scales = (HADRON_RESPONSE * self.momentum[hadron] - elsewhere) / in_hcal
            if not len(scales) or not np.median(scales) > 0:
                break
            scale = float(np.median(scales))
        return scales


def _trail_sizes(part: Calorimeter) -> tuple[float, float, float]:
    """Pitch of the first layers, and length and half width of trails, mm."""
    pitch = part.layers[0].pitch if part.layers else PITCH.get(part.kind, 1.0)
    return pitch, BEHIND.get(part.kind, 0.0), max(WIDTH.get(part.kind, 0.0), CELLS * (part.cell_size or 0.0))


def _face(detector: Detector, part: Calorimeter) -> float:
    """Face of a calorimeter, or else of the detector's calorimeters of its kind, mm; NaN if not known."""
    place = "inner_radius" if _is_barrel(part) else "inner_z"
    of_kind = getattr(detector, f"{'ecal' if part.kind == 'ecal' else 'hcal'}_{place}")
    return float(getattr(part, place) or of_kind or np.nan)


def _is_barrel(part: Calorimeter) -> bool:
    return part.region == "barrel" or (part.inner_z is None and part.inner_radius is not None)


def _depths(events: Events) -> Floats:
    """Depth of each hit behind the face of its calorimeter, mm along the normal, float64 [hit]; NaN if not known."""
    detector, number = events.detector, jagged.columns(events.hits)["subdetector"]
    x, y, z = jagged.vectors(events.hits, field="position").T
    depth = np.full(len(number), np.nan)
    for i, part in enumerate(detector.calorimeters):
        mine = number == i
        barrel = _is_barrel(part)
        place = distance_to_sides(x[mine], y[mine], part.sides, part.phase) if barrel else np.abs(z[mine])
        depth[mine] = place - _face(detector, part)
    return depth
