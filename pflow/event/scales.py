"""Typical energies and curvatures of a sample, and where its tracks enter the calorimeter, to judge other events."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.physics.arrays import Floats
from pflow.physics.detector import Detector
from pflow.physics.geometry import measures
from pflow.physics.kinematics import GEV_PER_TESLA_MM, angle_between, follow_to_calorimeter, unit_vector

MIN_MOMENTUM = 1.0  # GeV. Softer tracks curl, and scatter in the tracker
CONE = 0.1  # half opening angle, rad, of the cone from the origin around a track's entry, in which hits are near it
FAR = 500.0  # mm. A nearest hit farther than this does not belong to the entry, which is wrong, e.g. at the origin

HADRON_RESPONSE = 0.73  # median energy in `NARROW` around isolated hadrons over their momentum, of ild_g4
HADRONS = (3.0, 50.0)  # their momenta, GeV
NARROW, ALONE = 0.08, 0.16  # cones, rad: in the first are a hadron's hits, in the second enters no other track
MAX_AROUND = 0.1  # largest energy of hits between the two cones of an isolated track, over its momentum
MIN_HADRONIC = 0.2  # smallest energy in the HCAL of a hadron over its momentum: electrons and muons have less
ROUNDS = 5  # of the selection of hadrons, which depends on the scale


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Entries:
    """Tracks above `MIN_MOMENTUM` in events that have hits, float64 [track] each.

    `by_helix` and `by_state`: distance, mm, from the track's entry into the calorimeter to the nearest hit, across the
    direction from the origin; inf without a hit closer than `FAR`. `by_helix` takes the entry of the helix from the
    IP, `by_state` takes ``calo_position``. `turned`: angle, rad, at the entry between the helix' momentum and
    ``calo_momentum``. `by_state` and `turned` are NaN without a state at the calorimeter. `momentum`, GeV; `energy`:
    sum of the hits in the `CONE`, GeV; `narrow` and `around`, [track, 2]: sums of the hits in `NARROW` and between it
    and `ALONE`, in an HCAL and elsewhere, GeV; `separation`: angle to the nearest entry of these tracks, rad, inf
    without one.
    """

    momentum: Floats
    by_helix: Floats
    by_state: Floats
    turned: Floats
    energy: Floats
    narrow: Floats
    around: Floats
    separation: Floats

    @classmethod
    def of(cls, events: Events, *, most: int) -> Entries:
        """Measure the first `most` tracks of the events."""
        if events.tracks is None or not jagged.count(events.tracks).any():
            empty = dict.fromkeys((field.name for field in dataclasses.fields(cls)), np.zeros(0))
            return cls(**empty | dict.fromkeys(("narrow", "around"), np.zeros((0, 2))))
        columns = jagged.columns(events.tracks)
        momentum, state, at_state = (
            jagged.vectors(events.tracks, field=name) for name in ("momentum", "calo_position", "calo_momentum")
        )
        hits = jagged.columns(events.hits)
        used = hits["energy"] > 0  # unusable hits have energy 0
        bounds = jagged.offsets(used)[jagged.offsets(jagged.count(events.hits))]
        event = jagged.event_index(jagged.count(events.tracks))
        size = np.linalg.norm(momentum, axis=1)
        chosen = np.flatnonzero((size > MIN_MOMENTUM) & (np.diff(bounds)[event] > 0))[:most]
        momentum, state, at_state, event = momentum[chosen], state[chosen], at_state[chosen], event[chosen]
        d0, z0 = (np.nan_to_num(columns[name][chosen].astype(np.float64)) for name in ("d0", "z0"))
        phi = np.arctan2(momentum[:, 1], momentum[:, 0])
        charge = columns["charge"][chosen].astype(np.float64)
        start = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=1)
        entry, at_entry = follow_to_calorimeter(start, momentum, charge, events.detector)

        points, hit_energy = jagged.vectors(events.hits, np.float32, field="position")[used], hits["energy"][used]
        kinds = np.array([calorimeter.kind == "hcal" for calorimeter in events.detector.calorimeters])
        in_hcal = kinds.take(hits["subdetector"][used], mode="clip")
        parts = np.stack([hit_energy * in_hcal, hit_energy * ~in_hcal], axis=1)
        squared = (points**2).sum(axis=1)
        entries = np.stack([entry, state])  # [2, track, 3]
        has_state = ~np.isnan(state).any(axis=1)
        nearest, energy = np.zeros((2, len(chosen)), dtype=np.int64), np.zeros(len(chosen))
        (narrow, wide), separation = np.zeros((2, len(chosen), 2)), np.full(len(chosen), np.inf)
        place = entries[has_state.astype(np.int64), np.arange(len(chosen))]
        length, unit = np.linalg.norm(place, axis=1), unit_vector(place)
        for number in np.unique(event):
            track, hit = np.flatnonzero(event == number), slice(bounds[number], bounds[number + 1])
            product = entries[:, track].astype(np.float32) @ points[hit].T  # [2, track, hit]
            nearest[:, track] = bounds[number] + np.argmax(product - 0.5 * squared[hit], axis=2)
            projection = np.where(has_state[track, None], product[1], product[0])
            lengths = length[track, None] * np.sqrt(squared[hit])
            energy[track] = (projection > np.cos(CONE) * lengths) @ hit_energy[hit]
            for sums, cone in ((narrow, NARROW), (wide, ALONE)):
                sums[track] = (projection > np.cos(cone) * lengths) @ parts[hit]
            if len(track) > 1:
                cosine = unit[track] @ unit[track].T
                np.fill_diagonal(cosine, -1.0)
                separation[track] = np.arccos(np.clip(cosine.max(axis=1), -1.0, 1.0))
        step = points[nearest] - entries
        along, squared_distance = (step * unit_vector(entries)).sum(axis=2), (step**2).sum(axis=2)
        across = np.where(squared_distance < FAR**2, np.sqrt(np.maximum(squared_distance - along**2, 0.0)), np.inf)
        return cls(
            momentum=size[chosen],
            by_helix=across[0],
            by_state=np.where(has_state, across[1], np.nan),
            turned=angle_between(at_entry, at_state).astype(np.float64),
            energy=energy,
            narrow=narrow,
            around=wide - narrow,
            separation=separation,
        )

    def hadron_scales(self) -> Floats:
        """`pflow.physics.detector.Calorimeter.hadron_scale` by each isolated charged hadron, [hadron]; use the median.

        Tails are wide, single values may be negative. Neutral particles near tracks lower it, by 6% in Z -> qq of
        ild_g4. Of tracks below `MIN_MOMENTUM` it is not known whether they enter near.
        """
        p, scale, scales = self.momentum, 1.0, np.zeros(0)
        for _ in range(ROUNDS):
            factors = np.array([scale, 1.0])
            isolated = (self.separation > ALONE) & (self.around @ factors < MAX_AROUND * p)
            hadron = isolated & (p > HADRONS[0]) & (p < HADRONS[1]) & (scale * self.narrow[:, 0] > MIN_HADRONIC * p)
            in_hcal, elsewhere = self.narrow[hadron].T
            scales = (HADRON_RESPONSE * p[hadron] - elsewhere) / in_hcal
            if not len(scales) or not np.median(scales) > 0:
                break
            scale = float(np.median(scales))
        return scales


MIN_HITS, MIN_TRACKS = 100, 10  # fewest hits of a kind of calorimeter, and fewest tracks, for a median
MOST_TRACKS = 40  # tracks that `Entries` measures for the ratio `near_tracks`

LARGEST = ("max_energy", "max_hits", "opening")
"""Scales of joined samples that are the largest of their values, because smaller ones are usual; others are medians."""

COMPARED = (
    ("ecal_hit", 1.6, "a typical hit of the ECAL has {} GeV"),
    ("hcal_hit", 1.6, "a typical hit of the HCAL has {} GeV"),
    ("max_energy", 3.0, "events have up to {} GeV in hits"),
    ("max_hits", 3.0, "events have up to {} hits"),
    ("opening", 5.0, "the energy of a typical event spreads over {} rad around its direction"),
    ("near_tracks", 2.5, "hits near a track have {} times its momentum"),
    ("b_field", 1.05, "tracks are curved as in {} T"),
)
"""Scales compared with the training sample's: attribute, largest plausible ratio, text of the message."""

