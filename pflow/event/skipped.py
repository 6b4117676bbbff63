"""Doing something with events of which some may be refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from pflow.errors import InputError
from pflow.event.events import Events

__all__ = ["BadEntriesWarning", "refused_message", "without_refused"]

T = TypeVar("T")


class BadEntriesWarning(UserWarning):
    """Entries that could not be used were emptied and flagged."""


def refused_message(errors: Sequence[InputError], n_events: int) -> str:
    """What a `BadEntriesWarning` says: how many of `n_events` entries were refused, and why the first."""
    return f"{len(errors)} of {n_events} entries cannot be used and were left empty; the first: {errors[0]}"


def without_refused(events: Events, attempt: Callable[[Events], T], on_error: str = "skip") -> tuple[T, Events]:
    """Result of `attempt` for events, without those for which it raises an `InputError` that names an entry.

    `on_error` is ``skip``, or ``raise`` the first error; one that names no entry is raised in either case. Also returns
    the same events, those that were refused emptied, flagged ``Flag.BAD_INPUT``, and told in a `BadEntriesWarning`.
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
