"""Open event files of any schema and read them as validated `Events`."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path

from pflow.errors import ConfigError, InputError, check_choice, missing_package
from pflow.event.events import Events, concatenate
from pflow.event.skipped import BadEntriesWarning
from pflow.io.checks import Expected
from pflow.io.detect import SCHEMAS, best_detector, best_layout, is_hdf5, sniff
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.flat import FlatReader
from pflow.io.layout import Layout, load_layout
from pflow.io.reader import EventFile, OnError, Reader
from pflow.io.root import open_root, split_tree
from pflow.physics.detector import Detector, load_detector

__all__ = ["BadEntriesWarning", "EventFile", "iterate_events", "matching", "open_events", "read_events"]

FilePath = str | PathLike[str]
Files = FilePath | Iterable[FilePath]
"""A file, a glob pattern or several of them; a tree may follow after a colon, ``file.root:tree``."""

NO_TRUTH_TRACKS = "{}: tracks are made from Monte Carlo particles of EDM4hep files, not of schema '{}'"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How files of events are read: the options of `open_events`, and what the caller knows of the events."""

    detector: str | Path | Detector | None = None
    schema: str | None = None
    layout: str | Path | Layout | None = None
    truth_tracks: bool = False
    on_error: OnError = "raise"
    expected: Expected = Expected()  # noqa: RUF009
    """Truth rule and training sample, for the checks of the first events."""

    def open(self, path: FilePath) -> EventFile:
        """Open a file; errors as of `open_events`."""
        if self.schema is not None:
            check_choice(self.schema, SCHEMAS, "schema")
            if self.layout is not None and self.schema != "flat":
                raise ConfigError(f"a layout is for flat ntuples, not for schema '{self.schema}'")
        detector = None if self.detector is None else load_detector(self.detector)
        return EventFile(str(path), lambda: _open(str(path), self, detector), expected=self.expected)

    def iterate(self, paths: Files, chunk_size: int, *, truth: bool = True) -> Iterator[Events]:
        """Read files in chunks, as `iterate_events` does."""
        if chunk_size < 1:
            raise ConfigError(f"chunk_size is {chunk_size}, expected at least 1")
        for path in matching(paths):
            with self.open(path) as file:
                for start, stop in file.ranges(chunk_size):
                    events = file._read(start, stop, truth=truth, on_error=self.on_error)
                    for first in range(0, len(events), chunk_size):
                        yield events[first : first + chunk_size]


def open_events(
    path: FilePath,
    *,
    detector: str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | Layout | None = None,
    truth_tracks: bool = False,
) -> EventFile:
    """Open a file of events; the schema is found by looking at the file unless it is given.

    Parameters
    ----------
    path
        EDM4hep (TTree or RNTuple), a flat ntuple, or an HDF5 file of the first paper; ``file.root:tree`` names the
        tree of a flat ntuple, which the layout names otherwise.
    detector
        Built-in name, file or `Detector`; by default the built-in one that fits, or that the layout names.
    schema
        ``edm4hep``, ``edm4hep-rntuple``, ``edm4hep-sim`` (simulated hits even where there are digitised ones),
        ``flat`` or ``legacy-hdf5``.
    layout
        Table from branches to fields of a flat ntuple, built-in name, file or `Layout`; implies ``flat``.
    truth_tracks
        Make the tracks of an EDM4hep file without any from its Monte Carlo particles, as the detector's
        `truth_tracks` describes, and flag its events ``Flag.TRUTH_TRACKS``.

    Raises
    ------
    InputError
        Not a file of a known schema, truncated, a required collection missing, or no detector fits.
    ConfigError
        Unknown schema, detector or layout, or a file or detector that `truth_tracks` is not for.

    Examples
    --------
    >>> with open_events("multi_test_small.root") as file:
    ...     file, len(file.read(10, 20))
    (<EventFile: multi_test_small.root, flat, 25 entries, detector ild_g4>, 10)
    """
    return ReadOptions(detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks).open(path)