OUTSIDE = 1.02  # largest plausible ratio of a detector's measures to the range of the training
CHECKED, CHECKED_HITS = 20, 6_000  # most events of a file, and their hits, that are checked while it is read


class Check(NamedTuple):
    """Result of one check."""

    name: str
    good: bool
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleScales:
    """Typical energies, sizes and curvatures of a sample; None where it holds too few hits or tracks.

    `ecal_hit` and `hcal_hit`: median energy of a hit, GeV; `max_energy`: largest energy of an event in hits, GeV;
    `max_hits`: largest number of hits of an event; `opening`: median of the opening angle of an event's energy, rad,
    whose cosine is |sum of E n| / sum of E over hits of energy E in the direction n from the origin;
    `near_tracks`: median ratio of the energy in hits near a track (`pflow.event.scales.CONE`) to its momentum;
    `b_field`: field that relates the tracks' curvature to their momentum, T.

    A model for any detector has no scale that differs from one to the next, but the names of the `detectors` that it
    was trained on, and of their `measures` (`pflow.physics.geometry.measures`) the smallest and largest value.
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

    @classmethod
    def of(cls, events: Events, entries: Entries | None = None) -> SampleScales:
        """Measure events; `entries`, if known, saves following the tracks."""
        entries = entries or Entries.of(events, most=MOST_TRACKS)
        columns, counts = jagged.columns(events.hits), jagged.count(events.hits)
        energy, kinds = columns["energy"], np.array([calorimeter.kind for calorimeter in events.detector.calorimeters])
        hit: dict[str, Any] = {}
        for kind in ("ecal", "hcal"):
            positive = energy[(kinds == kind).take(columns["subdetector"], mode="clip") & (energy > 0)]
            hit[f"{kind}_hit"] = _median(positive, MIN_HITS)
        position = jagged.vectors(events.hits, field="position")
        weight = energy / np.maximum(np.linalg.norm(position, axis=1), 1.0)  # unusable hits are at the origin
        event = jagged.event_index(counts)
        total = np.bincount(event, energy, len(events))
        sums = np.stack([np.bincount(event, weight * along, len(events)) for along in position.T], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            opening = np.arccos(np.minimum(np.linalg.norm(sums, axis=1) / total, 1.0))
        return cls(
            **hit,
            max_energy=float(total.max(initial=0.0)),
            max_hits=int(counts.max(initial=0)),
            opening=_median(opening, 1),  # NaN for an event without energy
            near_tracks=_median(entries.energy / entries.momentum, MIN_TRACKS),
            b_field=_field(events),
        )

    def compared(self, scales: SampleScales, detector: Detector) -> Iterator[Check]:
        """Compare the scales of other events, of a detector, with this sample, which a model was trained on."""
        for name, factor, what in COMPARED:
            theirs, ours = getattr(self, name), getattr(scales, name)
            if theirs and ours:
                low = 0.0 if name in LARGEST else 1 / factor
                text = f"{what.format(f'{ours:.3g}')}, and in the training sample of the model {theirs:.3g}"
                yield Check("training sample", low < ours / theirs < factor, text)
        if self.detectors:
            outside = []
            for name, (smallest, largest) in measures(detector).items():
                low, high = self.measures.get(name, (-np.inf, np.inf))
                if smallest < low / OUTSIDE or largest > high * OUTSIDE:
                    value = smallest if smallest < low / OUTSIDE else largest
                    outside.append(f"{name} {value:.3g} (training: {low:.3g} to {high:.3g})")
            trained = f"what the model was trained on, {', '.join(self.detectors)} and their variations"
            where = f"outside {trained}: {'; '.join(outside)}" if outside else f"within {trained}"
            yield Check("detector", not outside, f"detector '{detector.name}' is {where}")


def first_events(events: Events) -> Events:
    """The first events for the checks: `CHECKED`, or fewer with `CHECKED_HITS` hits in total."""
    n_hits = np.cumsum(jagged.count(events.hits)[:CHECKED])
    return events[: max(1, int(np.searchsorted(n_hits, CHECKED_HITS)))]


def problems(checks: Iterable[Check]) -> str:
    """Texts of the failed checks; "" if all pass."""
    return "; ".join(check.text for check in checks if not check.good)


def joined(samples: Sequence[SampleScales]) -> SampleScales:
    """The scales of several samples: the largest value of scales in `LARGEST`, the median of others."""
    scales: dict[str, Any] = {}
    for name in {field.name for field in dataclasses.fields(SampleScales)} - {"detectors", "measures"}:
        known = [value for sample in samples if (value := getattr(sample, name)) is not None]
        scales[name] = float((np.max if name in LARGEST else np.median)(known)) if known else None
    return SampleScales(**scales)


def _field(events: Events) -> float | None:
    """Median field, T, that gives tracks of unit charge their curvature; None for too few tracks."""
    if events.tracks is None:
        return None
    pt = np.hypot(*jagged.vectors(events.tracks, field="momentum")[:, :2].T)
    return _median(np.abs(jagged.columns(events.tracks)["omega"]) * pt / GEV_PER_TESLA_MM, MIN_TRACKS)


def _median(values: npt.NDArray[np.floating[Any]], least: int) -> float | None:
    """Median of the finite values; None for fewer than `least`."""
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) >= least else None
