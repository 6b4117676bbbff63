"""Tokens: which are made from an event (`TokenConfig`), and events and particles as flat arrays."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.config import from_plain
from pflow.errors import ConfigError, check_choice, check_options
from pflow.event import jagged
from pflow.event.events import Events, event_rows
from pflow.event.jagged import Links
from pflow.event.merge import Grid, Merge, merge_hits
from pflow.event.schema import PXYZ, XYZ
from pflow.event.truth import RULES, STABLE_STATUS, Targets, select_targets
from pflow.physics.arrays import Floats, Index, Mask, double, namespace, single
from pflow.physics.kinematics import unit_vector
from pflow.tokens.features import at_hadron_scale, columns_of, features_of, kind_and_depth

HIT_FEATURES = ("log_energy", "x", "y", "z")  # the first paper's features of a hit, with the energy as a logarithm

ORDERS = ("energy", "tracks_first")
"""``energy``: decreasing energy. ``tracks_first``: charged particles that have a track, then all others, each by
decreasing energy."""

PARTS = ("hits", "tracks", "tracker_hits")  # parts of the events that source tokens are made of


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenConfig:
    """Which tokens and targets are made from an event; ConfigError for an option that cannot be.

    Parameters
    ----------
    rule
        Truth rule, which says which particles are targets: ``stable``, ``calo`` or ``entering``.
    e_min
        Smallest energy of a target, GeV.
    stable_status
        Generator status of stable particles under rule ``stable``, where a generator has codes of its own.
    invisible
        |PDG| of particles that no detector sees, in addition to `pflow.physics.pdg.INVISIBLE`.
    order
        Of the target sequence (`pflow.tokens.tokens.ORDERS`).
    hit_features
        Features of the tokens of hits (names in `pflow.tokens.features`).
    track_features
        Features of the tokens of tracks; none: no such tokens, and a track does not make a particle a target.
    tracker_hit_features
        Features of the tokens of tracker hits; none: no such tokens.
    hit_energy_min
        Hits with at most this energy, GeV, as the file has it, are left out.
    coarse
        Whether to distinguish five particle classes only, instead of every PDG code in training.
    merge
        Sum hits into coarser cells, one token each: their size in mm in ECAL and HCAL (``ecal_mm``, ``hcal_mm``) and
        the number of ``layers`` summed together, or their ``depth``, and the ``ecal_sizes`` of a training; none: a
        token for each hit.
    geometry
        Whether the model is for any described detector: it reads the kind of a hit's calorimeter and the hit's depth
        there (`pflow.physics.geometry`) instead of calorimeter and layer, and energies times the detector's
        ``hadron_scale`` (HCAL) and ``electron_scale`` (ECAL).
    readout
        Whether the model also gets hits and tracks in physical units, and in training the targets' fractions of them.
    """

    rule: str = "stable"
    e_min: float = 0.1
    stable_status: Sequence[int] = STABLE_STATUS
    invisible: Sequence[int] = ()
    order: str = "energy"
    hit_features: Sequence[str] = HIT_FEATURES
    track_features: Sequence[str] = ()
    tracker_hit_features: Sequence[str] = ()
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
        # A list, as YAML has it, would not equal the tuple of a checkpoint.
        for name in ("stable_status", "invisible", *map(_field, PARTS)):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for part in PARTS:
            # For its error alone: an unknown feature is refused before any file is read.
            features_of(part, self.features(part))
        if self.merge is not None and self.merge.ecal_sizes and "token_size" not in self.hit_features:
            raise ConfigError("merge.ecal_sizes needs the hit feature token_size: else the model cannot tell the sizes")
        energies = "e_min", "hit_energy_min"
        check_options(self, "data", "an energy of at least 0 GeV", lambda energy: energy >= 0, *energies)

    @property
    def chosen_by(self) -> dict[str, Any]:
        """How targets are chosen, as options of `pflow.event.truth.select_targets`."""
        options = {name: getattr(self, name) for name in ("rule", "e_min", "stable_status", "invisible")}
        return {**options, "use_tracks": bool(self.track_features)}

    def merging(self, ecal_mm: float) -> TokenConfig:
        """The same with the ECAL's cells merged to another size, mm; `ConfigError`: no size that training has shown."""
        merge, shown = self.merge, "with one size"
        if merge is not None and (sizes := merge.ecal_sizes):
            if min(sizes) <= ecal_mm <= max(sizes):
                return dataclasses.replace(self, merge=dataclasses.replace(merge, ecal_mm=ecal_mm))
            shown = f"with {min(sizes):g} to {max(sizes):g} mm"
        raise ConfigError(f"cannot merge the cells of the ECAL to {ecal_mm:g} mm: the model was trained {shown}")

    def features(self, part: str) -> tuple[str, ...]:
        """Names of the features of a part: ``hits``, ``tracks`` or ``tracker_hits``."""
        names: tuple[str, ...] = getattr(self, _field(part))
        return names


