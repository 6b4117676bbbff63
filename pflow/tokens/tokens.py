"""Tokens: encoded events as flat arrays with offsets, cheap to cut into events and to shuffle."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EventTokens", "Tokens"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


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
    """

    hits: Floats
    tracks: Floats | None = None
    tracker_hits: Floats | None = None
    charge: Ints | None = None
    pdg: Ints | None = None
    energy: Floats | None = None
    direction: Floats | None = None

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
    hits, tracks, tracker_hits, charge, pdg, energy, direction
        As in `EventTokens`, joined along their first axis.
    offsets
        int64 [event + 1] for ``hits``, ``tracks``, ``tracker_hits`` and ``target``: where events begin and end.
    event : int64 [event], event number
    flags : uint32 [event], `pflow.events.Flag` bits; UNKNOWN_PDG where a target's code went by its class
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

        def cut(name: str, values: Any) -> Any:
            return None if values is None else values[self.offsets[name][index] : self.offsets[name][index + 1]]

        return EventTokens(
            hits=cut("hits", self.hits),
            tracks=cut("tracks", self.tracks),
            tracker_hits=cut("tracker_hits", self.tracker_hits),
            charge=cut("target", self.charge),
            pdg=cut("target", self.pdg),
            energy=cut("target", self.energy),
            direction=cut("target", self.direction),
        )
