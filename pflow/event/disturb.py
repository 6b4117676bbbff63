"""Disturbance of events: how a real detector differs from its simulation, for training and for tests of sturdiness.

Calibration, hadronic response, position of the subdetectors, thresholds, dead cells and noise change the calorimeter
hits; tracks are lost, found twice or invented. The truth particles stay; links follow the hits and tracks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.build import flat_links, make_hits, make_tracks
from pflow.event.events import Events
from pflow.physics.pdg import CLASSES, class_index

__all__ = ["Disturbance", "disturb"]

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[np.floating[Any]]

NOISE_QUANTILE = 0.25
"""Noise has the energies of the softest hits of its subdetector: of those below this quantile."""
HADRONS = [CLASSES.index("charged_hadron"), CLASSES.index("neutral_hadron")]
SPLIT_MOMENTUM = 0.1
"""Relative standard deviation of the momentum of the second track of a particle: half the hits measure it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What is disturbed, by how much; by default nothing. Drawn for each event anew.

    Parameters
    ----------
    probability
        Share of the events that are disturbed.
    energy_scale
        Standard deviation of the relative calibration error of each subdetector.
    hadron_ecal_scale
        Smallest and largest factor on the energy that hadrons leave in the ECAL; one factor an event, uniform.
    shift_mm
        Standard deviation of the displacement of each subdetector along x, y and z, mm.
    ecal_threshold, hcal_threshold
        Largest threshold on the energy of a hit, GeV; uniform between 0 and this. Other calorimeters have none.
    dead_cells
        Fraction of the hits that are lost.
    noise_hits
        Mean number of hits that belong to no particle (Poisson). They are at places of soft hits of the other events.
    lost_tracks, split_tracks
        Share of the tracks that are lost, and that are found twice, the second time with a poor momentum.
    fake_tracks
        Mean number of tracks that belong to no particle, relative to the number of tracks; taken from other events.

    Raises
    ------
    ConfigError
        A value out of range.
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
        for field in ("probability", "dead_cells", "lost_tracks", "split_tracks"):
            if not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"disturb: {field} must be from 0 to 1, found {getattr(self, field)}")
        for field in ("energy_scale", "shift_mm", "ecal_threshold", "hcal_threshold", "noise_hits", "fake_tracks"):
            if not 0 <= getattr(self, field) < np.inf:
                raise ConfigError(f"disturb: {field} must be at least 0, found {getattr(self, field)}")
        scale = tuple(self.hadron_ecal_scale)
        if len(scale) != 2 or not 0 < scale[0] <= scale[1] < np.inf:
            raise ConfigError(f"disturb: hadron_ecal_scale must be two factors above 0, found {list(scale)}")


def disturb(events: Events, options: Disturbance, generator: np.random.Generator) -> Events:
    """Disturb events at random.

    Without truth the hadronic response is not changed. Noise and fake tracks need other events beside them.

    Returns
    -------
    Events
        As many, with the same truth.
    """
    chosen = generator.random(len(events)) < options.probability
    events = _disturb_hits(events, options, chosen, generator)
    if events.tracks is not None:
        events = _disturb_tracks(events, options, chosen, generator)
    return events


def _disturb_hits(events: Events, options: Disturbance, chosen: Mask, generator: np.random.Generator) -> Events:
    counts = jagged.count(events.hits)
    event = jagged.event_index(counts)
    flat = jagged.flat_records(events.hits)
    subdetector = ak.to_numpy(flat.subdetector).astype(np.int64)
    kinds = np.array([calorimeter.kind for calorimeter in events.detector.calorimeters])
    shape = (len(events), len(kinds))

    low, high = options.hadron_ecal_scale
    scale = np.exp(options.energy_scale * generator.standard_normal(shape))
    hadronic = generator.uniform(low, high, len(events))
    factor = scale[event, subdetector]
    factor *= 1 + (hadronic[event] - 1) * _hadron_fraction(events) * (kinds == "ecal")[subdetector]
    energy = ak.to_numpy(flat.energy) * np.where(chosen[event], factor, 1.0)
    shift = options.shift_mm * generator.standard_normal((*shape, 3)) * chosen[:, np.newaxis, np.newaxis]
    position = jagged.vectors(flat.position) + shift[event, subdetector]

    largest = np.select([kinds == "ecal", kinds == "hcal"], [options.ecal_threshold, options.hcal_threshold], 0.0)
    threshold = generator.random(shape) * largest
    kept = (energy >= threshold[event, subdetector]) & (generator.random(len(event)) >= options.dead_cells)
    kept |= ~chosen[event]

    soft = energy < _quantiles(energy, subdetector, len(kinds), NOISE_QUANTILE)[subdetector]
    added, into = _from_others(event, np.flatnonzero(soft), options.noise_hits * chosen, generator)
    rows = np.concatenate([np.flatnonzero(kept), added])
    of_event = np.concatenate([event[kept], into])
    order, new_counts = _grouped(of_event, len(events))
    rows = rows[order]
    columns = {
        "energy": energy,
        **dict(zip("xyz", position.T, strict=True)),
        **{name: ak.to_numpy(flat[name]) for name in ("time", "subdetector", "layer")},
    }
    hits = make_hits(**{name: jagged.unflatten(values[rows], new_counts) for name, values in columns.items()})
    links = None if events.hit_links is None else _kept_links(events.hit_links, counts, kept, None)
    return dataclasses.replace(events, hits=hits, hit_links=links)


