"""Padding: events of different lengths to one batch of tensors, as long as its own longest event and no longer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflow.data.batch import Batch, Readout, Target, TokenSet
from pflow.errors import ConfigError
from pflow.tokens.tokens import Assignment, EventTokens

__all__ = ["collate"]

Part = TypeVar("Part")


def collate(events: Sequence[EventTokens]) -> Batch:
    """Pad events into a batch; an event's row does not depend on the others but for trailing zeros.

    Parameters
    ----------
    events
        At least one, all with the same parts.

    Returns
    -------
    Batch
        With a target and a readout if the events have them; masks are True for real tokens, padding is 0.

    Raises
    ------
    ConfigError
        No events, or events of which only some have a part.
    """
    if not events:
        raise ConfigError("a batch needs at least one event")
    return Batch(
        hits=_token_set([event.hits for event in events]),
        tracks=_optional([event.tracks for event in events], "tracks"),
        tracker_hits=_optional([event.tracker_hits for event in events], "tracker hits"),
        target=_target(events),
        readout=_readout(events),
    )


def _lengths(parts: Sequence[npt.NDArray[Any]]) -> list[int]:
    return [len(part) for part in parts]


def _pad(parts: Sequence[npt.NDArray[Any]], lengths: Sequence[int]) -> Tensor:
    """[N_i, ...] each, of these lengths, to [B, max N_i, ...] with zeros behind."""
    padded = np.zeros((len(parts), max(lengths), *parts[0].shape[1:]), dtype=parts[0].dtype)
    for row, part, length in zip(padded, parts, lengths, strict=True):
        row[:length] = part
    return torch.from_numpy(padded)


def _mask(lengths: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.arange(max(lengths)) < np.array(lengths)[:, np.newaxis])  # [B, N]


def _token_set(parts: Sequence[npt.NDArray[np.float32]]) -> TokenSet:
    lengths = _lengths(parts)
    return TokenSet(features=_pad(parts, lengths), mask=_mask(lengths))


def _given(parts: Sequence[Part | None], name: str) -> list[Part]:
    """The parts that are there: all of them, or none."""
    given = [part for part in parts if part is not None]
    if given and len(given) != len(parts):
        raise ConfigError(f"{len(given)} of the batch's {len(parts)} events have {name}, expected all or none")
    return given


def _optional(parts: Sequence[npt.NDArray[np.float32] | None], name: str) -> TokenSet | None:
    given = _given(parts, name)
    return _token_set(given) if given else None


def _target(events: Sequence[EventTokens]) -> Target | None:
    charge = _given([event.charge for event in events], "a target")
    if not charge:
        return None
    readouts = _given([event.readout for event in events], "a readout")
    lengths = _lengths(charge)
    return Target(
        charge=_pad(charge, lengths),
        pdg=_pad(_given([event.pdg for event in events], "a target"), lengths),
        energy=_pad(_given([event.energy for event in events], "a target"), lengths),
        direction=_pad(_given([event.direction for event in events], "a target"), lengths),
        mask=_mask(lengths),
        hit_fraction=_dense(
            charge,
            _given([one.hit_assignment for one in readouts], "assigned hits"),
            [one.energy for one in readouts],
        ),
        track_fraction=_dense(
            charge,
            _given([one.track_assignment for one in readouts], "assigned tracks"),
            [one.track_charge for one in readouts],
        ),
    )


def _readout(events: Sequence[EventTokens]) -> Readout | None:
    given = _given([event.readout for event in events], "a readout")
    if not given:
        return None
    names = [field.name for field in dataclasses.fields(Readout) if not field.name.endswith("mask")]
    hits, tracks = _lengths([one.energy for one in given]), _lengths([one.track_charge for one in given])
    return Readout(
        **{
            name: _pad([getattr(one, name) for one in given], tracks if name.startswith("track_") else hits)
            for name in names
        },
        mask=_mask(hits),
        track_mask=_mask(tracks),
    )


def _dense(
    targets: Sequence[npt.NDArray[Any]], assignments: Sequence[Assignment], sources: Sequence[npt.NDArray[Any]]
) -> Tensor | None:
    """Pairs to float32 [B, T, N] (hits) or [B, T, K] (tracks), padded to the longest of `targets` and `sources`."""
    if not assignments:
        return None
    longest = max(len(one) for one in sources)
    dense = np.zeros((len(targets), max(len(one) for one in targets), longest), dtype=np.float32)
    for row, one in zip(dense, assignments, strict=True):
        row[one.target, one.source] = one.weight
    return torch.from_numpy(dense)
