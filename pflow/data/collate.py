"""Padding: events of different lengths to one batch of tensors, as long as its own longest event and no longer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflow.data.batch import Batch, Readout, Target, TokenSet
from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.tokens.config import PARTS
from pflow.tokens.tokens import OFFSETS, Tokens

__all__ = ["Padder", "collate"]

Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]

FRACTIONS = {"hit_assignment": "readout_hits", "track_assignment": "readout_tracks"}
"""Pairs that become dense, and what they assign."""

BEYOND = np.iinfo(np.int64).max
"""Index that stands for the last element, where indices are clipped."""

LONG = 128
"""Mean length of an array in an event from which on copying event by event is faster than picking by indices."""


def collate(tokens: Tokens, rows: Sequence[int] | Index | None = None) -> Batch:
    """Pad some encoded events into a batch, by default all; see `Padder.batch`."""
    return Padder([tokens]).batch(range(len(tokens)) if rows is None else rows)


class Padder:
    """Makes batches of the encoded events of several parts, read where they are; only short arrays are joined."""

    def __init__(self, parts: Sequence[Tokens]) -> None:
        self._parts = [part.arrays() for part in parts]
        for name in dict.fromkeys(name for part in self._parts for name in part):
            if (given := sum(name in part for part in self._parts)) < len(parts):
                raise ConfigError(f"{given} of {len(parts)} parts of the events have {name}, expected all or none")
        part_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        self._n_events = len(part_of)
        self._objects = {kind: _Objects([part.offsets[kind] for part in parts], part_of) for kind in parts[0].offsets}

    def batch(self, rows: Sequence[int] | Index) -> Batch:
        """Pad some events, in any order, counted through all parts, into a batch of one or more.

        An event's row does not depend on the others but for trailing zeros. The batch has a target and a readout if the
        events have them; masks are True for real tokens, padding is 0.
        """
        if not len(rows):
            raise ConfigError("a batch needs at least one event")
        events = np.asarray(rows)
        chosen = {kind: _Chosen(objects, events) for kind, objects in self._objects.items()}
        padded: dict[str, dict[str, Tensor]] = {"": {}, "readout": {}}
        for name in self._parts[0]:
            if (kind := OFFSETS[name]) not in FRACTIONS:
                where, _, field = name.rpartition(".")
                padded[where][field] = self._padded(name, chosen[kind])
        own, of_readout = padded.values()
        sources = {
            part: TokenSet(own.pop(part), chosen[part].mask, full=min(chosen[part].sizes) == chosen[part].longest)
            for part in PARTS
            if part in own
        }
        target = readout = None
        if own:
            hits, tracks = (self._fraction(chosen, pairs) for pairs in FRACTIONS)
            target = Target(**own, mask=chosen["target"].mask, hit_fraction=hits, track_fraction=tracks)
        if of_readout:
            masks = {"mask": chosen["readout_hits"].mask, "track_mask": chosen["readout_tracks"].mask}
            readout = Readout(**of_readout, **masks)
        return Batch(**sources, target=target, readout=readout)

    @cached_property
    def _joined(self) -> dict[str, Array]:
        """Short arrays of all parts, and behind them zero, which padding is taken from."""
        arrays = {name: [part[name] for part in self._parts] for name in self._parts[0]}
        return {
            name: np.concatenate([*parts, np.zeros_like(parts[0], shape=(1, *parts[0].shape[1:]))])
            for name, parts in arrays.items()
            if sum(values.size for values in parts) < LONG * self._n_events
        }

    def _padded(self, name: str, chosen: _Chosen) -> Tensor:
        """Values of an array as float32 or int64 [B, N, ...], with zeros behind those of each event."""
        parts, n_rows = [part[name] for part in self._parts], len(chosen.sizes)
        dtype = np.int64 if parts[0].dtype.kind == "i" else np.float32
        if n_rows == 1:
            ((part, own),) = chosen.places
            padded = parts[part][own].astype(dtype)[np.newaxis]
        elif name in self._joined:
            padded = self._joined[name].take(chosen.padded_index, axis=0, mode="clip").astype(dtype, copy=False)
        else:
            flat = np.zeros((n_rows * chosen.longest, *parts[0].shape[1:]), dtype=dtype)
            for (part, own), place in zip(chosen.places, chosen.padded_places, strict=True):
                flat[place] = parts[part][own]
            padded = flat.reshape(n_rows, chosen.longest, *flat.shape[1:])
        return torch.from_numpy(padded)

    def _picked(self, name: str, chosen: _Chosen) -> Array:
        """Values of an array one event after the other."""
        if len(chosen.sizes) > 1 and name in self._joined:
            return self._joined[name].take(chosen.index, axis=0)
        parts = [part[name] for part in self._parts]
        return np.concatenate([parts[part][own] for part, own in chosen.places])

    def _fraction(self, chosen: Mapping[str, _Chosen], kind: str) -> Tensor | None:
        """Pairs as float32 [B, T, N] (hits) or [B, T, K] (tracks), 0 where there is none; None without pairs."""
        if kind not in chosen:
            return None
        pairs = chosen[kind]
        shape = len(pairs.sizes), chosen["target"].longest, chosen[FRACTIONS[kind]].longest
        dense = np.zeros(math.prod(shape), dtype=np.float32)
        names = ("particle", "source", "weight")
        place, source, weight = (self._picked(f"readout.{kind}.{name}", pairs) for name in names)
        place *= shape[2]
        place += source
        place += np.repeat(np.arange(shape[0]) * (shape[1] * shape[2]), pairs.count)
        dense[place] = weight
        return torch.from_numpy(dense.reshape(shape))


class _Objects:
    """Where the objects of one kind, as hits or target particles, of each event are.

    From the offsets of each part, int64 [event of the part + 1], and the part of each event, int64 [event].
    """

    def __init__(self, offsets: Sequence[Index], part: Index) -> None:
        self.part = part
        if len(offsets) == 1:
            self.begin, self.end = offsets[0][:-1], offsets[0][1:]
            self.begin_joined = self.begin
        else:
            self.begin = np.concatenate([bounds[:-1] for bounds in offsets])
            self.end = np.concatenate([bounds[1:] for bounds in offsets])
            self.begin_joined = self.begin + jagged.offsets(np.array([bounds[-1] for bounds in offsets]))[part]


class _Chosen:
    """The objects of one kind of the B events of a batch, of which the longest has N."""

    def __init__(self, objects: _Objects, rows: Index) -> None:
        self._objects, self._rows = objects, rows
        self.begin = objects.begin[rows]
        self.count = objects.end[rows] - self.begin
        self.sizes: list[int] = self.count.tolist()
        self.longest = max(self.sizes)

    @cached_property
    def mask(self) -> Tensor:
        """True = an object, bool [B, N]."""
        return torch.from_numpy(np.arange(self.longest) < self.count[:, np.newaxis])

    @cached_property
    def places(self) -> list[tuple[int, slice]]:
        """Part of each event, and where its objects are there."""
        parts, end = self._objects.part[self._rows], self.begin + self.count
        return list(zip(parts.tolist(), map(slice, self.begin.tolist(), end.tolist()), strict=True))

    @cached_property
    def padded_places(self) -> list[slice]:
        """Where the objects of each event go among the B x N."""
        begin = np.arange(len(self.sizes)) * self.longest
        return list(map(slice, begin.tolist(), (begin + self.count).tolist()))

    @cached_property
    def index(self) -> Index:
        """Indices of all objects in joined arrays, one event after the other."""
        begin = self._objects.begin_joined[self._rows]
        return np.repeat(begin, self.count) + jagged.local_index(self.count)

    @cached_property
    def padded_index(self) -> Index:
        """The same, int64 [B, N], and beyond the end of the arrays where there is padding."""
        begin = self._objects.begin_joined[self._rows]
        return np.where(self.mask.numpy(), begin[:, np.newaxis] + np.arange(self.longest), BEYOND)
