"""Open event files, whose schema and detector are recognised, and read them as validated `Events`."""

from __future__ import annotations

import dataclasses
import glob
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pflow.config import builtin_names
from pflow.errors import ConfigError, InputError, PflowError, check_choice, check_type, missing_package, nearest, warn
from pflow.event import jagged
from pflow.event.checks import UNCHECKED, Check, Expected, compare, warn_of
from pflow.event.events import Events, LeftOutWarning, concatenate, give_up, leave_out
from pflow.event.scales import Scales, measure
from pflow.io.edm4hep.podio import READ, PodioFile
from pflow.io.edm4hep.reader import Edm4hepReader, missing_collections
from pflow.io.flat import REQUIRED, FlatReader, Layout, load_layout
from pflow.io.particles_root import NOTE
from pflow.io.root import Columns, check_range, first_bytes, open_root, open_tree, read_ranges, split_tree, with_retries
from pflow.physics.detector import Detector, load_detector

if TYPE_CHECKING:
    from pflow.io.legacy_hdf5 import LegacyReader

    Reader = Edm4hepReader | FlatReader | LegacyReader
    """One open file of one schema. `read` does not validate; a range without entries has the same parts as any other.

    Where bytes cannot be decoded, the ``entry`` of its `InputError` is the first of the range, never None.
    """

OnError = Literal["raise", "skip"]
FilePath = str | PathLike[str]
Files = FilePath | Iterable[FilePath]
"""A file, a glob pattern or several of them; a tree may follow after a colon, ``file.root:tree``."""

SCHEMAS = ("edm4hep", "edm4hep-rntuple", "edm4hep-sim", "flat", "legacy-hdf5")
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
HIT_MEMBERS = READ["CalorimeterHit"]  # members by which EDM4hep calorimeter hits are known
MC_MEMBERS = ("PDG", "generatorStatus", "momentum.x")  # members by which EDM4hep Monte Carlo particles are known
DEFAULT_LAYOUT = "g4"  # the layout of a flat file that no layout fits; reading then names the missing branch

MAX_ENTRIES = 10  # entries that are read to recognise the detector, more if these have no hits
MIN_EVENTS = 5  # in which the innermost hit must lie near the front face: one neutral hadron may shower late
OUTLIERS = 0.01  # fraction of hits that may lie elsewhere (displaced, or of a wrongly named subdetector)
MARGIN = 10.0  # how far inside the nominal surface a hit may lie, mm
SLACK = 50.0  # how far outside, mm: support structure between the nominal surface and the first cell
CORNER = 1 / math.cos(math.pi / 8)  # outer to inner radius of an octagon; smaller for barrels with more sides


class NoDetectorError(InputError):
    """No built-in detector fits a file, or several fit equally well; `summary`: without the reasons of each."""

    def __init__(self, summary: str, reasons: str = "", *, file: str) -> None:
        super().__init__(f"{summary}{reasons}", file=file)
        self.summary = summary


class DetectorMatch(NamedTuple):
    """How well a detector fits a file; the lower the `rank`, the better."""

    detector: Detector
    reason: str  # why it does not fit, "" if the file holds all required parts and the geometry does not contradict
    rank: tuple[int, ...]


