"""Events to tokens: normalised source features and the target sequence."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.merge_hits import merge_hits
from pflow.event.truth import Targets, select_targets
from pflow.tokens.config import PARTS, TokenConfig
from pflow.tokens.features import FEATURES, columns_of, feature_columns, kind_and_depth
from pflow.tokens.readout import make_readout
from pflow.tokens.scale import Normaliser
from pflow.tokens.tokens import Tokens
from pflow.tokens.vocab import PdgVocabulary, charge_index

MOMENTUM = ("px", "py", "pz")


def select_hits(events: Events, config: TokenConfig) -> Events:
    """The events with the hits that become tokens, without links, which count hits: select the targets before."""
    return _select(events, config).tokens


def kept_hits(events: Events, config: TokenConfig) -> ak.Array:
    """Index of each hit that the configuration keeps, int64 [event, kept hit]: the order of the readout's hits."""
    counts = jagged.count(events.hits)
    is_kept = jagged.flat(events.hits.energy) > config.hit_energy_min
    n_kept = np.bincount(jagged.event_index(counts)[is_kept], minlength=len(counts))
    return jagged.unflatten(jagged.local_index(counts)[is_kept], n_kept)


def target_particles(events: Events, config: TokenConfig) -> ak.Array:
    """The target sequences, records [event, particle]: see `pflow.event.truth.Targets.particles`."""
    return _targets(events, config).particles


def encode(
    events: Events,
    config: TokenConfig,
    *,
    scales: Mapping[str, Normaliser],
    pdg: PdgVocabulary,
    energy: Normaliser,
    truth: bool = True,
    warn: bool = True,
) -> Tokens:
    """Turn events into tokens, with the target sequence unless `truth` is False; InputError for what they lack.

    With `warn`, PDG codes that are not in the vocabulary are warned of; the result counts them in either case.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    offsets: dict[str, npt.NDArray[np.int64]] = {}
    unknown: Counter[int] = Counter()
    targets = _targets(events, config) if truth else None
    if targets is not None:
        offsets["target"] = jagged.offsets(targets.counts)
        flat = {field: targets.column(field) for field in ("pdg", "charge", "energy", *MOMENTUM)}
        codes = flat["pdg"]
        arrays["pdg"], is_unknown = pdg.encode(codes)
        arrays["charge"] = charge_index(flat["charge"])
        arrays["energy"] = energy.apply(flat["energy"][:, np.newaxis])[:, 0]
        arrays["direction"] = _direction(flat, events, offsets["target"])
        unknown.update(np.abs(codes[is_unknown]).tolist())
        if warn and unknown:
            warnings.warn(unknown_pdg_message(unknown), stacklevel=3)
    with_time = any(FEATURES["hits"][name].field == "hits.time" for name in config.hit_features)
    selection = _select(events, config, with_time)
    for part in PARTS:
        if names := config.features(part):
            arrays[part], offsets[part] = _features(selection.tokens, part, names, scales[part])
    if config.readout:
        use_tracks = bool(config.track_features)
        readout, more = make_readout(
            events,
            is_kept=selection.is_kept,
            token=selection.token,
            use_tracks=use_tracks,
            targets=targets,
            measured=selection.measured,
        )
        arrays |= readout
        offsets |= more
    return Tokens(
        arrays=arrays, offsets=offsets, event=events.event, entry=events.entry, path=events.path, unknown=unknown
    )


def unknown_pdg_message(unknown: Counter[int]) -> str:
    """A warning of PDG codes that are not in the vocabulary, with their numbers."""
    codes = ", ".join(f"{code} ({count} times)" for code, count in sorted(unknown.items()))
    return f"{unknown.total()} particles have codes that are not in the vocabulary and get one of their class: {codes}"


def _features(
    events: Events, part: str, names: Sequence[str], scale: Normaliser
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Normalised features of a part, float32 [N, F], and where its events begin and end."""
    columns = feature_columns(events, part, names)
    return scale.apply_to(columns), jagged.offsets(jagged.count(getattr(events, part)))


class _Selection(NamedTuple):
    """Of N hits: `tokens`, events of one hit a token; is_kept bool [N]; token int64 [number kept].

    `measured` is `kind_and_depth` of the hits kept, None where the configuration does not ask for it.
    """

    tokens: Events
    is_kept: npt.NDArray[np.bool_]
    token: npt.NDArray[np.int64]
    measured: tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]] | None


def _select(events: Events, config: TokenConfig, with_time: bool = True) -> _Selection:
    flat = jagged.columns(events.hits)["energy"] > config.hit_energy_min
    # Most often every hit is above the threshold; then nothing is copied.
    hits = events.hits if flat.all() else events.hits[jagged.unflatten(flat, jagged.count(events.hits))]
    selected = dataclasses.replace(events, hits=hits, hit_links=None)
    measured = kind_and_depth(columns_of(selected, "hits"), events.detector) if config.geometry else None
    if config.merge is None:
        return _Selection(selected, flat, jagged.local_index(jagged.count(selected.hits)), measured)
    depth = None if measured is None else measured[1]
    merged = merge_hits(selected, config.merge, with_time=with_time, depth=depth)
    return _Selection(dataclasses.replace(selected, hits=merged.hits), flat, jagged.flat(merged.cell_of), measured)


def _targets(events: Events, config: TokenConfig) -> Targets:
    return sort_targets(select_targets(events, **config.chosen_by), config.order)


def sort_targets(targets: Targets, order: str) -> Targets:
    """The same targets in one of `pflow.tokens.config.ORDERS`.

    Ties by energy (decreasing), |PDG|, charge and momentum, not by the file.
    """
    energy, charge = (targets.column(field).astype(np.float64) for field in ("energy", "charge"))
    keys = [jagged.event_index(targets.counts), -energy]
    if order == "tracks_first":
        keys[0] = 2 * keys[0] + ~((charge != 0) & (targets.column("n_tracks") > 0))
    sorting = np.argsort(keys[1])  # of equal energies in any order, below by the other keys
    sorting = sorting[np.argsort(keys[0][sorting], kind="stable")]
    if np.all([key[sorting[1:]] == key[sorting[:-1]] for key in keys], axis=0).any():
        pdg = np.abs(targets.column("pdg").astype(np.float64))
        keys += [pdg, charge, *(targets.column(axis) for axis in MOMENTUM)]
        sorting = np.lexsort(keys[::-1])  # the last key is the first that counts
    added = {name: values[sorting] for name, values in targets.added.items()}
    return dataclasses.replace(targets, chosen=targets.chosen[sorting], added=added)


def _direction(
    flat: Mapping[str, npt.NDArray[Any]], events: Events, offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Unit vectors of the momenta, float32 [N, 3]."""
    momentum = np.stack([flat[name] for name in MOMENTUM], axis=-1, dtype=np.float64)
    length = np.linalg.norm(momentum, axis=1)
    resting = np.flatnonzero(~(length > 0))
    if len(resting):
        raise events.error(
            f"a target particle needs a momentum above 0 to have a direction, found {length[resting[0]]} GeV",
            index=np.searchsorted(offsets, resting[0], side="right") - 1,
            field="truth.momentum",
        )
    return np.asarray(momentum / length[:, np.newaxis], dtype=np.float32)
