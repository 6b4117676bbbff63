"""Scales of events: energies of hits and events, trails of tracks, links to truth; summed over chunks.

`measure` measures a chunk, `Scales` of chunks add up in any order, and `pflow.event.checks` reports implausible values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.closure import (
    ECAL,
    HCAL,
    KINDS,
    MIN_LAYERS,
    MIN_MOMENTUM,
    N_LAYERS,
    SHOWER,
    TrackDeposits,
    depth_behind,
)
from pflow.event.events import Events
from pflow.event.jagged import Links, assigned_particle
from pflow.event.truth import STABLE_STATUS, select_targets, unknown_status
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import Detector
from pflow.physics.geometry import layers_by_position
from pflow.physics.kinematics import GEV_PER_TESLA_MM, angle_between
from pflow.physics.pdg import is_invisible

ELECTRON, MUON = 11, 13

MIN_TRACKS, MIN_HITS = 10, 100  # fewest for a typical value
MAX_ROWS = 100_000  # of a table; more are thinned evenly
MAX_LOOKED = 24  # events of a chunk that are measured in detail: a chunk of 256 then takes 0.4 ms an event
MAX_PLACED = 20_000  # hits of a chunk whose place and layer are compared with the description

N_BINS, FIRST_BIN, PER_E = 576, 1e-7, 25  # of histograms of hit energies: number, first edge in GeV, bins a factor e
LOWER = 0.2  # quantile of hit energies that minimum ionising particles set, with or without showers
MAX_SHIFT = 50  # layers, of the histogram of a hit's layer less the one of its depth
PLACE = 60.0  # mm outside of a calorimeter as it is described from which a hit does not belong there
MIN_IN_LAYER, MOST_IN_LAYER = 20, 300  # hits of a layer for the size of its cells
WIDE = 0.3  # rad, largest usual angle between a hit and the direction of its particle
STRAIGHT = 5.0  # GeV, transverse momentum above which charged particles enter the calorimeter within `WIDE`
HARD = 3.0  # GeV, momentum from which most hadrons leave hits in the HCAL
NEAR = 100.0  # mm between state and helix
SAME = 1e-3  # rad, largest angle between the entries of two copies of a track
REACH = 1.1  # largest plausible ratio of the radius of a state to the diameter of the track's circle


class Estimate(NamedTuple):
    """A mean or quantile with its standard deviation, of `n` values."""

    value: float
    sigma: float
    n: int

    @classmethod
    def of(cls, values: Floats, quantile: float | None) -> Estimate:
        """Mean or quantile of the finite values, NaN for less than two; neighbouring quantiles give its error."""
        values = values[np.isfinite(values)]
        n = len(values)
        if n < 2:
            return cls(np.nan, np.inf, n)
        if quantile is None:  # a share that is 0 or 1 so far has an error, too
            return cls(float(values.mean()), float(np.sqrt((values.var() + 0.25 / n) / n)), n)
        step = np.sqrt(quantile * (1 - quantile) / n)
        low, value, high = np.quantile(values, np.clip([quantile - step, quantile, quantile + step], 0, 1))
        return cls(float(value), float(high - low) / 2, n)

    def logarithm(self) -> Estimate:
        """Estimate of the logarithm; itself if the value is not positive."""
        if not self.value > 0:
            return self
        return Estimate(float(np.log(self.value)), self.sigma / self.value, self.n)


TRAILS: Mapping[str, float] = {"response": 0.5, "ecal_cell": 0.5, "hcal_cell": 0.25}
"""Columns of tracks and the quantile that is a sample's typical value."""

Table = dict[str, npt.NDArray[Any]]
"""Columns of the same length."""


