"""Event files as a list of chunks, the ranges of entries that are read at once, and how they are read."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from pflow.errors import ConfigError, InputError
from pflow.event.events import BadEntriesWarning, Events, leave_out_files
from pflow.event.move import Move
from pflow.io.open import EventFile, FilePath, ReadOptions


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
        for path in list(self._files):
            self.release(path)


def survey(paths: Sequence[str], options: FileOptions, size: int) -> tuple[list[Chunk], FileOptions]:
    """Open each file once: chunks of about `size` entries, and options that know the files; bad ones may be skipped."""
    results = {path: _look_at(path, options, size) for path in paths}
    leave_out_files([result for result in results.values() if isinstance(result, InputError)], len(paths))
    chunks: list[Chunk] = []
    known, last = dict(options.known), ReadOptions()
    for path, result in results.items():
        if not isinstance(result, InputError):
            of_file, detected = result
            chunks += of_file
            known[path] = last = last if last == detected else detected  # files that are alike share one description
    return chunks, dataclasses.replace(options, known=known)


def spread_sample(chunks: Sequence[Chunk], n: int) -> list[Chunk]:
    """About `n` entries in short runs that are spread evenly over all chunks, given in the order of the files."""
    if n < 1:
        raise ConfigError(f"a sample needs at least 1 event, found {n}")
    ends = np.cumsum([len(chunk) for chunk in chunks])
    total = int(ends[-1])
    if total <= n:
        return list(chunks)
    length = min(RUN, max(total // len({chunk.path for chunk in chunks}), 1), n)
    sample: list[Chunk] = []
    for begin in (total * np.arange(n // length) // (n // length)).tolist():
        end = begin + length
        while begin < end:  # a run may end in a later chunk
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
                events = file.read(chunk.start, chunk.start)
            yield events


def _look_at(path: str, options: FileOptions, size: int) -> tuple[list[Chunk], ReadOptions] | InputError:
    """Chunks of a file and its detected options; with `on_error` "skip" the error of an unusable or empty file."""
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
            return Chunk.of(file, size), detected
    except InputError as error:
        if options.on_error == "raise":
            raise
        return error
