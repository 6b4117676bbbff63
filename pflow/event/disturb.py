"""Disturbance of events: how a real detector differs from its simulation, for training and robustness tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import check_options
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import Links
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.pdg import CLASSES, class_index

Columns = Mapping[str, npt.NDArray[Any]]

NOISE_QUANTILE = 0.25  # noise copies hits of its subdetector with an energy below this quantile
HADRONS = [CLASSES.index("charged_hadron"), CLASSES.index("neutral_hadron")]
SPLIT_MOMENTUM = 0.1  # relative standard deviation of a split track's second momentum, which half of the hits measure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Sizes of disturbances, drawn for each event; the default changes nothing. ConfigError: a value out of range.

    Parameters
    ----------
    probability
        Fraction of the events that are disturbed.
    energy_scale
        Standard deviation of the relative calibration error of each subdetector.
    hadron_ecal_scale
        Smallest and largest factor on the energy that hadrons leave in the ECAL; one uniform factor per event.
    shift_mm
        Standard deviation of the displacement of each subdetector along x, y and z, mm.
    ecal_threshold, hcal_threshold
        Largest threshold on the energy of a hit, GeV; drawn uniformly from 0. Other calorimeters have no threshold.
    dead_cells
        Fraction of the hits that are lost.
    noise_hits
        Mean number of hits without a particle (Poisson), copied from soft hits of other events.
    lost_tracks, split_tracks
        Fraction of the tracks that are lost, and that appear a second time, with a poor momentum.
    fake_tracks
        Mean number of tracks without a particle, copied from other events, relative to the number of tracks.
    """

    probability: float = 1.0
    energy_scale: float = 0.0
    hadron_ecal_scale: Sequence[float] = (1.0, 1.0)
    shift_mm: float = 0.0
    ecal_threshold: float = 0.0
    hcal_threshold: float = 0.0
    dead_cells: float = 0.0
    noise_hits: float = 0.0
    lost_tracks: float = 0.0
    split_tracks: float = 0.0
    fake_tracks: float = 0.0

    def __post_init__(self) -> None:
        fractions = "probability", "dead_cells", "lost_tracks", "split_tracks"
        check_options(self, "disturb", "from 0 to 1", lambda fraction: 0 <= fraction <= 1, *fractions)
        sizes = "energy_scale", "shift_mm", "ecal_threshold", "hcal_threshold", "noise_hits", "fake_tracks"
        check_options(self, "disturb", "at least 0", lambda size: 0 <= size < np.inf, *sizes)
        check_options(self, "disturb", "two factors above 0", are_factors, "hadron_ecal_scale")


def are_factors(values: Sequence[float]) -> bool:
    """Whether these are two factors above 0, the smaller first."""
    return len(values) == 2 and 0 < values[0] <= values[1] < np.inf


def disturb(events: Events, options: Disturbance, generator: np.random.Generator) -> Events:
    """Disturb events at random; the truth stays. Noise and fake tracks are copied from other events."""
    chosen = generator.random(len(events)) < options.probability
    events = _disturb_hits(events, options, chosen, generator)
    if events.tracks is not None:
        events = _disturb_tracks(events, options, chosen, generator)
    return events


def _disturb_hits(events: Events, options: Disturbance, chosen: Mask, generator: np.random.Generator) -> Events:
    counts = jagged.count(events.hits)
    event = jagged.event_index(counts)
    columns = jagged.columns(events.hits)
    subdetector = columns["subdetector"].astype(np.int64)
    kinds = np.array([calorimeter.kind for calorimeter in events.detector.calorimeters])
    shape = (len(events), len(kinds))

    low, high = options.hadron_ecal_scale
    scale = np.exp(options.energy_scale * generator.standard_normal(shape))
    hadronic = generator.uniform(low, high, len(events))
    factor = scale[event, subdetector]
    factor *= 1 + (hadronic[event] - 1) * _hadron_fraction(events) * (kinds == "ecal")[subdetector]
    energy = columns["energy"] * np.where(chosen[event], factor, 1.0)
    shift = options.shift_mm * generator.standard_normal((*shape, 3)) * chosen[:, np.newaxis, np.newaxis]
    moved = {"energy": energy}
    for axis, step in zip("xyz", np.moveaxis(shift, -1, 0), strict=True):
        moved[f"position.{axis}"] = columns[f"position.{axis}"] + step[event, subdetector]

    largest = np.select([kinds == "ecal", kinds == "hcal"], [options.ecal_threshold, options.hcal_threshold], 0.0)
    threshold = generator.random(shape) * largest
    keep = (energy >= threshold[event, subdetector]) & (generator.random(len(event)) >= options.dead_cells)
    keep |= ~chosen[event]

    by_subdetector = (energy[subdetector == number] for number in range(len(kinds)))
    limits = np.array([np.quantile(values, NOISE_QUANTILE) if len(values) else 0.0 for values in by_subdetector])
    soft = np.flatnonzero(energy < limits[subdetector])
    noise, noise_event = _from_others(event, soft, options.noise_hits * chosen, generator)
    row_event = np.concatenate([event[keep], noise_event])
    rows = np.concatenate([np.flatnonzero(keep), noise])[np.argsort(row_event, kind="stable")]
    disturbed = {name: values[rows] for name, values in {**columns, **moved}.items()}
    hits = _records(disturbed, np.bincount(row_event, minlength=len(events)), like=columns)
    return dataclasses.replace(events, hits=hits, hit_links=_kept_links(events.hit_links, counts, keep))