@dataclasses.dataclass(frozen=True, eq=False)
class Scales:
    """Measured quantities of one or more chunks, in tables of at most `MAX_ROWS` rows; ``+`` joins them.

    `chunks`: columns in each chunk, by table: all ``events``, those ``looked`` at in detail, their ``tracks`` (above
    `MIN_MOMENTUM`) and ``particles`` (linked to tracks), for entries that are multiples of `step`. `n_events`: number
    of all entries. `hits`: histograms, by kind and name of the calorimeter. `detectors` and `paths`: of the chunks,
    without repetition; the column ``file`` is an index into `paths`. `texts`: messages about problems found earlier.
    """

    detectors: tuple[Detector, ...] = ()
    chunks: Mapping[str, Sequence[Table]] = dataclasses.field(default_factory=dict)
    step: int = 1
    n_events: int = 0
    hits: Mapping[tuple[str, str], Table] = dataclasses.field(default_factory=dict)
    paths: tuple[str, ...] = ()
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __add__(self, other: Scales) -> Scales:
        """The scales of the events of both."""
        paths = tuple(dict.fromkeys([*self.paths, *other.paths]))
        number = np.array([paths.index(path) for path in other.paths], dtype=np.int64)
        chunks = {name: list(tables) for name, tables in self.chunks.items()}
        for name, tables in other.chunks.items():
            chunks.setdefault(name, []).extend(table | {"file": number[table["file"]]} for table in tables)
        step, uneven = max(self.step, other.step), self.step != other.step
        while uneven or max((sum(map(_n_rows, tables)) for tables in chunks.values()), default=0) > MAX_ROWS:
            step, uneven = step if uneven else 2 * step, False
            for name, tables in chunks.items():
                table = _merged(tables)
                selected = table["entry"] % step == 0
                chunks[name] = [{column: values[selected] for column, values in table.items()}]
        hits = dict(self.hits)
        for part, counts in other.hits.items():
            ours = hits.get(part, {})
            hits[part] = {**ours, **{name: ours.get(name, 0) + values for name, values in counts.items()}}
        return Scales(
            detectors=(*self.detectors, *(detector for detector in other.detectors if detector not in self.detectors)),
            chunks=chunks,
            step=step,
            n_events=self.n_events + other.n_events,
            hits=hits,
            paths=paths,
            texts={**other.texts, **self.texts},
        )

    @property
    def detector(self) -> Detector | None:
        """The detector of all events; None if there are several, or no events."""
        return self.detectors[0] if len(self.detectors) == 1 else None

    def table(self, name: str) -> Table:
        """A table of all chunks."""
        return _merged(self.chunks.get(name, ()))

    def sample(self) -> SampleScales:
        """Typical values, stored with a model for its training sample."""
        events, tracks = self.table("events"), self.table("tracks")
        hit: dict[str, Any] = {}
        for kind in KINDS:
            counts = sum((table["energy"] for (of, _), table in self.hits.items() if of == kind), np.zeros(1))
            hit[f"{kind}_hit"] = quantile_of(counts, 0.5)[1] if counts.sum() >= MIN_HITS else None
        trails = {column: Estimate.of(tracks.get(column, np.zeros(0)), q) for column, q in TRAILS.items()}
        return SampleScales(
            **hit,
            max_energy=float(events.get("energy", np.zeros(1)).max(initial=0.0)),
            max_hits=float(events.get("n_hits", np.zeros(1)).max(initial=0.0)),
            opening=_median(self.table("looked").get("opening", np.zeros(0)), 1),
            near_tracks=_median(tracks.get("near", np.zeros(0)), MIN_TRACKS),
            b_field=_median(tracks.get("b_field", np.zeros(0)), MIN_TRACKS),
            trails={name: trails[name].value for name in TRAILS if trails[name].n >= MIN_TRACKS},
        )


def _merged(tables: Sequence[Table]) -> Table:
    names = set.intersection(*(set(table) for table in tables)) if tables else set()
    return {name: np.concatenate([table[name] for table in tables]) for name in names}


def _n_rows(table: Table) -> int:
    return len(table["file"])


def measure(events: Events, particles: ak.Array | None = None, *, targets: Mapping[str, Any] | None = None) -> Scales:
    """Measure a chunk of events: sums of all events, other quantities in `MAX_LOOKED` evenly spaced ones.

    `particles`: of a reconstruction of these events, [event, particle]; `targets`: options of
    `pflow.event.truth.select_targets`, whose errors are raised, None: without targets. Takes 0.1 ms an event (Z -> qq),
    and 3 ms for each event that is measured in detail.
    """
    n, texts = len(events), dict[str, str]()
    rows = np.unique(np.linspace(0, max(n - 1, 0), min(n, MAX_LOOKED)).astype(np.int64))
    looked = events if len(rows) == n else events[rows]
    deposits = TrackDeposits.of(looked)
    tables = {
        "events": (events, _of_events(events, particles)),
        "looked": (looked, _of_looked(looked, deposits, targets, texts)),
        "tracks": (looked, _of_tracks(looked, deposits)),
        "particles": (looked, _of_particles(looked)),
    }
    chunks = {}
    for name, (of, table) in tables.items():
        row = table.pop("event")
        columns = {key: np.asarray(values, dtype=np.float32) for key, values in table.items()}
        if len(row):
            chunks[name] = [columns | {"entry": of.entry[row], "file": np.zeros(len(row), dtype=np.int64)}]
    return Scales((events.detector,), chunks, 1, n, _of_hits(looked), (events.path,), texts)


