"""Frames of podio's: writing collections into RNTuples that podio's `RNTupleReader` opens, and copying an input's."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.io.edm4hep.data_model import (
    CHANGED,
    EDM4HEP_VERSION,
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    CollectionInfo,
    DataModel,
    content,
    evolved,
    lists,
    strings,
    struct,
)
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.rntuple import make_rntuple
from pflow.physics.arrays import Index

PODIO_VERSION = (1, 7, 0)  # version of podio whose layout is written

Parameters = Mapping[str, Mapping[str, Sequence[Any]]]
"""Values of the parameters of a frame by kind (keys of `PARAMETER_TYPES`) and key."""

PARAMETER_TYPES: dict[str, Any] = {"Int": np.int32, "Float": np.float32, "Double": np.float64, "String": str}
"""Kinds of parameters of a frame, as podio names them, and type of their values."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Filled:
    """Content of one field in consecutive frames: int64 [frame] `counts` of objects, and their members by path."""

    counts: Index
    columns: Mapping[str, npt.NDArray[Any]]


Definitions = Mapping[str, tuple[str, tuple[int, ...]]]
"""Data models by name: each as podio's JSON, and its version (major, minor, patch; empty if it is not known)."""

Frames = Mapping[str, Filled]
"""Content of each field of consecutive frames, by name; fields that are left out are empty."""


class FrameWriter:
    """Writes one category of frames, ``events``, chunk by chunk, then the metadata.

    `collections` pairs each with the data model that knows its type; two may know a type in different versions.
    `definitions` are the data models by name, as of `Definitions`, to be stored in the `file`, open for writing.
    """

    def __init__(
        self,
        file: Any,
        *,
        collections: Sequence[tuple[DataModel, CollectionInfo]],
        definitions: Definitions,
    ) -> None:
        self._file = file
        self._collections = sorted(collections, key=lambda pair: pair[1].name)
        self._definitions = definitions
        self._fields = {
            field: (model, cpp_type)
            for model, collection in self._collections
            for field, cpp_type in model.fields(collection).items()
        }
        self._events = make_rntuple(file, "events", self._layout({}, [], 0).form)

    def extend(self, frames: Frames, frame_parameters: Sequence[Parameters]) -> None:
        """Append consecutive frames, one for each item of `frame_parameters`."""
        assert frames.keys() <= self._fields.keys(), frames.keys() - self._fields.keys()
        if frame_parameters:
            self._events.extend(ak.Array(self._layout(frames, frame_parameters, len(frame_parameters))))

    def finish(self, categories: Mapping[str, Sequence[Parameters]]) -> None:
        """Write the other categories, the parameters of whose frames are given, and podio's metadata, as RNTuples."""
        for name, frames in categories.items():
            _write(self._file, name, _parameters(frames), len(frames))
        models = [strings(list(self._definitions)), strings([text for text, _ in self._definitions.values()])]
        versions = {f"{name}___Version": version for name, (_, version) in self._definitions.items() if version}
        metadata = {
            "PodioBuildVersion": content(PODIO_VERSION, np.uint16),
            **{name: content(version, np.uint16) for name, version in versions.items()},
            "EDMDefinitions": ak.contents.RecordArray(models, None),
            "availableCategories": strings(["events", *categories]),
            "events___CollectionTypeInfo": _info(self._collections),
            **{f"{name}___CollectionTypeInfo": _info(()) for name in categories},
        }
        fields = {name: lists(values, [values.length]) for name, values in metadata.items()}
        _write(self._file, "podio_metadata", fields, 1)

    def _layout(self, frames: Frames, frame_parameters: Sequence[Parameters], n: int) -> Any:
        none = Filled(counts=np.zeros(n, dtype=np.int64), columns={})
        fields = {}
        for name, (model, cpp_type) in self._fields.items():
            filled = frames.get(name, none)
            fields[name] = lists(model.objects(cpp_type, filled.columns, int(filled.counts.sum())), filled.counts)
        return struct(fields | _parameters(frame_parameters), n)


