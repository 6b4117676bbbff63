"""Events, the contract between the readers and the rest of pflow, and `Reconstruction`: particles that were found.

Invalid events are skipped (`without_refused`), single invalid objects left out (`leave_out`), with warnings and flags.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError, PflowError, check_type, first_line, warn
from pflow.event import jagged
from pflow.event.jagged import Links
from pflow.event.schema import LINKED, PARTS, REQUIRED, Violation, unusable_objects, validate_part
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import Detector
from pflow.physics.geometry import Geometry
from pflow.physics.kinematics import angle_between
from pflow.show import html_table

T = TypeVar("T")

TRUTH_PARTS = ("truth", *LINKED, "reference")  # parts that a reconstruction does not need

MOST_UNUSED = 0.1
"""Largest fraction of an event's track momentum that may be in no particle, or in neutral ones, without a flag."""


class Flag(enum.IntFlag):
    """Bits that mark an event; written to the output as ``flags``."""

    NONE = 0
    BAD_INPUT = 1  # the entry could not be used and was emptied (``on_error="skip"``)
    MAX_PARTICLES = 2  # decoding stopped at `max_particles` before the model ended the output sequence
    TRUTH_TRACKS = 8  # the tracks were made from Monte Carlo particles (`pflow.io.edm4hep.simulated`)
    NOT_FINITE = 16  # the model gave numbers that are not finite; the event has no particles (``on_error="skip"``)
    UNUSABLE_HITS = 32  # hits with impossible numbers were left out; calorimeter hits keep their place with energy 0
    UNUSABLE_TRACKS = 64  # tracks without a possible momentum, or that are another one again, were left out
    UNUSABLE_REFERENCE = 128  # particles of the other algorithm with impossible numbers were left out
    UNUSABLE_TRUTH = 256  # true particles with impossible numbers have energy 0; links that lead nowhere were left out
    LOST_TRACKS = 512  # more than `MOST_UNUSED` of the track momentum is in no particle
    NEUTRAL_TRACKS = 1024  # more than that is in neutral particles: right for K0S, Lambda and conversions


def count_flags(flags: npt.NDArray[np.uint32]) -> dict[str, int]:
    """Number of events with each flag, by the flag's name; flags without an event are left out.

    >>> count_flags(np.array([0, 1, 3], dtype=np.uint32))
    {'BAD_INPUT': 2, 'MAX_PARTICLES': 1}
    """
    counts = {str(flag.name): int(np.count_nonzero(flags & flag)) for flag in Flag if flag}
    return {name: number for name, number in counts.items() if number}


