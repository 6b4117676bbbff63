"""Tokens: encoded events as flat arrays with offsets, cheap to cut into events and to shuffle."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EventReadout", "EventTokens", "Shares", "Tokens"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Shares:
    """Which target has which share of which hits (or tracks); L pairs with a share above 0.

    Parameters
    ----------
    source : int64 [L], index of the hit (track) in the event's readout
    target : int64 [L], index of the particle in the event's target sentence
    share : float32 [L], 0 to 1; those of a hit sum to at most 1, less where it is also of particles that are no target
    """

    source: Ints
    target: Ints
    share: Floats


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EventReadout:
    """What the detector measured, in physical units: N hits, in the order of the event's, without those that the
    recipe leaves out, and K tracks.

    Parameters
    ----------
    energy : float32 [N], GeV
    position : float32 [N, 3], mm
    subdetector : int64 [N], index into the detector's calorimeters
    layer : int64 [N], -1 unknown
    token : int64 [N], index of the event's hit token that the hit is part of
    track_momentum : float32 [K, 3], at the vertex, GeV
    track_charge : float32 [K], e
    track_position : float32 [K, 3], where the track enters the calorimeter, mm; null where that is not known
    track_direction : float32 [K, 3], unit vector of its momentum there; that at the vertex where that is not known
    hit_shares, track_shares
        The targets' shares of hits and tracks, or None without truth.
    """

    energy: Floats
    position: Floats
    subdetector: Ints
    layer: Ints
    token: Ints
    track_momentum: Floats
    track_charge: Floats
    track_position: Floats
    track_direction: Floats
    hit_shares: Shares | None = None
    track_shares: Shares | None = None

    def cut(self, hits: slice, tracks: slice, hit_shares: slice, track_shares: slice) -> EventReadout:
        """A part of joined readouts, as views: `hits` and `tracks` of its arrays, the others of its shares."""
        where = dict.fromkeys(("energy", "position", "subdetector", "layer", "token"), hits)
        where |= dict.fromkeys(("track_momentum", "track_charge", "track_position", "track_direction"), tracks)
        return EventReadout(
            **{name: getattr(self, name)[part] for name, part in where.items()},
            hit_shares=_cut_shares(self.hit_shares, hit_shares),
            track_shares=_cut_shares(self.track_shares, track_shares),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class EventTokens:
    """One event, ready to be padded into a batch.

    Parameters
    ----------
    hits : float32 [S, F], normalised
    tracks, tracker_hits : float32 [K, F] and [R, F], normalised, or None where the source does not ask for them
    charge : int64 [T], index into `pflow.tokens.vocab.CHARGES`, or None without truth
    pdg : int64 [T], index into the PDG vocabulary, or None without truth
    energy : float32 [T], log10(E / GeV), normalised, or None without truth
    direction : float32 [T, 3], unit vector, or None without truth
    readout
        Hits and tracks in physical units, or None where the recipe does not ask for them.
    """

    hits: Floats
    tracks: Floats | None = None
    tracker_hits: Floats | None = None
    charge: Ints | None = None
    pdg: Ints | None = None
    energy: Floats | None = None
    direction: Floats | None = None
    readout: EventReadout | None = None

    @property
    def n_source(self) -> int:
        """Number of source tokens of all types."""
        return sum(len(part) for part in (self.hits, self.tracks, self.tracker_hits) if part is not None)

    @property
    def n_target(self) -> int:
        """Number of target particles; 0 without truth."""
        return 0 if self.charge is None else len(self.charge)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Tokens:
    """Consecutive events in tokens: the arrays of `EventTokens` one event after the other, and where each begins.

    Parameters
    ----------
    hits, tracks, tracker_hits, charge, pdg, energy, direction, readout
        As in `EventTokens`, joined along their first axis; indices count within their event.
    offsets
        int64 [event + 1] for ``hits``, ``tracks``, ``tracker_hits`` and ``target``, and for ``readout_hits``,
        ``readout_tracks``, ``hit_shares`` and ``track_shares`` of the readout: where events begin and end.
    event : int64 [event], event number
    flags : uint32 [event], `pflow.event.events.Flag` bits; UNKNOWN_PDG where a target's code went by its class
    unknown
        How often each |PDG| that is not in the vocabulary occurred.
    """

    hits: Floats
    tracks: Floats | None
    tracker_hits: Floats | None
    charge: Ints | None
    pdg: Ints | None
    energy: Floats | None
    direction: Floats | None
    readout: EventReadout | None
    offsets: dict[str, Ints]
    event: Ints
    flags: npt.NDArray[np.uint32]
    unknown: Counter[int]

    def __len__(self) -> int:
        return len(self.event)

    def __getitem__(self, index: int) -> EventTokens:
        """One event, as views into the joined arrays."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"event {index} of {len(self)}")
        index %= len(self)

        def part(name: str) -> slice:
            offsets = self.offsets.get(name)
            return slice(0) if offsets is None else slice(int(offsets[index]), int(offsets[index + 1]))

        def cut(name: str, values: Any) -> Any:
            return None if values is None else values[part(name)]

        readout = None
        if self.readout is not None:
            readout = self.readout.cut(
                *(part(n) for n in ("readout_hits", "readout_tracks", "hit_shares", "track_shares"))
            )

        return EventTokens(
            hits=cut("hits", self.hits),
            tracks=cut("tracks", self.tracks),
            tracker_hits=cut("tracker_hits", self.tracker_hits),
            charge=cut("target", self.charge),
            pdg=cut("target", self.pdg),
            energy=cut("target", self.energy),
            direction=cut("target", self.direction),
            readout=readout,
        )


def _cut_shares(shares: Shares | None, part: slice) -> Shares | None:
    if shares is None:
        return None
    return Shares(source=shares.source[part], target=shares.target[part], share=shares.share[part])
