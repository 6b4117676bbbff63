"""What tracks leave in the calorimeters: trails, energies around them, and stubs without a track.

A charged particle leaves one hit in nearly every layer that it enters, whatever becomes of it later. So each track has
a trail: the hits in the first `N_LAYERS` layers close to the line on which it enters. The trail shows where the
calorimeter is (to a millimetre a track), how many hits are lost, and the energy of a minimum ionising particle in a
cell. The energy behind isolated tracks shows the scale of whole showers. The distance of the trail from the helix of
the IP, along the direction in which another momentum would move it, gives the relative error of momentum and field.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import assigned_particle
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import ECAL, HCAL, KINDS, Calorimeter, Detector
from pflow.physics.geometry import LENGTH, distance_to_sides, kind_index, medians
from pflow.physics.kinematics import GEV_PER_TESLA_MM, follow_to_calorimeter, tangent_basis, unit_vector

MIN_MOMENTUM = 1.0  # GeV. Softer tracks curl, and scatter in the tracker
NARROW, ALONE = 0.08, 0.16  # cones, rad: in the first are a hadron's hits, in the second enters no other track
MIN_CONE = 2.0  # GeV, momentum from which energies around tracks are of use: of electrons (2) and hadrons (3)
APART = 0.1  # rad. What enters farther than this from the entries of all tracks has no track
N_LAYERS = 6  # most layers of a calorimeter, from its face, in which a trail is looked for,
TRAIL = {"ecal": 7.0, "hcal": 0.8}  # to a depth of radiation, in an HCAL interaction lengths: behind it hadrons shower
WIDTH = {"ecal": 25.0, "hcal": 100.0}  # mm, half width of a trail by kind,
CELLS = 3.0  # and in cells where these are larger
IN_FRONT = 60.0  # mm along the line before the entry in which the hits of a trail lie,
BEHIND = {"ecal": 150.0, "hcal": 1500.0}  # and behind it, or farther where layers are thick
PITCH = {"ecal": 6.0, "hcal": 30.0}  # mm, of layers that the detector does not describe
MIN_LAYERS = 2  # fewest layers with hits of a trail: fewer are a coincidence
MOST_OF_MUON = 3.0  # GeV that a muon leaves in an HCAL
SHOWER = 2.0  # hits a layer from which a trail is a shower: an electron's
STEP = 0.01  # relative change of momentum by which the entry's dependence on it is measured
LEVER = (100.0, 1500.0)  # mm by which the whole momentum moves an entry: straighter tracks show no error, curlers wrap
HARD = 3.0  # GeV, momentum from which most hadrons leave hits in the HCAL
NEAR = 100.0  # mm between state and helix
SAME = 1e-3  # rad, largest angle between the entries of two copies of a track
MIN_TRACKS_OF_EVENT = 6  # fewest of an event in which the energy of lost ones is measured

HADRON_RESPONSE = 0.73  # median energy in `NARROW` around isolated hadrons over their momentum, of ild_g4
HADRONS = (3.0, 50.0)  # GeV, momenta of the hadrons used
MAX_AROUND = 0.1  # largest energy of hits between the two cones of an isolated track, over its momentum
MIN_HADRONS = 0.05  # smallest share of hadrons among isolated tracks: of muons some per cent look like one
MIN_HADRONIC = 0.2  # smallest energy in the HCAL of a hadron over its momentum: electrons and muons have less
MAX_ELSEWHERE = 0.9  # and largest one elsewhere: with more there is a photon beside it, as in decays of hard taus
ROUNDS = 5  # iterations of a scale and the selection of hadrons, or of a peak, which depend on each other

STUB, STUB_CELLS = 12.0, 2.4  # mm and cells (the larger) around a line from the IP, in which the hits of a stub lie
MIN_PER_EVENT, FEW_EVENTS, FULL, MIN_SHARE = 3, 5, 12, 0.1
"""Stubs need tracks in events with 3 tracks, or 12 tracks and stubs, and in chunks of 3 stubs an event, at least 15.

