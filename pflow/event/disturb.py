"""Disturbance of events: how a real detector differs from its simulation, for training and robustness tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import check_options
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import Links
from pflow.physics.arrays import Index, Mask

NOISE_QUANTILE = 0.25  # noise copies hits of its subdetector with an energy below this quantile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Sizes of disturbances, drawn for each event; the default changes nothing. ConfigError: a value out of range.

    Parameters
    ----------
    probability
        Fraction of the events that are disturbed.
    energy_scale
        Standard deviation of the relative calibration error of each subdetector.
    dead_cells
        Fraction of the hits that are lost.
    noise_hits
        Mean number of hits without a particle (Poisson), copied from soft hits of other events.
    lost_tracks
        Fraction of the tracks that are lost.
    fake_tracks
        Mean number of tracks without a particle, copied from other events, relative to the number of tracks.
    """

    probability: float = 1.0
    energy_scale: float = 0.0
    dead_cells: float = 0.0
    noise_hits: float = 0.0
    lost_tracks: float = 0.0
    fake_tracks: float = 0.0

    def __post_init__(self) -> None:
        fractions = "probability", "dead_cells", "lost_tracks"
        check_options(self, "disturb", "from 0 to 1", lambda fraction: 0 <= fraction <= 1, *fractions)
        sizes = "energy_scale", "noise_hits", "fake_tracks"
        check_options(self, "disturb", "at least 0", lambda size: 0 <= size < np.inf, *sizes)


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
    n_subdetectors = len(events.detector.calorimeters)
    scale = np.exp(options.energy_scale * generator.standard_normal((len(events), n_subdetectors)))
    factor = np.where(chosen[event], scale[event, subdetector], 1.0)
    columns["energy"] = energy = (columns["energy"] * factor).astype(columns["energy"].dtype)
    keep = (generator.random(len(event)) >= options.dead_cells) | ~chosen[event]

    by_subdetector = (energy[subdetector == number] for number in range(n_subdetectors))
    limits = np.array([np.quantile(values, NOISE_QUANTILE) if len(values) else 0.0 for values in by_subdetector])
    soft = np.flatnonzero(energy < limits[subdetector])
    hits = _with_copies(columns, event, keep, soft, options.noise_hits * chosen, generator)
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
    keep = (generator.random(len(event)) >= options.lost_tracks) | ~chosen[event]
    donors, means = np.arange(len(event)), options.fake_tracks * counts * chosen
    tracks = _with_copies(jagged.columns(events.tracks), event, keep, donors, means, generator)
    return dataclasses.replace(events, tracks=tracks, track_links=_kept_links(events.track_links, counts, keep))


def _with_copies(
    columns: Mapping[str, npt.NDArray[Any]],
    event: Index,
    keep: Mask,
    donors: Index,
    means: npt.NDArray[Any],
    generator: np.random.Generator,
) -> ak.Array:
    """Records [event, object] of the objects to keep and, after them, copies of `donors` of other events.

    `columns`, `event` and `keep` are of all objects, [N] each; the numbers of copies are Poisson with `means` [event].
    """
    target = np.repeat(np.arange(len(means)), generator.poisson(means if len(donors) else 0 * means))
    copied = donors[generator.integers(max(1, len(donors)), size=len(target))]
    is_other = event[copied] != target
    row_event = np.concatenate([event[keep], target[is_other]])
    rows = np.concatenate([np.flatnonzero(keep), copied[is_other]])[np.argsort(row_event, kind="stable")]
    counts = np.bincount(row_event, minlength=len(means))
    return jagged.records({name: values[rows] for name, values in columns.items()}, counts)


def _kept_links(records: ak.Array | None, counts: Index, keep: Mask) -> ak.Array | None:
    """Links of the sources that are kept, with new indices."""
    return None if records is None else Links.of(records).kept(keep, counts).records()
