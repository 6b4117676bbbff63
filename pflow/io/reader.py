"""Open event files: what the reader of each schema does, and what all of them have in common."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.events import Events, concatenate
from pflow.event.skipped import BadEntriesWarning, ImplausibleWarning, LeftOutWarning, leave_out, refused_message
from pflow.io.checks import Check, Expected, check_events, first_events, problems
from pflow.io.remote import with_retries
from pflow.io.root import read_ranges
from pflow.physics.detector import Detector

OnError = Literal["raise", "skip"]


@runtime_checkable
class Reader(Protocol):
    """One open file of one schema, as `EventFile` uses it."""

    schema: str
    path: str
    uuid: str
    num_entries: int
    tree: Any
    detector: Detector
    absent: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]
    truth_tracks: bool

    @property
    def notes(self) -> Mapping[str, str]:
        """Problems noticed while reading, by topic."""
        ...

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Read the entries `start` to `stop` (exclusive) without validating them; `truth` with links and reference.

        A range without entries has the same parts as any other. Where bytes cannot be decoded, the ``entry`` of the
        `InputError` is the first of the range, never None.
        """
        ...

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        ...


class EventFile:
    """An open file of events; a context manager.

    Attributes
    ----------
    schema, path, uuid, num_entries
        ``edm4hep``, ``edm4hep-rntuple``, ``flat`` or ``legacy-hdf5``; the UUID is "" if the file has none.
    detector, absent, sources
        Detector that its hits are sorted into, its optional collections that the file does not hold, and
        collections that are read, by part and calorimeter.
    layout
        Branches of a flat file (`pflow.io.layout.Layout`); None for other schemas.
    truth_tracks
        Whether its tracks are made from Monte Carlo particles.
    expected
        What the caller knows of its events, for the checks of the first ones (`pflow.io.checks.Expected`).
    said
        Names of the checks that were warned of.

    >>> with pflow.open_events("multi_test_small.root") as file:
    ...     events = file.read(10, 20)
    """

    def __init__(self, path: str, reopen: Callable[[], Reader], *, expected: Expected) -> None:
        self._reopen = reopen
        self.expected = expected
        self.reader = reader = with_retries(path, reopen)
        self.schema = reader.schema
        self.path = reader.path
        self.uuid = reader.uuid
        self.num_entries = reader.num_entries
        self.detector = reader.detector
        self.absent = reader.absent
        self.sources = reader.sources
        self.truth_tracks = reader.truth_tracks
        self.layout = getattr(reader, "layout", None)
        self._checked: set[bool] = set()  # with truth, without
        self.said: set[str] = set()

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
        self.reader.close()

    @property
    def empty_calorimeters(self) -> list[str]:
        """Calorimeters of the detector without a collection in the file."""
        names = [calorimeter.name for calorimeter in self.detector.calorimeters]
        return [name for name in names if self.sources and not self.sources[name]]

    def ranges(self, size: int, most: int | None = None) -> list[tuple[int, int]]:
        """Ranges of all entries, in order, in which the file is best read, as of `pflow.io.root.read_ranges`."""
        if size < 1:
            raise ConfigError(f"a chunk has at least 1 entry, found a chunk size of {size}")
        if self.reader.tree is not None:
            return read_ranges(self.reader.tree, size, most)
        return [(start, min(start + size, self.num_entries)) for start in range(0, self.num_entries, size)]

    def read(
        self, start: int = 0, stop: int | None = None, *, truth: bool = True, on_error: OnError = "raise"
    ) -> Events:
        """Read the entries `start` to `stop` (exclusive, by default all) and validate them.

        Parameters
        ----------
        truth
            Read truth, links and reference too.
        on_error
            What to do with an entry that cannot be decoded or is not valid: ``raise``, or ``skip``: leave it in its
            place without content, flagged ``Flag.BAD_INPUT``, and warn once a call (`BadEntriesWarning`). Single
            objects (hits, tracks, true particles, links) that cannot be used are left out in either case, with a
            `LeftOutWarning`.

        Raises
        ------
        InputError
            The first entry that cannot be used, with file, entry and field; or a missing column.
        ConfigError
            Another `on_error`, or a negative `start`.
        """
        return self._read(start, stop, truth=truth, on_error=on_error)

    def _read(self, start: int, stop: int | None, *, truth: bool, on_error: OnError) -> Events:
        """Read as `read` does; called by public functions only, whose caller a warning names."""
        if on_error not in ("raise", "skip"):
            raise ConfigError(f"on_error is '{on_error}', expected 'raise' or 'skip'")
        events, refused, left_out = self.read_all(start, stop, truth=truth, strict=on_error == "raise")
        if refused:
            message = refused_message(refused, len(events))
            warnings.warn(message, BadEntriesWarning, stacklevel=3)
        if left_out:
            n_entries = len({error.entry for error in left_out})
            message = f"{n_entries} of {len(events)} entries have objects that cannot be used; these are left out"
            warnings.warn(f"{message}; the first: {left_out[0]}", LeftOutWarning, stacklevel=3)
        checks = self.notes()
        if truth not in self._checked and len(jagged.flat_records(events.hits)):
            self._checked.add(truth)
            with suppress(InputError):  # unusable truth: raised where it is used
                checks += check_events(first_events(events), self.expected)
        new = [check for check in checks if not check.good and check.name not in self.said]
        self.said |= {check.name for check in new}
        if new:
            warnings.warn(f"{self.path}: {problems(new)}", ImplausibleWarning, stacklevel=3)
        return events

    def notes(self) -> list[Check]:
        """Problems noticed so far while the file was opened and read."""
        notes = [Check(about, False, text) for about, text in self.reader.notes.items()]
        if absent := self.empty_calorimeters:
            text = f"no collection of {', '.join(absent)}: its energy is missing from the particles"
            notes.append(Check("calorimeters", False, text))
        return notes

    def read_all(
        self, start: int = 0, stop: int | None = None, *, truth: bool = True, strict: bool = False
    ) -> tuple[Events, list[InputError], list[InputError]]:
        """As `read`, with the errors of unusable entries (`strict`: raise the first) and of objects left out."""
        if start < 0:
            raise ConfigError(f"entries are counted from 0, found start {start}")
        stop = self.num_entries if stop is None else min(max(stop, 0), self.num_entries)
        start = min(start, stop)
        refused: dict[int, InputError] = {}
        try:
            events = self._decode(start, stop, truth)
        except InputError as error:
            if strict or error.entry is None or start == stop:  # no entry is to blame
                raise
            events = concatenate([self._decode_one(entry, truth, refused) for entry in range(start, stop)])
        violations, left_out = events.violations(), []
        if violations:
            events, _ = leave_out(events)
            remaining = events.violations()
            left_out = [events.error_of(violation) for violation in violations if violation not in remaining]
            if strict and remaining:
                events.validate()
            for violation in remaining:
                refused.setdefault(int(events.entry[violation.index]), events.error_of(violation))
        events = events.emptied(np.isin(events.entry, list(refused)))
        return events, [refused[entry] for entry in sorted(refused)], left_out

    def _decode(self, start: int, stop: int, truth: bool) -> Events:
        """Read without validating."""
        return with_retries(self.path, lambda: self.reader.read(start, stop, truth=truth), again=self._connect_again)

    def _decode_one(self, entry: int, truth: bool, refused: dict[int, InputError]) -> Events:
        """One entry; if it cannot be decoded, an empty event, and the error in `refused`."""
        try:
            return self._decode(entry, entry + 1, truth)
        except InputError as error:
            if error.entry is None:
                raise
            refused[entry] = error
        template = self._decode(self.num_entries, self.num_entries, truth)  # touches no bytes
        parts: Any = {name: jagged.concatenate([part, 1]) for name, part in template.parts()}
        number = np.array([entry])
        return dataclasses.replace(template, entry=number, event=number, flags=np.zeros(1, np.uint32), **parts)

    def _connect_again(self) -> None:
        """Open the file again; an `InputError` if it was replaced."""
        with suppress(Exception):  # a broken connection cannot always be closed
            self.reader.close()
        reader = self._reopen()
        if (reader.uuid, reader.num_entries) != (self.uuid, self.num_entries):
            reader.close()
            raise InputError("was replaced while it was read", file=self.path)
        self.reader = reader
