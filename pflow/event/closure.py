"""What tracks leave in the calorimeters: trails, energies around them, and stubs without a track.

A charged particle leaves one hit in nearly every layer that it enters, whatever becomes of it later. So each track has
a trail: the hits in the first `N_LAYERS` layers close to the line on which it enters. The trail shows where the
calorimeter is (to a millimetre a track), how many hits are lost, and the energy of a minimum ionising particle in a
cell. The energy behind isolated tracks shows the scale of whole showers. The distance of the trail from the helix of
the IP, along the direction in which another momentum would move it, gives the relative error of momentum and field.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import assigned_particle
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import ECAL, HCAL, KINDS, Calorimeter, Detector
from pflow.physics.geometry import distance_to_sides, kind_index, medians
from pflow.physics.kinematics import GEV_PER_TESLA_MM, follow_to_calorimeter, tangent_basis, unit_vector

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
MOST_OF_MUON = 3.0  # GeV that a muon leaves in an HCAL
SHOWER = 2.0  # hits a layer from which a trail is a shower: an electron's
STEP = 0.01  # relative change of momentum by which the entry's dependence on it is measured
LEVER = (100.0, 1500.0)  # mm by which the whole momentum moves an entry: straighter tracks show no error, curlers wrap
HARD, HARDER = 3.0, 8.0  # GeV, momenta from which most and nearly all hadrons leave hits in the HCAL
NEAR = 100.0  # mm between state and helix
SAME = 1e-3  # rad, largest angle between the entries of two copies of a track

HADRON_RESPONSE = 0.73  # median energy in `NARROW` around isolated hadrons over their momentum, of ild_g4
HADRONS = (3.0, 50.0)  # GeV, momenta of the hadrons used
MAX_AROUND = 0.1  # largest energy of hits between the two cones of an isolated track, over its momentum
MIN_HADRONS = 0.05  # smallest share of hadrons among isolated tracks: of muons some per cent look like one
MIN_HADRONIC = 0.2  # smallest energy in the HCAL of a hadron over its momentum: electrons and muons have less
MAX_ELSEWHERE = 0.9  # and largest one elsewhere: with more there is a photon beside it, as in decays of hard taus
ROUNDS = 5  # iterations of scale and selection of hadrons, which depend on each other

STUB, STUB_CELLS = 12.0, 2.4  # mm and cells (the larger) around a line from the IP, in which the hits of a stub lie
MIN_PER_EVENT, FEW_EVENTS, FULL, MIN_SHARE = 3, 5, 12, 0.1
"""Stubs need tracks in events with 3 tracks, or 12 tracks and stubs, and in chunks of 3 stubs an event, at least 15.

