"""Open event files of any schema and read them as validated `Events`."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Literal

import awkward as ak
import numpy as np

from pflow.errors import ConfigError, InputError, check_choice, reading
from pflow.event.events import Events, concatenate
from pflow.event.skipped import BadEntriesWarning, refused_message
from pflow.io.detect import SCHEMAS, DetectorMatch, best_detector, best_layout, detector_matches, sniff
from pflow.io.edm4hep.collection_content import CollectionContent, collection_contents
from pflow.io.edm4hep.podio import open_podio
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.flat import FlatReader
from pflow.io.layout import Layout
from pflow.io.reader import Reader
from pflow.io.remote import with_retries
from pflow.physics.detector import Detector, load_detector

__all__ = ["BadEntriesWarning", "BadEntry", "EventFile", "iterate_events", "open_events", "read_events"]

DAMAGED = "cannot be read: damaged, or not what it seems to be"

OnError = Literal["raise", "skip"]
FilePath = str | PathLike[str]


@dataclasses.dataclass(frozen=True)
class BadEntry:
    """An entry that cannot be used, and why."""

    entry: int
    """Entry of the tree, from 0."""
    error: InputError
    """The first thing that is wrong with it."""


class EventFile:
    """An open file of events; a context manager.

    Parameters
    ----------
    reader
        Reader of its schema; closed with it.
    reopen
        Gives another one, for a file on a server to which the connection was lost.

    Attributes
    ----------
    schema, path, uuid, num_entries, detector, absent, sources, truth_tracks
        As of `pflow.io.reader.Reader`.

    Examples
    --------
    >>> with open_events("cld_rec.edm4hep.root") as file:  # doctest: +SKIP
    ...     events = file.read(0, 100)
    """

    def __init__(self, reader: Reader, *, reopen: Callable[[], Reader]) -> None:
        self._reader = reader
        self._reopen = reopen
        self.schema = reader.schema
        self.path = reader.path
        self.uuid = reader.uuid
        self.num_entries = reader.num_entries
        self.detector = reader.detector
        self.absent = reader.absent
        self.sources = reader.sources
        self.truth_tracks = reader.truth_tracks

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_entries

    def __repr__(self) -> str:
        return f"<EventFile: {self.path}, {self.schema}, {self.num_entries} entries, detector {self.detector.name}>"

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._reader.close()

    @property
    def layout(self) -> Layout | None:
        """Which branches of a flat file hold which quantities; None for other schemas."""
        return getattr(self._reader, "layout", None)

    @property
    def edm4hep(self) -> Edm4hepReader | None:
        """Reader of an EDM4hep file, which knows its collections; None for other schemas."""
        return self._reader if isinstance(self._reader, Edm4hepReader) else None

    def detector_matches(self) -> list[DetectorMatch]:
        """Every built-in detector, best match first; see `pflow.io.detect.detector_matches`."""
        return detector_matches(self._reader)

    def collections(self, stop: int) -> tuple[CollectionContent, ...]:
        """Every collection of a podio file, with counts over its first `stop` entries; none for other files.

        Raises
        ------
        InputError
            The bytes cannot be decoded.
        """
        if not isinstance(self._reader, Edm4hepReader):
            return ()
        return collection_contents(self._reader.file, stop)

    def read(
        self, start: int = 0, stop: int | None = None, *, truth: bool = True, on_error: OnError = "raise"
    ) -> Events:
        """Read the entries `start` to `stop` (exclusive, by default all) and validate them.

        Parameters
        ----------
        start, stop
            Range of entries; those beyond the last one are left out.
        truth
            Read truth, links and reference too.
        on_error
            What to do with an entry that cannot be decoded or is not valid: ``raise``, or ``skip``: leave it in its
            place without content, flagged ``Flag.BAD_INPUT``.

        Raises
        ------
        InputError
            The first entry that cannot be used, with file, entry and field; or a missing column.
        ConfigError
            Another `on_error`, or a negative `start`.

        Warns
        -----
        BadEntriesWarning
            Once a call, under ``skip``: how many entries were emptied, and why the first.
        """
        return self._read(start, stop, truth=truth, on_error=on_error)

    def _read(self, start: int, stop: int | None, *, truth: bool, on_error: OnError) -> Events:
        """Read as `read` does; called by public functions only, whose caller a warning names."""
        if on_error not in ("raise", "skip"):
            raise ConfigError(f"on_error is '{on_error}', expected 'raise' or 'skip'")
        events, bad = self.read_all(start, stop, truth=truth, strict=on_error == "raise")
        if bad:
            warnings.warn(
                refused_message([found.error for found in bad], len(events)),
                BadEntriesWarning,
                stacklevel=3,
            )
        return events

    def read_all(
        self, start: int = 0, stop: int | None = None, *, truth: bool = True, strict: bool = False
    ) -> tuple[Events, list[BadEntry]]:
        """Read as `read` does, and return the entries that cannot be used, in order; raise the first if `strict`.

        Raises
        ------
        InputError, ConfigError
            As for `read`.
        """
        if start < 0:
            raise ConfigError(f"entries are counted from 0, found start {start}")
        stop = self.num_entries if stop is None else min(stop, self.num_entries)
        start = min(start, stop) if stop >= 0 else 0
        stop = max(start, stop)
        try:
            events = self._read_range(start, stop, truth=truth)
            undecoded: list[BadEntry] = []
        except InputError as error:
            if strict or error.entry is None or start == stop:  # no entry is to blame
                raise
            events, undecoded = self._read_one_by_one(start, stop, truth=truth)
        with reading(DAMAGED, file=self.path, entry=start):
            if strict:
                return events.validate(), []
            return _without_violations(events, undecoded)

    def _read_range(self, start: int, stop: int, *, truth: bool) -> Events:
        """Read without validating. What a damaged file makes other libraries raise is an error of the first entry."""
        with reading(DAMAGED, file=self.path, entry=start):
            return with_retries(
                self.path, lambda: self._reader.read(start, stop, truth=truth), again=self._connect_again
            )

    def _connect_again(self) -> None:
        """Open the file anew.

        Raises
        ------
        InputError
            There is another file in its place.
        """
        with suppress(Exception):  # a broken connection cannot always be closed
            self._reader.close()
        reader = self._reopen()
        if (reader.uuid, reader.num_entries) != (self.uuid, self.num_entries):
            reader.close()
            raise InputError("was replaced while it was read", file=self.path)
        self._reader = reader

    def _read_one_by_one(self, start: int, stop: int, *, truth: bool) -> tuple[Events, list[BadEntry]]:
        """Read a range in which some entries cannot be decoded; these are left without content."""
        chunks: list[Events] = []
        bad: list[BadEntry] = []
        for entry in range(start, stop):
            try:
                chunks.append(self._read_range(entry, entry + 1, truth=truth))
            except InputError as error:
                if error.entry is None:
                    raise
                bad.append(BadEntry(entry, error))
                end = self.num_entries  # an empty range there touches no bytes
                chunks.append(_blank(self._read_range(end, end, truth=truth), entry))
        return concatenate(chunks), bad


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
        EDM4hep (TTree or RNTuple), a flat ntuple, or an HDF5 file of the first paper.
    detector
        Built-in name, detector file or `Detector`; by default the built-in one that fits (EDM4hep) or the one that
        the layout names (flat).
    schema
        ``edm4hep``, ``edm4hep-rntuple``, ``edm4hep-sim`` (simulated hits even where there are digitised ones),
        ``flat`` or ``legacy-hdf5``.
    layout
        Table from branches to fields of a flat ntuple, built-in name, file or `Layout`; implies ``flat``. By default
        the built-in one of the detector (`pflow.io.detect`).
    truth_tracks
        Make the tracks of an EDM4hep file that has none from its Monte Carlo particles, as the detector's
        `truth_tracks` describes, and flag its events ``Flag.TRUTH_TRACKS``.

    Raises
    ------
    InputError
        Not a file of a known schema, truncated, a required collection missing, or no detector fits.
    ConfigError
        Unknown schema, detector or layout, or a file or detector that `truth_tracks` is not for.
    """

    def opened() -> Reader:
        return _open(path, detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks)

    with reading(DAMAGED, file=path):
        return EventFile(with_retries(path, opened), reopen=opened)


