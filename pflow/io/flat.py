"""Flat ntuples: one branch for each quantity of `Events`, named by a layout (configs/layout/*.yaml).

`FlatReader` reads any layout; `write_events` writes the built-in one, which reads back without loss.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import uproot

from pflow.config import builtin_names, from_plain, load_yaml, resolve, to_plain
from pflow.errors import ConfigError, InputError, check_fields, nearest
from pflow.event import jagged
from pflow.event.events import TRUTH_PARTS, Events, Flag
from pflow.event.jagged import Links, assigned_particle
from pflow.event.schema import (
    LINKED,
    PARTS,
    PXYZ,
    SCHEMA,
    fields_of,
    make_hits,
    make_links,
    make_particles,
    make_tracker_hits,
    make_tracks,
    make_truth,
    not_whole,
    quantities_of,
)
from pflow.io.atomic import replacing
from pflow.io.root import (
    EventWeights,
    check_counts,
    earlier_trees,
    make_ttree,
    open_tree,
    read_branch,
    read_note,
    write_note,
)
from pflow.physics import pdg
from pflow.physics.detector import Detector, load_detector
from pflow.physics.kinematics import at_calorimeter, follow_to_calorimeter

LINKS_OF = {source: links for links, source in LINKED.items()}
"""The links from the objects of each part that has them: ``hit_links`` of ``hits``."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    part: (*quantities_of(part, optional=True), *(["particle"] if part in LINKS_OF else [])) for part in PARTS
}
"""Quantities of each part that a layout may name; ``particle`` stands for links of weight 1."""

REQUIRED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "hits": (("energy", "x", "y", "z"),),
    "tracks": (("px", "py", "pz", "charge"), ("omega", "phi", "tan_lambda")),
    "tracker_hits": (("x", "y", "z"),),
    "truth": (("pdg", "px", "py", "pz"),),
    "reference": (("pdg", "energy", "px", "py", "pz"),),
    **dict.fromkeys(LINKED, (("source", "particle"),)),
}
"""A part is complete with any one of these sets of quantities."""


WHOLE = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
MAX_COUNTED = 100  # entries in which unfilled elements of arrays are looked for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branch:
    """Where one quantity is: the name of its branch."""

    branch: str
    scale: float = 1.0  # factor from the file's unit to pflow's
    optional: bool = False  # whether a file without it is not reported
    names: Mapping[int, str] | None = None  # of the subdetector: the calorimeter that each code of the file stands for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Which branches of a flat ntuple hold which quantities, as `load_layout` reads it."""

    name: str = ""
    tree: str = "events"
    detector: str | None = None  # detector that its files belong to by default; None if the user must name it
    event: str | None = None  # branch of the event number; None to number the entries
    parts: Mapping[str, Mapping[str, Branch]] = dataclasses.field(default_factory=dict)  # by part and quantity
    reference_name: str = ""  # name of the algorithm behind ``reference``

    @property
    def is_built_in(self) -> bool:
        """Whether these are the branches of the layout of this name that comes with pflow, not of a changed copy."""
        return self.name in builtin_names("layout") and load_layout(self.name).parts == self.parts

    def with_all(self) -> Layout:
        """With every quantity of the schema, in branches of their own names, as pflow's own files hold them."""
        parts = {}
        for part, fields in self.parts.items():
            group = next(iter(fields.values())).branch.partition(".")[0]
            unmapped = (name for name in quantities_of(part, optional=True) if name not in fields)
            parts[part] = {**fields, **{name: Branch(branch=f"{group}.{name}", optional=True) for name in unmapped}}
        return dataclasses.replace(self, parts=parts)

    def available(self, part: str, keys: Iterable[str], *, file: str | Path | None = None) -> dict[str, Branch]:
        """The quantities of a part that a file with the branches `keys` has; none if the part is not in the file.

        An `InputError` names the first missing branch of a part that is there in part, or of the hits.
        """
        known = set(keys)
        fields = self.parts.get(part, {})
        present = {name: branch for name, branch in fields.items() if branch.branch in known}
        if any(present.keys() >= set(complete) for complete in REQUIRED[part]):
            return present
        needed = [name for complete in REQUIRED[part] for name in complete if name in fields]
        if part != "hits" and not any(name in present for name in needed):
            return {}
        missing = next(fields[name].branch for name in needed if name not in present)
        message = f"branch is missing; layout '{self.name}' needs it for the {part.replace('_', ' ')}"
        raise InputError(message, file=file, field=missing, suggestions=nearest(missing, known))