def keep_hits(events: Events, keep: Mask) -> Events:
    """The events with the hits where `keep`, bool [all hits], holds, and their links."""
    if keep.all():
        return events
    counts = jagged.count(events.hits)
    hits = events.hits[jagged.unflatten(keep, counts)]
    return dataclasses.replace(events, hits=hits, hit_links=_kept_links(events.hit_links, counts, keep))


def _disturb_tracks(events: Events, options: Disturbance, chosen: Mask, generator: np.random.Generator) -> Events:
    counts = jagged.count(events.tracks)
    event = jagged.event_index(counts)
    columns = jagged.columns(events.tracks)
    keep = (generator.random(len(event)) >= options.lost_tracks) | ~chosen[event]
    split = keep & chosen[event] & (generator.random(len(event)) < options.split_tracks)
    fake, fake_event = _from_others(event, np.arange(len(event)), options.fake_tracks * counts * chosen, generator)
    rows = np.concatenate([np.flatnonzero(keep), np.flatnonzero(split), fake])
    row_event = np.concatenate([event[keep], event[split], fake_event])
    is_second = np.repeat([False, True, False], [keep.sum(), split.sum(), len(fake)])
    order = np.argsort(row_event, kind="stable")
    rows = rows[order]
    stretch = np.exp(SPLIT_MOMENTUM * generator.standard_normal(len(rows)))
    stretch[~is_second[order]] = 1.0
    changed = {name: values[rows] for name, values in columns.items()}
    changed["omega"] = changed["omega"] / stretch
    for name in (f"{vector}.{axis}" for vector in ("momentum", "calo_momentum") for axis in ("px", "py", "pz")):
        changed[name] = changed[name] * stretch
    tracks = _records(changed, np.bincount(row_event, minlength=len(events)), like=columns)
    return dataclasses.replace(events, tracks=tracks, track_links=_kept_links(events.track_links, counts, keep, split))


def _records(columns: Columns, counts: Index, like: Columns) -> ak.Array:
    """Records [event, object] with `counts` in each event, in the precision of columns `like`."""
    return jagged.records({name: v.astype(like[name].dtype, copy=False) for name, v in columns.items()}, counts)


def _hadron_fraction(events: Events) -> Floats:
    """Fraction of each hit's energy that hadrons left, [all hits]; 0 without truth."""
    counts = jagged.count(events.hits)
    n = int(counts.sum())
    if events.hit_links is None or events.truth is None:
        return np.zeros(n)
    hadron = np.isin(class_index(jagged.flat(events.truth["pdg"])), HADRONS)
    links = Links.of(events.hit_links)
    weight = links.weight * hadron[links.flat_particle(jagged.count(events.truth))].astype(np.float64)
    return np.asarray(np.bincount(links.flat_source(counts), weight, minlength=n), np.float64)


def _from_others(
    event: Index, donors: Index, means: npt.NDArray[Any], generator: np.random.Generator
) -> tuple[Index, Index]:
    """Rows to copy, from the `donors` of other events, and the events that get them: Poisson numbers of `means`."""
    target = np.repeat(np.arange(len(means)), generator.poisson(means))
    if not len(donors):
        return donors[:0], target[:0]
    row = donors[generator.integers(len(donors), size=len(target))]
    is_other = event[row] != target
    return row[is_other], target[is_other]


def _kept_links(records: ak.Array | None, counts: Index, *masks: Mask) -> ak.Array | None:
    """Links of the sources that the masks keep, with new indices; in each event, in the order of the masks."""
    if records is None:
        return None
    links, event = Links.of(records), jagged.event_index(counts)
    parts, n_before = [], np.zeros(len(counts), dtype=np.int64)
    for mask in masks:
        parts.append(links.kept(mask, counts, n_before))
        n_before = n_before + np.bincount(event[mask], minlength=len(counts))
    return Links.join(parts).records()
