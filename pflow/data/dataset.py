"""Batches streamed from files: read in chunks, shuffled in a buffer, cut into batches of similar length."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from pflow.data.batch import Batch
from pflow.data.buckets import bucket, cut
from pflow.data.collate import collate
from pflow.data.files import Chunk, FileOptions, read_chunks
from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.augment import Augmentation, augment
from pflow.event.events import Events, Flag
from pflow.event.refused import without_refused
from pflow.tokens.encode import unknown_pdg_message
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import EventTokens, Tokens

__all__ = ["EventDataset", "LabelledBatch"]


class LabelledBatch(NamedTuple):
    """A batch and where its events are from.

    Parameters
    ----------
    batch : Batch
    event : int64 [B], event numbers
    entry : int64 [B], entries of their files
    path : B paths of the files
    position : int64 [n], positions in the pass of the events of this step, on all ranks together
    weight
        Of the loss, where several ranks train; 0: the batch is there only so that the rank keeps step.
    """

    batch: Batch
    event: Tensor
    entry: Tensor
    path: tuple[str, ...]
    position: Tensor
    weight: float = 1.0

    @property
    def n_target(self) -> int:
        """Number of target particles, the end of each sequence counted as one more."""
        target = self.batch.target
        return len(self.batch) + (0 if target is None else int(target.mask.sum()))


class _Item(NamedTuple):
    tokens: EventTokens
    event: int
    entry: int
    path: str
    position: int


class EventDataset(IterableDataset[LabelledBatch]):
    """Batches of encoded events, streamed; at most a chunk and the shuffle buffer are in memory.

    Each worker of a `DataLoader` on each rank takes its own share of the chunks. In training each shuffles the order of
    its chunks and the events within a buffer, from (seed, epoch, share), so that a pass is reproducible and no two are
    alike. Else a batch holds consecutive events of one chunk, so that the batches do not depend on the shares.
    Give the loader ``batch_size=None``: batches come ready.

    Parameters
    ----------
    chunks
        What to read.
    options
        How.
    tokeniser
        Fitted.
    batch_size, max_tokens
        Most events, and most source tokens with padding, in a batch.
    shuffle
        Whether to shuffle and to batch by length; else events come in the order of the chunks.
    buffer
        Events that are shuffled together.
    seed
        Of the shuffling.
    num_workers
        Workers of the loader (0: none), from which the number of batches follows.
    rank, n_ranks
        Which of several processes that train together this one is, from 0.
    augmentation
        Changes the events of a chunk before they are encoded, drawn from (seed, epoch, share, chunk); their number
        stays the same.

    Raises
    ------
    ConfigError
        No chunks, or a buffer smaller than a batch.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        options: FileOptions,
        tokeniser: Tokeniser,
        batch_size: int,
        max_tokens: int | None = None,
        shuffle: bool = False,
        buffer: int = 1024,
        seed: int = 0,
        num_workers: int = 0,
        rank: int = 0,
        n_ranks: int = 1,
        augmentation: Augmentation | None = None,
    ) -> None:
        super().__init__()
        if not chunks:
            raise ConfigError("a dataset needs at least one chunk of a file")
        if batch_size < 1:
            raise ConfigError(f"batch size must be at least 1, found {batch_size}")
        if shuffle and buffer < batch_size:
            raise ConfigError(f"a shuffle buffer of {buffer} events cannot fill a batch of {batch_size}")
        self.chunks = tuple(chunks)
        self.options = options
        self.tokeniser = tokeniser
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.shuffle = shuffle
        self.buffer = buffer
        self.seed = seed
        self.num_workers = num_workers
        self.rank = rank
        self.n_ranks = n_ranks
        self.augmentation = augmentation
        self.epoch = 0
        self.skip = 0
        self._refused = torch.zeros(1, dtype=torch.bool)
        self._refused.share_memory_()  # type: ignore[no-untyped-call]  # workers of a loader write to it
        self.omitted: npt.NDArray[np.bool_] | None = None
        # Position in the pass of a chunk's first event.
        self._first = jagged.offsets(np.array([len(chunk) for chunk in self.chunks], np.int64))

    @property
    def refused(self) -> bool:
        """Whether an entry was skipped so far, by this process or a worker of a loader."""
        return bool(self._refused)

    def set_epoch(self, epoch: int, *, skip: int = 0, omitted: npt.NDArray[np.bool_] | None = None) -> None:
        """Choose the shuffling of the next pass, and what a training that goes on has seen of it.

        Parameters
        ----------
        epoch
            Its number.
        skip
            Batches at its beginning to leave out; without workers only.
        omitted : bool [event of the pass]
            Events to leave out; chunks without others are not read.
        """
        self.epoch, self.skip, self.omitted = epoch, skip, omitted

    def __len__(self) -> int:
        """Number of batches in a whole pass, of the rank that has the most.

        Raises
        ------
        TypeError
            With `max_tokens` it depends on the lengths of events not yet read.
        """
        return self.n_batches(None)

    def n_batches(self, omitted: npt.NDArray[np.bool_] | None) -> int:
        """Number of batches in a pass without some events, of the rank that has the most.

        Raises
        ------
        TypeError
            As of `len`.
        """
        if self.max_tokens is not None:
            raise TypeError("with max_tokens the number of batches is not known beforehand")
        counts = np.diff(self._first)
        if omitted is not None:
            counts = counts - np.diff(jagged.offsets(omitted)[self._first])
        workers = max(self.num_workers, 1)
        shares = [counts[share :: workers * self.n_ranks] for share in range(workers * self.n_ranks)]
        batches = [-(-(share.sum() if self.shuffle else share) // self.batch_size) for share in shares]
        return max(int(sum(np.sum(one) for one in batches[rank :: self.n_ranks])) for rank in range(self.n_ranks))

    def __iter__(self) -> Iterator[LabelledBatch]:
        worker = get_worker_info()
        index, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        # Neighbouring chunks go to different ranks, whose numbers of chunks then differ by one at most.
        share = index * self.n_ranks + self.rank
        generator = np.random.default_rng([self.seed, self.epoch, share])
        numbers = [
            number for number in range(share, len(self.chunks), workers * self.n_ranks) if not self._is_omitted(number)
        ]
        if self.shuffle:
            generator.shuffle(numbers)
        chunks = self._items(numbers, share)
        batches = self._shuffled(chain.from_iterable(chunks), generator) if self.shuffle else self._in_order(chunks)
        for items in islice(batches, self.skip, None):
            yield _labelled(items)

    def filler(self) -> LabelledBatch:
        """A batch of the first event alone, for a rank that has no batches left."""
        first = dataclasses.replace(self.chunks[0], stop=self.chunks[0].start + 1)
        (events,) = read_chunks([first], self.options)
        tokens, _ = self._encoded(events)
        return _labelled([_Item(tokens[0], int(tokens.event[0]), int(events.entry[0]), events.path, 0)])

    def _is_omitted(self, number: int) -> bool:
        """Whether all events of a chunk are left out."""
        if self.omitted is None:
            return False
        return bool(self.omitted[self._first[number] : self._first[number + 1]].all())

    def _items(self, numbers: Sequence[int], share: int) -> Iterator[Iterator[_Item]]:
        """Encoded events of some chunks, chunk by chunk; warns at the end of codes that training did not show."""
        unknown: Counter[int] = Counter()
        chunks = read_chunks([self.chunks[number] for number in numbers], self.options)
        for number, events in zip(numbers, chunks, strict=True):
            if self.augmentation is not None:
                # One more than the number: trailing zeros do not change a seed, and the shuffling has one without it.
                generator = np.random.default_rng([self.seed, self.epoch, share, number + 1])
                events = augment(events, self.augmentation, generator)
            tokens, events = self._encoded(events)
            self._refused |= bool(np.any(events.flags & Flag.BAD_INPUT))
            unknown.update(tokens.unknown)
            yield self._labelled_items(events, tokens, int(self._first[number]))
        if unknown:
            warnings.warn(unknown_pdg_message(unknown), stacklevel=2)

    def _labelled_items(self, events: Events, tokens: Tokens, first: int) -> Iterator[_Item]:
        """The events of a chunk that are not left out, the first of which has position `first` in the pass."""
        for i in range(len(tokens)):
            if self.omitted is None or not self.omitted[first + i]:
                yield _Item(tokens[i], int(tokens.event[i]), int(events.entry[i]), events.path, first + i)

    def _encoded(self, events: Events) -> tuple[Tokens, Events]:
        """Tokens of a chunk and the chunk; where bad entries are skipped, those the model cannot read are empty."""
        return without_refused(events, lambda some: self.tokeniser.encode(some, warn=False), self.options.on_error)

    def _in_order(self, chunks: Iterable[Iterable[_Item]]) -> Iterator[list[_Item]]:
        for chunk in chunks:
            items = list(chunk)
            for batch in cut([item.tokens.n_source for item in items], self.batch_size, self.max_tokens):
                yield [items[i] for i in batch]

    def _shuffled(self, items: Iterable[_Item], generator: np.random.Generator) -> Iterator[list[_Item]]:
        pool: list[_Item] = []
        for item in items:
            pool.append(item)
            if len(pool) == self.buffer:
                yield from self._emptied(pool, generator, keep=self.buffer % self.batch_size)
        yield from self._emptied(pool, generator, keep=0)

    def _emptied(self, pool: list[_Item], generator: np.random.Generator, keep: int) -> Iterator[list[_Item]]:
        """Batches of all but `keep` events, chosen at random, which stay in the pool: only the last may be short."""
        order = generator.permutation(len(pool))
        taken = [pool[i] for i in order[keep:]]
        pool[:] = [pool[i] for i in order[:keep]]
        lengths = [item.tokens.n_source for item in taken]
        for batch in bucket(lengths, self.batch_size, self.max_tokens, generator):
            yield [taken[i] for i in batch]


def _labelled(items: Sequence[_Item]) -> LabelledBatch:
    return LabelledBatch(
        batch=collate([item.tokens for item in items]),
        event=torch.tensor([item.event for item in items]),
        entry=torch.tensor([item.entry for item in items]),
        path=tuple(item.path for item in items),
        position=torch.tensor([item.position for item in items]),
    )