def _of_events(events: Events, particles: ak.Array | None) -> Table:
    """Energy, number of hits and momentum of tracks of each event, GeV, and typical energy of its hits in the ECAL."""
    n, hits, counts = len(events), jagged.columns(events.hits), jagged.count(events.hits)
    event, energy = jagged.event_index(counts), hits["energy"]
    in_ecal = np.array([part.kind == "ecal" for part in events.detector.calorimeters])[hits["subdetector"]]
    used = np.flatnonzero(in_ecal & (energy > 0))
    with np.errstate(invalid="ignore"):
        logarithm = np.bincount(event[used], np.log(energy[used]), n) / np.bincount(event[used], minlength=n)
    table: Table = {"event": np.arange(n), "energy": np.bincount(event, energy, n), "n_hits": counts}
    table["typical"] = np.exp(logarithm)
    if events.tracks is not None:
        momentum = np.linalg.norm(jagged.vectors(events.tracks, field="momentum"), axis=1)
        table["momentum"] = np.bincount(jagged.event_index(jagged.count(events.tracks)), momentum, n)
    if particles is not None:
        of_particle = jagged.event_index(jagged.count(particles))
        table["reconstructed"] = np.bincount(of_particle, jagged.columns(particles)["energy"], n)
    return table


def _of_looked(
    events: Events, deposits: TrackDeposits, targets: Mapping[str, Any] | None, texts: dict[str, str]
) -> Table:
    """Sums of each event, GeV, by name; with sums of the truth if the events have it."""
    n, parts = len(events), events.detector.calorimeters
    hits, counts = jagged.columns(events.hits), jagged.count(events.hits)
    event, energy = jagged.event_index(counts), hits["energy"].astype(np.float64)
    position = jagged.vectors(events.hits, field="position")
    weight = energy / np.maximum(np.linalg.norm(position, axis=1), 1.0)  # hits that were left out are at the origin
    total = np.bincount(event, energy, n)
    sums = np.stack([np.bincount(event, weight * along, n) for along in position.T], axis=1)
    in_hcal = np.array([part.kind == "hcal" for part in parts])[hits["subdetector"]]
    with np.errstate(divide="ignore", invalid="ignore"):
        opening = np.arccos(np.minimum(np.linalg.norm(sums, axis=1) / total, 1.0))
    table: Table = {"event": np.arange(n), "energy": total, "opening": opening}
    endcap = np.abs(position[:, 2]) > events.detector.ecal_inner_z
    for region, inside in (("barrel", ~endcap), ("endcap", endcap)):
        mine = inside & in_hcal
        table[f"hcal {region}"] = np.bincount(event[mine], energy[mine], n)
        table[f"apart {region}"] = np.bincount(event[mine], (energy * deposits.apart)[mine], n)
    if events.tracks is not None:
        of_track = jagged.event_index(jagged.count(events.tracks))
        momentum, state = (jagged.vectors(events.tracks, field=name) for name in ("momentum", "calo_position"))
        table |= {"n_tracks": jagged.count(events.tracks)}
        table["momentum"] = np.bincount(of_track, np.linalg.norm(momentum, axis=1), n)
        # A chord of a circle is at most twice its radius long.
        reach = 2 * np.hypot(*momentum[:, :2].T) / (GEV_PER_TESLA_MM * abs(events.detector.b_field))
        radius = np.hypot(*state[:, :2].T) - np.abs(np.nan_to_num(jagged.columns(events.tracks)["d0"]))
        table["states"] = np.bincount(of_track, np.isfinite(radius), n)
        table["beyond"] = np.bincount(of_track, radius > REACH * reach, n)
        if events.truth is not None:
            table["linked tracks"] = np.bincount(of_track, _linked(events.tracks, events.track_links), n)
    if events.reference is not None:
        of_particle = jagged.event_index(jagged.count(events.reference))
        table["reference"] = np.bincount(of_particle, jagged.columns(events.reference)["energy"], n)
    if events.truth is None:
        return table
    truth, status = jagged.columns(events.truth), tuple((targets or {}).get("stable_status", STABLE_STATUS))
    showers = np.isin(truth["status"], status) & ~is_invisible(truth["pdg"]) & (np.abs(truth["pdg"]) != MUON)
    of_particle = jagged.event_index(jagged.count(events.truth))
    table["true"] = np.bincount(of_particle, truth["energy"] * showers, n)
    table["n true"] = np.bincount(of_particle, showers, n)
    if events.hit_links is not None:
        linked = energy * _linked(events.hits, events.hit_links)
        for number, part in enumerate(parts):
            mine = hits["subdetector"] == number
            table[f"energy {part.name}"] = np.bincount(event[mine], energy[mine], n)
            table[f"linked {part.name}"] = np.bincount(event[mine], linked[mine], n)
    if targets is None:
        return table
    if targets.get("rule", "stable") == "stable" and (problem := unknown_status(truth["status"], status)):
        texts["status"] = problem
    elif events.has_truth:
        by_choice = ("e_min", "invisible")  # the user knows that hits of these belong to no target
        chosen = select_targets(events, **{key: value for key, value in targets.items() if key not in by_choice})
        table["targets"] = np.bincount(jagged.event_index(chosen.counts), chosen.column("hit_energy"), n)
        momentum = np.stack([chosen.column(axis) for axis in ("px", "py", "pz")], axis=1)
        straight = (chosen.column("charge") == 0) | (np.hypot(momentum[:, 0], momentum[:, 1]) > STRAIGHT)
        links = chosen.links_to(chosen.hits, np.where(straight, np.arange(len(straight)), -1))
        links = links.take(links.particle >= 0)
        source, along = links.flat_source(counts), momentum[links.particle]
        cosine = (position[source] * along).sum(axis=1)
        wide = cosine < np.cos(WIDE) * np.linalg.norm(position[source], axis=1) * np.linalg.norm(along, axis=1)
        table["straight"] = np.bincount(links.event, links.weight * energy[source], n)
        table["wide"] = np.bincount(links.event, links.weight * energy[source] * wide, n)
    return table