def load_layout(name: str | Path | Layout) -> Layout:
    """A layout by built-in name (``g4``), from a YAML file, or as it is; a `ConfigError` if it is not valid."""
    if isinstance(name, Layout):
        return name
    origin = str(resolve("layout", name))
    content, top = load_yaml(origin), ("name", "tree", "detector", "event")
    check_fields(content, (*top, *FIELDS), origin)
    parts: dict[str, dict[str, Branch]] = {}
    header = {key: content[key] for key in top if key in content}
    for part in FIELDS:
        if (fields := content.get(part)) is None:
            continue
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{origin}: '{part}' must map quantities to branches, found {fields!r}")
        fields, where = dict(fields), f"{origin}: {part}"
        if part == "reference":
            header["reference_name"] = fields.pop("name", "reference")
        check_fields(fields, FIELDS[part], where)
        if not any(set(complete) <= fields.keys() for complete in REQUIRED[part]):
            needed = ", or ".join(", ".join(complete) for complete in REQUIRED[part])
            raise ConfigError(f"{where}: needs at least {needed}; found {', '.join(fields) or 'nothing'}")
        parts[part] = {
            name: from_plain(Branch, {"branch": value} if isinstance(value, str) else value, f"{where}.{name}")
            for name, value in fields.items()
        }
        first: dict[str, str] = {}  # quantity by branch
        for name, branch in parts[part].items():
            if (other := first.setdefault(branch.branch, name)) != name:
                text = f"{other} and {name} are both {branch.branch}: leave out what your file does not have"
                raise ConfigError(f"{where}: {text}")
            if branch.names is not None and name != "subdetector":
                raise ConfigError(f"{where}.{name}: 'names' belongs to hits.subdetector only")
    if "hits" not in parts:
        raise ConfigError(f"{origin}: 'hits' is missing: energy, x, y and z of the calorimeter hits are required")
    layout = from_plain(Layout, header, origin)
    return dataclasses.replace(layout, name=layout.name or Path(origin).stem, parts=parts)


NOTE = "pflow_flat"
"""Key of the note in pflow's own flat files: what `write_events` says of its detector, reference and tracks."""


