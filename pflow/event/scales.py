"""Scales of events: energies, layers, links to truth, and what tracks leave in the calorimeters; summed over chunks.

`measure` measures a chunk, `Scales` of chunks add up in any order, and `pflow.event.checks` reports implausible values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.closure import HCAL, MIN_MOMENTUM, TrackDeposits, depths
from pflow.event.events import Events
from pflow.event.jagged import Links, assigned_particle
from pflow.event.truth import STABLE_STATUS, select_targets
from pflow.physics.arrays import Floats
from pflow.physics.detector import Detector
from pflow.physics.geometry import kind_index, layers_by_position
from pflow.physics.kinematics import (
    GEV_PER_TESLA_MM,
    angle_between,
)
from pflow.physics.pdg import is_invisible

ELECTRON, MUON = 11, 13

MAX_ROWS = 100_000  # of a table; more are thinned evenly
MAX_HITS = 10_000  # of a chunk, from all its events, that are compared one by one with their calorimeter's description
ONE_IN = 16  # one cell of so many is looked at for a second hit,
OFF_GRID = 0.29  # and a shift of them, in quarters of a cell: places of cells may end in halves

REACH = 1.1  # largest plausible ratio of the radius of a state to the diameter of the track's circle
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
    n, depth = len(events), depths(events)
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
        sums = (np.bincount(cell, weight, size).reshape(n, len(parts)).T for weight in (energy, energy * linked))
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
    sums = (np.bincount(part, weight, n * n_parts).reshape(n, n_parts).T for weight in weights)
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