def _open(
    path: FilePath,
    *,
    detector: str | Path | Detector | None,
    schema: str | None,
    layout: str | Path | Layout | None,
    truth_tracks: bool,
) -> Reader:
    if schema is not None:
        check_choice(schema, SCHEMAS, "schema")
    if schema is None:
        schema = sniff(path, layout=layout)
    elif layout is not None and schema != "flat":
        raise ConfigError(f"a layout is for flat ntuples, not for schema '{schema}'")
    if truth_tracks and schema in ("flat", "legacy-hdf5"):
        raise ConfigError(
            f"{path}: tracks are made from Monte Carlo particles of EDM4hep files, not of schema '{schema}'"
        )
    wanted = None if detector is None else load_detector(detector)
    if schema == "legacy-hdf5":
        from pflow.io.legacy_hdf5 import LegacyReader

        return LegacyReader(str(path), detector=wanted)
    if schema == "flat":
        return FlatReader(str(path), layout=layout or best_layout(path, wanted), detector=wanted)
    file = open_podio(path)
    try:
        sim = True if schema == "edm4hep-sim" else None
        if wanted is None:
            wanted = best_detector(file, sim=sim)
        return Edm4hepReader(file, detector=wanted, sim=sim, truth_tracks=truth_tracks)
    except BaseException:
        file.close()
        raise