def _of_tracks(events: Events, deposits: TrackDeposits) -> Table:
    """Columns of `QUANTITIES` of each track; NaN where one does not apply. Lengths are in cells."""
    d, parts = deposits, events.detector.calorimeters
    cell = [max([part.cell_size or 5.0 for part in parts if part.kind == kind], default=5.0) for kind in KINDS]
    p, layers, hits = d.momentum, d.layers, d.hits
    trail, hcal = layers[:, ECAL] >= MIN_LAYERS, any(part.kind == "hcal" for part in parts)
    shower = hits[:, ECAL] >= SHOWER * layers[:, ECAL]
    # An electron leaves nothing in the HCAL; without a trail it is not known what a track is.
    behind = (p > HARD) & trail & ~shower & hcal
    scale = np.mean([part.hadron_scale or 1.0 for part in parts if part.kind == "hcal"]) if hcal else 1.0
    calibrated = np.array([scale, np.mean([p.electron_scale for p in parts if p.kind == "ecal"] or [1.0])])
    with np.errstate(divide="ignore", invalid="ignore"):
        offset = np.where((layers >= MIN_LAYERS)[..., None], d.offset / np.array(cell)[None, :, None], np.nan)
        b_field = 0 * p
    if events.tracks is not None:
        omega = jagged.columns(events.tracks)["omega"][d.index]
        px, py, _ = jagged.vectors(events.tracks, field="momentum")[d.index].T
        b_field = np.abs(omega) * np.hypot(px, py) / GEV_PER_TESLA_MM

    def where(values: npt.NDArray[Any], applies: Mask) -> Floats:
        return np.where(applies, values, np.nan)

    return {
        "event": d.event,
        "endcap": d.endcap,
        **dict(zip("xyz", d.entry.T, strict=True)),
        "near": d.narrow.sum(axis=1) / p,
        "b_field": b_field,
        "trail": trail,
        "layers": where(layers[:, ECAL] / N_LAYERS, trail),
        "azimuth": offset[:, ECAL, 0],
        "polar": offset[:, ECAL, 1],
        "helix": where(d.by_helix < NEAR, trail & ~shower & np.isfinite(d.by_helix)),
        "momentum": d.momentum_error,
        "behind": where(layers[:, HCAL] > 0, behind),
        "hcal_azimuth": where(offset[:, HCAL, 0], behind),
        "hcal_polar": where(offset[:, HCAL, 1], behind),
        "response": where((d.narrow @ calibrated) / p, d.hadrons(float(scale))),
        "ecal_cell": where(d.cell[:, ECAL], trail & ~shower),
        "hcal_cell": where(d.cell[:, HCAL], behind),
        "twice": d.separation < SAME,
        "own": _own(events, d),
    }