class EventLists:
    """Base of dataclasses of consecutive events: `event` and `flags` [event], and parts [event, object]."""

    part_names: ClassVar[Sequence[str]]
    event: Index
    flags: npt.NDArray[np.uint32]

    def parts(self) -> Iterator[tuple[str, ak.Array]]:
        """Name and array of each part that is not None."""
        return ((name, part) for name in self.part_names if (part := getattr(self, name)) is not None)

    def __len__(self) -> int:
        return len(self.event)

    def __getitem__(self, which: int | slice | npt.NDArray[Any] | Sequence[int]) -> Self:
        """Events chosen by an index, a slice, a mask or a list of indices."""
        rows = event_rows(which, len(self))
        # Packed, because functions of `pflow.event.jagged` are fast for contiguous lists.
        values = {
            name: part[rows] if isinstance(rows, slice) else ak.to_packed(part[rows]) for name, part in self.parts()
        }
        for name in ("event", "flags", "entry", "geometry"):
            if getattr(self, name, None) is not None:
                values[name] = getattr(self, name)[rows]
        return dataclasses.replace(self, **values)  # type: ignore[type-var]

    def __iter__(self) -> Iterator[Self]:
        if hasattr(self, "_of_a_loop"):
            raise TypeError("one event of a loop is not a list of events")
        for index in range(len(self)):
            event = self[index]
            # Awkward would iterate over the event of an event of a list without an end.
            object.__setattr__(event, "_of_a_loop", True)
            yield event

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Refuse conversion to an array: items of events are events, so the conversion would never end."""
        names = ", ".join(f".{name}" for name, _ in self.parts())
        raise TypeError(f"{type(self).__name__} cannot become an array; arrays are {names}")

    __dlpack__ = __dlpack_device__ = tolist = __array__  # asked by Awkward before it iterates

    def __repr__(self) -> str:
        counts = ", ".join(f"{jagged.count(part).sum()} {name}" for name, part in self.parts())
        return f"<{type(self).__name__}: {self._summary()}, {counts}>"

    def _summary(self) -> str:
        return f"{len(self)} events"

    def _repr_html_(self) -> str:
        """A table of the parts, for notebooks."""
        counts = [(name, part, int(jagged.count(part).sum())) for name, part in self.parts()]
        rows = [(name, f"{n:,}", f"{n / max(1, len(self)):.1f}", ", ".join(part.fields)) for name, part, n in counts]
        caption = f"{type(self).__name__}: {self._summary()}"
        return html_table(("part", "objects", "per event", "fields"), rows, caption=caption)

    def emptied(self, bad: Mask, flag: Flag = Flag.BAD_INPUT) -> Self:
        """The same events; those where `bad`, bool [event], holds lose their objects and get the flag."""
        if not bad.any():
            return self
        values: dict[str, Any] = {"flags": (self.flags | np.where(bad, flag, 0)).astype(np.uint32)}
        for name, part in self.parts():
            counts = jagged.count(part)
            values[name] = jagged.unflatten(ak.flatten(part, axis=1)[~bad[jagged.event_index(counts)]], counts * ~bad)
        return dataclasses.replace(self, **values)  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Events(EventLists):
    """Consecutive entries of one file.

    Parameters
    ----------
    hits, tracks, tracker_hits, truth, hit_links, track_links, tracker_hit_links, reference
        Parts, None if the file does not hold them: Awkward arrays [event, object] of records of
        `pflow.event.schema.SCHEMA` with `vector` behaviour, so that ``events.tracks.momentum.pt`` or
        ``events.hits.position.theta`` work. Links are to ``truth``; ``reference`` is another algorithm's particles.
        ``truth.parent`` is an index in the event's ``truth``, -1 for none: mask these before you index with it.
    detector
        The hits' ``subdetector`` is an index into its calorimeters.
    path, entry
        The file ("" for none), and the entry of its tree, int64 [event], from 0.
    event, flags
        Event number as the file gives it, int64 [event]; `Flag` bits, uint32 [event].
    absent
        Optional collections of the detector that the file does not hold.
    reference_name
        Name of the algorithm or collection in ``reference``.
    geometry
        Geometry of each event if it differs from the detector's (`pflow.event.move`).

    `pflow.event.events.keep_hits` drops hits with their links, which are indices, and `concatenate` there joins events.

    Examples
    --------
    >>> events = pflow.read_events("gammasep_test_small.root", entry_stop=3)
    >>> events
    <Events: 3 events of ild_g4, 2203 hits, 0 tracks, ...>
    >>> ak.sum(events.hits.energy, axis=1)  # GeV
    <Array [...] type='3 * float32'>
    """

    part_names = PARTS

    detector: Detector
    hits: ak.Array
    tracks: ak.Array | None = None
    tracker_hits: ak.Array | None = None
    truth: ak.Array | None = None
    hit_links: ak.Array | None = None
    track_links: ak.Array | None = None
    tracker_hit_links: ak.Array | None = None
    reference: ak.Array | None = None
    reference_name: str = ""
    path: str = ""
    entry: Index = None  # type: ignore[assignment]
    event: Index = None  # type: ignore[assignment]
    flags: npt.NDArray[np.uint32] = None  # type: ignore[assignment]
    absent: tuple[str, ...] = ()
    geometry: Geometry | None = None

    def __post_init__(self) -> None:
        check_type(self.detector, Detector, "a detector, of pflow.load_detector")
        n = len(self.hits)
        for name, dtype in (("entry", np.int64), ("event", np.int64), ("flags", np.uint32)):
            given, default = getattr(self, name), np.zeros(n) if name == "flags" else np.arange(n)
            value = np.asarray(default if given is None else given, dtype=dtype)
            if value.shape != (n,):
                raise ValueError(f"{name} has shape {value.shape}, expected ({n},), one for each event")
            # The dataclass is frozen.
            object.__setattr__(self, name, value)
        for name, part in self.parts():
            if len(part) != n:
                raise ValueError(f"{name} has {len(part)} events, hits have {n}")
            if missing := REQUIRED[name] - set(ak.fields(part)):
                text = "pflow.event.schema has functions that make them, such as make_hits"
                raise ValueError(f"{name} lack {', '.join(sorted(missing))}: {text}")
        if self.truth is None and any(getattr(self, name) is not None for name in LINKED):
            raise ValueError("links need the truth particles they point to")

    def _summary(self) -> str:
        return f"{super()._summary()} of {self.detector.name}"

    @property
    def has_truth(self) -> bool:
        """Whether the events have truth particles and links from hits to them."""
        return self.truth is not None and self.hit_links is not None

    def error(
        self, message: str, *, index: int | np.integer[Any] | None = None, field: str | None = None
    ) -> InputError:
        """An error that names the file and, for the event at `index`, its entry."""
        entry = None if index is None else int(self.entry[index])
        return InputError(message, file=self.path or None, entry=entry, field=field)

    def error_of(self, violation: Violation, more: str = "") -> InputError:
        """The error for a violation; `more` is added to its message."""
        return self.error(violation.message + more, index=violation.index, field=violation.field)

    def without_truth(self) -> Events:
        """The same events without `TRUTH_PARTS`."""
        parts: Any = dict.fromkeys(TRUTH_PARTS)
        return dataclasses.replace(self, **parts)

    def sizes(self) -> dict[str, Index]:
        """Number of objects of each part, and of calorimeters, that indices can point to, int64 [event]."""
        # Parts that are None count as empty, so that links into them lead nowhere and are found.
        sizes = dict.fromkeys(PARTS, np.zeros(len(self), dtype=np.int64))
        sizes["calorimeters"] = np.full(len(self), len(self.detector.calorimeters))
        return sizes | {name: jagged.count(part) for name, part in self.parts()}

    def violations(self, *, clones: bool = False) -> list[Violation]:
        """Impossible values and indices that lead nowhere, in the order of the events.

        With `clones` also tracks that are an earlier one of their event again, which `leave_out` leaves out.
        """
        sizes = self.sizes()
        parts = (validate_part(name, part, sizes, clones=clones) for name, part in self.parts())
        violations = [violation for of_part in parts for violation in of_part]
        return sorted(violations, key=lambda violation: violation.index)

    def validate(self) -> Events:
        """Return self; `InputError` names the file, entry and field of the first violation."""
        violations = self.violations()
        if violations:
            n_more = len(violations) - 1
            raise self.error_of(violations[0], f" (and {n_more} more violations)" if n_more else "")
        return self


def event_rows(which: int | slice | npt.NDArray[Any] | Sequence[int], n_events: int) -> slice | Index:
    """Rows of `n_events` events that an index, a slice, a mask or a list of indices picks: a slice, or int64 [n]."""
    if isinstance(which, slice):
        return which
    if isinstance(which, int | np.integer):
        if not -n_events <= which < n_events:
            raise IndexError(f"event {which} of {n_events}")
        # For -1, slice(-1, 0) would be empty.
        index = int(which) % n_events
        return slice(index, index + 1)
    expected = "events are chosen by a number, a slice, or a mask or list of numbers [event]"
    if isinstance(which, str | tuple):
        raise TypeError(f"{expected}, and parts by attributes such as .hits; found {which!r}")
    if np.ma.is_masked(which):  # as Awkward gives them; np.asarray would take what is behind the mask
        raise IndexError(f"{expected}; found masked elements: give them a value, as ak.fill_none does")
    try:
        chosen = np.asarray(which)
        # NumPy makes an empty list an array of floats, which cannot be an index.
        rows: Index = np.arange(n_events)[chosen.astype(np.int64) if chosen.size == 0 else chosen]
    except (IndexError, ValueError) as error:
        raise IndexError(f"{expected} of {n_events} events: {first_line(error)}") from error
    if rows.ndim != 1:
        raise IndexError(f"{expected} of {n_events} events; found {rows.ndim} dimensions")
    if len(rows) == n_events and (np.diff(rows) == 1).all():  # a mask that leaves out none, as of good events: no copy
        return slice(0, n_events)
    return rows


def concatenate(chunks: Sequence[Events]) -> Events:
    """Join chunks of events of one detector. Parts missing in some chunks are dropped, with an `ImplausibleWarning`.

    ValueError: no chunks, or events of different detectors, also such that were moved (`pflow.event.move`).
    """
    if not chunks:
        raise ValueError("no events to concatenate")
    first = chunks[0]
    if any(chunk.detector != first.detector or chunk.geometry is not None for chunk in chunks):
        raise ValueError("cannot concatenate events of different detectors, or moved into these")
    held = [{name for name, _ in chunk.parts()} for chunk in chunks]
    for chunk, names in zip(chunks, held, strict=True):
        if missing := [name for name in PARTS if name in set().union(*held) - names]:
            richer = next(other for other, theirs in zip(chunks, held, strict=True) if missing[0] in theirs)
            where = [f"'{events.path}'" if events.path else "other events" for events in (chunk, richer)]
            text = f"{where[0]} has no {', '.join(missing)}, unlike {where[1]}: all events joined are without"
            warn(text, ImplausibleWarning)
    columns = ("entry", "event", "flags")
    values: dict[str, Any] = {name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in columns}
    for name in PARTS:
        parts = [getattr(chunk, name) for chunk in chunks]
        values[name] = None if any(part is None for part in parts) else jagged.concatenate(parts)
    path = first.path if all(chunk.path == first.path for chunk in chunks) else ""
    return dataclasses.replace(first, path=path, **values)


LEFT_OUT = {
    **dict.fromkeys(("hits", "tracker_hits"), Flag.UNUSABLE_HITS),
    "tracks": Flag.UNUSABLE_TRACKS,
    **dict.fromkeys(("truth", *LINKED), Flag.UNUSABLE_TRUTH),
    "reference": Flag.UNUSABLE_REFERENCE,
}
"""Flag of an event that lost objects, by their part."""

IN_PLACE = {"hits": ("energy", "time", "position"), "truth": ("charge", "rest_mass", "energy", "px", "py", "pz")}
"""Parts whose objects are not removed, because links and outputs index them, and the numbers that are set to 0."""


class BadEntriesWarning(UserWarning):
    """Entries that could not be used were emptied and flagged."""


class LeftOutWarning(UserWarning):
    """Single objects with impossible numbers were left out, and their events flagged."""


class ImplausibleWarning(UserWarning):
    """A file holds something that is probably wrong and would silently give wrong physics."""


def leave_out(events: Events) -> tuple[Events, dict[str, Mask]]:
    """Leave out single objects with impossible numbers and flag their events; also returns a mask of them by part.

    Calorimeter hits (then with energy 0 at the origin) and true particles (with energy 0) keep their place, because
    links and outputs index them. A missing parent becomes -1. Other objects are removed with their links. An event in
    which more than half of the hits, true particles or links are bad is left for `Events.validate` to refuse.
    """
    masks = {}
    changed: dict[str, Any] = {}
    flags, all_sizes = events.flags.copy(), events.sizes()
    for name, flag in LEFT_OUT.items():
        # Links may have lost hits or tracks in an earlier turn of the loop.
        part = changed.get(name, getattr(events, name))
        if part is None:
            continue
        columns, counts = jagged.columns(part), jagged.count(part)
        event = jagged.event_index(counts)
        if name == "truth":
            no_parent = (columns["parent"] < -1) | (columns["parent"] >= counts[event])
            if no_parent.any():
                columns["parent"] = np.where(no_parent, -1, columns["parent"])
                flags[event[no_parent]] |= np.uint32(flag)
                part = changed[name] = jagged.records(columns, counts)
        # Single links may lead nowhere; wrong indices elsewhere, e.g. of a subdetector, are for `Events.validate`.
        mask = unusable_objects(name, part, all_sizes if name in LINKED else {})
        if name in IN_PLACE or name in LINKED:
            mask &= (2 * np.bincount(event[mask], minlength=len(counts)) <= counts)[event]
        if not mask.any():
            continue
        if name in IN_PLACE:
            numbers = (column for column in columns if column.partition(".")[0] in IN_PLACE[name])
            changed[name] = jagged.replaced(part, {key: np.where(mask, 0, columns[key]) for key in numbers})
        else:
            n_kept = np.bincount(event[~mask], minlength=len(counts))
            changed[name] = jagged.records({key: values[~mask] for key, values in columns.items()}, n_kept)
            number = np.where(mask, -1, np.cumsum(~mask) - 1 - jagged.offsets(n_kept)[event])
            for link in (link for link, source in LINKED.items() if source == name):
                if (records := getattr(events, link)) is not None:
                    links = Links.of(records)  # one that is not valid stays for the validation
                    inside = (links.source >= 0) & (links.source < np.repeat(counts, links.counts))
                    moved = np.where(inside, number[np.where(inside, links.flat_source(counts), 0)], links.source)
                    changed[link] = links.take(~inside | (moved >= 0), source=moved).records()
        masks[name] = mask
        flags[event[mask]] |= np.uint32(flag)
    return (dataclasses.replace(events, flags=flags, **changed) if changed else events), masks


def leave_out_files(errors: Sequence[PflowError], n_files: int) -> None:
    """Warn about files that cannot be used; raise the first error if all `n_files` have one."""
    if not errors:
        return
    if len(errors) == n_files:
        raise errors[0]
    texts = "".join(f"\n  {error}" for error in errors)
    warn(f"{len(errors)} of {n_files} files were left out:{texts}", BadEntriesWarning)


def give_up(errors: Sequence[InputError], n_events: int, on_error: str = "skip") -> None:
    """Raise the first error, or warn how many of `n_events` entries have one."""
    if errors and on_error == "raise":
        raise errors[0]
    if errors:
        text = f"{len(errors)} of {n_events} entries cannot be used and were left empty; the first: {errors[0]}"
        warn(text, BadEntriesWarning)


def without_refused(events: Events, attempt: Callable[[Events], T], on_error: str = "skip") -> tuple[T, Events]:
    """Result of `attempt`, and the events for which it was computed.

    Events for which `attempt` raises an `InputError` that names an entry are emptied and flagged ``Flag.BAD_INPUT``,
    with a `BadEntriesWarning`; with `on_error` ``raise``, or if no entry is named, the error is raised.
    """
    try:
        return attempt(events), events
    except InputError as error:
        if on_error == "raise" or error.entry is None:
            raise
    # One by one, because the error of a chunk names only one of its bad entries.
    errors: dict[int, InputError] = {}
    for index in range(len(events)):
        try:
            attempt(events[index])
        except InputError as error:
            if error.entry is None:
                raise
            errors[index] = error
    give_up([*errors.values()], len(events))
    rest = events.emptied(np.isin(np.arange(len(events)), [*errors]))
    return attempt(rest), rest


def keep_hits(events: Events, keep: Mask | ak.Array) -> Events:
    """The events with the hits where `keep`, bool [all hits] or [event, hit], holds, and their links.

    ValueError: a mask of other events, or numbers that are no mask.
    """
    counts = jagged.count(events.hits)
    if isinstance(keep, ak.Array) and keep.ndim > 1 and not np.array_equal(jagged.count(keep), counts):
        raise ValueError("the mask is of other events: their numbers of hits differ")
    keep = jagged.flat(keep)
    if len(keep) and keep.dtype != np.bool_:
        raise ValueError(f"expected a mask, whether each hit is kept; found numbers of type {keep.dtype}")
    chosen = jagged.unflatten(keep, counts)
    if keep.all():
        return events
    hit_links = kept_links(events.hit_links, counts, keep)
    return dataclasses.replace(events, hits=events.hits[chosen], hit_links=hit_links)


def kept_links(records: ak.Array | None, counts: Index, keep: Mask) -> ak.Array | None:
    """Links of the sources that are kept, with new indices."""
    return None if records is None else Links.of(records).kept(keep, counts).records()


LINKS = ("hit_links", "track_links")  # optional parts of a reconstruction

LINKED_ENERGY, MIN_BESIDE, BESIDE = 0.3, 10, 0.2
"""GeV in linked hits from which on a neutral particle lies near them; fewest of these, and the angle, rad,
within which three quarters lie; found: 0.03."""

TRUTH_OPTIONS = ("rule", "e_min", "stable_status", "invisible")
"""How a model's targets are chosen, of `pflow.event.truth.select_targets`: an evaluation's default."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Reconstruction(EventLists):
    """Reconstructed particles of consecutive events, aligned with the input's entries.

    Parameters
    ----------
    particles
        [event, particle] records from `pflow.event.schema.make_particles`: four-momenta (`vector`), so that
        ``particles.pt``, ``particles.mass`` and ``+`` work, with pdg, charge [e] and score; if the algorithm gives
        them, existence (a probability), scores (5, one a class) and covariance (10) [GeV^2], if the particle exists and
        its class is right. Codes are +-211 for any charged hadron, 130 for any neutral one, 22, +-11 and +-13, with the
        masses of these. Sum, count and cluster them without weights: they exist more probably than not, and their
        energies hold given this list. They are in the order of decoding, not of energy; ``1.1 * particles`` scales
        energies, momenta and masses alike, and nothing else: multiply ``covariance`` by 1.21. A sum of covariances
        lacks what is lost or false. ``ak.to_dataframe`` (needs pandas) repeats each particle for its five scores:
        choose columns first, ``particles[["pdg", "energy", "px", "py", "pz"]]``.
    event, flags
        Event number of the input, int64 [event]; `pflow.event.events.Flag` bits, uint32 [event].
    name
        Name of the algorithm, for tables and plots.
    hit_links, track_links
        [event, link] records, or None if the algorithm gives none: source (hit or track of the event), particle,
        weight (the particle's fraction of the source's energy; a source's weights sum to at most 1).
    candidates
        Records like `particles` for less probable ones, with the energy that each has if it exists, and without links;
        None if not requested. Do not sum them.
    trained_with
        Truth rule and its options (`TRUTH_OPTIONS`) of the model's training; None: not known, or there was no training.

    Examples
    --------
    >>> reco = pflow.reconstruct(pflow.read_events("multi_test_small.root", entry_stop=2), "general")
    >>> reco
    <Reconstruction: 2 events by PFlow, 5 particles, 1291 hit_links, 4 track_links>
    >>> ak.sum(reco.particles, axis=-1).mass  # GeV
    <Array [2.3, 13.5] type='2 * float...'>
    """

    part_names = ("particles", *LINKS, "candidates")

    particles: ak.Array
    event: Index
    flags: npt.NDArray[np.uint32]
    name: str = "PFlow"
    hit_links: ak.Array | None = None
    track_links: ak.Array | None = None
    candidates: ak.Array | None = None
    trained_with: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, dtype in (("event", np.int64), ("flags", np.uint32)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))  # the dataclass is frozen
        for field in ("event", "flags", *LINKS, "candidates"):
            part = getattr(self, field)
            if part is not None and len(part) != len(self.particles):
                raise ValueError(f"{field} has {len(part)} events, particles have {len(self.particles)}")
        if missing := {"pdg", "charge"} - set(ak.fields(self.particles)):
            raise ValueError(f"particles lack {', '.join(sorted(missing))}: pflow.make_particles makes records")

    def _summary(self) -> str:
        return f"{super()._summary()} by {self.name}"

    @property
    def optional_parts(self) -> frozenset[str]:
        """Names of the optional parts and particle fields that it has, e.g. ``hit_links`` and ``scores``."""
        parts = {name for name in (*LINKS, "candidates") if getattr(self, name) is not None}
        return frozenset(parts | {"existence", "scores", "covariance"} & set(self.particles.fields))

    def finite(self) -> Mask:
        """Whether all numbers of each event's particles are finite, bool [event]; a score may be unknown (NaN)."""
        columns, counts = jagged.columns(self.particles), jagged.count(self.particles)
        return jagged.finite_events([values for name, values in columns.items() if name != "score"], counts)

    def check_events(self, events: Events) -> None:
        """Raise `InputError` unless `events` have the same length and event numbers."""
        if len(events) != len(self):
            raise events.error(f"{len(events)} events here, reconstruction '{self.name}' has {len(self)}")
        for index in np.flatnonzero(events.event != self.event)[:1]:
            ours = f"in reconstruction '{self.name}' {self.event[index]}: not made from this file, or not in its order"
            raise events.error(f"is event number {events.event[index]}, {ours}", index=index)

    def track_momentum(self, events: Events) -> Floats:
        """Each event's sum of track momenta, GeV, float64 [event, 3]: in total, in neutral particles, in no particle.

        Without links from tracks, the part in no particle is the total minus the momenta of the charged particles, and
        the part in neutral particles is NaN.
        """
        if events.tracks is None:
            return np.zeros((len(self), 3))
        n, n_tracks, n_particles = len(self), jagged.count(events.tracks), jagged.count(self.particles)
        momentum = np.linalg.norm(jagged.vectors(events.tracks.momentum), axis=1)
        total = np.bincount(jagged.event_index(n_tracks), momentum, n)
        charged = jagged.columns(self.particles)["charge"] != 0
        if self.track_links is None:
            neutral = np.full(n, np.nan)
            of_charged = charged * np.linalg.norm(jagged.momenta(self.particles), axis=1)
            used = np.bincount(jagged.event_index(n_particles), of_charged, n)
        else:
            links = Links.of(self.track_links)
            shares = links.weight * momentum[links.flat_source(n_tracks)]
            neutral = np.bincount(links.event, shares * ~charged[links.flat_particle(n_particles)], n)
            used = np.bincount(links.event, shares, n)
        # Charged particles may have more momentum than the tracks.
        return np.stack([total, neutral, np.maximum(total - used, 0)], axis=1)

    def check_links(self, name: str, events: Events) -> None:
        """Raise `InputError` if ``hit_links`` or ``track_links`` point outside these events."""
        sources = getattr(events, LINKED[name])
        n_sources = np.zeros(len(events), dtype=np.int64) if sources is None else jagged.count(sources)
        sizes = {LINKED[name]: n_sources, "truth": jagged.count(self.particles)}
        for violation in validate_part(name, getattr(self, name), sizes)[:1]:
            message = f"{self.name}: {violation.message}; made from another file, or cut after the reconstruction?"
            raise events.error(message, index=violation.index, field=violation.field)
        if name == "hit_links":
            angle = self._beside_hits(events)
            if len(angle) >= MIN_BESIDE and (quarter := np.quantile(angle, 0.75)) > BESIDE:
                text = f"a quarter of {len(angle)} neutral particles lie more than {quarter:.2g} rad beside their hits"
                warn(f"{self.name}: {text}: cut or sorted particles need new links, or none", ImplausibleWarning)

    def _beside_hits(self, events: Events) -> Floats:
        """Angle, from the origin, of neutral particles with `LINKED_ENERGY` in hits to these hits' barycentre, rad."""
        links, momentum = Links.of(self.hit_links), jagged.momenta(self.particles)
        hit, particle = links.flat_source(jagged.count(events.hits)), links.flat_particle(jagged.count(self.particles))
        energy = links.weight * jagged.columns(events.hits)["energy"][hit]
        moment = energy[:, None] * jagged.vectors(events.hits, field="position")[hit]
        along = np.stack([np.bincount(particle, axis, len(momentum)) for axis in moment.T], axis=1)
        neutral = jagged.columns(self.particles)["charge"] == 0
        chosen = neutral & (np.bincount(particle, energy, len(momentum)) > LINKED_ENERGY)
        return np.asarray(angle_between(along[chosen], momentum[chosen]), dtype=np.float64)


def concatenate_reconstructions(chunks: Sequence[Reconstruction]) -> Reconstruction:
    """Join chunks of a reconstruction; links and fields that a chunk with particles lacks are dropped."""
    if not chunks:
        raise ValueError("no reconstructions to concatenate")
    if len(chunks) == 1:
        return chunks[0]
    # A chunk without particles lacks optional fields and links, but must not drop them from the others.
    filled = [bool(jagged.count(chunk.particles).any()) for chunk in chunks]
    filled = filled if any(filled) else [True] * len(chunks)

    def joined(name: str) -> ak.Array | None:
        given = [getattr(chunk, name) for chunk in chunks]
        some = [part is not None and bool(jagged.count(part).any()) for part in given]  # candidates without particles
        rows = zip(given, chunks, filled, some, strict=True)
        parts = [part if full or has else len(chunk) for part, chunk, full, has in rows]
        return None if any(part is None for part in parts) else jagged.concatenate(parts)

    values: dict[str, Any] = {name: joined(name) for name in Reconstruction.part_names}
    values |= {name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("event", "flags")}
    return dataclasses.replace(chunks[0], **values)