def geometry_fits(events: Events, detector: Detector, *, roughly: bool = False) -> bool | None:
    """Whether the ECAL hits of events of any detector lie where the ECAL of `detector` is; None if they cannot tell.

    At least 99 % of the hits must lie in the volume, the innermost near its front face (with fewer than five events
    that have hits, a late shower decides nothing). A barrel is a polygon of at least eight sides, so its front lies
    between the inscribed radius and 1.08 times that; an endcap is flat. `roughly`: half of the hits in the volume.
    """
    outside, near = (0.5, np.inf) if roughly else (OUTLIERS, SLACK)
    radius, outer, begin = detector.ecal_inner_radius, detector.ecal_outer_radius, detector.ecal_inner_z
    hits = jagged.columns(events.hits)
    x, y, z = (hits[f"position.{axis}"] for axis in "xyz")
    # Distance of the hits, and where they must lie: the lowest, the innermost at most, and the highest, mm.
    regions = {
        "barrel": (np.hypot(x, y), radius - MARGIN, radius * CORNER + near, outer * CORNER + SLACK),
        "endcap": (np.abs(z), begin - MARGIN, begin + near, begin + outer - radius + 2 * SLACK),
    }
    fits = None
    for region, (distance, lowest, front, highest) in regions.items():
        places = enumerate((part.kind, part.region) for part in events.detector.calorimeters)
        of_region = np.isin(hits["subdetector"], [index for index, place in places if place == ("ecal", region)])
        usable = of_region & np.isfinite(distance) & (hits["energy"] > 0)  # or at the origin
        values = distance[usable]
        if not len(values):
            continue
        if np.mean((values < lowest) | (values > highest)) > outside:
            return False
        if np.quantile(values, OUTLIERS) <= front:
            fits = True
        elif len(np.unique(jagged.event_index(jagged.count(events.hits))[usable])) >= MIN_EVENTS:
            return False
    return fits


def fitting_detectors(file: PodioFile, *, sim: bool | None = None) -> list[DetectorMatch]:
    """Every built-in detector that can be read, best match first; `sim` as for `pflow.io.edm4hep.reader.Edm4hepReader`.

    First those that fit, then by confirmed geometry, fewest optional collections absent, and most collections matched.
    """
    matches = []
    for detector in map(load_detector, builtin_names("detector")):
        if sim and not any(part.sim_collections for part in detector.calorimeters):
            continue
        if missing := missing_collections(file, detector, sim=sim):
            named = (name for part in detector.calorimeters for name in (*part.collections, *part.sim_collections))
            reason = f"no collection {', no '.join(' or '.join(names) for names in missing)}"
            rank = 1, 1, len(missing), 0, -sum(map(file.columns.has, named))
        else:
            reader, reason = Edm4hepReader(file, detector=detector, sim=sim), ""
            n_sources = sum(map(len, reader.sources.values()))
            # Only the hits of the ECAL are looked at: to read others would take most of the time.
            ecal = {part.name for part in detector.calorimeters if part.kind == "ecal"}
            of_ecal = {name: of if name in ecal else () for name, of in reader.sources.items()}
            reader.chosen = dataclasses.replace(reader.chosen, collections=of_ecal)
            events = first_entries(reader)
            geometry = None if events is None else geometry_fits(events, detector)
            if geometry is False:
                faces = f"r = {detector.ecal_inner_radius:g} mm, endcap from |z| = {detector.ecal_inner_z:g} mm"
                reason = f"the ECAL hits do not lie where its ECAL is (barrel from {faces})"
            rank = geometry is False, geometry is not True, 0, len(reader.absent), -n_sources
        matches.append(DetectorMatch(detector, reason, rank))
    return sorted(matches, key=attrgetter("rank"))


def best_detector(file: PodioFile, *, sim: bool | None = None) -> Detector:
    """The built-in detector that fits a file best; if several do, the one that the file names. Else NoDetectorError."""
    matches = fitting_detectors(file, sim=sim)
    fitting = [match for match in matches if not match.reason]
    if not fitting:
        reasons = "; ".join(f"{match.detector.name}: {match.reason}" for match in matches)
        draft = f"pflow detector {file.path} -o mine.yaml drafts a description, for --detector mine.yaml"
        summary = f"no built-in detector fits; {draft} (pflow fit: --data.detector)"
        raise NoDetectorError(summary, f". {reasons}", file=file.path)
    stated = file.parameters.get("detectorName", ())
    fitting.sort(key=lambda match: (match.rank, match.detector.name not in stated))
    equal = [match.detector.name for match in fitting if match.rank == fitting[0].rank]
    # A file without entries has no hits that could tell, and none that could be misread.
    if len(equal) > 1 and equal[0] not in stated and file.num_entries:
        summary = f"fits the detectors {' and '.join(equal)} equally well; say which one it is from (--detector)"
        raise NoDetectorError(summary, file=file.path)
    return fitting[0].detector