class FlatReader:
    """An open flat ntuple, TTree or RNTuple, read by a layout; fulfils `pflow.io.open.Reader`.

    The `detector` is by default the one in the file's note (written by pflow), else the layout's.
    """

    schema = "flat"
    sources: Mapping[str, tuple[str, ...]] = {}

    def __init__(
        self, directory: Any, path: str | Path, *, layout: str | Layout = "g4", detector: Detector | str | None = None
    ) -> None:
        self.path, self.close, layout = str(path), directory.close, load_layout(layout)
        self.tree = open_tree(directory, layout.tree, self.path)
        note = read_note(directory, NOTE, self.path) or {}
        self.has_note = bool(note)
        self.layout = layout.with_all() if note else layout
        self.uuid = str(directory.file.uuid)
        self.num_entries = int(self.tree.num_entries)
        chosen = note.get("detector", self.layout.detector) if detector is None else detector
        if chosen is None:
            raise ConfigError(f"{self.path}: layout '{self.layout.name}' names no detector, so one must be given")
        if isinstance(chosen, str | Detector):
            self.detector = load_detector(chosen)
        else:
            try:
                self.detector = from_plain(Detector, chosen, "its detector")
            except ConfigError as error:
                raise InputError(f"{error}; describe it with --detector", file=self.path, field=NOTE) from error
        self.truth_tracks = bool(note.get("truth_tracks", False))
        self._reference_name = str(note.get("reference_name", self.layout.reference_name))
        keys = self._keys = set(self.tree.keys())
        self._counters: dict[str, str | None] = {}  # of branches of a fixed size: they are looked at once
        self._parts = {part: self.layout.available(part, keys, file=self.path) for part in self.layout.parts}
        self._event = self.layout.event if self.layout.event in keys else None
        used = {branch.branch for fields in self._parts.values() for branch in fields.values()}
        self._weights = EventWeights(self.tree, self.path, used=used)
        self.notes = earlier_trees(directory, layout.tree, self.tree)
        self._calorimeter_of_code = self._codes(note)
        absent = []  # parts and branches of the layout that the file does not hold
        for part, fields in self.layout.parts.items():
            expected = {branch.branch for branch in fields.values() if not branch.optional}
            if not self._parts[part]:  # it is reported once, not by each of its branches
                absent += [part] if expected else []
                continue
            lost = sorted(expected - keys)
            absent += lost
            if note or layout.is_built_in:
                continue
            for branch in lost:
                text = f"layout '{self.layout.name}' names {branch}, which the file does not have"
                found = ", ".join(nearest(branch, keys)) or "none"
                self.notes[branch] = f"{text} (nearest matches: {found}): correct it, or mark it optional"
        if self.layout.event is not None and self._event is None:
            absent.append(self.layout.event)
        self.absent = tuple(absent)
        tracks = self._parts.get("tracks")
        if tracks and not {"calo_x", "d0"} & set(tracks):
            text = "tracks have no place, neither calo_x, calo_y and calo_z nor d0 and z0: they are followed from the"
            self.notes["tracks"] = f"{text} origin, and those of decays miss their hits"

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Read entries without validating them; see `pflow.io.open.Reader`."""
        columns = {
            part: self._columns(part, fields, start, stop, truth)
            for part, fields in self._parts.items()
            if fields and (truth or part not in TRUTH_PARTS)
        }
        self._check_integers(columns, start)
        particle = {part: columns[part].pop("particle", None) for part in LINKS_OF if part in columns}
        if said := self._weights.read(start, stop):
            self.notes["weights"] = f"{said}, and no output keeps them"
        if known := self._calorimeter_of_code:
            in_file = columns["hits"]["subdetector"]
            codes, counts = jagged.flat(in_file), jagged.count(in_file)
            index = np.select([codes == code for code in known], list(known.values()), -1)
            if (unknown := np.flatnonzero(index < 0)).size:
                names = ", ".join(f"{code}: {self.detector.calorimeters[at].name}" for code, at in known.items())
                at_entry = start + int(jagged.event_index(counts)[unknown[0]])
                text = f"{codes[unknown[0]]} is the code of no calorimeter that `names` of the layout lists ({names})"
                raise InputError(text, file=self.path, entry=at_entry, field=self._parts["hits"]["subdetector"].branch)
            columns["hits"]["subdetector"] = jagged.unflatten(index, counts)
        lookups = {"charge": pdg.charges, "mass": pdg.masses}
        for part, name in (("truth", "charge"), ("truth", "mass"), ("reference", "charge")):
            if part in columns and name not in columns[part]:
                codes = columns[part]["pdg"]
                columns[part][name] = jagged.unflatten(lookups[name](jagged.flat(codes)), jagged.count(codes))
        makers: dict[str, Any] = {"hits": make_hits, "tracker_hits": make_tracker_hits}
        makers |= {"truth": make_truth, "reference": make_particles}
        parts: dict[str, Any] = {part: make(**columns[part]) for part, make in makers.items() if part in columns}
        if "tracks" in columns:
            tracks = make_tracks(b_field=self.detector.b_field, **columns["tracks"])
            parts["tracks"], lost, placed = _followed(tracks, self.detector)
            if lost > 0.2 * placed:
                text = f"{lost} of {placed} tracks have a place (calo_x, calo_y, calo_z) that is not at the calorimeter"
                self.notes["tracks"] = f"{text} (expected mm); they are followed along the helix"
        for source, link in LINKS_OF.items() if "truth" in parts else ():
            # Links of the file come first: they can share a hit among particles, `particle` cannot.
            if link in columns:
                parts[link] = make_links(**columns[link])
            elif particle.get(source) is not None:
                parts[link] = links_of(particle[source])
        if self.truth_tracks:
            parts["flags"] = np.full(stop - start, Flag.TRUTH_TRACKS, dtype=np.uint32)
        event = entry = np.arange(start, stop, dtype=np.int64)
        if self._event is not None:
            numbers = read_branch(self.tree, self._event, start, stop, self.path)
            if numbers.ndim != 1:
                message = f"expected one number an entry, found {numbers.type.content}"
                raise InputError(message, file=self.path, field=self._event)
            event = np.asarray(ak.to_numpy(numbers), dtype=np.int64)
        return Events(
            detector=self.detector,
            path=self.path,
            entry=entry,
            event=event,
            absent=self.absent,
            reference_name=self._reference_name if "reference" in parts else "",
            **parts,
        )

    def _check_integers(self, columns: Mapping[str, Mapping[str, ak.Array]], start: int) -> None:
        """Raise InputError for a number that should be an index or a code and is not whole, or too large."""
        for part, of_part in columns.items():
            fields, column_of = fields_of(part), quantities_of(part, optional=True)
            for name, values in of_part.items():
                # `particle` of other parts is an index as `parent` is.
                branch, numbers = self._parts[part][name], jagged.flat(values)
                field = fields[column_of[name]] if name in column_of else fields_of("truth")["parent"]
                for row in [] if branch.names else not_whole(numbers, field.dtype)[:1]:
                    entry = start + int(jagged.event_index(jagged.count(values))[row])
                    none = " (-1: none)" if field.default == -1 else ""
                    text = f"expected whole numbers of type {field.dtype} for {name}{none}, found {numbers[row]}"
                    raise InputError(text, file=self.path, entry=entry, field=branch.branch)

    def _codes(self, note: Mapping[str, Any]) -> dict[int, int] | None:
        """Index of the calorimeter for each code of the file; None where codes are indices."""
        branch = self._parts["hits"].get("subdetector")
        names = None if branch is None else branch.names
        if "calorimeters" in note:
            names = dict(enumerate(note["calorimeters"]))
        if branch is None or names is None:
            return None
        known = [calorimeter.name for calorimeter in self.detector.calorimeters]
        for code, name in names.items():
            if name not in known:
                expected = f"is not one of detector '{self.detector.name}': {', '.join(known)}"
                message = f"{self.path}: the layout's calorimeter '{name}' (code {code}) {expected}"
                raise ConfigError(message, suggestions=nearest(name, known))
        return {code: known.index(name) for code, name in names.items()}

    def _columns(
        self, part: str, fields: Mapping[str, Branch], start: int, stop: int, truth: bool
    ) -> dict[str, ak.Array]:
        """Arrays [event, object] of the quantities of one part, in pflow's units, all of the same lengths."""
        columns: dict[str, ak.Array] = {}
        counts, first = None, ""
        for name, branch in fields.items():
            # Without truth, or beside links, which say more, it would be read in vain.
            if name == "particle" and part in LINKS_OF and (not truth or self._parts.get(LINKS_OF[part])):
                continue
            values = read_branch(self.tree, branch.branch, start, stop, self.path)
            if values.ndim != 2 or values.fields or "?" in str(values.type):
                message = f"expected one list of numbers an entry, found {values.type.content}"
                raise InputError(message, file=self.path, field=branch.branch)
            if values.layout.is_regular and branch.branch not in self._counters:
                self._counters[branch.branch] = self._counter(branch.branch)
            if counter := self._counters.get(branch.branch):
                text = f"an array of {values.layout.size} numbers in every entry, of which '{counter}' seems to count"
                text += " those that are filled: others repeat the entry before; write a list of the filled ones"
                raise InputError(text, file=self.path, field=branch.branch)
            lengths = jagged.count(values)
            if counts is None:
                counts, first = lengths, branch.branch
            text = "expected {1} values, the number in '{2}', found {0}"
            check_counts(lengths, counts, text, first, file=self.path, start=start, field=branch.branch)
            # Times 1.0 would copy the values, and make floats of integers.
            columns[name] = values if branch.scale == 1.0 else values * branch.scale
        return columns

    def _counter(self, branch: str) -> str | None:
        """A branch ``n...`` that counts the filled elements of a fixed array, if the others are an earlier entry's."""
        stop = min(self.num_entries, MAX_COUNTED)
        values = np.asarray(read_branch(self.tree, branch, 0, stop, self.path))
        old, place = values[1:] == values[:-1], np.arange(values.shape[1])
        for name in [name for name in sorted(self._keys) if name.lower().startswith("n")]:
            with suppress(InputError):  # a branch that cannot be read may be of no use to anybody
                numbers = read_branch(self.tree, name, 0, stop, self.path)
                if str(numbers.type.content) in WHOLE:
                    behind = place >= np.asarray(numbers)[1:, np.newaxis]
                    if old[behind].all() and values[1:][behind].any() and not old[~behind].all():
                        return str(name)
        return None


