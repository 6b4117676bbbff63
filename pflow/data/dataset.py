"""From files to batches: chunks of entries, read at once, shuffled in a buffer, padded with events of similar length.

`StepLoader` gives them to a training, from where a resumed epoch begins, and keeps several processes (ranks) in step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from pflow.data.batch import Batch, Readout, Target, TokenSet
from pflow.errors import ConfigError, InputError
from pflow.event.augment import Augmentation, augment
from pflow.event.events import BadEntriesWarning, Events, Flag, leave_out_files, without_refused
from pflow.event.move import Move
from pflow.io.open import EventFile, FilePath, ReadOptions
from pflow.physics.arrays import Index
from pflow.tokens.particles import unknown_pdg_message
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import OFFSETS, PARTS, Tokens


def begin_worker(_: int) -> None:
    """Prepare a worker process: signals, which batch systems send to all processes, are for the training to handle."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


OPEN_FILES = 8  # files that stay open: chunks in random order come back to them

RUN = 64
"""Consecutive entries that `spread_sample` takes at a time: only a few baskets of a file are decompressed for them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileOptions(ReadOptions):
    """How many files are read."""

    known: Mapping[str, ReadOptions] = dataclasses.field(default_factory=dict)
    """Options detected when a file was opened first, by path; later openings skip the detection."""
    uuids: dict[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """UUIDs of the files in `known`; a copy of a file has the same, and "" is unknown."""
    said: dict[str, set[str]] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """Names of the checks that have warned, by path."""

    def open(self, path: FilePath) -> EventFile:
        """Open a file, with its detected options if it was opened before."""
        file = ReadOptions.open(self.known.get(str(path), self), path)
        file.expected, file.said = self.expected, self.said.setdefault(str(path), file.said)
        return file


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Entries ``start`` to ``stop`` (exclusive) of one file, moved into another form of the detector before use."""

    path: str
    start: int
    stop: int
    move: Move = Move()  # noqa: RUF009

    @classmethod
    def of(cls, file: EventFile, size: int) -> list[Chunk]:
        """All entries of a file, in order, in chunks of `size`, or up to twice as many where its baskets then end."""
        return [cls(file.path, start, stop) for start, stop in file.ranges(size, most=2 * size)]

    def __len__(self) -> int:
        return self.stop - self.start


class OpenFiles:
    """Files that are kept open for the next reading: the `most` that were used last (None: all)."""

    def __init__(self, options: FileOptions, *, most: int | None = OPEN_FILES) -> None:
        self._options = options
        self._most = most
        self._files: dict[str, EventFile] = {}  # the one used last is the last

    def open(self, path: str) -> EventFile:
        """The file, which stays open."""
        # Taken out and put back: a dictionary keeps its order, and the file unused for longest is the first.
        file = self._files.pop(path, None)
        if file is None:
            file = self._options.open(path)
        self._files[path] = file
        while self._most is not None and len(self._files) > self._most:
            self.release(next(iter(self._files)))
        return file

    def release(self, path: str) -> None:
        """Close a file, if it is open."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all files."""
        # A list, because `release` changes the dictionary.
        for path in list(self._files):
            self.release(path)


def survey(paths: Sequence[str], options: FileOptions, size: int) -> tuple[list[Chunk], FileOptions]:
    """Open each file once: chunks of about `size` entries, and options that know the files.

    With `on_error` "skip", files that are unusable or empty are left out, with a warning.
    """
    chunks: list[Chunk] = []
    errors: list[InputError] = []
    known, last = dict(options.known), ReadOptions()
    for path in paths:
        try:
            with options.open(path) as file:
                if not file.num_entries:
                    raise InputError("the file has no entries", file=path)
                detected = ReadOptions(
                    detector=file.detector,
                    schema=options.schema or file.schema,
                    layout=file.layout or options.layout,
                    truth_tracks=options.truth_tracks,
                )
                chunks += Chunk.of(file, size)
            options.uuids[path] = file.uuid
            known[path] = last = last if last == detected else detected  # files that are alike share one description
        except InputError as error:
            if options.on_error == "raise":
                raise
            errors.append(error)
    leave_out_files(errors, len(paths))
    return chunks, dataclasses.replace(options, known=known)


