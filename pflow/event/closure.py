"""Tracks compared with their deposits in the calorimeters: place, layers, energy.

A charged particle leaves one hit in nearly every layer that it enters, whatever becomes of it later. So each track has
a trail: the hits in the first `N_LAYERS` layers close to the line on which it enters. The trail shows where the
calorimeter is (to a millimetre a track), how many hits are lost, and the energy of a minimum ionising particle in a
cell. The energy behind isolated tracks shows the scale of whole showers. The distance of the trail from the helix of
the IP, along the direction in which another momentum would move it, gives the relative error of momentum and field.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.schema import make_tracks
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import Calorimeter, Detector
from pflow.physics.geometry import distance_to_sides
from pflow.physics.kinematics import follow_to_calorimeter, tangent_basis, unit_vector

MIN_MOMENTUM = 1.0  # GeV. Softer tracks curl, and scatter in the tracker
NARROW, ALONE = 0.08, 0.16  # cones, rad: in the first are a hadron's hits, in the second enters no other track
APART = 0.1  # rad. A hit farther than this from the entries of all tracks belongs to no track

ECAL, HCAL = 0, 1  # columns of quantities measured by kind of calorimeter
KINDS = ("ecal", "hcal")  # of the calorimeters that are looked at
N_LAYERS = 6  # layers of a calorimeter, from its face, in which a trail is looked for
WIDTH, CELLS = (25.0, 100.0), 3.0  # half width of a trail by kind, mm, and in cells where these are larger
IN_FRONT, BEHIND = 60.0, (150.0, 1500.0)  # mm along the line, before and behind the entry, in which its hits lie
PITCH = (6.0, 30.0)  # mm, of layers that the detector does not describe
MIN_LAYERS = 2  # fewest layers with hits of a trail: fewer are a coincidence
SHOWER = 2.0  # hits a layer from which a trail is a shower: an electron's
STEP = 0.01  # relative change of momentum by which the entry's dependence on it is measured
LEVER = (100.0, 1500.0)  # mm by which the whole momentum moves an entry: straighter tracks show no error, curlers wrap

HADRON_RESPONSE = 0.73  # median energy in `NARROW` around isolated hadrons over their momentum, of ild_g4
HADRONS = (3.0, 50.0)  # GeV, momenta of the hadrons used
MAX_AROUND = 0.1  # largest energy of hits between the two cones of an isolated track, over its momentum
MIN_HADRONIC = 0.2  # smallest energy in the HCAL of a hadron over its momentum: electrons and muons have less
ROUNDS = 5  # iterations of scale and selection of hadrons, which depend on each other


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TrackDeposits:
    """Tracks above `MIN_MOMENTUM` in events with hits, and their deposits; lengths in mm, energies in GeV.

    Float64 [track] unless stated. `index` and `event`, int64: place in the flat list of tracks, and event.
    `momentum`; `entry` [track, 3]: ``calo_position``, or where the helix from the IP leads; `endcap`, bool: whether in
    an endcap; `by_helix`: distance of the helix' entry from ``calo_position``, NaN without one.
    `momentum_error`: relative error of momentum and field by the place of the trail; NaN of showers, of tracks without
    trail, and where a momentum shows nothing (`LEVER`).
    By kind of calorimeter, [track, 2], ECAL and HCAL: `hits` of the trail and `layers` that have some; `cell`: median
    energy of these hits at normal incidence; `offset` [track, 2, 2]: their median distance from the line, along azimuth
    and polar angle; both NaN without hits. `trail`, int64 [2, pair]: track here, and hit in the flat list, of the ECAL.
    `narrow` and `around` [track, 2]: energy in `NARROW` around the entry, and between it and `ALONE`, in an HCAL and
    elsewhere; `separation`: angle to the nearest entry of these tracks, rad, inf without one. `apart`, bool [hit]:
    whether no entry is within `APART`.
    """

    index: Index
    event: Index
    momentum: Floats
    entry: Floats
    endcap: Mask
    by_helix: Floats
    momentum_error: Floats
    hits: Floats
    layers: Floats
    cell: Floats
    offset: Floats
    trail: Index
    narrow: Floats
    around: Floats
    separation: Floats
    apart: Mask

    @classmethod
    def of(cls, events: Events, *, most: int | None = None) -> TrackDeposits:
        """Measure the tracks of the events, or the first `most` of them."""
        detector, tracks = events.detector, events.tracks
        if tracks is None:
            tracks = make_tracks(
                b_field=detector.b_field, **dict.fromkeys(("px", "py", "pz", "charge"), _nothing(events))
            )
        all_hits, hits = jagged.columns(events.hits), _Hits.of(events)
        index, event = _chosen(tracks, hits, most)
        columns = {name: values[index] for name, values in jagged.columns(tracks).items()}
        momentum, state, at_state = (
            np.stack([columns[f"{name}.{axis}"] for axis in axes], axis=1).astype(np.float64)
            for name, axes in (("momentum", _PXYZ), ("calo_position", _XYZ), ("calo_momentum", _PXYZ))
        )
        d0, z0, charge = (np.nan_to_num(columns[name].astype(np.float64)) for name in ("d0", "z0", "charge"))
        phi = np.arctan2(momentum[:, 1], momentum[:, 0])
        start = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=1)
        by_helix, at_helix = follow_to_calorimeter(start, momentum, charge, detector)
        moved, _ = follow_to_calorimeter(start, (1 + STEP) * momentum, charge, detector)
        has_state = np.asarray(np.isfinite(state).all(axis=1))
        entry = np.where(has_state[:, None], state, by_helix)
        directed = has_state & np.asarray(np.isfinite(at_state).all(axis=1))
        direction = unit_vector(np.where(directed[:, None], at_state, at_helix))
        axes = np.stack(tangent_basis(direction)[::-1], axis=1)  # [track, 2, 3], along azimuth and polar angle

        n, points, along, unit = len(index), *(x.astype(np.float32) for x in (entry, direction, unit_vector(entry)))
        (narrow, wide), separation = np.zeros((2, n, 2)), np.full(n, np.inf)
        apart, pairs = np.ones(len(hits.place), dtype=np.bool_), [np.zeros((2, 0), dtype=np.int64)]
        for number in np.unique(event):
            track, hit = np.flatnonzero(event == number), slice(hits.bounds[number], hits.bounds[number + 1])
            behind = along[track] @ hits.position[hit].T - (points * along).sum(axis=1)[track, None]  # [track, hit]
            squared = hits.distance[hit] ** 2 - 2 * points[track] @ hits.position[hit].T
            across = squared + (points**2).sum(axis=1)[track, None] - behind**2
            near = (across < hits.width[hit] ** 2) & (behind > -IN_FRONT) & (behind < hits.length[hit])
            of_event = np.stack(np.nonzero(near))
            pairs.append(np.stack([track[of_event[0]], of_event[1] + hits.bounds[number]]))
            cosine = unit[track] @ hits.position[hit].T
            for sums, cone in ((narrow, NARROW), (wide, ALONE)):
                sums[track] = (cosine > np.cos(cone) * hits.distance[hit]) @ hits.energy[hit]
            apart[hit] = cosine.max(axis=0) < np.cos(APART) * hits.distance[hit]
            if len(track) > 1:
                between = unit_vector(entry[track]) @ unit_vector(entry[track]).T
                np.fill_diagonal(between, -1.0)
                separation[track] = np.arccos(np.clip(between.max(axis=1), -1.0, 1.0))
        endcap = np.abs(entry[:, 2]) > detector.ecal_inner_z - 1.0
        cosine = np.where(endcap, np.abs(direction[:, 2]), np.hypot(direction[:, 0], direction[:, 1]))  # to the normal
        pair = np.concatenate(pairs, axis=1)
        trails = [_trail(hits, kind, pair, entry, axes, cosine) for kind in (ECAL, HCAL)]
        n_hits, n_layers, cell, offset = (np.stack(values, axis=1) for values in list(zip(*trails, strict=True))[:4])

        lever = np.einsum("tac,tc->ta", axes, (moved - by_helix) / STEP)
        apart_by = np.einsum("tac,tc->ta", axes, entry - by_helix) + offset[:, ECAL]
        length = np.linalg.norm(lever, axis=1)
        straight = (n_layers[:, ECAL] >= MIN_LAYERS) & (n_hits[:, ECAL] < SHOWER * n_layers[:, ECAL])
        known = straight & (length > LEVER[0]) & (length < LEVER[1])
        error = np.full(n, np.nan)
        error[known] = -(apart_by * lever).sum(axis=1)[known] / length[known] ** 2
        far = np.ones(len(all_hits["energy"]), dtype=np.bool_)
        far[hits.place] = apart
        return cls(
            index=index,
            event=event,
            momentum=np.linalg.norm(momentum, axis=1),
            entry=entry,
            endcap=endcap,
            by_helix=np.linalg.norm(by_helix - state, axis=1),
            momentum_error=error,
            hits=n_hits,
            layers=n_layers,
            cell=cell,
            offset=offset,
            trail=np.stack([trails[ECAL].track, hits.place[trails[ECAL].hit]]),
            narrow=narrow,
            around=wide - narrow,
            separation=separation,
            apart=far,
        )

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


_XYZ, _PXYZ = ("x", "y", "z"), ("px", "py", "pz")


class _Hits(NamedTuple):
    """Usable hits: `bounds` [event + 1] of each event, `place` in the flat list; energies [hit, 2] in HCAL, elsewhere.

    `kind` of the calorimeter (-1: neither) and `layer` (-1: not of a trail); `width` and `length` of a trail, mm.
    """

    bounds: Index
    place: Index
    position: npt.NDArray[np.float32]  # enough: some metres to 0.1 mm
    distance: npt.NDArray[np.float32]
    energy: npt.NDArray[np.float32]
    kind: Index
    layer: Index
    width: npt.NDArray[np.float32]
    length: npt.NDArray[np.float32]

    @classmethod
    def of(cls, events: Events) -> _Hits:
        columns, parts = jagged.columns(events.hits), events.detector.calorimeters
        used = columns["energy"] > 0  # hits that were left out have energy 0
        index = np.flatnonzero(used)
        number, energy = columns["subdetector"][index], columns["energy"][index]
        position = jagged.vectors(events.hits, np.float32, field="position")[index]
        kinds = [KINDS.index(part.kind) if part.kind in KINDS else -1 for part in parts]
        width = [
            max(WIDTH[k], CELLS * (part.cell_size or 0.0)) * (k >= 0) for k, part in zip(kinds, parts, strict=True)
        ]
        length = [BEHIND[k] if k >= 0 else -IN_FRONT for k in kinds]
        kind = np.array(kinds)[number]
        layer = np.full(len(index), -1)
        for i, part in enumerate(parts):
            if kinds[i] >= 0:
                mine = np.flatnonzero(number == i)
                pitch = part.layers[0].pitch if part.layers else PITCH[kinds[i]]
                depth = depth_behind(position[mine], part, events.detector)
                layer[mine] = np.floor(np.clip(depth / pitch, -1.0, N_LAYERS))
        return cls(
            bounds=jagged.offsets(used)[jagged.offsets(jagged.count(events.hits))],
            place=index,
            position=position,
            distance=np.sqrt((position**2).sum(axis=1)),
            energy=np.stack([energy * (kind == HCAL), energy * (kind != HCAL)], axis=1),
            kind=kind,
            layer=np.where(layer < N_LAYERS, layer, -1),
            width=np.array(width, np.float32)[number],
            length=np.array(length, np.float32)[number],
        )


class _Trail(NamedTuple):
    """Trails in the calorimeters of a kind, [track], and their hits [pair]; as in `TrackDeposits`."""

    hits: Floats
    layers: Floats
    cell: Floats
    offset: Floats
    track: Index
    hit: Index


def _trail(hits: _Hits, kind: int, pair: Index, entry: Floats, axes: Floats, cosine: Floats) -> _Trail:
    """Trails among pairs [2, pair] of a track and a hit near its line, which has a `cosine` to the face's normal."""
    track, hit = pair[:, (hits.kind[pair[1]] == kind) & (hits.layer[pair[1]] >= 0)]
    n = len(entry)
    step = np.einsum("hac,hc->ha", axes[track], hits.position[hit] - entry[track])
    filled = np.unique(track * N_LAYERS + hits.layer[hit]) // N_LAYERS
    return _Trail(
        hits=np.bincount(track, minlength=n).astype(np.float64),
        layers=np.bincount(filled, minlength=n).astype(np.float64),
        cell=medians(track, hits.energy[hit].sum(axis=1) * cosine[track], n),
        offset=np.stack([medians(track, along, n) for along in step.T], axis=1),
        track=track,
        hit=hit,
    )