def first_entries(reader: Reader) -> Events | None:
    """The first entries that have hits, None if they cannot be decoded."""
    try:
        start, n_entries = 0, MAX_ENTRIES
        while True:
            stop = min(start + n_entries, reader.num_entries)
            events = reader.read(start, stop, truth=False)
            if stop == reader.num_entries or jagged.count(events.hits).any():
                break
            # More at a time, or a file without hits in the ECAL would be read in thousands of steps.
            start, n_entries = stop, min(2 * n_entries, 64 * MAX_ENTRIES)
    except InputError as error:
        # An error without an entry is about a missing column, not about damaged bytes.
        if error.entry is None:
            raise
        return None
    return events


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
        Branches of a flat file (`pflow.io.flat.Layout`); None for other schemas.
    truth_tracks
        Whether its tracks are made from Monte Carlo particles.
    expected
        Targets and training sample that events are checked against; None: no checks.
    scales
        Scales of the events read so far, with truth and without (`pflow.event.scales`).
    said
        Names of the checks that a warning has reported.
    """

    def __init__(self, path: str, reopen: Callable[[], Reader], *, expected: Expected | None) -> None:
        self._reopen, self._lock = reopen, threading.Lock()
        self.expected = expected
        self.reader = reader = with_retries(path, reopen)
        self.schema, self.path, self.uuid = reader.schema, reader.path, reader.uuid
        self.detector, self.absent, self.sources = reader.detector, reader.absent, reader.sources
        self.num_entries, self.truth_tracks = reader.num_entries, reader.truth_tracks
        self.layout = getattr(reader, "layout", None)
        self.scales = {truth: Scales() for truth in (True, False)}
        self._measured = {truth: np.zeros(self.num_entries, dtype=np.bool_) for truth in (True, False)}  # by entry
        self._compared = {True: 0, False: 0}  # number of events at the last comparison,
        self._unchecked: list[Check] = []  # and what could not be checked then
        self.said: set[str] = set()
        self.closed = False

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            # The last events too, since which the number has not doubled.
            self._warn(self._compare(at_least=1.0))
            warn_of(self._unchecked, self.path)
        self.close()

    def __len__(self) -> int:
        return self.num_entries

    def __repr__(self) -> str:
        return f"<EventFile: {self.path}, {self.schema}, {self.num_entries} entries, detector {self.detector.name}>"

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self.closed = True
        self.reader.close()

    def ranges(self, size: int, most: int | None = None) -> list[tuple[int, int]]:
        """Ranges of all entries, in order, in which the file is best read, as of `pflow.io.root.read_ranges`."""
        if size < 1:
            raise ConfigError(f"chunk_size is {size}, expected at least 1")
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
        check_choice(on_error, ("raise", "skip"), "on_error")
        check_type(truth, bool, "truth, True or False")
        try:
            events, refused, left_out = self.read_all(start, stop, truth=truth, strict=on_error == "raise")
        except InputError:
            # What was noticed may explain it, e.g. that files were merged whose ids differ.
            warn_of(self.notes(), self.path)
            raise
        give_up(refused, len(events))
        if left_out:
            entries = f"{len({error.entry for error in left_out})} of {len(events)} entries"
            message = f"{entries} have objects that cannot be used; these are left out; the first: {left_out[0]}"
            warn(message, LeftOutWarning)
        self._warn([*self.notes(), *self._check(events, truth)])
        return events

    def _warn(self, checks: Iterable[Check]) -> None:
        """Warn of failed checks that no earlier warning has reported."""
        new = [check for check in checks if not check.good and check.name not in self.said]
        self.said |= {check.name for check in new}
        warn_of(new, self.path)

    def _check(self, events: Events, truth: bool) -> Iterator[Check]:
        """Measure new events; compare after the first chunk, and whenever their number has doubled."""
        # An entry that is read a second time counts once.
        if self.expected is None or not (new := ~self._measured[truth][events.entry]).any():
            return
        self._measured[truth][events.entry] = True
        chosen, targets = events if new.all() else events[new], self.expected.targets if truth else None
        with suppress(InputError):  # unusable truth: raised where it is used
            try:
                self.scales[truth] += measure(chosen, targets=targets)
            except InputError:  # one event's parents may be of no use, hits and tracks are measured all the same
                self.scales[truth] += measure(chosen)
        yield from self._compare(at_least=2.0)

    def _compare(self, *, at_least: float) -> Iterator[Check]:
        """Compare if `at_least` times as many events are measured as at the last comparison, or the whole file is."""
        for truth, scales in self.scales.items():
            n, before = scales.n_events, self._compared[truth]
            if self.expected is not None and n > before and (n >= at_least * before or n == self.num_entries):
                self._compared[truth] = n
                checks = compare(scales, self.expected.sample)
                self._unchecked = [check for check in checks if check.name == UNCHECKED]
                yield from checks

    def check_field(self) -> list[Check]:
        """Check of the field by the truth of the first entries, for verbs that read none; [] without usable truth.

        Where tracks are given by their curvatures, a wrong field changes the momentum of each and nothing else.
        """
        with suppress(PflowError):
            return [check for check in compare(measure(self.read_all(0, MAX_ENTRIES)[0])) if check.name == "field"]
        return []

    def notes(self) -> list[Check]:
        """Problems noticed so far while the file was opened and read."""
        notes = [Check(about, False, text) for about, text in self.reader.notes.items()]
        # Flat and HDF5 files have no collections, so their readers name no sources.
        absent = [part.name for part in self.detector.calorimeters if self.sources and not self.sources[part.name]]
        if absent:
            text = f"no collection of {', '.join(absent)}: its energy is missing from the particles"
            notes.append(Check("calorimeters", False, text))
        return notes

    def read_all(
        self, start: int = 0, stop: int | None = None, *, truth: bool = True, strict: bool = False
    ) -> tuple[Events, list[InputError], list[InputError]]:
        """As `read`, with the errors of unusable entries (`strict`: raise the first) and of objects left out."""
        check_range(start, stop)
        if self.closed:
            raise ConfigError(f"{self.path} is closed: read it inside of its with block")
        stop = self.num_entries if stop is None else min(stop, self.num_entries)
        start = min(start, stop)
        refused: dict[int, InputError] = {}
        try:
            events = self._decode(start, stop, truth)
        except InputError as error:
            if strict or error.entry is None or start == stop:  # no entry is to blame
                raise
            # One by one, so that only the damaged entries are lost.
            events = concatenate([self._decode_one(entry, truth, refused) for entry in range(start, stop)])
        left_out = []
        if violations := events.violations(clones=True):
            events, _ = leave_out(events)
            remaining = events.violations()
            # What is mended by leaving out objects concerned these alone; what remains spoils the entry.
            left_out = [events.error_of(violation) for violation in violations if violation not in remaining]
            if strict and remaining:
                events.validate()
            for violation in remaining:
                # An entry that could not be decoded keeps that error: it is the cause of any other.
                refused.setdefault(int(events.entry[violation.index]), events.error_of(violation))
        events = events.emptied(np.isin(events.entry, list(refused)))
        return events, [refused[entry] for entry in sorted(refused)], left_out

    def _decode(self, start: int, stop: int, truth: bool) -> Events:
        # Two threads that read one open file would move each other's position: columns with others' numbers.
        with self._lock:
            return with_retries(
                self.path, lambda: self.reader.read(start, stop, truth=truth), again=self._connect_again
            )

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How files of events are read: the options of `open_events`, and what the caller knows of the events."""

    detector: str | Path | Detector | None = None
    schema: str | None = None
    layout: str | Path | Layout | None = None
    truth_tracks: bool = False
    on_error: OnError = "raise"
    expected: Expected | None = Expected()  # noqa: RUF009
    """Truth rule and training sample, for the checks of the events; None: they are not checked."""

    def open(self, path: FilePath) -> EventFile:
        """Open a file; errors as of `open_events`."""
        if self.schema is not None:
            check_choice(self.schema, SCHEMAS, "schema")
            if self.layout is not None and self.schema != "flat":
                raise ConfigError(f"a layout is for flat ntuples, not for schema '{self.schema}'")
        # Loaded here, once: the file is opened again after each lost connection.
        detector = None if self.detector is None else load_detector(self.detector)
        return EventFile(str(path), lambda: _open(str(path), self, detector), expected=self.expected)

    def read(self, paths: Files, start: int = 0, stop: int | None = None, *, truth: bool = True) -> Events:
        """Read the entries `start` to `stop` of files, for a public function, as `read_events` does."""
        chunks: list[Events] = []
        before = 0
        for name in matching(paths):
            if chunks and stop is not None and stop <= before:
                break
            with self.open(name) as file:
                # A negative start is left as it is for the first file to refuse.
                first = max(start - before, 0) if chunks else start
                last = None if stop is None else stop - before
                events = file.read(first, last, truth=truth, on_error=self.on_error)
                if chunks and events.detector != chunks[0].detector:
                    expected = chunks[0].detector.name
                    text = f"is of detector '{events.detector.name}', files before it of '{expected}'"
                    raise InputError(text, file=name)
                chunks.append(events)
                before += file.num_entries
        if 0 < before <= start:
            warn(f"no events are read: entry_start is {start}, and there are {before} entries, counted from 0")
        elif stop is not None and 0 <= stop < start:
            warn(f"no events are read: entry_stop {stop} is before entry_start {start}")
        return chunks[0] if len(chunks) == 1 else concatenate(chunks)

    def iterate(self, paths: Files, chunk_size: int, *, truth: bool = True) -> Iterator[Events]:
        """Read files in chunks, as `iterate_events` does."""
        for path in matching(paths):
            with self.open(path) as file:
                for start, stop in file.ranges(chunk_size):
                    events = file.read(start, stop, truth=truth, on_error=self.on_error)
                    # Ranges that keep baskets whole may be larger than a chunk.
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