Where fewer than a tenth of the events with stubs have so many, the file is of single particles, and in these few events
a hadron broke up in the tracker: its secondaries have stubs and no tracks.
"""

Single = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FlatHits:
    """Hits of all events in a row, with what every measurement of a chunk needs; mm, GeV.

    `event`, number of the calorimeter (`part`) and its `kind`, int [hit]; `energy`; `position` [3, hit], `distance`
    from the origin and `depth` behind the face (NaN if not known), float32: it holds some metres to 0.1 mm, and its
    products are twice as fast; `particle` with the largest link, -1 for none. The hits of an event lie between
    neighbouring `bounds`, int64 [event + 1].
    """

    event: Index
    part: npt.NDArray[Any]
    kind: Index
    energy: npt.NDArray[Any]
    position: Single
    distance: Single
    depth: Single
    particle: npt.NDArray[Any]
    bounds: Index

    @classmethod
    def of(cls, events: Events) -> FlatHits:
        """The hits of these events."""
        columns, counts = jagged.columns(events.hits), jagged.count(events.hits)
        position = np.stack([columns[f"position.{axis}"].astype(np.float32, copy=False) for axis in "xyz"])
        return cls(
            event=jagged.event_index(counts),
            part=columns["subdetector"],
            kind=kind_index(events.detector).take(columns["subdetector"]),
            energy=columns["energy"],
            position=position,
            distance=np.sqrt((position * position).sum(axis=0)),
            depth=depths(events, np.float32),
            particle=_linked_particle(events.hit_links, events.hits),
            bounds=jagged.offsets(counts),
        )

    def take(self, rows: Index) -> FlatHits:
        """Some of the hits, in their order."""
        columns = {name: values.take(rows, axis=-1) for name, values in vars(self).items() if name != "bounds"}
        return FlatHits(**columns, bounds=np.searchsorted(rows, self.bounds))

    def total(self, values: npt.NDArray[Any]) -> Floats:
        """Sum of the values of each event's hits, float64 [event]."""
        return jagged.total(values, self.bounds)

    def around(self, towards: Floats, bounds: Index, cone: float) -> tuple[Index, Index, Single]:
        """Pairs of a direction and a hit of its event within `cone`, rad, of it: their indices and the cosine [pair].

        `towards` [direction, 3]: those of an event lie between neighbouring `bounds` [event + 1].
        """
        single, limit = towards.astype(np.float32), np.float32(np.cos(cone)) * self.distance
        pairs, along = [np.zeros((2, 0), dtype=np.int64)], [limit[:0]]  # np.concatenate needs at least one list
        for lines, mine in jagged.blocks(bounds, self.bounds):
            # Times the distance, not divided by it: hits that were left out are at the origin.
            product = single[lines] @ self.position[:, mine]
            pairs.append(_pairs(product > limit[mine], lines.start, mine.start))
            along.append(product[tuple(pairs[-1] - [[lines.start], [mine.start]])])
        row, hit = np.concatenate(pairs, axis=1)
        return row, hit, np.concatenate(along) / self.distance[hit]


def _linked_particle(links: ak.Array | None, sources: ak.Array) -> npt.NDArray[Any]:
    """Particle with the largest link of each hit or track, -1 without links."""
    if links is None:
        return np.full(int(jagged.count(sources).sum()), -1)
    return jagged.flat(assigned_particle(links, sources))