def _chosen(tracks: ak.Array, hits: _Hits, most: int | None) -> tuple[Index, Index]:
    """Index and event of the tracks above `MIN_MOMENTUM` in events with hits, or the first `most` of them."""
    event = jagged.event_index(jagged.count(tracks))
    size = np.linalg.norm(jagged.vectors(tracks, field="momentum"), axis=1)
    index = np.flatnonzero((size > MIN_MOMENTUM) & (np.diff(hits.bounds)[event] > 0))[:most]
    return index, event[index]


def depth_behind(position: npt.NDArray[Any], part: Calorimeter, detector: Detector) -> Floats:
    """Depth of points [N, 3] behind the face of a calorimeter along its normal, mm, float64 [N].

    A face that the calorimeter does not describe is the detector's ECAL or HCAL face; inf if neither is known.
    """
    x, y, z = position.astype(np.float64).T
    ecal = part.kind == "ecal"
    if part.region == "barrel" or (part.inner_z is None and part.inner_radius is not None):
        face = part.inner_radius or (detector.ecal_inner_radius if ecal else detector.hcal_inner_radius)
        place = distance_to_sides(x, y, part.sides, part.phase)
    else:
        face = part.inner_z or (detector.ecal_inner_z if ecal else detector.hcal_inner_z)
        place = np.abs(z)
    return np.asarray(place - (-np.inf if face is None else face))


def medians(group: Index, values: npt.NDArray[Any], n: int) -> Floats:
    """Median of the values [N] of each of `n` groups, float64 [n]; NaN for a group without any.

    >>> medians(np.array([0, 0, 2]), np.array([1.0, 2.0, 5.0]), 3).tolist()
    [1.5, nan, 5.0]
    """
    ordered = values[np.lexsort((values, group))]
    counts = np.bincount(group, minlength=n)
    first, some, result = np.cumsum(counts) - counts, counts > 0, np.full(n, np.nan)
    low, high = (ordered[(first + middle)[some]] for middle in ((counts - 1) // 2, counts // 2))
    result[some] = (low + high) / 2
    return result


def _nothing(events: Events) -> ak.Array:
    return jagged.unflatten(np.zeros(0), np.zeros(len(events), dtype=np.int64))