def read_events(
    path: FilePath,
    *,
    detector: str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | None = None,
    truth_tracks: bool = False,
    entry_start: int = 0,
    entry_stop: int | None = None,
    truth: bool = True,
    on_error: OnError = "raise",
) -> Events:
    """Read entries of one file; parameters, errors and warnings as of `open_events` and `EventFile.read`."""
    with open_events(path, detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks) as file:
        return file._read(entry_start, entry_stop, truth=truth, on_error=on_error)


def iterate_events(
    paths: FilePath | Iterable[FilePath],
    *,
    detector: str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | None = None,
    truth_tracks: bool = False,
    chunk_size: int = 100,
    truth: bool = True,
    on_error: OnError = "raise",
) -> Iterator[Events]:
    """Read one or more files in chunks of at most `chunk_size` entries, in order and in bounded memory.

    A chunk never spans two files; a file without entries gives none. Parameters, errors and warnings as for
    `open_events` and `EventFile.read`.

    Raises
    ------
    ConfigError
        `chunk_size` below 1.
    """
    if chunk_size < 1:
        raise ConfigError(f"chunk_size is {chunk_size}, expected at least 1")
    for path in [paths] if isinstance(paths, str | PathLike) else paths:
        with open_events(path, detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks) as file:
            for start in range(0, file.num_entries, chunk_size):
                yield file._read(start, start + chunk_size, truth=truth, on_error=on_error)


def _without_violations(events: Events, undecoded: list[BadEntry]) -> tuple[Events, list[BadEntry]]:
    """Empty and flag the events with violations, and those that could not be decoded."""
    bad = {found.entry: found for found in undecoded}
    for violation in events.violations():
        entry = int(events.entry[violation.index])
        if entry not in bad:
            bad[entry] = BadEntry(entry, events.error(violation.message, index=violation.index, field=violation.field))
    return events.emptied(np.isin(events.entry, list(bad))), [bad[entry] for entry in sorted(bad)]


def _blank(template: Events, entry: int) -> Events:
    """One event without content, with the parts of a template that has no events."""
    parts = {name: ak.unflatten(ak.flatten(part, axis=1), [0]) for name, part in template.parts()}
    return dataclasses.replace(
        template, entry=np.array([entry]), event=np.array([entry]), flags=np.zeros(1, np.uint32), **parts
    )