def _followed(tracks: ak.Array, detector: Detector) -> tuple[ak.Array, int, int]:
    """Tracks of which the file does not say where they enter the calorimeter, followed there along the helix.

    These are without the branches, or have NaN, (0, 0, 0) or a place in them that is not at the calorimeter; the number
    of the last, and of tracks with a place.
    """
    columns, momentum = jagged.columns(tracks), jagged.vectors(tracks, field="momentum")
    states = [jagged.vectors(tracks, field=f"calo_{name}") for name in ("position", "momentum")]
    there, *_ = known = [np.isfinite(state).all(axis=1) & state.any(axis=1) for state in states]
    elsewhere = there & ~at_calorimeter(states[0], detector)
    numbers = int(elsewhere.sum()), int(there.sum())
    known = [of & ~elsewhere for of in known]
    if all(of.all() for of in known):
        return tracks, *numbers
    d0, z0, phi = (np.nan_to_num(columns[name].astype(np.float64)) for name in ("d0", "z0", "phi"))
    start = np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=1)
    followed = follow_to_calorimeter(start, momentum, columns["charge"], detector)
    names = ("calo_position.x", "calo_position.y", "calo_position.z", *(f"calo_momentum.{axis}" for axis in PXYZ))
    of_file = zip(followed, states, known, strict=True)
    kept = [np.where(there[:, np.newaxis], state, along) for along, state, there in of_file]
    values = np.concatenate(kept, axis=1).astype(np.float32).T
    return jagged.replaced(tracks, dict(zip(names, values, strict=True))), *numbers


