"""Skip invalid events, and leave out single invalid objects, with warnings and flags."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError, PflowError
from pflow.event import jagged
from pflow.event.events import Events, Flag
from pflow.event.links import Links
from pflow.event.schema import LINKED, unusable_objects

LEFT_OUT = {
    "hits": Flag.UNUSABLE_HITS,
    "tracker_hits": Flag.UNUSABLE_HITS,
    "tracks": Flag.UNUSABLE_TRACKS,
    "truth": Flag.UNUSABLE_TRUTH,
    **dict.fromkeys(LINKED, Flag.UNUSABLE_TRUTH),
    "reference": Flag.UNUSABLE_REFERENCE,
}
"""Flag of an event that lost objects, by their part."""

IN_PLACE = {"hits": ("energy", "time", "position"), "truth": ("charge", "rest_mass", "energy", "px", "py", "pz")}
"""Parts whose objects are not removed, because links and outputs index them, and the numbers that are set to 0."""

T = TypeVar("T")


class BadEntriesWarning(UserWarning):
    """Entries that could not be used were emptied and flagged."""


class LeftOutWarning(UserWarning):
    """Single objects with impossible numbers were left out, and their events flagged."""


class ImplausibleWarning(UserWarning):
    """A file holds something that is probably wrong and would silently give wrong physics."""


def leave_out(events: Events) -> tuple[Events, dict[str, npt.NDArray[np.bool_]]]:
    """Leave out single objects with impossible numbers and flag their events; also returns a mask of them by part.

    Calorimeter hits (then with energy 0 at the origin) and true particles (with energy 0) keep their place, because
    links and outputs index them. A missing parent becomes -1. Other objects are removed with their links. An event in
    which more than half of the hits, true particles or links are bad is left for `Events.validate` to refuse.
    """
    masks = {}
    changed: dict[str, Any] = {}
    flags, all_sizes = events.flags.copy(), events.sizes()
    for name, flag in LEFT_OUT.items():
        part = changed.get(name, getattr(events, name))
        if part is None:
            continue
        columns, counts = jagged.columns(part), jagged.count(part)
        event = jagged.event_index(counts)
        if name == "truth":
            no_parent = (columns["parent"] < -1) | (columns["parent"] >= counts[event])
            columns["parent"] = np.where(no_parent, -1, columns["parent"])
            if no_parent.any():
                flags[event[no_parent]] |= np.uint32(flag)
                part = changed[name] = jagged.records(columns, counts)
        mask = unusable_objects(name, part, all_sizes if name in LINKED else {})
        if name in IN_PLACE or name in LINKED:
            mask &= (2 * np.bincount(event[mask], minlength=len(counts)) <= counts)[event]
        if not mask.any():
            continue
        if name in IN_PLACE:
            numbers = (column for column in columns if column.partition(".")[0] in IN_PLACE[name])
            changed[name] = jagged.replaced(part, {key: np.where(mask, 0, columns[key]) for key in numbers})
        else:
            n_kept = np.bincount(event[~mask], minlength=len(counts))
            changed[name] = jagged.records({key: values[~mask] for key, values in columns.items()}, n_kept)
            number = np.where(mask, -1, np.cumsum(~mask) - 1 - jagged.offsets(n_kept)[event])
            for link, source in LINKED.items():
                if source == name and (links := getattr(events, link)) is not None:
                    changed[link] = _renumbered(Links.of(links), number, counts)
        masks[name] = mask
        flags[event[mask]] |= np.uint32(flag)
    return (dataclasses.replace(events, flags=flags, **changed) if changed else events), masks


def _renumbered(links: Links, number: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> ak.Array:
    """Links with the new `number` of each source, without removed sources (-1); invalid links stay for validation."""
    inside = (links.source >= 0) & (links.source < np.repeat(counts, links.counts))
    source = np.where(inside, number[np.where(inside, links.flat_source(counts), 0)], links.source)
    return links.take(~inside | (source >= 0), source=source).records()


def leave_out_files(errors: Sequence[PflowError], n_files: int) -> None:
    """Warn about files that cannot be used; raise the first error if all `n_files` have one."""
    if not errors:
        return
    if len(errors) == n_files:
        raise errors[0]
    texts = "".join(f"\n  {error}" for error in errors)
    warnings.warn(f"{len(errors)} of {n_files} files were left out:{texts}", BadEntriesWarning, stacklevel=3)


def refused_message(errors: Sequence[InputError], n_events: int) -> str:
    """Message of a `BadEntriesWarning`: how many of `n_events` entries were refused, and the first error."""
    return f"{len(errors)} of {n_events} entries cannot be used and were left empty; the first: {errors[0]}"


def without_refused(events: Events, attempt: Callable[[Events], T], on_error: str = "skip") -> tuple[T, Events]:
    """Result of `attempt`, and the events for which it was computed.

    Events for which `attempt` raises an `InputError` that names an entry are emptied and flagged ``Flag.BAD_INPUT``,
    with a `BadEntriesWarning`; with `on_error` ``raise``, or if no entry is named, the error is raised.
    """
    try:
        return attempt(events), events
    except InputError as error:
        if on_error == "raise" or error.entry is None:
            raise
    refused = np.zeros(len(events), dtype=np.bool_)
    errors: list[InputError] = []
    for index in range(len(events)):
        try:
            attempt(events[index])
        except InputError as error:
            if error.entry is None:
                raise
            refused[index] = True
            errors.append(error)
    warnings.warn(refused_message(errors, len(events)), BadEntriesWarning, stacklevel=3)
    rest = events.emptied(refused)
    return attempt(rest), rest
