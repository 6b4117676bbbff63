"""Which tokens and targets are made from an event (`TokenConfig`), and encoded events and particles as flat arrays."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.config import from_plain
from pflow.errors import ConfigError, check_choice
from pflow.event import jagged
from pflow.event.events import event_rows
from pflow.event.merge_hits import Merge
from pflow.event.truth import RULES, STABLE_STATUS
from pflow.physics.arrays import Index, Mask
from pflow.tokens.features import feature_transforms

HIT_FEATURES = ("log_energy", "x", "y", "z")
"""The first paper's features of a hit, with the energy as a logarithm."""

ORDERS = ("energy", "tracks_first")
"""``energy``: decreasing energy. ``tracks_first``: charged particles that have a track, then all others, each by
decreasing energy."""

PARTS = ("hits", "tracks", "tracker_hits")
"""Parts of the events that source tokens are made of."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenConfig:
    """Which tokens and targets are made from an event; ConfigError for an option that cannot be.

    `rule`, `e_min` [GeV], `stable_status` and `invisible` are as of `pflow.event.truth.select_targets`, `order` is one
    of `ORDERS`, features are names of `pflow.tokens.features.FEATURES`. Without track features the
    source has no tracks, and a track does not make a particle a target; without tracker hit features it has no tracker
    hits. Hits with at most `hit_energy_min`, GeV, are dropped, the others summed into the cells of `merge` (or plain
    data for it), one token each; None: one token for each hit. With `coarse` the PDG vocabulary has one code for each
    of the five classes only, with `readout` the model also gets hits and tracks in physical units, and in training the
    targets' fractions of them. With `geometry` a model is for any described detector: it knows the kind of a hit's
    calorimeter and the hit's depth there (`pflow.physics.geometry`), and neither the calorimeter nor the layer.
    """

    rule: str = "stable"
    e_min: float = 0.1
    stable_status: tuple[int, ...] = STABLE_STATUS
    invisible: tuple[int, ...] = ()
    order: str = "energy"
    hit_features: tuple[str, ...] = HIT_FEATURES
    track_features: tuple[str, ...] = ()
    tracker_hit_features: tuple[str, ...] = ()
    hit_energy_min: float = 0.0
    coarse: bool = False
    merge: Merge | None = None
    readout: bool = False
    geometry: bool = False

    def __post_init__(self) -> None:
        check_choice(self.rule, RULES, "truth rule")
        check_choice(self.order, ORDERS, "target order")
        if self.merge is not None:
            object.__setattr__(self, "merge", from_plain(Merge, self.merge, where="merge"))
        if not self.hit_features:
            raise ConfigError("a token of a hit needs at least one feature")
        for part in PARTS:
            object.__setattr__(self, _field(part), tuple(self.features(part)))
            feature_transforms(part, self.features(part))
        for name in ("e_min", "hit_energy_min"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be an energy of at least 0 GeV, found {getattr(self, name)}")

    @property
    def chosen_by(self) -> dict[str, Any]:
        """How targets are chosen, as options of `pflow.event.truth.select_targets`."""
        options = {name: getattr(self, name) for name in ("rule", "e_min", "stable_status", "invisible")}
        return {**options, "use_tracks": bool(self.track_features)}

    def features(self, part: str) -> tuple[str, ...]:
        """Names of the features of a part: ``hits``, ``tracks`` or ``tracker_hits``."""
        names: tuple[str, ...] = getattr(self, _field(part))
        return names


def _field(part: str) -> str:
    return f"{part.removesuffix('s')}_features"


OFFSETS = {
    **{name: name for name in ("hits", "tracks", "tracker_hits")},
    **dict.fromkeys(("charge", "pdg", "energy", "direction"), "target"),
    **{f"readout.{name}": "readout_hits" for name in ("energy", "position", "subdetector", "layer", "token")},
    **{f"readout.track_{name}": "readout_tracks" for name in ("momentum", "charge", "position", "direction")},
    **{
        f"readout.{pairs}.{name}": pairs
        for pairs in ("hit_assignment", "track_assignment")
        for name in ("source", "particle", "weight")
    },
}
"""The arrays of `Tokens`, and the offsets that belong to each."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Tokens:
    """Encoded events, concatenated.

    arrays
        By name; without arrays that the configuration does not ask for or that need truth the events lack:

        hits, tracks, tracker_hits : float32 [N, F], normalised
        charge : int64 [T], index into `pflow.tokens.vocab.CHARGES`
        pdg : int64 [T], index into the PDG vocabulary
        energy : float32 [T], log10(E / GeV), normalised
        direction : float32 [T, 3], unit vector
        readout.energy, readout.track_momentum etc.
            The N hits that become tokens, in the order of the events', and K tracks, in physical units: the fields of
            `pflow.data.batch.Readout`. A null ``track_position`` is unknown, with the direction at the vertex.
        readout.hit_assignment.source, .particle, .weight : int32, int64, float32 [L]
            Links from hits to the target sequence; ``track_assignment`` those from tracks.
    offsets
        int64 [event + 1] for ``hits``, ``tracks``, ``tracker_hits`` and ``target``, and for ``readout_hits``,
        ``readout_tracks``, ``hit_assignment`` and ``track_assignment`` of the readout: where events begin and end.
        Indices count within their event.
    event, entry : int64 [event], event number, and entry in the file `path`
    unknown
        How often each |PDG| that is not in the vocabulary occurred in all events that were encoded together.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    offsets: dict[str, Index]
    event: Index
    entry: Index
    path: str
    unknown: Counter[int]

    def __len__(self) -> int:
        return len(self.event)

    def __getitem__(self, which: int | slice | npt.NDArray[Any] | Sequence[int]) -> Tokens:
        """Some of the events: an index or a slice as views into the arrays, a mask or a list of indices as copies."""
        which = event_rows(which, len(self))
        rows = np.arange(len(self))[which]
        consecutive = isinstance(which, slice) and which.step in (None, 1)
        chosen: dict[str, slice | Index] = {}
        offsets: dict[str, Index] = {}
        for name, bounds in self.offsets.items():
            begin, counts = bounds[rows], bounds[rows + 1] - bounds[rows]
            offsets[name] = jagged.offsets(counts)
            if consecutive:
                first = int(begin[0]) if len(rows) else 0
                chosen[name] = slice(first, first + int(offsets[name][-1]))
            else:
                chosen[name] = np.repeat(begin, counts) + jagged.local_index(counts)
        arrays = {name: values[chosen[OFFSETS[name]]] for name, values in self.arrays.items()}
        return dataclasses.replace(self, arrays=arrays, offsets=offsets, event=self.event[rows], entry=self.entry[rows])

    @property
    def n_source(self) -> Index:
        """Number of source tokens of all types of each event, int64 [event]."""
        counts = [np.diff(self.offsets[part]) for part in PARTS if part in self.offsets]
        return np.asarray(np.sum(counts, axis=0))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParticleTokens:
    """The N particles of B events as a model gives them, one event after the other; input of `tokens.particles.decode`.

    counts : int64 [B], number of particles of each event
    charge, pdg : int [N], indices into the vocabularies
    energy : float [N], log10(E / GeV), normalised
    direction : float [N, 3]; any length, a null vector becomes +z
    score : float [N], probability of the code; None: the one of `pdg` in `pdg_probability`, or unknown (NaN)
    pdg_probability : float [N, V], of each |PDG| of the vocabulary
    energy_sigma, direction_sigma : float [N], of ln E, and of each tangent-plane angle, rad
    by_track : bool [N], True = charged, with the momentum of a track
    existence : float [N], probability that the particle exists; None: not known, or energies include it
    """

    counts: Index
    charge: npt.NDArray[np.integer[Any]]
    pdg: npt.NDArray[np.integer[Any]]
    energy: npt.NDArray[np.floating[Any]]
    direction: npt.NDArray[np.floating[Any]]
    score: npt.NDArray[np.floating[Any]] | None = None
    pdg_probability: npt.NDArray[np.floating[Any]] | None = None
    energy_sigma: npt.NDArray[np.floating[Any]] | None = None
    direction_sigma: npt.NDArray[np.floating[Any]] | None = None
    by_track: Mask | None = None
    existence: npt.NDArray[np.floating[Any]] | None = None

    def finite(self) -> Mask:
        """Whether all numbers of each event's particles are finite, bool [B]."""
        names = ("energy", "direction", "score", "pdg_probability", "energy_sigma", "direction_sigma", "existence")
        finite = [np.isfinite(values) for name in names if (values := getattr(self, name)) is not None]
        not_finite = ~np.all([known if known.ndim == 1 else known.all(axis=1) for known in finite], axis=0)
        n_not_finite = np.bincount(jagged.event_index(self.counts)[not_finite], minlength=len(self.counts))
        return np.equal(n_not_finite, 0)