def _pairs(near: Mask, row: int, column: int) -> Index:
    """Rows and columns where `near` [row, column] holds, counted from `row` and `column`, [2, pair].

    Ten times as fast as `np.nonzero` of two dimensions.
    """
    rows, columns = np.divmod(np.flatnonzero(near), max(near.shape[1], 1))
    return np.stack([row + rows, column + columns])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TrackDeposits:
    """Tracks above `MIN_MOMENTUM` in events with hits, and their deposits; lengths in mm, energies in GeV.

    Float64: `momentum` [track]; `narrow` and `around` [track, 2], energy in `NARROW` around the entry, and between it
    and `ALONE`, in an HCAL and elsewhere; `separation` [track], angle to the nearest entry of these tracks, rad, pi
    without one; energies are 0 where it is below `ALONE`, and below `MIN_CONE`.

    `trackless` [event]: energy of the hits within `APART` of a lost stub and of no track, NaN in events of fewer than
    `MIN_TRACKS_OF_EVENT` tracks.

    `stubs`: columns for `pflow.event.scales.Scales` of charged particles that enter the ECAL, known by their hits
    alone: on a line from the IP they have a hit in every one of the first layers and at most one more; photons convert
    later, and leave many. ``lost``: whether no track enters within `APART`; NaN in events with few tracks, where most
    may be secondary particles of a neutral one.

    `trails`: columns for the same, lengths in cells, NaN where one does not apply: entry (``x``, ``y``, ``z``);
    ``trail``, whether there is one in the ECAL; ``layers``, the share of the first ones that have hits of it; median
    distance of the hits from the line (``ecal_azimuth``, ``ecal_polar``); median energy of these hits at normal
    incidence (``ecal_cell``); the same of the HCAL (``hcal_layers``, ...; ``behind``: whether there are hits);
    ``helix``, whether the helix from the IP leads to ``calo_position``; ``momentum``, relative error of momentum and
    field by the place of the trail; ``opposite``, whether it is that of the other charge; ``response``, energy in
    `NARROW` over momentum of hadrons; ``twice``, whether another track enters there; ``own``, share of the hits that
    are linked to the track's particle, and ``hcal_own`` of those in an HCAL.
    """

    momentum: Floats
    narrow: Floats
    around: Floats
    separation: Floats
    trackless: Floats
    trails: dict[str, npt.NDArray[Any]]
    stubs: dict[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, events: Events, hits: FlatHits | None = None) -> TrackDeposits:
        """Measure the tracks of the events; `hits`: as of `FlatHits.of`, if they are there."""
        hits = FlatHits.of(events) if hits is None else hits
        tracks = _Entries.of(events)
        # Mean factors on energies in an HCAL and in an ECAL; 1 of those not known.
        parts = events.detector.calorimeters
        hadronic = float(np.mean([part.hadron_scale or 1.0 for part in parts if part.kind == "hcal"] or [1.0]))
        electronic = float(np.mean([part.electron_scale for part in parts if part.kind == "ecal"] or [1.0]))
        narrow, around, separation = _cones(events.detector, hits, tracks, hadronic)
        ecal, hcal = _front(events.detector, hits)
        trails, stubs = _trails(events, ecal, hcal, tracks, separation), _stubs(events.detector, ecal, tracks)
        deposits = cls(
            momentum=tracks.p,
            narrow=narrow,
            around=around,
            separation=separation,
            trackless=_trackless(hits, tracks, stubs),
            trails=trails,
            stubs=stubs,
        )
        muons = trails.pop("thin") & (hadronic * narrow[:, 0] < MOST_OF_MUON)
        hadrons, hard = deposits.hadrons(hadronic) & ~muons, deposits.isolated(hadronic) & (tracks.p > HADRONS[0])
        hadrons &= np.count_nonzero(hadrons) > MIN_HADRONS * np.count_nonzero(hard)
        with np.errstate(divide="ignore", invalid="ignore"):
            trails["response"] = _where(hadrons, (narrow @ np.array([hadronic, electronic])) / tracks.p)
        return deposits

    def isolated(self, scale: float = 1.0) -> Mask:
        """Isolated tracks, without another track or energy around, bool [track]; `scale`: factor on HCAL energies."""
        around = self.around @ np.array([scale, 1.0])
        return np.asarray((self.separation > ALONE) & (around < MAX_AROUND * self.momentum))

    def hadrons(self, scale: float) -> Mask:
        """Isolated tracks of hadrons that shower, bool [track], by momentum and energy in an HCAL times `scale`."""
        p, hadronic, elsewhere = self.momentum, scale * self.narrow[:, 0], self.narrow[:, 1]
        showers = (hadronic > MIN_HADRONIC * p) & (elsewhere < MAX_ELSEWHERE * p)
        return self.isolated(scale) & (p > HADRONS[0]) & (p < HADRONS[1]) & showers

    def hadron_scales(self) -> Floats:
        """`pflow.physics.detector.Calorimeter.hadron_scale` by each isolated charged hadron, [hadron]; use the median.

        Tails are wide, single values may be negative. Neutral particles near tracks lower it, by 3% in Z -> qq of
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


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Entries:
    """Tracks above `MIN_MOMENTUM` in events with hits, and where they enter the calorimeters; float64, mm, GeV.

    `index`, of each among all tracks; `event`; `particle` as of `FlatHits`; `p`, `pt`; `entry` and unit `direction`, at
    the calorimeter state of the track, else on the helix from the IP; `state`, as read; `by_helix`, entry on the helix,
    and `moved`, the same for a momentum larger by `STEP`; `bounds`, int64 [event + 1], as of `FlatHits`. Of all
    tracks, by `all_bounds`: `towards`, unit vectors to the entries [all tracks, 3], 0 if not known.
    """

    index: Index
    event: Index
    particle: npt.NDArray[Any]
    p: Floats
    pt: Floats
    entry: Floats
    direction: Floats
    state: Floats
    by_helix: Floats
    moved: Floats
    bounds: Index
    towards: Floats
    all_bounds: Index

    @classmethod
    def of(cls, events: Events) -> _Entries:
        """Follow the tracks of the events, which have some."""
        counts, columns = jagged.count(events.tracks), jagged.columns(events.tracks)
        event, momentum = jagged.event_index(counts), jagged.vectors(events.tracks, field="momentum")
        p, pt, phi = np.linalg.norm(momentum, axis=1), np.hypot(*momentum[:, :2].T), np.arctan2(*momentum[:, 1::-1].T)
        state, at_state = (jagged.vectors(events.tracks, field=f"calo_{x}") for x in ("position", "momentum"))
        # Tracks without d0 and z0 start at the origin.
        d0, z0, charge = (np.nan_to_num(columns[name].astype(np.float64)) for name in ("d0", "z0", "charge"))
        start = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=1)
        by_helix, at_helix = follow_to_calorimeter(start, momentum, charge, events.detector)
        has_state = np.isfinite(state).all(axis=1)[:, None]
        entry = np.where(has_state, state, by_helix)
        direction = unit_vector(np.where(has_state & np.isfinite(at_state).all(axis=1)[:, None], at_state, at_helix))
        index = np.flatnonzero((p > MIN_MOMENTUM) & (jagged.count(events.hits)[event] > 0))
        steeper = (1 + STEP) * momentum[index]
        columns = {"event": event, "p": p, "pt": pt, "entry": entry, "direction": direction, "state": state}
        columns |= {"by_helix": by_helix, "particle": _linked_particle(events.track_links, events.tracks)}
        return cls(
            index=index,
            **{name: values[index] for name, values in columns.items()},
            moved=follow_to_calorimeter(start[index], steeper, charge[index], events.detector)[0],
            bounds=np.searchsorted(event[index], np.arange(len(counts) + 1)),
            towards=np.nan_to_num(unit_vector(entry)),
            all_bounds=jagged.offsets(counts),
        )


def nearest_other(towards: Floats, bounds: Index) -> tuple[Index, Floats]:
    """Index of the nearest other one to each unit vector [N, 3] of an event, and their angle, rad [N].

    Without another one its own index and pi, as of vectors that are not known (0).
    """
    from scipy.spatial import cKDTree  # here: its import takes a twentieth of the start of a reconstruction

    row = np.arange(len(towards))
    # A fourth axis keeps events, and what is not known, apart.
    group = np.where(towards.any(axis=1), jagged.event_index(np.diff(bounds)), -1 - row)
    place = np.column_stack([towards, 10.0 * group])
    distances, indices = cKDTree(place).query(place, k=2)
    second = row, np.where(indices[:, 0] == row, 1, 0)  # of two that are equal, the first may be either
    distance, index = distances[second], indices[second]
    near = distance < 5.0  # of opposite ones it is 2, to rounding
    return np.where(near, index, row), np.where(near, 2 * np.arcsin(np.minimum(distance, 2.0) / 2), np.pi)


def _cones(detector: Detector, hits: FlatHits, tracks: _Entries, hadronic: float) -> tuple[Floats, Floats, Floats]:
    """`narrow`, `around` and `separation` of `TrackDeposits`; `hadronic`: mean scale of the HCALs, which may differ."""
    n, towards = len(tracks.index), tracks.towards[tracks.index]
    _, separation = nearest_other(towards, tracks.bounds)
    alone = np.flatnonzero((separation > ALONE) & (tracks.p > MIN_CONE))
    row, hit, cosine = hits.around(towards[alone], np.searchsorted(alone, tracks.bounds), ALONE)
    parts = detector.calorimeters
    to_mean = np.array([(part.hadron_scale or 1.0) / hadronic if part.kind == "hcal" else 1.0 for part in parts])
    energy = np.maximum(hits.energy[hit], 0.0) * to_mean[hits.part[hit]]  # 0 of hits that were left out
    group = (2 * alone[row] + (cosine <= np.cos(NARROW))) * 2 + (hits.kind[hit] != HCAL)
    sums = np.asarray(np.bincount(group, energy, 4 * n), dtype=np.float64).reshape(n, 2, 2)
    return sums[:, 0], sums[:, 1], separation


def _front(detector: Detector, hits: FlatHits) -> list[tuple[FlatHits, Index]]:
    """Hits with energy in the first `N_LAYERS` layers of the ECAL, and of the HCAL, and their layers."""
    layer = hits.depth * np.array([1 / _pitch(part) for part in detector.calorimeters], np.float32).take(hits.part)
    rows = np.flatnonzero((layer >= 0) & (layer < N_LAYERS) & (hits.energy > 0))
    kind = hits.kind.take(rows)
    return [(hits.take(mine), layer[mine].astype(np.int64)) for mine in (rows[kind == ECAL], rows[kind == HCAL])]


def _expected(detector: Detector, kind: str) -> tuple[int, int, float]:
    """Of a trail in a kind of calorimeter: layers with hits, 1 of crystals, and how far hits belong to it: the number
    of the first layers, and mm along the line behind the entry."""
    parts = [part for part in detector.calorimeters if part.kind == kind]
    described = [part for part in parts if part.layers]
    length = max((getattr(part.layers[0], f"{LENGTH[kind]}_lengths") or 0.0 for part in described), default=0.0)
    crossed = TRAIL[kind] / length if length else N_LAYERS
    n_layers = max((part.n_layers for part in described), default=N_LAYERS)
    expected = min(max(int(crossed), MIN_LAYERS), n_layers, N_LAYERS)
    reach = max([BEHIND[kind], *(2 * N_LAYERS * _pitch(part) for part in parts)])
    # The second of two crystals lies as deep as some tens of layers of an absorber, and many times the first.
    return expected, expected if expected < n_layers else N_LAYERS, reach


def _stubs(detector: Detector, front: tuple[FlatHits, Index], tracks: _Entries) -> dict[str, npt.NDArray[Any]]:
    """Columns of `TrackDeposits.stubs`: first hits of charged particles that enter the ECAL."""
    counts, (hits, layer) = np.diff(tracks.all_bounds), front
    towards = (hits.position / hits.distance).T
    near = np.cos(max(STUB, STUB_CELLS * _cell_size(detector, "ecal")) / detector.ecal_inner_radius)
    # With rows of the identity, one matrix product counts the hits of each layer on each line.
    in_layer, starts = np.identity(N_LAYERS, np.float32)[layer], np.flatnonzero(layer == 0)
    chosen, lost = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.bool_)]  # as in `FlatHits.around`
    for rows, mine, of_tracks in jagged.blocks(np.searchsorted(starts, hits.bounds), hits.bounds, tracks.all_bounds):
        first = starts[rows]
        in_layers = (towards[first] @ towards[mine].T > near).astype(np.float32) @ in_layer[mine]
        first = first[(in_layers > 0).all(axis=1) & (in_layers.sum(axis=1) <= N_LAYERS + 1)]
        chosen.append(first)
        closest = (towards[first] @ tracks.towards[of_tracks].T).max(axis=1, initial=-1.0)
        lost.append(closest < np.cos(APART))
    begins = hits.take(np.concatenate(chosen))
    n_stubs = np.diff(begins.bounds)
    full = len(begins.event) >= MIN_PER_EVENT * max(len(counts), FEW_EVENTS)  # all tracks may be lost
    enough = (counts >= MIN_PER_EVENT) | (counts + n_stubs >= FULL) | full
    enough &= np.count_nonzero(enough & (n_stubs > 0)) >= MIN_SHARE * np.count_nonzero(n_stubs)
    return {
        "event": begins.event,
        "endcap": _in_endcap(detector, begins.position[2]),
        **dict(zip("xyz", begins.position, strict=True)),
        "lost": _where(enough[begins.event], np.concatenate(lost)),
    }


def _trackless(hits: FlatHits, tracks: _Entries, stubs: dict[str, npt.NDArray[Any]]) -> Floats:
    """`TrackDeposits.trackless`: what lost tracks leave, and without faults a few secondaries of neutral particles."""
    lost = np.flatnonzero(stubs["lost"] == 1)
    starts = np.searchsorted(stubs["event"][lost], np.arange(len(hits.bounds)))
    behind = np.zeros(len(hits.energy), dtype=np.bool_)
    behind[hits.around(unit_vector(np.stack([stubs[axis][lost] for axis in "xyz"], axis=1)), starts, APART)[1]] = True
    behind[hits.around(tracks.towards, tracks.all_bounds, APART)[1]] = False
    return np.where(np.diff(tracks.all_bounds) >= MIN_TRACKS_OF_EVENT, hits.total(hits.energy * behind), np.nan)


def _trail(
    detector: Detector, front: tuple[FlatHits, Index], tracks: _Entries, rows: Index, kind: int
) -> dict[str, npt.NDArray[Any]]:
    """Trails of the tracks `rows` in the calorimeters of a kind: columns [track], NaN of tracks without a hit.

    `n_layers`, with hits; `seen`, whether so many that they are no coincidence; `straight`, and no shower.
    Others as of `TrackDeposits.trails`; `offset` [2, track], distances along azimuth and polar angle, in mm.
    """
    n, (hits, layer) = len(tracks.index), front
    width = [max(WIDTH.get(part.kind, 0.0), CELLS * (part.cell_size or 0.0)) for part in detector.calorimeters]
    beyond = hits.distance**2 - np.array(width, np.float32)[hits.part] ** 2
    points, along = tracks.entry[rows].astype(np.float32), tracks.direction[rows].astype(np.float32)
    start, square = np.einsum("tc,tc->t", points, along)[:, None], np.einsum("tc,tc->t", points, points)[:, None]
    pairs, bounds = [np.zeros((2, 0), dtype=np.int64)], np.searchsorted(rows, tracks.bounds)
    for mine, near in jagged.blocks(bounds, hits.bounds):
        # The square of the distance from the line, expanded into products: no array [track, hit, 3] is made.
        across = (along[mine] @ hits.position[:, near] - start[mine]) ** 2
        across += 2 * points[mine] @ hits.position[:, near] - square[mine]
        pairs.append(_pairs(across > beyond[near], mine.start, near.start))
    track, hit = np.concatenate(pairs, axis=1)
    track = rows[track]
    from_entry = hits.position[:, hit] - tracks.entry[track].T
    behind = np.einsum("pc,cp->p", tracks.direction[track], from_entry)
    expected, n_first, reach = _expected(detector, KINDS[kind])
    inside = np.flatnonzero((behind > -IN_FRONT) & (behind < reach) & (layer[hit] < n_first))
    track, hit, from_entry = track[inside], hit[inside], from_entry[:, inside]

    by_layer = np.bincount(track * N_LAYERS + layer[hit], minlength=n * N_LAYERS).reshape(n, N_LAYERS)
    n_layers = np.count_nonzero(by_layer, axis=1)  # several hits in a layer count once
    endcap, direction = _in_endcap(detector, tracks.entry[:, 2]), tracks.direction
    to_normal = np.where(endcap, np.abs(direction[:, 2]), np.hypot(direction[:, 0], direction[:, 1]))  # cosine
    axes = np.stack(tangent_basis(direction)[::-1], axis=1)  # [track, 2, 3], azimuth, polar angle
    offset = np.stack([medians(track, of, n) for of in np.einsum("pac,cp->ap", axes[track], from_entry)])
    # Hits and tracks without links are counted by other checks, and say nothing of a match.
    linked = (hits.particle[hit] >= 0) & (tracks.particle[track] >= 0)
    own = linked & (hits.particle[hit] == tracks.particle[track])
    n_linked, n_own = (np.bincount(track, of, n) for of in (linked, own))
    seen = n_layers >= min(MIN_LAYERS, expected)
    return {
        "n_layers": n_layers,
        "seen": seen,
        "straight": seen & (by_layer.sum(axis=1) < SHOWER * n_layers),
        "layers": n_layers / expected,
        "cell": medians(track, hits.energy[hit] * to_normal[track], n),
        "offset": offset,
        **dict(zip(("azimuth", "polar"), offset / _cell_size(detector, KINDS[kind]), strict=True)),
        "own": _where(n_linked > 0, n_own / np.maximum(n_linked, 1)),
    }


def _trails(
    events: Events, front: tuple[FlatHits, Index], behind: tuple[FlatHits, Index], tracks: _Entries, separation: Floats
) -> dict[str, npt.NDArray[Any]]:
    """`TrackDeposits.trails` without ``response``; ``thin``: whether it looks like a muon's in the HCAL. By the first
    hits of the ECAL and of the HCAL."""
    detector = events.detector
    ecal = _trail(detector, front, tracks, np.arange(len(tracks.index)), ECAL)
    # An electron leaves nothing in the HCAL; without a trail it is not known what a track is.
    straight = ecal["straight"]
    hard = straight & (tracks.p > HARD)
    hcal = _trail(detector, behind, tracks, np.flatnonzero(hard), HCAL)
    faces = [_face(detector, part) for part in detector.calorimeters if part.kind == "hcal"]
    in_hcal = hard & np.isfinite(faces).any()
    # Another momentum moves the entry along the lever: the part of the trail's distance along it is its error.
    axes = np.stack(tangent_basis(tracks.direction)[::-1], axis=1)
    lever = np.einsum("tac,tc->at", axes, (tracks.moved - tracks.by_helix) / STEP)
    off = np.einsum("tac,tc->at", axes, tracks.entry - tracks.by_helix) + ecal["offset"]
    reach = np.linalg.norm(lever, axis=0)
    near_helix = np.linalg.norm(_off_helix(detector, tracks), axis=1)
    bends = straight & (reach > LEVER[0]) & (reach < LEVER[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        momentum = _where(bends, -(off * lever).sum(axis=0) / reach**2)
        b_field = np.abs(jagged.columns(events.tracks)["omega"][tracks.index]) * tracks.pt / GEV_PER_TESLA_MM
    seen, seen_behind = ecal["seen"], in_hcal & hcal["seen"]
    return {
        "event": tracks.event,
        "endcap": _in_endcap(detector, tracks.entry[:, 2]),
        **dict(zip("xyz", tracks.entry.T, strict=True)),
        "b_field": b_field,
        "trail": seen,
        "twice": separation < SAME,
        "helix": _where(straight & np.isfinite(near_helix), near_helix < NEAR),
        "momentum": momentum,
        # The other charge leads as far to the other side: as twice the momentum taken away.
        "opposite": _where(np.isfinite(momentum), momentum < -1.0),
        "layers": _where(seen, ecal["layers"]),
        "ecal_azimuth": _where(seen, ecal["azimuth"]),
        "ecal_polar": _where(seen, ecal["polar"]),
        "ecal_cell": _where(straight, ecal["cell"]),
        "own": _where(straight, ecal["own"]),
        "behind": _where(in_hcal, hcal["n_layers"] > 0),
        **{f"hcal_{name}": _where(seen_behind, hcal[name]) for name in ("layers", "azimuth", "polar")},
        "hcal_cell": _where(in_hcal, hcal["cell"]),
        # In a dense jet the hits behind a track are also others'.
        "hcal_own": _where(seen_behind & (separation > ALONE), hcal["own"]),
        "thin": hard & hcal["straight"],
    }


def _off_helix(detector: Detector, tracks: _Entries) -> Floats:
    """From the end of the helix to the state of each track [track, 3], mm.

    The helix ends on a cylinder, behind which the corners of a barrel with flat sides lie: so far the track goes on.
    """
    sides = max([part.sides for part in detector.calorimeters if part.kind == "ecal" and _is_barrel(part)], default=0)
    corner = detector.ecal_inner_radius * (1 / np.cos(np.pi / sides) - 1) if sides else 0.0
    off, direction = tracks.state - tracks.by_helix, tracks.direction
    behind = np.einsum("tc,tc->t", off, direction).clip(0, corner / np.hypot(*direction[:, :2].T).clip(1e-3))
    return np.asarray(off - behind[:, None] * direction)


def _where(applies: Mask, values: npt.NDArray[Any]) -> Floats:
    """Values, NaN where they do not apply."""
    return np.where(applies, values, np.nan)


def _in_endcap(detector: Detector, z: npt.NDArray[Any]) -> Mask:
    return np.asarray(np.abs(z) > detector.ecal_inner_z - 1.0)


def _cell_size(detector: Detector, kind: str) -> float:
    """The largest size of cells of the calorimeters of a kind, mm."""
    return max([part.cell_size or 5.0 for part in detector.calorimeters if part.kind == kind], default=5.0)


def _pitch(part: Calorimeter) -> float:
    """Of the first layer, mm, or a usual one."""
    return part.layers[0].pitch if part.layers else PITCH.get(part.kind, 1.0)


def _face(detector: Detector, part: Calorimeter) -> float:
    """Face of a calorimeter, or else of the detector's calorimeters of its kind, mm; NaN if not known."""
    place = "inner_radius" if _is_barrel(part) else "inner_z"
    of_kind = getattr(detector, f"{'ecal' if part.kind == 'ecal' else 'hcal'}_{place}")
    return float(getattr(part, place) or of_kind or np.nan)


def _is_barrel(part: Calorimeter) -> bool:
    return part.region == "barrel" or (part.inner_z is None and part.inner_radius is not None)


def depths(events: Events, dtype: type[np.floating[Any]] = np.float64) -> npt.NDArray[Any]:
    """Depth of each hit behind the face of its calorimeter, mm along the normal [hit]; NaN if not known."""
    hits = jagged.columns(events.hits)
    x, y, z = (hits[f"position.{axis}"].astype(dtype, copy=False) for axis in "xyz")
    depth = np.full(len(z), np.nan, dtype)
    for i, part in enumerate(events.detector.calorimeters):
        mine = np.flatnonzero(hits["subdetector"] == i)
        barrel = _is_barrel(part)
        place = distance_to_sides(x[mine], y[mine], part.sides, part.phase) if barrel else np.abs(z[mine])
        depth[mine] = place - _face(events.detector, part)
    return depth