def _open(path: str, options: ReadOptions, detector: Detector | None) -> Reader:
    schema, layout, truth_tracks = options.schema, options.layout, options.truth_tracks
    file, tree = split_tree(path)
    if schema is None and is_hdf5(file):
        schema = "legacy-hdf5"
    if truth_tracks and (schema in ("flat", "legacy-hdf5") or layout is not None):
        raise ConfigError(NO_TRUTH_TRACKS.format(file, schema or "flat"))
    if schema == "legacy-hdf5":
        try:
            from pflow.io.legacy_hdf5 import LegacyReader
        except ModuleNotFoundError as error:
            raise missing_package("h5py", "the files of the first paper", extra="paper") from error

        return LegacyReader(file, detector=detector)
    if tree not in (None, "events") and layout is None and schema != "flat":
        message = (
            "EDM4hep's events are in the tree 'events'; a flat ntuple of another name needs a layout of its branches"
        )
        raise InputError(message, file=file, field=tree)
    directory = open_root(file)
    try:
        if schema is None:
            schema = "flat" if layout is not None else sniff(directory, file)
            if truth_tracks and schema == "flat":
                raise ConfigError(NO_TRUTH_TRACKS.format(file, schema))
        if schema == "flat":
            layout = load_layout(layout or best_layout(directory, file, detector))
            if tree in (None, layout.tree):
                return FlatReader(directory, file, layout=layout, detector=detector)
            return FlatReader(directory, path, layout=dataclasses.replace(layout, tree=tree), detector=detector)
        podio = PodioFile(directory, file)
        sim = True if schema == "edm4hep-sim" else None
        detector = detector or best_detector(podio, sim=sim)
        return Edm4hepReader(podio, detector=detector, sim=sim, truth_tracks=truth_tracks)
    except BaseException:
        directory.close()
        raise


def matching(paths: Files) -> list[str]:
    """The files that paths and glob patterns name, each pattern's in sorted order; one at least of each pattern."""
    files: list[str] = []
    for path in map(str, [paths] if isinstance(paths, str | PathLike) else paths):
        if "://" in path or not glob.has_magic(path) or Path(split_tree(path)[0]).exists():
            files.append(path)
            continue
        matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            pattern, colon, tree = path.rpartition(":")
            matches = [f"{name}{colon}{tree}" for name in sorted(glob.glob(pattern, recursive=True))]
        if not matches:
            raise InputError("no file matches this pattern", file=path)
        files += matches
    return files


def read_events(
    path: Files,
    *,
    detector: str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | Layout | None = None,
    truth_tracks: bool = False,
    entry_start: int = 0,
    entry_stop: int | None = None,
    truth: bool = True,
    on_error: OnError = "raise",
) -> Events:
    """Read entries of one or more files of one detector; entries are counted through all of them.

    `path`: a file, a glob pattern or several, as ``file.root:tree`` too. Other parameters, errors and warnings as of
    `open_events` and `EventFile.read`.

    >>> read_events("multi_test_small.root", entry_start=10, entry_stop=20)
    <Events: 10 events of ild_g4, ...>
    >>> read_events(["multi_test_small.root", "zqq_test*.root:events"], entry_start=20)
    <Events: 11 events of ild_g4, ...>
    """
    options = ReadOptions(detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks)
    chunks: list[Events] = []
    before = 0
    for name in matching(path):
        if chunks and entry_stop is not None and entry_stop <= before:
            break
        with options.open(name) as file:
            start = max(entry_start - before, 0) if chunks else entry_start
            stop = None if entry_stop is None else entry_stop - before
            events = file._read(start, stop, truth=truth, on_error=on_error)
            if chunks and events.detector != chunks[0].detector:
                expected = chunks[0].detector.name
                raise InputError(f"is of detector '{events.detector.name}', files before it of '{expected}'", file=name)
            chunks.append(events)
            before += file.num_entries
    if not chunks:
        raise ConfigError("no files to read events from")
    return chunks[0] if len(chunks) == 1 else concatenate(chunks)


def iterate_events(
    paths: Files,
    *,
    detector: str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | Layout | None = None,
    truth_tracks: bool = False,
    chunk_size: int = 100,
    truth: bool = True,
    on_error: OnError = "raise",
) -> Iterator[Events]:
    """Read one or more files in chunks of at most `chunk_size` entries, in order and in bounded memory.

    A chunk never spans two files; a file without entries gives none. Parameters, errors and warnings as of
    `open_events` and `EventFile.read`.

    >>> [len(events) for events in iterate_events(["multi_test_small.root", "zqq_test_small.root"], chunk_size=20)]
    [20, 5, 6]
    """
    options = ReadOptions(detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks, on_error=on_error)
    return options.iterate(paths, chunk_size, truth=truth)
