"""Batches: which events share one, at random but of similar lengths so that little is padded, and their padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflow.data.batch import Batch, Readout, Target, TokenSet
from pflow.errors import ConfigError
from pflow.physics.arrays import Index
from pflow.tokens.tokens import OFFSETS, PARTS, Tokens

FRACTIONS = {"hit_assignment": "readout_hits", "track_assignment": "readout_tracks"}
"""Assignments that a batch holds as dense matrices, and the objects that they assign."""


def collate(tokens: Tokens, rows: Sequence[int] | Index | None = None) -> Batch:
    """Pad some encoded events into a batch, by default all; see `Padder.batch`."""
    return Padder([tokens]).batch(range(len(tokens)) if rows is None else rows)


class Padder:
    """Makes batches of the encoded events of several parts, read where they are."""

    def __init__(self, parts: Sequence[Tokens]) -> None:
        self._arrays = [part.arrays for part in parts]
        for name in dict.fromkeys(name for arrays in self._arrays for name in arrays):
            if (given := sum(name in arrays for arrays in self._arrays)) < len(parts):
                raise ConfigError(f"{given} of {len(parts)} parts of the events have {name}, expected all or none")
        self._offsets = [part.offsets for part in parts]
        self._place = [(part, row) for part in range(len(parts)) for row in range(len(parts[part]))]

    def batch(self, rows: Sequence[int] | Index) -> Batch:
        """Pad some events, counted through all parts, into a batch, with target and readout if the events have them."""
        if not len(rows):
            raise ConfigError("a batch needs at least one event")
        events = [self._place[row] for row in np.asarray(rows).tolist()]
        chosen = {kind: _Chosen(kind, events, self._offsets) for kind in self._offsets[0]}
        padded: dict[str, dict[str, Tensor]] = {"": {}, "readout": {}}
        for name in self._arrays[0]:
            if (kind := OFFSETS[name]) not in FRACTIONS:
                where, _, field = name.rpartition(".")
                padded[where][field] = chosen[kind].padded([arrays[name] for arrays in self._arrays])
        of_batch, of_readout = padded.values()
        sources = {
            part: TokenSet(of_batch.pop(part), chosen[part].mask, full=min(chosen[part].sizes) == chosen[part].longest)
            for part in PARTS
            if part in of_batch
        }
        target = readout = None
        if of_batch:
            hits, tracks = (self._fraction(chosen, pairs) for pairs in FRACTIONS)
            target = Target(**of_batch, mask=chosen["target"].mask, hit_fraction=hits, track_fraction=tracks)
        if of_readout:
            masks = {"mask": chosen["readout_hits"].mask, "track_mask": chosen["readout_tracks"].mask}
            readout = Readout(**of_readout, **masks)
        return Batch(**sources, target=target, readout=readout)

    def _fraction(self, chosen: Mapping[str, _Chosen], kind: str) -> Tensor | None:
        """Pairs as float32 [B, T, N] (hits) or [B, T, K] (tracks), 0 without a pair; None if the kind has no pairs."""
        if kind not in chosen:
            return None
        pairs = chosen[kind]
        shape = len(pairs.sizes), chosen["target"].longest, chosen[FRACTIONS[kind]].longest
        dense = np.zeros(shape, dtype=np.float32)
        for event, (part, own) in zip(dense, pairs.places, strict=True):
            names = (f"readout.{kind}.{name}" for name in ("particle", "source", "weight"))
            particle, source, weight = (self._arrays[part][name][own] for name in names)
            event[particle, source] = weight
        return torch.from_numpy(dense)


class _Chosen:
    """The objects of one kind (hits, target particles ...) in the B events of a batch, at most N in an event."""

    def __init__(self, kind: str, events: Sequence[tuple[int, int]], offsets: Sequence[Mapping[str, Index]]) -> None:
        bounds = [(part, *offsets[part][kind][row : row + 2].tolist()) for part, row in events]
        self.places = [(part, slice(begin, end)) for part, begin, end in bounds]
        self.sizes = [end - begin for _, begin, end in bounds]
        self.longest = max(self.sizes)

    @cached_property
    def mask(self) -> Tensor:
        """True = an object, bool [B, N]."""
        return torch.from_numpy(np.arange(self.longest) < np.array(self.sizes)[:, np.newaxis])

    def padded(self, parts: Sequence[npt.NDArray[Any]]) -> Tensor:
        """Values of an array as float32 or int64 [B, N, ...], padded with zeros after each event."""
        dtype = np.int64 if parts[0].dtype.kind == "i" else np.float32
        values = np.zeros((len(self.sizes), self.longest, *parts[0].shape[1:]), dtype=dtype)
        for event, size, (part, rows) in zip(values, self.sizes, self.places, strict=True):
            event[:size] = parts[part][rows]
        return torch.from_numpy(values)


def cut(lengths: npt.ArrayLike, batch_size: int, max_tokens: int | None = None) -> list[Index]:
    """Cut consecutive events into batches of up to `batch_size` events and `max_tokens` padded tokens, or one event."""
    batches: list[Index] = []
    start = longest = 0
    sizes = np.asarray(lengths).tolist()
    for stop, length in enumerate(sizes):
        longest = max(longest, length)
        n = stop - start + 1
        if n > batch_size or (max_tokens is not None and n > 1 and n * longest > max_tokens):
            batches.append(np.arange(start, stop))
            start, longest = stop, length
    if start < len(sizes):
        batches.append(np.arange(start, len(sizes)))
    return batches


def bucket(
    lengths: npt.ArrayLike, batch_size: int, max_tokens: int | None, generator: np.random.Generator
) -> list[Index]:
    """Batches of events of similar length, as of `cut`, in random order."""
    sizes = np.asarray(lengths)
    shuffled = generator.permutation(len(sizes))
    ordered = shuffled[np.argsort(sizes[shuffled], kind="stable")]
    batches = [ordered[part] for part in cut(sizes[ordered], batch_size, max_tokens)]
    generator.shuffle(batches)
    return batches