def _field(part: str) -> str:
    return f"{part.removesuffix('s')}_features"


OFFSETS = {
    **{name: name for name in PARTS},
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
        charge : int64 [T], index into `pflow.tokens.particles.CHARGES`
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
        """Copies of some of the events, chosen by an index, a slice, a mask or a list of indices."""
        rows = np.arange(len(self))[event_rows(which, len(self))]
        chosen: dict[str, Index] = {}
        offsets: dict[str, Index] = {}
        for name, bounds in self.offsets.items():
            counts = bounds[rows + 1] - bounds[rows]
            offsets[name] = jagged.offsets(counts)
            chosen[name] = np.repeat(bounds[rows], counts) + jagged.local_index(counts)
        arrays = {name: values[chosen[OFFSETS[name]]] for name, values in self.arrays.items()}
        return dataclasses.replace(self, arrays=arrays, offsets=offsets, event=self.event[rows], entry=self.entry[rows])

    @property
    def n_source(self) -> Index:
        """Number of source tokens of all types of each event, int64 [event]."""
        counts = [np.diff(self.offsets[part]) for part in PARTS if part in self.offsets]
        return np.asarray(np.sum(counts, axis=0))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParticleTokens:
    """The N particles of B events as a model outputs them, event by event; input of `Tokeniser.decode`.

    counts : int64 [B], number of particles of each event
    charge, pdg : int [N], indices into the vocabularies
    energy : float [N], log10(E / GeV), normalised
    direction : float [N, 3]; any length, a null vector becomes +z
    score : float [N], probability of the code; None: the one of `pdg` in `pdg_probability`, or unknown (NaN)
    pdg_probability : float [N, V], of each |PDG| of the vocabulary
    energy_sigma, direction_sigma : float [N], of ln E, and of each tangent-plane angle, rad
    by_track : bool [N], True = charged, with the momentum of a track
    existence : float [N], probability that the particle exists; None: not known
    listed : bool [N], False = a candidate, behind the particles of its event's list; None: all are listed
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
    listed: Mask | None = None

    def finite(self) -> Mask:
        """Whether all numbers of each event's particles are finite, bool [B]."""
        names = ("energy", "direction", "score", "pdg_probability", "energy_sigma", "direction_sigma", "existence")
        given = [values for name in names if (values := getattr(self, name)) is not None]
        return jagged.finite_events(given, self.counts)


def kept_hits(events: Events, config: TokenConfig) -> ak.Array:
    """Index of each hit that the configuration keeps, int64 [event, kept hit]: the order of the readout's hits."""
    counts = jagged.count(events.hits)
    is_kept = jagged.flat(events.hits.energy) > config.hit_energy_min
    # minlength: the last events may keep no hit.
    n_kept = np.bincount(jagged.event_index(counts)[is_kept], minlength=len(counts))
    return jagged.unflatten(jagged.local_index(counts)[is_kept], n_kept)


class Selection(NamedTuple):
    """Of N hits: `tokens`, events of one hit a token; is_kept bool [N]; token int64 [number kept], each kept hit's.

    `hits` has those kept, unmerged, [event, hit], with the energies that the model reads. `measured` is their
    `kind_and_depth`, None where the configuration does not ask for it.
    """

    tokens: Events
    hits: ak.Array
    is_kept: Mask
    token: Index
    measured: tuple[Index, Floats] | None


def select(events: Events, config: TokenConfig) -> Selection:
    """The hits that become tokens, without links, which count hits: select the targets before."""
    # Before the energies are scaled below: the threshold is on the file's energies.
    flat = jagged.columns(events.hits)["energy"] > config.hit_energy_min
    # Most often every hit is above the threshold; then nothing is copied.
    hits = events.hits if flat.all() else events.hits[jagged.unflatten(flat, jagged.count(events.hits))]
    measured = None
    if config.geometry:
        hits = jagged.replaced(hits, {"energy": at_hadron_scale(jagged.columns(hits), events.detector)})
        columns = columns_of(dataclasses.replace(events, hits=hits), "hits")
        measured = kind_and_depth(columns, events.detector)
    selected = dataclasses.replace(events, hits=hits, hit_links=None)
    if config.merge is None:
        return Selection(selected, hits, flat, jagged.local_index(jagged.count(hits)), measured)
    depth = None if measured is None else measured[1]
    merged, cell_of = merge_hits(selected, config.merge, depth=depth)
    if "token_size" in config.hit_features:
        size = Grid.of(events.detector, config.merge).size[jagged.columns(merged)["subdetector"]]
        merged = jagged.replaced(merged, {"merged_size": size})
    return Selection(dataclasses.replace(selected, hits=merged), hits, flat, jagged.flat(cell_of), measured)


def targets_of(events: Events, config: TokenConfig) -> Targets:
    """The target sequences."""
    return sort_targets(select_targets(events, **config.chosen_by), config.order)


def sort_targets(targets: Targets, order: str) -> Targets:
    """The same targets in one of `pflow.tokens.tokens.ORDERS`.

    Ties by energy (decreasing), |PDG|, charge and momentum, not by the file.
    """
    columns = {name: targets.column(name) for name in ("n_tracks", "energy", "pdg", "charge", *PXYZ)}
    without_track = (columns["charge"] == 0) | (columns.pop("n_tracks") == 0) | (order != "tracks_first")
    keys = {**columns, "energy": -columns["energy"], "pdg": np.abs(columns["pdg"])}
    # The last key is the first that counts.
    sorting = np.lexsort((*reversed(keys.values()), without_track, jagged.event_index(targets.counts)))
    added = {name: values[sorting] for name, values in targets.added.items()}
    return dataclasses.replace(targets, chosen=targets.chosen[sorting], added=added)


def directions(targets: Targets, events: Events) -> npt.NDArray[np.float32]:
    """Unit vectors of the targets' momenta, float32 [N, 3]."""
    momentum = np.stack([targets.column(name) for name in PXYZ], axis=-1, dtype=np.float64)
    length = np.linalg.norm(momentum, axis=1)
    # Not `length <= 0`, which misses NaN.
    resting = np.flatnonzero(~(length > 0))
    if len(resting):
        message = f"a target particle needs a momentum above 0 to have a direction, found {length[resting[0]]} GeV"
        index = jagged.event_index(targets.counts)[resting[0]]
        raise events.error(message, index=index, field="truth.momentum")
    return np.asarray(momentum / length[:, np.newaxis], dtype=np.float32)


def make_readout(
    events: Events, selection: Selection, targets: Targets | None, *, use_tracks: bool
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Index]]:
    """The arrays of the readout of all events, and their offsets, as of `Tokens`; `targets`: None without truth."""
    n_hits, is_kept = jagged.count(events.hits), selection.is_kept
    tracks = events.tracks if use_tracks else None
    n_tracks = np.zeros_like(n_hits) if tracks is None else jagged.count(tracks)
    hits, n_kept = jagged.columns(selection.hits), jagged.count(selection.hits)
    offsets = {"readout_hits": jagged.offsets(n_kept), "readout_tracks": jagged.offsets(n_tracks)}
    arrays = readout_columns(hits, None if tracks is None else jagged.columns(tracks))
    subdetector, layer = selection.measured or (hits["subdetector"], hits["layer"])
    layer = layer.astype(np.int32 if selection.measured is None else np.float32)
    arrays |= {"subdetector": subdetector.astype(np.int32), "layer": layer, "token": selection.token}
    if targets is not None:
        hit_pairs = targets.links_to(targets.hits)
        hit_pairs = hit_pairs if is_kept.all() else hit_pairs.kept(is_kept, n_hits)  # most often all are
        track_links = None if tracks is None else targets.tracks
        track_pairs = Links.of(None, len(events)) if track_links is None else targets.links_to(track_links)
        for name, pairs in (("hit_assignment", hit_pairs), ("track_assignment", track_pairs)):
            offsets[name] = jagged.offsets(pairs.counts)
            arrays[f"{name}.source"] = pairs.source.astype(np.int32)
            arrays[f"{name}.particle"] = pairs.particle
            arrays[f"{name}.weight"] = pairs.weight.astype(np.float32)
    return {f"readout.{name}": values for name, values in arrays.items()}, offsets