def sniff(directory: Any, path: str) -> str:
    """Schema of an open ROOT file, a TTree or RNTuple: ``edm4hep`` or ``flat``; an `InputError` where none fits."""
    if "podio_metadata" in directory and "events" in directory:  # saves opening a tree of a thousand branches
        return "edm4hep"
    tree = open_tree(directory, "events", path)
    columns = Columns(tree, path)
    if any(columns.has(name, *HIT_MEMBERS) or columns.has(name, *MC_MEMBERS) for name in columns.collections):
        return "edm4hep"
    keys = list(tree.keys(recursive=True))
    hits = load_layout(DEFAULT_LAYOUT).parts["hits"]
    missing = [hits[name].branch for name in REQUIRED["hits"][0] if hits[name].branch not in keys]
    if not missing:
        return "flat"
    if NOTE in directory:
        raise InputError("an output of pflow, which holds no hits: give the file that it was made from", file=path)
    names = columns.collections
    raise InputError(
        f"tree 'events' holds neither EDM4hep collections (calorimeter hits with {', '.join(HIT_MEMBERS)},"
        f" or MCParticles) nor the branches of the built-in flat layout (no {', '.join(missing)});"
        f" it holds {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}. For other branches give a layout",
        file=path,
        suggestions=dict.fromkeys(close for branch in missing for close in nearest(branch, keys, n=1))
        or nearest("ECALBarrel", names),
    )


