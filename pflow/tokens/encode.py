"""Events to tokens: normalised source features and the target sentence."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.cells import merge_hits
from pflow.event.events import Events, Flag
from pflow.event.truth import Targets, select_targets
from pflow.tokens.features import feature_matrix
from pflow.tokens.order import OrderedTargets, sort_particles
from pflow.tokens.readout import make_readout
from pflow.tokens.recipe import PARTS, Recipe
from pflow.tokens.tokens import Tokens
from pflow.tokens.vocab import charge_index

if TYPE_CHECKING:
    from pflow.tokens.tokeniser import Tokeniser

__all__ = ["encode", "hit_tokens", "kept_hits", "select_hits", "target_particles", "unknown_pdg_message"]


def select_hits(events: Events, recipe: Recipe) -> Events:
    """The events without the calorimeter hits that the recipe leaves out, and with the others summed as it says.

    Links count hits and are dropped too, so targets are to be selected before.

    Raises
    ------
    InputError
        Hits are to be summed and one has no finite energy or position.
    """
    return _select(events, recipe).tokens


def hit_tokens(events: Events, recipe: Recipe) -> ak.Array:
    """The way back from tokens to hits.

    Returns
    -------
    ak.Array
        int64 [event, hit]: index of the source token that each hit of the events is part of; -1 for one left out.

    Raises
    ------
    InputError
        As `select_hits`.
    """
    selection = _select(events, recipe)
    token = np.full(len(selection.is_kept), -1, dtype=np.int64)
    token[selection.is_kept] = selection.token
    return ak.unflatten(token, jagged.count(events.hits))


def kept_hits(events: Events, recipe: Recipe) -> ak.Array:
    """Index of each hit that the recipe keeps, int64 [event, kept hit]: the order of the readout's hits."""
    return ak.local_index(events.hits.energy, axis=1)[events.hits.energy > recipe.hit_energy_min]


def target_particles(events: Events, recipe: Recipe) -> ak.Array:
    """The target sentence of each event: particles selected by the recipe's truth rule, in its order.

    Returns
    -------
    ak.Array
        [event, particle] records of ``events.truth`` and what `pflow.event.truth.select_targets` adds.

    Raises
    ------
    InputError
        The events hold no truth.
    """
    return sort_particles(_targets(events, recipe).particles, recipe.order)


def encode(events: Events, tokeniser: Tokeniser, *, truth: bool = True, warn: bool = True) -> Tokens:
    """Turn events into tokens.

    Parameters
    ----------
    events
        Events of the tokeniser's detector.
    tokeniser
        Fitted.
    truth
        Whether to encode the target sentence too.
    warn
        Whether to warn of PDG codes that are not in the vocabulary, with their number; the result counts them anyway.

    Raises
    ------
    InputError
        The events are of another detector, lack truth although it is asked for, or lack something that a feature is
        made of.
    """
    tokeniser.check_detector(events)
    recipe = tokeniser.recipe
    flags = events.flags.copy()
    targets: OrderedTargets | None = None
    target: dict[str, Any] = dict.fromkeys(("charge", "pdg", "energy", "direction"))
    offsets: dict[str, npt.NDArray[np.int64]] = {}
    unknown: Counter[int] = Counter()
    if truth:
        targets = OrderedTargets.of(_targets(events, recipe), recipe.order)
        offsets["target"] = targets.offsets
        flat = targets.particles
        codes = ak.to_numpy(flat.pdg)
        target["pdg"], is_unknown = tokeniser.pdg.encode(codes)
        target["charge"] = charge_index(ak.to_numpy(flat.charge))
        target["energy"] = tokeniser.energy.apply(ak.to_numpy(flat.energy)[:, np.newaxis])[:, 0]
        target["direction"] = _direction(flat, events, offsets["target"])
        unknown.update(np.abs(codes[is_unknown]).tolist())
        owner = np.searchsorted(offsets["target"], np.flatnonzero(is_unknown), side="right") - 1
        flags[np.unique(owner)] |= np.uint32(Flag.UNKNOWN_PDG)
        if warn and unknown:
            warnings.warn(unknown_pdg_message(unknown), stacklevel=2)
    selection = _select(events, recipe)
    source: dict[str, Any] = dict.fromkeys(PARTS)
    for part in PARTS:
        names = recipe.features(part)
        if names:
            source[part] = tokeniser.scales[part].apply(feature_matrix(selection.tokens, part, names))
            offsets[part] = jagged.offsets(jagged.count(getattr(selection.tokens, part)))
    readout = None
    if recipe.readout:
        readout, its_offsets = make_readout(
            events,
            is_kept=selection.is_kept,
            token=selection.token,
            use_tracks=bool(recipe.track_features),
            targets=targets,
        )
        offsets |= its_offsets
    return Tokens(
        **source,
        **target,
        readout=readout,
        offsets=offsets,
        event=events.event,
        flags=flags,
        unknown=unknown,
    )


def unknown_pdg_message(unknown: Counter[int]) -> str:
    """What to tell of PDG codes that training did not show."""
    codes = ", ".join(f"{code} ({count} times)" for code, count in sorted(unknown.items()))
    return f"{unknown.total()} particles have codes that training did not show and go by their class: {codes}"


class _Selection(NamedTuple):
    """What becomes of N hits: `tokens`, events of one hit a token; is_kept bool [N]; token int64 [number kept]."""

    tokens: Events
    is_kept: npt.NDArray[np.bool_]
    token: npt.NDArray[np.int64]


def _select(events: Events, recipe: Recipe) -> _Selection:
    is_kept = events.hits.energy > recipe.hit_energy_min
    flat = jagged.flat(is_kept)
    # Most often all of them, and then there is nothing to copy.
    kept = dataclasses.replace(events, hits=events.hits if flat.all() else events.hits[is_kept], hit_links=None)
    if recipe.merge is None:
        index = ak.local_index(kept.hits, axis=1)
    else:
        merged = merge_hits(kept, recipe.merge)
        kept, index = dataclasses.replace(kept, hits=merged.hits), merged.cell_of
    return _Selection(kept, flat, jagged.flat(index))


def _targets(events: Events, recipe: Recipe) -> Targets:
    return select_targets(events, rule=recipe.rule, e_min=recipe.e_min, use_tracks=bool(recipe.track_features))


def _direction(flat: ak.Array, events: Events, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Unit vectors of the momenta, float32 [N, 3]."""
    momentum = np.stack([ak.to_numpy(flat.momentum[key]) for key in ("px", "py", "pz")], axis=1)
    length = np.linalg.norm(momentum, axis=1)
    bad = np.flatnonzero(~(length > 0))
    if len(bad):
        raise InputError(
            f"a target particle needs a momentum above 0 to have a direction, found {length[bad[0]]} GeV",
            file=events.path or None,
            entry=int(events.entry[np.searchsorted(offsets, bad[0], side="right") - 1]),
            field="truth.momentum",
        )
    return np.asarray(momentum / length[:, np.newaxis], dtype=np.float32)