def links_of(particle: ak.Array) -> ak.Array:
    """One link of weight 1 for each object that names its particle (-1: none)."""
    counts, values = jagged.count(particle), jagged.flat(particle, np.int64)
    links = Links(counts=counts, source=jagged.local_index(counts), particle=values, weight=np.ones(len(values)))
    return links.take(values != -1).records()


def write_events(
    path: str | Path,
    events: Events | Iterable[Events],
    *,
    compression: Any = None,
    inputs: Iterable[str | Path] = (),
    force: bool = False,
) -> int:
    """Write events, all at once or in chunks, to a TTree in the layout ``g4``; return how many.

    One basket a branch for each chunk (some hundred events compress well). A note names the detector, so that reading
    needs no option. `compression` as uproot takes it, by default ``uproot.ZSTD(9)``; `inputs` and `force` as of
    `pflow.io.atomic.check_output`. A `ConfigError` if there is nothing to write, chunks differ in detector or parts, or
    the output cannot be written.
    """
    layout = load_layout("g4").with_all()
    chunks = iter((events,) if isinstance(events, Events) else events)
    with replacing(path, inputs=inputs, force=force) as partial:
        first = next(chunks, None)
        # The types of the branches come from the first chunk: without one, no tree can be made.
        if first is None:
            raise ConfigError(f"cannot write {path}: no events were given")
        parts, held, written = [name for name, _ in first.parts()], _held(first), 0
        with uproot.recreate(partial, compression=compression or uproot.ZSTD(9)) as file:
            detector, truth_tracks = first.detector, False
            groups = _groups(first[:0], layout, parts)
            types = {str(layout.event): np.dtype(np.int64)} | {key: group.type.content for key, group in groups.items()}
            tree = make_ttree(file, layout.tree, types, "events")
            for chunk in itertools.chain([first], chunks):
                if (chunk.detector, _held(chunk)) != (detector, held):
                    chunks_of = f"chunks with {', '.join(held)} of detector '{detector.name}'"
                    another = f"with {', '.join(_held(chunk))} of '{chunk.detector.name}'"
                    raise ConfigError(f"cannot write {path}: {chunks_of}, and {another}")
                if len(chunk):
                    tree.extend({str(layout.event): chunk.event} | _groups(chunk, layout, parts))
                written += len(chunk)
                truth_tracks |= bool(np.any(chunk.flags & Flag.TRUTH_TRACKS))
            # A built-in detector by its name: later versions may know it better.
            built_in = detector.name in builtin_names("detector") and load_detector(detector.name) == detector
            # Written last: any chunk may have tracks that are made from true particles.
            note = {
                "detector": detector.name if built_in else to_plain(detector),
                "calorimeters": [calorimeter.name for calorimeter in detector.calorimeters],
                "reference_name": first.reference_name,
                "truth_tracks": truth_tracks,
            }
            write_note(file, NOTE, note)
        return written


def _held(events: Events) -> list[str]:
    """Names of the parts of events, and of columns of these that not all events have."""
    return [
        name
        for part, of in events.parts()
        for name in (part, *(field.name for field in SCHEMA[part] if field.optional and field.name in of.fields))
    ]


def _groups(events: Events, layout: Layout, parts: Iterable[str]) -> dict[str, ak.Array]:
    """[event, object] records by the prefix of their branches, e.g. ``calo_hit``."""
    groups = {}
    for part in parts:
        records = getattr(events, part)
        columns, flat, counts = {}, jagged.columns(records), jagged.count(records)
        quantities = quantities_of(part, optional=True)
        for name, branch in layout.parts[part].items():
            prefix, _, member = branch.branch.partition(".")
            if name == "particle" and part in LINKS_OF:
                if (links := getattr(events, LINKS_OF[part])) is not None:
                    columns[member] = assigned_particle(links, records)
            elif quantities[name] in flat:
                columns[member] = jagged.unflatten(flat[quantities[name]], counts)
        groups[prefix] = ak.zip(columns, depth_limit=2)
    return groups