def best_layout(directory: Any, path: str, detector: Detector | None = None) -> str:
    """Name of the built-in layout of an open flat ntuple: the default for files that pflow wrote.

    For other files, the layout of the `detector`; without one, the layout whose ECAL lies where the first hits are.
    InputError: they lie where none has its ECAL.
    """
    elsewhere = []
    # The default first: a file with pflow's note is recognised without reading hits.
    names = sorted(builtin_names("layout"), key=lambda name: name != DEFAULT_LAYOUT)
    if detector is not None:
        return next((name for name in names if load_layout(name).detector == detector.name), DEFAULT_LAYOUT)
    for name in names:
        try:
            reader = FlatReader(directory, path, layout=name)
        except PflowError:
            continue
        if name == DEFAULT_LAYOUT and reader.has_note:
            return name
        events = first_entries(reader)
        if events is not None and geometry_fits(events, events.detector):
            return name
        # Some hits may have wrong places, which the checks say.
        if events is not None and geometry_fits(events, events.detector, roughly=True) is False:
            elsewhere.append(reader.detector.name)
    if len(elsewhere) > 1:
        text = f"the hits lie where neither {' nor '.join(elsewhere)} has its ECAL: describe the detector, --detector"
        raise InputError(f"{text} FILE; if it is one of these, name it, and every verb says what is wrong", file=path)
    return DEFAULT_LAYOUT