def spread_sample(chunks: Sequence[Chunk], n: int) -> list[Chunk]:
    """About `n` entries in short runs that are spread evenly over all chunks, given in the order of the files."""
    if n < 1:
        raise ConfigError(f"a sample needs at least 1 event, found {n}")
    ends = np.cumsum([len(chunk) for chunk in chunks])
    total = int(ends[-1])
    if total <= n:
        return list(chunks)
    # Not longer than a file on average: long runs would leave out many of the small files.
    length = min(RUN, max(total // len({chunk.path for chunk in chunks}), 1), n)
    sample: list[Chunk] = []
    for begin in (total * np.arange(n // length) // (n // length)).tolist():
        end = begin + length
        while begin < end:  # a run may end in a later chunk
            # side: an entry at the end of one chunk is the first of the next.
            number = int(np.searchsorted(ends, begin, side="right"))
            chunk, first = chunks[number], int(ends[number]) - len(chunks[number])
            stop = min(end, int(ends[number]))
            sample.append(Chunk(chunk.path, chunk.start + begin - first, chunk.start + stop - first))
            begin = stop
    return sample


def read_chunks(chunks: Iterable[Chunk], options: FileOptions) -> Iterator[Events]:
    """Read chunks, the files used last kept open; where errors are skipped, a bad one gives no events and a warning."""
    with contextlib.closing(OpenFiles(options)) as files:
        for chunk in chunks:
            file = files.open(chunk.path)
            try:
                events = file.read(chunk.start, chunk.stop, on_error=options.on_error)
            except InputError as error:
                if options.on_error == "raise":
                    raise
                message = f"entries {chunk.start} to {chunk.stop - 1} were left out: {error}"
                warnings.warn(message, BadEntriesWarning, stacklevel=2)
                # Empty rather than left out: there is one result for each chunk.
                events = file.read(chunk.start, chunk.start)
            yield events


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
        sources = {part: TokenSet(of_batch.pop(part), chosen[part].mask) for part in PARTS if part in of_batch}
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
        # n > 1: an event with more than `max_tokens` gets a batch of its own.
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
    # Stable after a shuffle: events of equal length are in random order.
    ordered = shuffled[np.argsort(sizes[shuffled], kind="stable")]
    batches = [ordered[part] for part in cut(sizes[ordered], batch_size, max_tokens)]
    # Otherwise each buffer would be trained on from short events to long ones.
    generator.shuffle(batches)
    return batches


class LabelledBatch(NamedTuple):
    """A batch and where its B events are from: event numbers and entries, int64 [B], and paths of the files.

    `weight` is of the loss, where several ranks train; 0: the batch is there only so that the rank keeps step.
    """

    batch: Batch
    event: Tensor
    entry: Tensor
    path: tuple[str, ...]
    weight: float = 1.0

    @property
    def n_target(self) -> int:
        """Number of target particles, the end of each sequence counted as one more."""
        target = self.batch.target
        return len(self.batch) + (0 if target is None else int(target.mask.sum()))


def _batches(parts: Sequence[Tokens], cut_up: Callable[[Index], Iterable[Index]]) -> Iterator[LabelledBatch]:
    """Batches of the encoded events of several parts; `cut_up` gives their rows for the events' numbers of tokens."""
    padder, path = Padder(parts), [part.path for part in parts for _ in range(len(part))]
    event, entry, n_source = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("event", "entry", "n_source")
    )
    for rows in cut_up(n_source):
        paths = tuple(path[row] for row in rows.tolist())
        yield LabelledBatch(padder.batch(rows), torch.from_numpy(event[rows]), torch.from_numpy(entry[rows]), paths)


@dataclasses.dataclass(eq=False)
class EventDataset(IterableDataset[LabelledBatch]):
    """Batches of encoded events, streamed; at most a chunk and the shuffle buffer are in memory.

    Each worker of a `DataLoader` on each rank takes its own share of the chunks. In training (`shuffle`) each shuffles
    the order of its chunks and the events within a `buffer`, from (seed, epoch, share), so that a pass is reproducible
    and no two are alike, and batches events of similar length. Without shuffling a batch holds consecutive events of
    one chunk, whatever the shares. Give the loader ``batch_size=None``: batches come ready. Augmentation is drawn from
    (seed, epoch, share, chunk). Other options are as of `pflow.data.datamodule.ParticleFlowData`.
    """

    chunks: Sequence[Chunk]
    _: dataclasses.KW_ONLY
    options: FileOptions
    tokeniser: Tokeniser
    batch_size: int
    max_tokens: int | None = None
    shuffle: bool = False
    buffer: int = 1024
    seed: int = 0
    epoch: int = 0
    num_workers: int = 0
    rank: int = 0
    n_ranks: int = 1
    augmentation: Augmentation | None = None
    truth: bool = True

    def __post_init__(self) -> None:
        if not self.chunks:
            raise ConfigError("a dataset needs at least one chunk of a file")
        if self.shuffle and self.buffer < self.batch_size:
            raise ConfigError(f"a shuffle buffer of {self.buffer} events cannot fill a batch of {self.batch_size}")
        self._refused = torch.zeros(1, dtype=torch.bool)
        self._refused.share_memory_()  # type: ignore[no-untyped-call]  # workers of a loader write to it

    @property
    def refused(self) -> bool:
        """Whether an entry was skipped so far, by this process or a worker of a loader."""
        return bool(self._refused)

    def __len__(self) -> int:
        """Number of batches in a pass, of the rank that has the most; TypeError with `max_tokens`: not known."""
        if self.max_tokens is not None:
            raise TypeError("with max_tokens the number of batches is not known beforehand")
        counts, n_shares = np.array([len(chunk) for chunk in self.chunks]), max(self.num_workers, 1) * self.n_ranks
        shares = [counts[share::n_shares] for share in range(n_shares)]
        n_events = [share.sum() if self.shuffle else share for share in shares]  # that are cut into batches together
        n_batches = [int(np.ceil(n / self.batch_size).sum()) for n in n_events]
        return max(sum(n_batches[rank :: self.n_ranks]) for rank in range(self.n_ranks))

    def __iter__(self) -> Iterator[LabelledBatch]:
        worker = get_worker_info()
        index, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        # Neighbouring chunks go to different ranks, whose numbers of chunks then differ by one at most.
        share = index * self.n_ranks + self.rank
        generator = np.random.default_rng([self.seed, self.epoch, share])
        numbers = list(range(share, len(self.chunks), workers * self.n_ranks))
        if self.shuffle:
            generator.shuffle(numbers)
        parts = self._parts(numbers, share)
        yield from self._shuffled(parts, generator) if self.shuffle else self._in_order(parts)

    def filler(self) -> LabelledBatch:
        """A batch of the first event alone, for a rank that has no batches left."""
        first = dataclasses.replace(self.chunks[0], stop=self.chunks[0].start + 1)
        (events,) = read_chunks([first], self.options)
        return next(_batches([self._encoded(events, self.tokeniser)[0]], lambda _: [np.zeros(1, np.int64)]))

    def _parts(self, numbers: Sequence[int], share: int) -> Iterator[Tokens]:
        """Events of some chunks; warns at the end of codes that training did not show."""
        unknown: Counter[int] = Counter()
        chunks = read_chunks([self.chunks[number] for number in numbers], self.options)
        for number, events in zip(numbers, chunks, strict=True):
            if self.augmentation is not None:
                # + 1: NumPy ignores trailing zeros of a seed, and chunk 0 would have the seed of the shuffling.
                generator = np.random.default_rng([self.seed, self.epoch, share, number + 1])
                events = augment(events, self.augmentation, generator)
            merge, tokeniser = self.tokeniser.config.merge, self.tokeniser
            if self.shuffle and merge is not None and merge.ecal_sizes:
                # Another 1 in the seed: else the size would go with the augmentation's first number.
                drawn = np.random.default_rng([self.seed, self.epoch, share, number + 1, 1]).choice(merge.ecal_sizes)
                tokeniser = tokeniser.merging(float(drawn))
            tokens, events = self._encoded(events, tokeniser)
            # In place: the tensor is in memory that workers share with the training process.
            self._refused |= bool(np.any(events.flags & Flag.BAD_INPUT)) or len(events) < len(self.chunks[number])
            unknown.update(tokens.unknown)
            yield tokens
        if unknown:
            warnings.warn(unknown_pdg_message(unknown), stacklevel=2)

    def _encoded(self, events: Events, tokeniser: Tokeniser) -> tuple[Tokens, Events]:
        """Tokens of a chunk and the chunk; where bad entries are skipped, those the model cannot read are empty."""
        # Unknown codes are warned of once at the end (`_parts`), not for each chunk.
        return without_refused(
            events, lambda some: tokeniser.encode(some, truth=self.truth, warn=False), self.options.on_error
        )

    def _in_order(self, parts: Iterable[Tokens]) -> Iterator[LabelledBatch]:
        for part in parts:
            yield from _batches([part], lambda n_source: cut(n_source, self.batch_size, self.max_tokens))

    def _shuffled(self, parts: Iterable[Tokens], generator: np.random.Generator) -> Iterator[LabelledBatch]:
        buffered: list[Tokens] = []
        for part in parts:
            while (room := self.buffer - sum(map(len, buffered))) <= len(part):
                buffered.append(part[:room])
                part = part[room:]
                # The remainder waits for the next buffer: else each buffer would end with a short batch.
                yield from self._emptied(buffered, generator, keep=self.buffer % self.batch_size)
            buffered.append(part)
        yield from self._emptied(buffered, generator, keep=0)

    def _emptied(self, buffered: list[Tokens], generator: np.random.Generator, keep: int) -> Iterator[LabelledBatch]:
        """Batch the buffer's events except for `keep` random ones; only the last batch may be short."""
        place = [(part, row) for part in buffered for row in range(len(part))]
        if not place:
            return
        order, parts = generator.permutation(len(place)), list(buffered)
        # As copies, so that the memory of all others is free.
        buffered[:] = [part[[row]] for part, row in (place[i] for i in order[:keep])]

        def cut_up(n_source: Index) -> Iterator[Index]:
            drawn = order[keep:]
            of_drawn = bucket(n_source[drawn], self.batch_size, self.max_tokens, generator)
            return (drawn[rows] for rows in of_drawn)

        yield from _batches(parts, cut_up)


@dataclasses.dataclass
class StopRequest:
    """Whether to stop: the `signal` that this rank got (0: none); `agreed`, once all ranks know, at the same batch."""

    signal: int = 0
    agreed: int = 0


class StepLoader:
    """Batches of one rank, in step with the other ranks.

    The ranks tell each other what their next batches hold. A rank that has none left while others have repeats one
    batch with weight 0 until all end together. Weights are proportional to n_target_particles + n_events of each rank,
    so that the averaged gradient equals the gradient of one joint batch. `group` is the ranks as a process group on
    the CPU (exchanging needs no GPU synchronisation), None for one rank.
    """

    def __init__(self, dataset: EventDataset, stop: StopRequest, group: Any = None) -> None:
        self.dataset = dataset
        self.stop = stop
        self.group = group
        self.skip = 0
        """Batches at the beginning of the next pass to leave out, which a resumed training has seen."""
        self.begin: Callable[[], None] = lambda: None
        """Called before each pass."""
        self._loader: DataLoader[LabelledBatch] = DataLoader(
            dataset,
            batch_size=None,
            num_workers=dataset.num_workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=begin_worker,
        )

    def __len__(self) -> int:
        """Number of steps in a pass, of the rank with the most batches; TypeError where it is not known beforehand."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[LabelledBatch]:
        self.begin()
        # Batches that were seen are made again and dropped: buffer and random numbers are then as they were.
        batches = islice(self._loader, self.skip, None)
        if self.group is not None:
            yield from self._in_step(batches)
            return
        for batch in batches:
            self.stop.agreed = self.stop.signal
            yield batch

    def _in_step(self, batches: Iterator[LabelledBatch]) -> Iterator[LabelledBatch]:
        filler: LabelledBatch | None = None
        n_ranks = distributed.get_world_size(self.group)
        while True:
            batch = next(batches, None)
            n_events, n_target = (0, 0) if batch is None else (len(batch.batch), batch.n_target)
            status = torch.tensor([self.stop.signal, n_events, n_target])  # n_target: particles and ends
            ranks = [torch.empty_like(status) for _ in range(n_ranks)]
            distributed.all_gather(ranks, status, group=self.group)
            signals, all_events, all_targets = torch.stack(ranks, dim=1).tolist()
            # The same for all ranks at the same batch: none waits for one that has stopped.
            self.stop.agreed = max(signals)
            if not any(all_events):
                return
            if batch is None:
                # Kept, as it is read from a file.
                batch = filler = filler or self.dataset.filler()
            yield batch._replace(weight=n_ranks * n_target / sum(all_targets))