Where fewer than a tenth of the events with stubs have so many, the file is of single particles, and in these few events
a hadron broke up in the tracker: its secondaries have stubs and no tracks.
"""

Single = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TrackDeposits:
    """Tracks above `MIN_MOMENTUM` in events with hits, and their deposits; lengths in mm, energies in GeV.

    Float64: `momentum` [track]; `narrow` and `around` [track, 2], energy in `NARROW` around the entry, and between it
    and `ALONE`, in an HCAL and elsewhere; `separation` [track], angle to the nearest entry of these tracks, rad, pi
    without one; energies are 0 where it is below `ALONE`.

    `stubs`: columns for `pflow.event.scales.Scales` of charged particles that enter the ECAL, known by their hits
    alone: on a line from the IP they have a hit in every one of the first layers and at most one more; photons convert
    later, and leave many. ``lost``: whether no track enters within `APART`; NaN in events with few tracks, where most
    may be secondary particles of a neutral one.

    `trails`: columns for the same, lengths in cells, NaN where one does not apply: entry (``x``, ``y``, ``z``);
    ``trail``, whether there is one in the ECAL; ``layers``, the share of the first ones that have hits of it; median
    distance of the hits from the line (``ecal_azimuth``, ``ecal_polar``); median energy of these hits at normal
    incidence (``ecal_cell``); the same of the HCAL (``hcal_layers``, ...; ``behind``, and above `HARDER` ``behind
    hard``: whether there are hits);
    ``helix``, whether the helix from the IP leads to ``calo_position``; ``momentum``, relative error of momentum and
    field by the place of the trail; ``opposite``, whether it is that of the other charge; ``response``, energy in
    `NARROW` over momentum of hadrons; ``twice``, whether another track enters there; ``own``, share of the hits that
    are linked to the track's particle, and ``hcal_own`` of those in an HCAL.
    """

    momentum: Floats
    narrow: Floats
    around: Floats
    separation: Floats
    trails: dict[str, npt.NDArray[Any]]
    stubs: dict[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, events: Events, depth: Floats | None = None) -> TrackDeposits:
        """Measure the tracks of the events; `depth`: of their hits as of `depths`, if it is known."""
        # float32 is enough, some metres to 0.1 mm, and products are twice as fast.
        position = jagged.vectors(events.hits, np.float32, field="position")
        distance = np.asarray(np.sqrt(np.einsum("hc,hc->h", position, position)))
        depth, tracks = depths(events) if depth is None else depth, _Entries.of(events)
        hits = _FirstHits.of(events, position, distance, depth)
        narrow, wide, separation = _cones(events, position, distance, tracks)
        trails, stubs = _trails(events, hits, tracks) | {"twice": separation < SAME}, _stubs(events, hits, tracks)
        deposits = cls(
            momentum=tracks.p, narrow=narrow, around=wide - narrow, separation=separation, trails=trails, stubs=stubs
        )
        # Mean factors on energies in an HCAL and in an ECAL; 1 of those not known.
        parts = events.detector.calorimeters
        hcal = float(np.mean([part.hadron_scale or 1.0 for part in parts if part.kind == "hcal"] or [1.0]))
        ecal = float(np.mean([part.electron_scale for part in parts if part.kind == "ecal"] or [1.0]))
        if "hcal_own" in trails:  # in a dense jet the hits behind a track are also others'
            trails["hcal_own"] = _where(separation > ALONE, trails["hcal_own"])
        muons = trails.pop("thin") & (hcal * narrow[:, 0] < MOST_OF_MUON)
        hadrons, hard = deposits.hadrons(hcal) & ~muons, deposits.isolated(hcal) & (tracks.p > HADRONS[0])
        hadrons &= np.count_nonzero(hadrons) > MIN_HADRONS * np.count_nonzero(hard)
        with np.errstate(divide="ignore", invalid="ignore"):
            trails["response"] = _where(hadrons, (narrow @ np.array([hcal, ecal])) / tracks.p)
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
class _FirstHits:
    """Hits with energy in the first `N_LAYERS` layers of ECAL and HCAL, in the order of the events; lengths in mm.

    `index`, of each among all hits; `kind` and `layer`, int64; `energy`, GeV; `position` [hit, 3], `distance` from
    the origin, and `length` and half `width` of trails in its calorimeter, float32; `bounds`, int64 [event + 1]: hits
    of an event are from one to the next.
    """

    index: Index
    kind: Index
    layer: Index
    energy: npt.NDArray[Any]
    position: Single
    distance: Single
    length: Single
    width: Single
    bounds: Index

    @classmethod
    def of(cls, events: Events, position: Single, distance: Single, depth: Floats) -> _FirstHits:
        """Select them among the hits of the events, by their `depths`."""
        columns = jagged.columns(events.hits)
        number, kind = columns["subdetector"], kind_index(events.detector)[columns["subdetector"]]
        parts = events.detector.calorimeters
        pitch = [part.layers[0].pitch if part.layers else PITCH.get(part.kind, 1.0) for part in parts]
        width = [max(WIDTH.get(part.kind, 0.0), CELLS * (part.cell_size or 0.0)) for part in parts]
        length = [BEHIND.get(part.kind, 0.0) for part in parts]
        depth = depth / np.array(pitch, np.float32)[number]  # in layers
        index = np.flatnonzero((depth >= 0) & (depth < N_LAYERS) & (kind <= HCAL) & (columns["energy"] > 0))
        return cls(
            index=index,
            kind=kind[index],
            layer=depth[index].astype(int),
            energy=columns["energy"][index],
            position=position[index],
            distance=distance[index],
            length=np.array(length, np.float32)[number[index]],
            width=np.array(width, np.float32)[number[index]],
            bounds=np.searchsorted(index, jagged.offsets(jagged.count(events.hits))),
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Entries:
    """Tracks above `MIN_MOMENTUM` in events with hits, and where they enter the calorimeters; float64, mm, GeV.

    `index`, of each among all tracks; `event`, int64; `p` and `pt`; `entry` and unit `direction` there [track, 3], at
    the calorimeter state of the track, else on the helix from the IP; `state`, as read; `by_helix`, entry on the helix,
    and `moved`, the same for a momentum larger by `STEP`; `bounds`, int64 [event + 1], as of `_FirstHits`. Of all
    tracks, by `all_bounds`: `towards`, unit vectors to the entries [all tracks, 3], 0 if not known.
    """

    index: Index
    event: Index
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
        columns = {"event": event, "p": p, "pt": pt, "entry": entry, "direction": direction}
        columns |= {"state": state, "by_helix": by_helix}
        return cls(
            index=index,
            **{name: values[index] for name, values in columns.items()},
            moved=follow_to_calorimeter(start[index], steeper, charge[index], events.detector)[0],
            bounds=np.searchsorted(event[index], np.arange(len(counts) + 1)),
            towards=np.nan_to_num(unit_vector(entry)),
            all_bounds=jagged.offsets(counts),
        )


def _cones(events: Events, position: Single, distance: Single, tracks: _Entries) -> tuple[Floats, Floats, Floats]:
    """Energies in `NARROW` and in `ALONE` around each entry, GeV [track, 2], in an HCAL and elsewhere, and the angle to
    the nearest entry, rad [track]; energies are 0 where it is below `ALONE`. In an HCAL they are on the mean scale of
    the HCALs, whose `hadron_scale` may differ."""
    columns = jagged.columns(events.hits)
    is_hcal = kind_index(events.detector)[columns["subdetector"]] == HCAL
    energy = np.maximum(columns["energy"], 0.0)  # 0 of hits that were left out
    scales = np.array([part.hadron_scale or 1.0 for part in events.detector.calorimeters])
    of_hcal = [part.kind == "hcal" for part in events.detector.calorimeters]
    energy = (
        energy
        * np.where(of_hcal, scales / np.mean(scales[of_hcal] if any(of_hcal) else 1.0), 1.0)[columns["subdetector"]]
    )
    n, single = len(tracks.index), tracks.towards[tracks.index].astype(np.float32)
    (narrow, wide), separation = np.zeros((2, n, 2)), np.full(n, np.inf)
    of_hits = itertools.pairwise(jagged.offsets(jagged.count(events.hits)))
    for hit, track in zip(of_hits, itertools.pairwise(tracks.bounds), strict=True):
        hits, mine = slice(*hit), slice(*track)
        between = tracks.towards[tracks.index[mine]] @ tracks.towards[tracks.index[mine]].T
        # An entry is no neighbour of its own; -1 is the cosine of pi, the angle of tracks without one.
        np.fill_diagonal(between, -1.0)
        separation[mine] = np.arccos(np.clip(between.max(axis=1, initial=-1.0), -1.0, 1.0))
        if len(alone := mine.start + np.flatnonzero(separation[mine] > ALONE)):
            along = single[alone] @ position[hits].T
            by_kind = energy[hits, None] * np.stack([is_hcal[hits], ~is_hcal[hits]], axis=1)
            # Times the distance, not divided by it: hits that were left out are at the origin.
            narrow[alone], wide[alone] = ((along > np.cos(cone) * distance[hits]) @ by_kind for cone in (NARROW, ALONE))
    return narrow, wide, separation


def _stubs(events: Events, hits: _FirstHits, tracks: _Entries) -> dict[str, npt.NDArray[Any]]:
    """Columns of `TrackDeposits.stubs`: first hits of charged particles that enter the ECAL."""
    detector, towards, counts = events.detector, hits.position / hits.distance[:, None], np.diff(tracks.all_bounds)
    size = max(STUB, STUB_CELLS * _cell_size(detector, "ecal"))
    near = np.cos(size / detector.ecal_inner_radius)
    # With rows of the identity, one matrix product counts the hits of each layer on each line.
    in_layer = np.identity(N_LAYERS, np.float32)[hits.layer] * (hits.kind == ECAL)[:, None]
    # np.concatenate needs at least one list, also for a chunk without events.
    chosen, lost = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.bool_)]
    for hit, track in zip(itertools.pairwise(hits.bounds), itertools.pairwise(tracks.all_bounds), strict=True):
        mine = slice(*hit)
        first = mine.start + np.flatnonzero((hits.layer[mine] == 0) & (hits.kind[mine] == ECAL))
        in_layers = (towards[first] @ towards[mine].T > near).astype(np.float32) @ in_layer[mine]
        first = first[(in_layers > 0).all(axis=1) & (in_layers.sum(axis=1) <= N_LAYERS + 1)]
        chosen.append(first)
        closest = (towards[first] @ tracks.towards[slice(*track)].T).max(axis=1, initial=-1.0)
        lost.append(closest < np.cos(APART))
    begins = np.concatenate(chosen)
    event = np.repeat(np.arange(len(counts)), [len(first) for first in chosen[1:]])
    n_stubs = np.bincount(event, minlength=len(counts))
    full = n_stubs.sum() >= MIN_PER_EVENT * max(len(counts), FEW_EVENTS)  # all tracks may be lost
    enough = (counts >= MIN_PER_EVENT) | (counts + n_stubs >= FULL) | full
    enough &= np.count_nonzero(enough & (n_stubs > 0)) >= MIN_SHARE * np.count_nonzero(n_stubs)
    return {
        "event": event,
        "endcap": _in_endcap(detector, hits.position[begins]),
        **dict(zip("xyz", hits.position[begins].T, strict=True)),
        "lost": _where(enough[event], np.concatenate(lost)),
    }


def _hits_of_trails(hits: _FirstHits, tracks: _Entries) -> Index:
    """Pairs of a track and one of the hits close to the line on which it enters, int64 [2, pair]."""
    points, along = tracks.entry.astype(np.float32), tracks.direction.astype(np.float32)
    # As in `_stubs`: np.concatenate needs at least one list.
    pairs = [np.zeros((2, 0), dtype=np.int64)]
    for hit, track in zip(itertools.pairwise(hits.bounds), itertools.pairwise(tracks.bounds), strict=True):
        near, mine = slice(*hit), slice(*track)
        behind = along[mine] @ hits.position[near].T - (points * along)[mine].sum(axis=1)[:, None]  # [track, hit]
        # The square is expanded into matrix products, so that no array [track, hit, 3] is made.
        squared = hits.distance[near] ** 2 - 2 * points[mine] @ hits.position[near].T
        across = squared + (points[mine] ** 2).sum(axis=1)[:, None] - behind**2
        inside = (across < hits.width[near] ** 2) & (behind > -IN_FRONT) & (behind < hits.length[near])
        pairs.append(np.argwhere(inside).T + np.array([[mine.start], [near.start]]))
    return np.concatenate(pairs, axis=1)


class _Trail(NamedTuple):
    """The trails of all tracks in one kind of calorimeter, float64 [track]; NaN of tracks without a hit.

    `n_hits`; `n_layers`, with hits; `cell`, median energy of the hits at normal incidence, GeV; `offset` [2, track],
    their median distance from the line along azimuth and polar angle, mm, and the same `in_cells`; `expected` number of
    layers, at most `N_LAYERS`; `seen`, whether hits are in so many layers that they are no coincidence.
    """

    n_hits: Floats
    n_layers: Floats
    cell: Floats
    offset: Floats
    in_cells: Floats
    expected: int
    seen: Mask


def _trail(detector: Detector, hits: _FirstHits, tracks: _Entries, pairs: Index, axes: Floats, kind: int) -> _Trail:
    """What the `pairs` of tracks and hits show of the calorimeters of a kind; `axes`: [track, 2, 3], azimuth, polar."""
    n, (track, hit) = len(tracks.index), pairs[:, hits.kind[pairs[1]] == kind]
    endcap, direction = _in_endcap(detector, tracks.entry), tracks.direction
    to_normal = np.where(endcap, np.abs(direction[:, 2]), np.hypot(direction[:, 0], direction[:, 1]))  # cosine
    # np.unique, because several hits in a layer count once.
    n_layers = np.bincount(np.unique(track * N_LAYERS + hits.layer[hit]) // N_LAYERS, minlength=n).astype(np.float64)
    from_line = np.einsum("hac,hc->ah", axes[track], hits.position[hit] - tracks.entry[track])
    described = max((part.n_layers for part in detector.calorimeters if part.kind == KINDS[kind]), default=0)
    expected = min(described or N_LAYERS, N_LAYERS)  # 1 of crystals
    offset = np.stack([medians(track, along_axis, n) for along_axis in from_line])
    return _Trail(
        n_hits=np.bincount(track, minlength=n).astype(np.float64),
        n_layers=n_layers,
        cell=medians(track, hits.energy[hit] * to_normal[track], n),
        offset=offset,
        in_cells=offset / _cell_size(detector, KINDS[kind]),
        expected=expected,
        seen=n_layers >= min(MIN_LAYERS, expected),
    )


def _trails(events: Events, hits: _FirstHits, tracks: _Entries) -> dict[str, npt.NDArray[Any]]:
    """Columns of `TrackDeposits.trails`, without ``twice`` and ``response``, which need the energies around."""
    detector, pairs = events.detector, _hits_of_trails(hits, tracks)
    axes = np.stack(tangent_basis(tracks.direction)[::-1], axis=1)
    ecal, hcal = (_trail(detector, hits, tracks, pairs, axes, kind) for kind in (ECAL, HCAL))
    straight = ecal.seen & (ecal.n_hits < SHOWER * ecal.n_layers)
    # An electron leaves nothing in the HCAL; without a trail it is not known what a track is.
    faces = [_face(detector, part) for part in detector.calorimeters if part.kind == "hcal"]
    in_hcal = straight & (tracks.p > HARD) & np.isfinite(faces).any()
    # Another momentum moves the entry along the lever: the part of the trail's distance along it is its error.
    lever = np.einsum("tac,tc->at", axes, (tracks.moved - tracks.by_helix) / STEP)
    off = np.einsum("tac,tc->at", axes, tracks.entry - tracks.by_helix) + ecal.offset
    reach = np.linalg.norm(lever, axis=0)
    near_helix = np.linalg.norm(tracks.by_helix - tracks.state, axis=1)
    bends = straight & (reach > LEVER[0]) & (reach < LEVER[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        momentum = _where(bends, -(off * lever).sum(axis=0) / reach**2)
        trails = {
            "event": tracks.event,
            "endcap": _in_endcap(detector, tracks.entry),
            **dict(zip("xyz", tracks.entry.T, strict=True)),
            "b_field": np.abs(jagged.columns(events.tracks)["omega"][tracks.index]) * tracks.pt / GEV_PER_TESLA_MM,
            "trail": ecal.seen,
            "layers": _where(ecal.seen, ecal.n_layers / ecal.expected),
            **dict(zip(("ecal_azimuth", "ecal_polar"), _where(ecal.seen, ecal.in_cells), strict=True)),
            "helix": _where(straight & np.isfinite(near_helix), near_helix < NEAR),
            "momentum": momentum,
            # The other charge leads as far to the other side: as twice the momentum taken away.
            "opposite": _where(np.isfinite(momentum), momentum < -1.0),
            "behind": _where(in_hcal, hcal.n_layers > 0),
            "behind hard": _where(in_hcal & (tracks.p > HARDER), hcal.n_layers > 0),
            "hcal_layers": _where(in_hcal & hcal.seen, hcal.n_layers / hcal.expected),
            **dict(zip(("hcal_azimuth", "hcal_polar"), _where(in_hcal & hcal.seen, hcal.in_cells), strict=True)),
            "ecal_cell": _where(straight, ecal.cell),
            "hcal_cell": _where(in_hcal, hcal.cell),
            "thin": straight & hcal.seen & (hcal.n_hits < SHOWER * hcal.n_layers),
        }
    if events.hit_links is not None and events.track_links is not None:
        particle_of_hit = jagged.flat(assigned_particle(events.hit_links, events.hits))
        particle_of_track = jagged.flat(assigned_particle(events.track_links, events.tracks))[tracks.index]
        for name, kind, applies in (("own", ECAL, straight), ("hcal_own", HCAL, in_hcal & hcal.seen)):
            n, (track, hit) = len(tracks.index), pairs[:, hits.kind[pairs[1]] == kind]
            of_hit, of_track = particle_of_hit[hits.index[hit]], particle_of_track[track]
            # Hits and tracks without links are counted by other checks, and say nothing of a match.
            linked = (of_hit >= 0) & (of_track >= 0)
            n_linked, n_own = (np.bincount(track[x], minlength=n) for x in (linked, linked & (of_hit == of_track)))
            trails[name] = _where(applies & (n_linked > 0), n_own / np.maximum(n_linked, 1))
    return trails


def _where(applies: Mask, values: npt.NDArray[Any]) -> Floats:
    """Values, NaN where they do not apply."""
    return np.where(applies, values, np.nan)


def _in_endcap(detector: Detector, position: npt.NDArray[Any]) -> Mask:
    return np.asarray(np.abs(position[:, 2]) > detector.ecal_inner_z - 1.0)


def _cell_size(detector: Detector, kind: str) -> float:
    """The largest size of cells of the calorimeters of a kind, mm."""
    return max([part.cell_size or 5.0 for part in detector.calorimeters if part.kind == kind], default=5.0)


def _face(detector: Detector, part: Calorimeter) -> float:
    """Face of a calorimeter, or else of the detector's calorimeters of its kind, mm; NaN if not known."""
    place = "inner_radius" if _is_barrel(part) else "inner_z"
    of_kind = getattr(detector, f"{'ecal' if part.kind == 'ecal' else 'hcal'}_{place}")
    return float(getattr(part, place) or of_kind or np.nan)


def _is_barrel(part: Calorimeter) -> bool:
    return part.region == "barrel" or (part.inner_z is None and part.inner_radius is not None)


def depths(events: Events) -> Floats:
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