def _open(path: str, options: ReadOptions, detector: Detector | None) -> Reader:
    schema, layout = options.schema, options.layout
    file, tree = split_tree(path)
    if schema is None and first_bytes(file) == HDF5_SIGNATURE:
        schema = "legacy-hdf5"
    elif schema is None and layout is not None:
        schema = "flat"
    if schema not in ("flat", "legacy-hdf5") and tree not in (None, "events"):
        message = "EDM4hep's events are in tree 'events'; a flat ntuple of another name needs a layout of its branches"
        if tree.startswith("events;"):
            message = "the last of the trees of one name is read: leave out its cycle, or copy an earlier one (rootcp)"
        raise InputError(message, file=file, field=tree)
    with ExitStack() as stack:
        directory = None if schema == "legacy-hdf5" else stack.enter_context(open_root(file))
        schema = schema or sniff(directory, file)
        if options.truth_tracks and schema in ("flat", "legacy-hdf5"):
            message = "tracks are made from Monte Carlo particles of EDM4hep files, not of schema"
            raise ConfigError(f"{file}: {message} '{schema}'")
        reader: Reader
        if schema == "legacy-hdf5":
            # h5py is an optional package, needed for these files only.
            try:
                from pflow.io.legacy_hdf5 import LegacyReader
            except ModuleNotFoundError as error:
                raise missing_package("h5py", "the files of the first paper", extra="paper") from error

            reader = LegacyReader(file, detector=detector)
        elif schema == "flat":
            layout = load_layout(layout or best_layout(directory, file, detector))
            # Where the layout names another tree, the path tells which one was read.
            path = file if tree in (None, layout.tree) else path
            layout = dataclasses.replace(layout, tree=tree or layout.tree)
            reader = FlatReader(directory, path, layout=layout, detector=detector)
        else:
            podio = PodioFile(directory, file)
            sim = True if schema == "edm4hep-sim" else None
            detector = detector or best_detector(podio, sim=sim)
            reader = Edm4hepReader(podio, detector=detector, sim=sim, truth_tracks=options.truth_tracks)
            reader.note_unnamed()
        # From here on the reader closes the file; after an error before this, the stack does.
        stack.pop_all()
        return reader


def matching(paths: Files) -> list[str]:
    """The files that paths and glob patterns name, each pattern's in sorted order; one at least of each pattern."""
    files: list[str] = []
    is_list = isinstance(paths, Iterable) and not isinstance(paths, str | Mapping)  # uproot's open file is a Mapping
    listed = paths if isinstance(paths, Iterable) and is_list else [paths]
    for given in listed:
        check_type(given, str | PathLike, "a path, a pattern or several of them")
        path = str(given)
        # Servers cannot be searched, and a file that is there may have brackets in its name.
        if "://" in path or not glob.has_magic(path) or Path(split_tree(path)[0]).exists():
            files.append(path)
            continue
        pattern, colon, tree = path.rpartition(":")
        matches = sorted(glob.glob(path, recursive=True))
        # A colon may be part of a file's name: only if nothing matches, a tree follows it.
        matches = matches or [f"{name}{colon}{tree}" for name in sorted(glob.glob(pattern, recursive=True))]
        if not matches:
            raise InputError("no file matches this pattern", file=path)
        files += matches
    if not files:
        raise ConfigError("no files are given: the list is empty")
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
    options = ReadOptions(detector=detector, schema=schema, layout=layout, truth_tracks=truth_tracks, on_error=on_error)
    return options.read(path, entry_start, entry_stop, truth=truth)


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