def _disturb_tracks(events: Events, options: Disturbance, chosen: Mask, generator: np.random.Generator) -> Events:
    counts = jagged.count(events.tracks)
    event = jagged.event_index(counts)
    flat = jagged.flat_records(events.tracks)
    kept = (generator.random(len(event)) >= options.lost_tracks) | ~chosen[event]
    twice = kept & chosen[event] & (generator.random(len(event)) < options.split_tracks)
    added, into = _from_others(event, np.arange(len(event)), options.fake_tracks * counts * chosen, generator)
    rows = np.concatenate([np.flatnonzero(kept), np.flatnonzero(twice), added])
    order, new_counts = _grouped(np.concatenate([event[kept], event[twice], into]), len(events))
    poor = np.zeros(len(rows), dtype=np.bool_)
    poor[kept.sum() : kept.sum() + twice.sum()] = True
    rows, poor = rows[order], poor[order]

    stretch = np.where(poor, np.exp(SPLIT_MOMENTUM * generator.standard_normal(len(rows))), 1.0)
    columns: dict[str, Values] = {name: ak.to_numpy(flat[name])[rows] for name in ("d0", "z0", "phi", "tan_lambda")}
    columns["charge"] = ak.to_numpy(flat.charge)[rows]
    columns["omega"] = ak.to_numpy(flat.omega)[rows] / stretch
    for field, prefix in (("momentum", "p"), ("calo_momentum", "calo_p")):
        vectors = jagged.vectors(flat[field])[rows] * stretch[:, np.newaxis]
        columns |= {f"{prefix}{axis}": vectors[:, k] for k, axis in enumerate("xyz")}
    positions = jagged.vectors(flat.calo_position)[rows]
    columns |= {f"calo_{axis}": positions[:, k] for k, axis in enumerate("xyz")}
    tracks = make_tracks(
        b_field=events.detector.b_field,
        **{name: jagged.unflatten(values, new_counts) for name, values in columns.items()},
    )
    links = None if events.track_links is None else _kept_links(events.track_links, counts, kept, twice)
    return dataclasses.replace(events, tracks=tracks, track_links=links)


def _hadron_fraction(events: Events) -> Values:
    """Fraction of each hit's energy that hadrons left, [all hits]; 0 without truth."""
    counts = jagged.count(events.hits)
    n = int(counts.sum())
    if events.hit_links is None or events.truth is None:
        return np.zeros(n)
    hadron = np.isin(class_index(jagged.flat(events.truth.pdg)), HADRONS)
    particle = jagged.global_index(events.hit_links.particle, jagged.count(events.truth))
    weight = jagged.flat(events.hit_links.weight, np.float64) * hadron[particle]
    return np.asarray(
        np.bincount(jagged.global_index(events.hit_links.source, counts), weight, minlength=n), np.float64
    )


def _quantiles(values: Values, group: Index, n_groups: int, quantile: float) -> Values:
    return np.array([np.quantile(v, quantile) if len(v := values[group == k]) else 0.0 for k in range(n_groups)])


def _from_others(event: Index, donors: Index, means: Values, generator: np.random.Generator) -> tuple[Index, Index]:
    """Rows to add and the events that they are added to: a Poisson number, drawn from the donors of other events."""
    into = np.repeat(np.arange(len(means)), generator.poisson(means))
    if not len(donors):
        return donors[:0], into[:0]
    drawn = donors[generator.integers(len(donors), size=len(into))]
    other = event[drawn] != into
    return drawn[other], into[other]


def _grouped(into: Index, n: int) -> tuple[Index, Index]:
    """Order of rows by event, in an event as they come, and the number of rows of each of `n` events."""
    return np.argsort(into, kind="stable"), np.bincount(into, minlength=n)


def _kept_links(links: ak.Array, counts: Index, kept: Mask, twice: Mask | None) -> ak.Array:
    """Links of what is kept, at its new place: the kept ones of an event come first, then those found twice."""
    event = jagged.event_index(counts)
    source = jagged.global_index(links.source, counts)
    of_event = jagged.event_index(jagged.count(links))
    n_kept = np.bincount(event[kept], minlength=len(counts))
    parts = [(kept, np.zeros(len(counts), dtype=np.int64)), *([] if twice is None else [(twice, n_kept)])]
    rows, places = [], []
    for mask, first in parts:
        number = np.cumsum(mask) - mask  # among the marked ones of all events
        in_event = number - jagged.offsets(np.bincount(event[mask], minlength=len(counts)))[event]
        row = np.flatnonzero(mask[source])
        rows.append(row)
        places.append(in_event[source[row]] + first[of_event[row]])
    row, place = np.concatenate(rows), np.concatenate(places)
    order, n_links = _grouped(of_event[row], len(counts))
    particle, weight = (jagged.flat(links[name])[row[order]] for name in ("particle", "weight"))
    return flat_links(n_links, source=place[order], particle=particle, weight=weight)
