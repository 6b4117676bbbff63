"""Event files as a list of chunks, each of which is read at once."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pflow.errors import ConfigError, InputError
from pflow.event.events import Events
from pflow.io.open import EventFile, open_events
from pflow.physics.detector import Detector

__all__ = ["Chunk", "FileOptions", "expand", "first_entries", "matching", "read_chunks", "split"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How files are opened and read; see `pflow.open_events`."""

    detector: str | Path | Detector | None = None
    schema: str | None = None
    layout: str | Path | None = None
    truth_tracks: bool = False
    on_error: Literal["raise", "skip"] = "raise"

    def open(self, path: str) -> EventFile:
        """Open a file."""
        return open_events(
            path, detector=self.detector, schema=self.schema, layout=self.layout, truth_tracks=self.truth_tracks
        )


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Entries ``start`` to ``stop`` (exclusive) of one file."""

    path: str
    start: int
    stop: int

    @classmethod
    def all_of(cls, file: EventFile, size: int) -> list[Chunk]:
        """All entries of a file, in order, in chunks of at most `size`."""
        n = file.num_entries
        return [cls(file.path, start, min(start + size, n)) for start in range(0, n, size)]

    def __len__(self) -> int:
        return self.stop - self.start


def expand(paths: str | Iterable[str] | None, what: str) -> list[str]:
    """Paths and glob patterns to the files they name: patterns in sorted order, nothing twice.

    Raises
    ------
    ConfigError
        No path is given.
    InputError
        A pattern that no file matches; names it.
    """
    given = [paths] if isinstance(paths, str) else list(paths or ())
    if not given:
        raise ConfigError(f"no {what} files are given: set data.{what}")
    return list(dict.fromkeys(matching(given)))


def matching(paths: Iterable[str | Path]) -> list[str]:
    """The files that paths and glob patterns name, those of a pattern in sorted order.

    Raises
    ------
    InputError
        A pattern that no file matches; names it.
    """
    found: list[str] = []
    for path in map(str, paths):
        if "://" in path or not glob.has_magic(path) or Path(path).exists():
            found.append(path)
            continue
        matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            raise InputError("no file matches this pattern", file=path)
        found += matches
    return found


def split(paths: Sequence[str], options: FileOptions, size: int) -> list[Chunk]:
    """Cut files into chunks of at most `size` entries, in order. Each file is opened once.

    Raises
    ------
    ConfigError
        A size below 1.
    InputError
        A file that cannot be read, or without any entries.
    """
    if size < 1:
        raise ConfigError(f"a chunk needs at least 1 entry, found {size}")
    chunks: list[Chunk] = []
    for path in paths:
        with options.open(path) as file:
            of_file = Chunk.all_of(file, size)
        if not of_file:
            raise InputError("the file has no entries", file=path)
        chunks += of_file
    return chunks


def first_entries(chunks: Iterable[Chunk], n: int) -> list[Chunk]:
    """The chunks of the first `n` entries.

    Raises
    ------
    ConfigError
        Fewer than 1.
    """
    if n < 1:
        raise ConfigError(f"at least 1 event must be read, found {n}")
    kept: list[Chunk] = []
    for chunk in chunks:
        left = n - sum(map(len, kept))
        if left > 0:
            kept.append(dataclasses.replace(chunk, stop=min(chunk.stop, chunk.start + left)))
    return kept


def read_chunks(chunks: Iterable[Chunk], options: FileOptions, *, truth: bool = True) -> Iterator[Events]:
    """Read chunks one after the other; the last file stays open until another one is needed."""
    file: EventFile | None = None
    path = ""
    try:
        for chunk in chunks:
            if file is None or path != chunk.path:
                if file is not None:
                    file.close()
                file, path = options.open(chunk.path), chunk.path
            yield file.read(chunk.start, chunk.stop, truth=truth, on_error=options.on_error)
    finally:
        if file is not None:
            file.close()
