"""Flat ntuples: one branch for each quantity, named by a layout (configs/layout/*.yaml)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np

from pflow.config import from_plain
from pflow.errors import ConfigError, InputError, nearest
from pflow.event import jagged
from pflow.event.build import make_hits, make_links, make_particles, make_tracker_hits, make_tracks, make_truth
from pflow.event.events import TRUTH_PARTS, Events, Flag
from pflow.event.links import Links
from pflow.event.schema import LINKED
from pflow.io.layout import Branch, Layout, load_layout
from pflow.io.root import EventWeights, open_tree, read_branch, read_note
from pflow.physics import pdg
from pflow.physics.detector import Detector, load_detector

NOTE = "pflow_flat"
"""Key of the note in pflow's own flat files: detector, codes of the calorimeters, name of the reference,
whether its tracks were made from Monte Carlo particles."""


class FlatReader:
    """An open flat ntuple, TTree or RNTuple, read by a layout; fulfils `pflow.io.reader.Reader`.

    The `detector` is by default the one in the file's note (written by pflow), else the layout's.
    """

    schema = "flat"
    sources: Mapping[str, tuple[str, ...]] = {}

    def __init__(
        self,
        directory: Any,
        path: str | Path,
        *,
        layout: str | Path | Layout = "g4",
        detector: Detector | str | Path | None = None,
    ) -> None:
        self.path = str(path)
        self.layout = load_layout(layout)
        self._directory = directory
        self.tree = open_tree(directory, self.layout.tree, self.path)
        note = read_note(directory, NOTE, self.path) or {}
        self.has_note = bool(note)
        self.layout = self.layout.with_all() if note else self.layout
        self.uuid = str(directory.file.uuid)
        self.num_entries = int(self.tree.num_entries)
        self.detector = self._detector(detector, note)
        self.truth_tracks = bool(note.get("truth_tracks", False))
        self._reference_name = str(note.get("reference_name", self.layout.reference_name))
        keys = set(self.tree.keys())
        self._parts = {part: self.layout.available(part, keys, file=self.path) for part in self.layout.parts}
        self._event = self.layout.event if self.layout.event in keys else None
        used = {branch.branch for fields in self._parts.values() for branch in fields.values()}
        self._weights, self.notes = EventWeights(self.tree, self.path, used=used), dict[str, str]()
        self._calorimeter_of_code = self._codes(note)
        self.absent = self._absent(keys)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._directory.close()

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Read entries without validating them; see `pflow.io.reader.Reader.read`."""
        stop = min(stop, self.num_entries)
        start = min(start, stop)
        columns = {
            part: self._columns(part, fields, start, stop, truth)
            for part, fields in self._parts.items()
            if fields and (truth or part not in TRUTH_PARTS)
        }
        particle = {
            part: arrays.pop("particle")
            for part, arrays in columns.items()
            if part in LINKED.values() and "particle" in arrays
        }
        if said := self._weights.read(start, stop):
            self.notes["weights"] = f"{said}, and no output keeps them"
        hits = columns["hits"]
        if self._calorimeter_of_code and "subdetector" in hits:
            hits["subdetector"] = self._calorimeters(hits["subdetector"])
        parts: dict[str, Any] = {"hits": make_hits(**hits)}
        if "tracks" in columns:
            parts["tracks"] = make_tracks(b_field=self.detector.b_field, **columns["tracks"])
        if "tracker_hits" in columns:
            parts["tracker_hits"] = make_tracker_hits(**columns["tracker_hits"])
        if "truth" in columns:
            parts["truth"] = make_truth(**_with_pdg_defaults(columns["truth"], ("charge", "mass")))
            for name, source in LINKED.items():
                if name in columns:
                    parts[name] = make_links(**columns[name])
                elif source in particle:
                    parts[name] = _links_of(particle[source])
        if "reference" in columns:
            parts["reference"] = make_particles(**_with_pdg_defaults(columns["reference"], ("charge",)))
        if self.truth_tracks:
            parts["flags"] = np.full(stop - start, Flag.TRUTH_TRACKS, dtype=np.uint32)
        entry = np.arange(start, stop, dtype=np.int64)
        return Events(
            detector=self.detector,
            path=self.path,
            entry=entry,
            event=entry if self._event is None else self._event_numbers(start, stop),
            absent=self.absent,
            reference_name=self._reference_name if "reference" in parts else "",
            **parts,
        )

    def _detector(self, requested: Detector | str | Path | None, note: Mapping[str, Any]) -> Detector:
        if requested is not None:
            return load_detector(requested)
        if "detector" in note:
            written = note["detector"]
            origin = f"{self.path}: note '{NOTE}'"
            return load_detector(written) if isinstance(written, str) else from_plain(Detector, written, origin)
        if self.layout.detector is None:
            raise ConfigError(f"{self.path}: layout '{self.layout.name}' names no detector, so one must be given")
        return load_detector(self.layout.detector)

    def _codes(self, note: Mapping[str, Any]) -> dict[int, int] | None:
        """Index of the calorimeter for each code of the file; None where codes are indices."""
        branch = self._parts["hits"].get("subdetector")
        if branch is None:
            return None
        written = note.get("calorimeters")
        names = branch.names if written is None else dict(enumerate(written))
        if names is None:
            return None
        known = [calorimeter.name for calorimeter in self.detector.calorimeters]
        for code, name in names.items():
            if name not in known:
                raise ConfigError(
                    f"{self.path}: the layout's calorimeter '{name}' (code {code}) is not one of detector"
                    f" '{self.detector.name}': {', '.join(known)}",
                    suggestions=nearest(name, known),
                )
        return {code: known.index(names[code]) for code in sorted(names)}

    def _absent(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Parts and branches of the layout that the file does not hold."""
        known = set(keys)
        absent = []
        for part, fields in self.layout.parts.items():
            expected = {branch.branch for branch in fields.values() if not branch.optional}
            if not self._parts[part] and expected:
                absent.append(part)
            elif self._parts[part]:
                absent += sorted(expected - known)
        if self.layout.event is not None and self._event is None:
            absent.append(self.layout.event)
        return tuple(absent)

    def _columns(
        self, part: str, fields: Mapping[str, Branch], start: int, stop: int, truth: bool
    ) -> dict[str, ak.Array]:
        """Arrays [event, object] of the quantities of one part, in pflow's units, all of the same lengths."""
        link = next((name for name, source in LINKED.items() if source == part), "")
        columns: dict[str, ak.Array] = {}
        counts, first = None, ""
        for name, branch in fields.items():
            if name == "particle" and part not in LINKED and (not truth or self._parts.get(link)):
                continue
            values = read_branch(self.tree, branch.branch, start, stop, self.path)
            if values.ndim != 2 or values.fields or "?" in str(values.type):
                message = f"expected one list of numbers an entry, found {values.type.content}"
                raise InputError(message, file=self.path, field=branch.branch)
            lengths = jagged.count(values)
            if counts is None:
                counts, first = lengths, branch.branch
            elif (different := np.flatnonzero(lengths != counts)).size:
                event = int(different[0])
                message = f"expected {counts[event]} values, as many as '{first}' has, found {lengths[event]}"
                raise InputError(message, file=self.path, entry=start + event, field=branch.branch)
            columns[name] = values if branch.scale == 1.0 else values * branch.scale
        return columns

    def _calorimeters(self, codes: ak.Array) -> ak.Array:
        """Calorimeter of each code; an unknown code becomes an index of none, for `Events.validate` to name."""
        assert self._calorimeter_of_code is not None
        known, index = (np.array(list(column)) for column in zip(*self._calorimeter_of_code.items(), strict=True))
        flat = jagged.flat(codes)
        slot = np.minimum(np.searchsorted(known, flat), len(known) - 1)
        unknown = np.where((flat < 0) | (flat >= len(self.detector.calorimeters)), flat, -1)
        return jagged.unflatten(np.where(known[slot] == flat, index[slot], unknown), jagged.count(codes))

    def _event_numbers(self, start: int, stop: int) -> Any:
        assert self._event is not None
        numbers = read_branch(self.tree, self._event, start, stop, self.path)
        if numbers.ndim != 1:
            message = f"expected one number an entry, found {numbers.type.content}"
            raise InputError(message, file=self.path, field=self._event)
        return np.asarray(ak.to_numpy(numbers), dtype=np.int64)


def _with_pdg_defaults(columns: Mapping[str, ak.Array], names: Iterable[str]) -> dict[str, ak.Array]:
    """The columns, with missing ones of `names` looked up by PDG code."""
    lookup = {"charge": pdg.charges, "mass": pdg.masses}
    codes = columns["pdg"]
    missing = [name for name in names if name not in columns]
    return {
        **columns,
        **{name: jagged.unflatten(lookup[name](jagged.flat(codes)), jagged.count(codes)) for name in missing},
    }


def _links_of(particle: ak.Array) -> ak.Array:
    """One link of weight 1 for each object that names its particle (-1: none)."""
    counts = jagged.count(particle)
    values = jagged.flat(particle, np.int64)
    linked = values != -1
    n_links = np.bincount(jagged.event_index(counts)[linked], minlength=len(counts))
    source = jagged.local_index(counts)[linked]
    return Links(counts=n_links, source=source, particle=values[linked], weight=np.ones(len(source))).records()