def _own(events: Events, deposits: TrackDeposits) -> Floats:
    """Fraction of the hits of each trail that are linked to the track's particle; NaN where one is not linked."""
    n, (track, hit) = len(deposits.index), deposits.trail
    if events.tracks is None or events.hit_links is None or events.track_links is None:
        return np.full(n, np.nan)
    of_hit = jagged.flat(assigned_particle(events.hit_links, events.hits))[hit]
    of_track = jagged.flat(assigned_particle(events.track_links, events.tracks))[deposits.index][track]
    known = (of_hit >= 0) & (of_track >= 0)
    with np.errstate(invalid="ignore"):
        same = np.bincount(track[known], (of_hit == of_track)[known], n) / np.bincount(track[known], minlength=n)
    return np.where(deposits.hits[:, ECAL] < SHOWER * deposits.layers[:, ECAL], same, np.nan)


def _of_particles(events: Events) -> Table:
    """Columns of `OF_PARTICLES` for each track that is linked to a particle, except electrons, which radiate."""
    if events.tracks is None or events.truth is None or events.track_links is None:
        return {"event": np.zeros(0, dtype=np.int64)}
    links, truth = Links.of(events.track_links), jagged.columns(events.truth)
    track, of = links.flat_source(jagged.count(events.tracks)), links.flat_particle(jagged.count(events.truth))
    measured = jagged.vectors(events.tracks, field="momentum")[track]
    true = np.stack([truth[axis][of] for axis in ("px", "py", "pz")], axis=1)
    hard = np.linalg.norm(true, axis=1) > MIN_MOMENTUM  # particles that were left out have no energy
    chosen = (np.abs(truth["pdg"][of]) != ELECTRON) & (truth["energy"][of] > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.hypot(*measured[:, :2].T) / np.hypot(*true[:, :2].T)
    table = {
        "event": links.event,
        "pt_ratio": ratio,
        "angle": np.where(hard, angle_between(measured, true), np.nan),
        "opposite": jagged.columns(events.tracks)["charge"][track] * truth["charge"][of] < 0,
    }
    return {name: values[chosen] for name, values in table.items()}


def _of_hits(events: Events) -> dict[tuple[str, str], Table]:
    """Histograms of each calorimeter: energies, layer less the one of the depth, and hits inside and outside of it."""
    columns = jagged.columns(events.hits)
    number, energy, position = (
        columns["subdetector"],
        columns["energy"],
        jagged.vectors(events.hits, np.float32, field="position"),
    )
    used = np.flatnonzero(energy > 0)
    bins = np.clip(PER_E * np.log(energy[used] / FIRST_BIN), 0, N_BINS - 1).astype(np.int64) + N_BINS * number[used]
    spectra = np.bincount(bins, minlength=len(events.detector.calorimeters) * N_BINS).reshape(-1, N_BINS)
    event, tables = jagged.event_index(jagged.count(events.hits)), {}
    used = used[: np.searchsorted(event[used], event[used[min(len(used), MAX_PLACED) - 1]] + 1)] if len(used) else used
    for i, part in enumerate(events.detector.calorimeters):
        table: Table = {"energy": spectra[i]}
        tables[part.kind, part.name] = table
        mine = used[number[used] == i]
        if part.kind not in KINDS or not len(mine):
            continue
        # Two hits that share a cube half as wide as a cell are there twice: the centres of cells are farther apart.
        cube = np.floor(position[mine] * (2 / (part.cell_size or 2.0))).astype(np.int64)
        key = np.clip(cube + (1 << 15), 0, (1 << 16) - 1) @ (1 << np.array([0, 16, 32])) + (event[mine] << 48)
        table["twice"] = np.array([len(mine), len(mine) - len(np.unique(key))])
        depth = depth_behind(position[mine], part, events.detector)
        if not np.isfinite(depth).all():  # its face is not described
            continue
        if size := _cell_size(position[mine], layers_by_position(depth), event[mine]):
            table["size"] = np.array([1.0, size])
        if part.layers and part.region != "other":
            edges = np.cumsum([0.0] + [range_.pitch for range_ in part.layers for _ in range(range_.count)])
            layer = columns["layer"][mine]
            shift = layer[layer >= 0] - (np.searchsorted(edges, depth[layer >= 0], side="right") - 1)
            table["shift"] = np.bincount(np.clip(shift, -MAX_SHIFT, MAX_SHIFT) + MAX_SHIFT, minlength=2 * MAX_SHIFT + 1)
            outside = (depth < -PLACE) | (depth > edges[-1] + PLACE)
            table["outside"] = np.bincount(outside, minlength=2)
    return tables


def _cell_size(position: npt.NDArray[np.float32], layer: Index, event: Index) -> float:
    """Distance of neighbouring cells, mm, in the layer of an event with most hits; 0 for few hits.

    The fifth of the distances to the nearest hit is used: many hits have no neighbour.
    """
    _, group, counts = np.unique(layer * (event.max() + 1) + event, return_inverse=True, return_counts=True)
    if counts.max() < MIN_IN_LAYER:
        return 0.0
    centres = np.unique(np.round(position[group == np.argmax(counts)], 1), axis=0)[:MOST_IN_LAYER]
    squared = ((centres[:, None] - centres) ** 2).sum(axis=2)
    np.fill_diagonal(squared, np.inf)
    return float(np.sqrt(np.quantile(squared.min(axis=1), 0.2)))


def quantile_of(counts: npt.NDArray[Any], q: float = LOWER, *, sure: float = 0.0) -> tuple[float, float, float]:
    """A quantile of hit energies from their histogram, and those `sure` standard deviations below and above; GeV."""
    n = counts.sum()
    step = sure * np.sqrt(q * (1 - q) / n)
    place = np.searchsorted(np.cumsum(counts), np.clip([q - step, q, q + step], 0, 1) * n)
    low, value, high = (FIRST_BIN * np.exp((place + 0.5) / PER_E)).tolist()
    return low, value, high


def _linked(sources: Any, links: Any) -> Mask:
    """Which hits or tracks have a link to a particle."""
    counts = jagged.count(sources)
    linked = np.zeros(int(counts.sum()), dtype=np.bool_)
    linked[Links.of(links, len(counts)).flat_source(counts)] = True
    return linked


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleScales:
    """Typical energies, sizes and curvatures of a sample; None where it holds too few hits or tracks.

    `ecal_hit` and `hcal_hit`: median energy of a hit, GeV; `max_energy`: largest energy of an event in hits, GeV;
    `max_hits`: largest number of hits of an event; `opening`: median of the opening angle of an event's energy, rad,
    whose cosine is |sum of E n| / sum of E over hits of energy E in the direction n from the origin;
    `near_tracks`: median ratio of the energy in hits near a track (`pflow.event.closure.NARROW`) to its momentum;
    `b_field`: field that relates the tracks' curvature to their momentum, T; `trails`: values of `TRAILS`.

    A model for any detector has no scales that differ between detectors. It has the names of the `detectors` of its
    training, and the smallest and largest value of their `measures` (`pflow.physics.geometry.measures`).
    """

    ecal_hit: float | None
    hcal_hit: float | None
    max_energy: float
    max_hits: float | None = None
    opening: float | None = None
    near_tracks: float | None
    b_field: float | None
    detectors: tuple[str, ...] = ()
    measures: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    trails: Mapping[str, float] = dataclasses.field(default_factory=dict)


def _median(values: npt.NDArray[Any], least: int) -> float | None:
    """Median of the finite values; None for fewer than `least`."""
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) >= least else None