def readout_columns(hits: Mapping[str, Any], tracks: Mapping[str, Any] | None) -> dict[str, Any]:
    """Energy and position of hits, and all of tracks, as of `pflow.data.batch.Readout`; arrays or tensors, float32.

    Of columns as of `pflow.event.jagged.columns`. A track whose position or momentum at the calorimeter is not finite
    has a null position, and the direction of its momentum at the vertex.
    """
    position = _vectors(hits, "position", XYZ)
    # Cut from the positions, so that it is a tensor where these are.
    null = position[:0]
    charge, momentum, entry, at_entry = null[:, 0], null, null, null
    if tracks is not None:
        charge, momentum = single(tracks["charge"]), _vectors(tracks, "momentum", PXYZ)
        entry, at_entry = _vectors(tracks, "calo_position", XYZ), _vectors(tracks, "calo_momentum", PXYZ)
    xp = namespace(position)
    known = (xp.isfinite(entry) & xp.isfinite(at_entry)).all(axis=1, keepdims=True)
    return {
        "energy": single(hits["energy"]),
        "position": position,
        "track_momentum": momentum,
        "track_charge": charge,
        "track_position": xp.where(known, entry, 0.0),
        "track_direction": single(unit_vector(double(xp.where(known, at_entry, momentum)))),
    }


def _vectors(columns: Mapping[str, Any], name: str, axes: Sequence[str]) -> Any:
    """Vectors float32 [N, 3] of their components."""
    components = [single(columns[f"{name}.{axis}"]) for axis in axes]
    return namespace(components[0]).stack(components, -1)