class InputCopy:
    """Reads the collections of one file member by member.

    Collections of an EDM4hep before 1.0 become collections of 1.0, as podio would read them; collections of an unknown
    schema are copied unchanged, with a warning. Collections that the metadata list, but that a program dropped from the
    file, whole or in part, are left out, with a warning. An `InputError` where the metadata lack ids and types, or one
    of `needed` is dropped.
    """

    def __init__(self, file: PodioFile, needed: Collection[str] = ()) -> None:
        self._file = file
        self.definitions = {name: (text, file.version(name)) for name, text in file.definitions().items()}
        infos = file.infos()
        problem = ""
        if not infos or not self.definitions or not all(info.data_type for info in infos):
            problem = (
                "the file does not say the types of its collections in a form that can be copied; expected a file of "
                "podio 1.3 or later, with names in events___CollectionTypeInfo, and EDMDefinitions"
            )
        elif several := sorted(name for name, n_ids in Counter(file.ids.values()).items() if n_ids > 1):
            names = ", ".join(several)
            problem = f"files were merged in which {names} had other ids, so the collections cannot be copied"
        if problem:
            raise InputError(problem, file=file.path, field="podio_metadata")
        models = {name: json.loads(text) for name, (text, _) in self.definitions.items()}
        schema = models.get("edm4hep", {}).get("schema_version", SCHEMA_VERSION)
        if OLDEST_SCHEMA <= schema < SCHEMA_VERSION:
            models["edm4hep"] = evolved(models["edm4hep"])
            self.definitions["edm4hep"] = json.dumps(models["edm4hep"]), EDM4HEP_VERSION
            for row, info in enumerate(infos):
                if info.data_type.replace("Collection", "Data") in CHANGED:
                    infos[row] = dataclasses.replace(info, schema_version=SCHEMA_VERSION)
        elif schema != SCHEMA_VERSION:
            known = f"{OLDEST_SCHEMA} to {SCHEMA_VERSION} are"
            text = f"schema {schema} of EDM4hep is not known ({known}), its collections are copied as they are"
            warnings.warn(f"{file.path}: {text}", stacklevel=4)
        self.model = DataModel(*models.values())
        self.collections: dict[str, CollectionInfo] = {}
        self._fields: dict[str, str] = {}
        dropped = []
        for info in infos:
            try:
                fields = self.model.fields(info)
            except KeyError as error:
                raise InputError(str(error.args[0]), file=file.path, field=info.name) from error
            members = [(field, names) for field, kind in fields.items() for _, names in self._members(kind)]
            if all(any(file.columns.has(field, name) for name in names) for field, names in members):
                self.collections[info.name] = info
                self._fields |= fields
            elif info.name in needed:
                raise InputError("the file holds only a part of it", file=file.path, field=info.name)
            else:
                dropped.append(info.name)
        if dropped:
            text = f"{', '.join(dropped)} of its metadata is not or not whole in the file, and not copied"
            warnings.warn(f"{file.path}: {text}", stacklevel=4)

    def _members(self, cpp_type: str) -> list[tuple[str, tuple[str, ...]]]:
        """Path of each leaf of a type, and its possible names in the file."""
        changed = CHANGED.get(cpp_type, {})
        return [
            (path, (path, changed.get(path, ("", path))[1]) if length is None else (f"{path}[{length}]", path))
            for path, length in self.model.leaves(cpp_type)
        ]

    def read(self, start: int, stop: int) -> Frames:
        """Content of all collections, with their references, in entries `start` to `stop` (exclusive)."""
        frames = {}
        for field, cpp_type in self._fields.items():
            columns, counts = {}, np.zeros(stop - start, dtype=np.int64)
            for path, names in self._members(cpp_type):
                values = self._file.columns.get(field, *names, start=start, stop=stop)
                counts, columns[path] = jagged.count(values), jagged.flat(values)
            frames[field] = Filled(counts=counts, columns=columns)
        return frames

    def categories(self) -> dict[str, Sequence[Parameters]]:
        """Parameters of the other categories of frames; those that hold collections are left out."""
        names = (name for name in self._file.categories() if not self._file.infos(name))
        return {name: self._file.frame_parameters(name) for name in names}


def _info(collections: Sequence[tuple[DataModel, CollectionInfo]]) -> Any:
    """Description of the collections of a category."""
    rows = [collection for _, collection in collections]
    full = [(model, dataclasses.replace(row, is_subset=False)) for model, row in collections]
    storages = [f"std::vector<{next(iter(model.fields(row).values()))}>" for model, row in full]
    contents = {
        "collectionID": content([row.id for row in rows], np.uint32),
        "dataType": strings([row.data_type for row in rows]),
        "isSubset": content([row.is_subset for row in rows], np.bool_),
        "schemaVersion": content([row.schema_version for row in rows], np.uint32),
        "name": strings([row.name for row in rows]),
        "storageType": strings(storages),
    }
    return struct(contents, len(rows), "podio::root_utils::CollectionWriteInfo")


def _write(file: Any, name: str, fields: Mapping[str, Any], n: int) -> None:
    """Write a whole RNTuple of `n` entries."""
    layout = struct(fields, n)
    ntuple = make_rntuple(file, name, layout.form)
    if n:
        ntuple.extend(ak.Array(layout))


def _parameters(frames: Iterable[Parameters]) -> dict[str, Any]:
    """Fields ``GPIntKeys``, ``GPIntValues`` and so on of consecutive frames."""
    fields, frames = {}, list(frames)
    for kind, dtype in PARAMETER_TYPES.items():
        tables = [frame.get(kind, {}) for frame in frames]
        n_keys = [len(table) for table in tables]
        rows = [list(values) for table in tables for values in table.values()]
        flat = [value for row in rows for value in row]
        values = strings(flat) if dtype is str else content(flat, dtype)
        fields[f"GP{kind}Keys"] = lists(strings([key for table in tables for key in table]), n_keys)
        fields[f"GP{kind}Values"] = lists(lists(values, [len(row) for row in rows]), n_keys)
    return fields
