"""Encoded events as flat arrays with offsets, which are cheap to cut into events; and generated particles as arrays."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Assignment", "EventReadout", "EventTokens", "ParticleTokens", "Tokens"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Assignment:
    """Which target has which fraction of which hits (or tracks): L pairs with a weight above 0.

    Parameters
    ----------
    source : int64 [L], index of the hit (track) in the event's readout
    target : int64 [L], index of the particle in the event's target sequence
    weight : float32 [L], 0 to 1; the weights of a hit sum to at most 1, and to less where particles that are no targets
        have a fraction of it
    """

    source: Ints
    target: Ints
    weight: Floats

    def cut(self, part: slice) -> Assignment:
        """A part of the pairs, as views."""
        return Assignment(source=self.source[part], target=self.target[part], weight=self.weight[part])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EventReadout:
    """Hits and tracks in physical units: the N hits that the recipe keeps, in the order of the event's, and K tracks.

    Parameters
    ----------
    energy : float32 [N], GeV
    position : float32 [N, 3], mm
    subdetector : int64 [N], index into the detector's calorimeters
    layer : int64 [N], -1 unknown
    token : int64 [N], index of the event's hit token that the hit is part of
    track_momentum : float32 [K, 3], at the vertex, GeV
    track_charge : float32 [K], e
    track_position : float32 [K, 3], where the track enters the calorimeter, mm; null if unknown
    track_direction : float32 [K, 3], unit vector of its momentum there; at the vertex if unknown
    hit_assignment, track_assignment
        The targets' fractions of hits and tracks, or None without truth.
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
    hit_assignment: Assignment | None = None
    track_assignment: Assignment | None = None

    def cut(self, hits: slice, tracks: slice, hit_pairs: slice, track_pairs: slice) -> EventReadout:
        """A part of joined readouts, as views."""
        where = dict.fromkeys(("energy", "position", "subdetector", "layer", "token"), hits)
        where |= dict.fromkeys(("track_momentum", "track_charge", "track_position", "track_direction"), tracks)
        return EventReadout(
            **{name: getattr(self, name)[part] for name, part in where.items()},
            hit_assignment=None if self.hit_assignment is None else self.hit_assignment.cut(hit_pairs),
            track_assignment=None if self.track_assignment is None else self.track_assignment.cut(track_pairs),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class EventTokens:
    """One event, ready to be padded into a batch.

    Parameters
    ----------
    hits : float32 [S, F], normalised
    tracks, tracker_hits : float32 [K, F] and [R, F], normalised, or None where they are no part of the source
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


_OFFSETS = {
    **{name: name for name in ("hits", "tracks", "tracker_hits")},
    **dict.fromkeys(("charge", "pdg", "energy", "direction"), "target"),
}
"""Which offsets belong to which array of `Tokens`."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Tokens:
    """Consecutive events: the arrays of `EventTokens` one event after the other.

    Parameters
    ----------
    hits, tracks, tracker_hits, charge, pdg, energy, direction, readout
        As in `EventTokens`, joined along their first axis; indices count within their event.
    offsets
        int64 [event + 1] for ``hits``, ``tracks``, ``tracker_hits`` and ``target``, and for ``readout_hits``,
        ``readout_tracks``, ``hit_assignment`` and ``track_assignment`` of the readout: where events begin and end.
    event : int64 [event], event number
    flags : uint32 [event], `pflow.event.events.Flag` bits; UNKNOWN_PDG where a target's code is not in the vocabulary
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

    @functools.cached_property
    def _bounds(self) -> dict[str, list[int]]:
        """The offsets as Python's numbers, which are faster one by one."""
        return {name: offsets.tolist() for name, offsets in self.offsets.items()}

    def __getitem__(self, index: int) -> EventTokens:
        """One event, as views into the joined arrays."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"event {index} of {len(self)}")
        index %= len(self)

        def part(name: str) -> slice:
            bounds = self._bounds.get(name)
            return slice(0) if bounds is None else slice(bounds[index], bounds[index + 1])

        arrays = {name: getattr(self, name) for name in _OFFSETS}
        names = ("readout_hits", "readout_tracks", "hit_assignment", "track_assignment")
        cut: dict[str, Any] = {
            name: None if values is None else values[part(_OFFSETS[name])] for name, values in arrays.items()
        }
        return EventTokens(**cut, readout=None if self.readout is None else self.readout.cut(*map(part, names)))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParticleTokens:
    """Particles of B events as a model gives them, padded to T: the input of `pflow.tokens.decode.decode`.

    Parameters
    ----------
    charge, pdg : int [B, T], indices into the vocabularies
    energy : float [B, T], log10(E / GeV), normalised
    direction : float [B, T, 3]; any length, a null vector becomes +z
    mask : bool [B, T], True = real particle
    score : float [B, T] or None
        Probability of the particle's code. If None, that of `pdg` in `pdg_probability`, or unknown (NaN) without it.
    pdg_probability : float [B, T, V] or None
        Probability of each |PDG| of the vocabulary.
    energy_sigma, direction_sigma : float [B, T] or None
        Standard deviations of ln E and of each of the two angles across the direction, rad; both or neither.
    by_track : bool [B, T] or None
        True = charged, with the momentum of a track.

    Raises
    ------
    ValueError
        One of the standard deviations without the other.
    """

    charge: npt.ArrayLike
    pdg: npt.ArrayLike
    energy: npt.ArrayLike
    direction: npt.ArrayLike
    mask: npt.ArrayLike
    score: npt.ArrayLike | None = None
    pdg_probability: npt.ArrayLike | None = None
    energy_sigma: npt.ArrayLike | None = None
    direction_sigma: npt.ArrayLike | None = None
    by_track: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        if (self.energy_sigma is None) != (self.direction_sigma is None):
            raise ValueError("a covariance needs energy_sigma and direction_sigma, found one of them")

    def flat(self, name: str) -> npt.NDArray[Any] | None:
        """A column of the real particles alone, [particle, ...]; None where there is none."""
        values = getattr(self, name)
        return None if values is None else np.asarray(values)[np.asarray(self.mask, dtype=np.bool_)]

    def finite(self) -> npt.NDArray[np.bool_]:
        """Whether all numbers of each event's particles are finite, bool [B]."""
        real = np.asarray(self.mask, dtype=np.bool_)
        good = np.ones(real.shape, dtype=np.bool_)
        for name in ("energy", "direction", "score", "pdg_probability", "energy_sigma", "direction_sigma"):
            if (values := getattr(self, name)) is not None:
                numbers = np.isfinite(np.asarray(values))
                good &= numbers if numbers.ndim == 2 else numbers.all(axis=2)
        return np.asarray((good | ~real).all(axis=1))
