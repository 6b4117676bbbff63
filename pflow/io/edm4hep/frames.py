"""Podio frames: write collections into TTrees that podio's `ROOTReader` opens, and copy an input's collections."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pflow.errors import InputError
from pflow.event import jagged
from pflow.io.edm4hep.data_model import (
    CHANGED,
    EDM4HEP_VERSION,
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    TEXT,
    CollectionInfo,
    DataModel,
    Filled,
    evolved,
)
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.edm4hep.ttree import TreeWriter

PODIO_VERSION = (1, 7, 0)  # version of podio whose layout is written

Parameters = Mapping[str, Mapping[str, Sequence[Any]]]
"""Values of the parameters of a frame by kind (keys of `PARAMETER_TYPES`) and key."""

PARAMETER_TYPES = {"Int": "std::int32_t", "Float": "float", "Double": "double", "String": TEXT}
"""Kinds of parameters of a frame, as podio names them, and type of their values."""

PARAMETER_FIELDS = {
    f"GP{kind}{part}": (DataModel(), cpp_type)
    for kind, value in PARAMETER_TYPES.items()
    for part, cpp_type in (("Keys", TEXT), ("Values", f"std::vector<{value}>"))
}


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
        fields = {
            field: (model, cpp_type)
            for model, collection in self._collections
            for field, cpp_type in model.fields(collection).items()
        }
        self._events = TreeWriter(file, "events", fields | PARAMETER_FIELDS)

    def extend(self, frames: Frames, frame_parameters: Sequence[Parameters]) -> None:
        """Append consecutive frames, one for each item of `frame_parameters`."""
        self._events.extend({**frames, **_parameters(frame_parameters)}, len(frame_parameters))

    def finish(self, categories: Mapping[str, Sequence[Parameters]]) -> None:
        """Write the other categories, the parameters of whose frames are given, and podio's metadata."""
        self._events.close()
        for name, frames in categories.items():
            tree = TreeWriter(self._file, name, PARAMETER_FIELDS)
            tree.extend(_parameters(frames), len(frames))
            tree.close()
        versions = {f"{name}___Version": version for name, (_, version) in self._definitions.items() if version}
        parts = ("major", "minor", "patch")
        version_columns = {
            name: dict(zip(parts, ([part] for part in version), strict=True))
            for name, version in {"PodioBuildVersion": PODIO_VERSION, **versions}.items()
        }
        definitions = {"_0": list(self._definitions), "_1": [text for text, _ in self._definitions.values()]}
        infos = {f"{name}___CollectionTypeInfo": _info(()) for name in categories}
        infos["events___CollectionTypeInfo"] = _info(self._collections)
        columns = {**infos, "EDMDefinitions": definitions, **version_columns}
        types = {
            **dict.fromkeys(infos, "podio::root_utils::CollectionWriteInfo"),
            "EDMDefinitions": "tuple<string,string>",
            **dict.fromkeys(version_columns, "podio::version::Version"),
        }
        frame = {
            name: Filled(counts=np.array([len(next(iter(of.values())))]), columns=of) for name, of in columns.items()
        }
        tree = TreeWriter(self._file, "podio_metadata", {name: (DataModel(), kind) for name, kind in types.items()})
        tree.extend(frame, 1)
        tree.close()


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
            warnings.warn(f"{file.path}: {text}", stacklevel=3)
        self.model = DataModel(*models.values())
        self.collections: dict[str, CollectionInfo] = {}
        self._fields: dict[str, str] = {}
        dropped = []
        for info in infos:
            try:
                fields = self.model.fields(info)
                members = [(field, names) for field, kind in fields.items() for _, names in self._members(kind)]
            except KeyError as error:
                raise InputError(str(error.args[0]), file=file.path, field=info.name) from error
            if all(any(file.columns.has(field, name) for name in names) for field, names in members):
                self.collections[info.name] = info
                self._fields |= fields
            elif info.name in needed:
                raise InputError("the file holds only a part of it", file=file.path, field=info.name)
            else:
                dropped.append(info.name)
        if dropped:
            text = f"{', '.join(dropped)} of its metadata is not or not whole in the file, and not copied"
            warnings.warn(f"{file.path}: {text}", stacklevel=3)

    def _members(self, cpp_type: str) -> list[tuple[str, tuple[str, ...]]]:
        """Path of each leaf of a type, and its possible names in the file."""
        changed = CHANGED.get(cpp_type, {})
        return [
            (path, (path, changed.get(path, ("", path))[1]) if length is None else (f"{path}[{length}]", path))
            for path, _, length in self.model.leaves(cpp_type)
        ]

    def read(self, start: int, stop: int) -> Frames:
        """Content of all collections, with their references, in entries `start` to `stop` (exclusive)."""
        frames = {}
        for field, cpp_type in self._fields.items():
            columns, counts = {}, np.zeros(stop - start, dtype=np.int64)
            for path, names in self._members(cpp_type):
                values = self._file.get(range(start, stop), field, *names)
                counts, columns[path] = jagged.count(values), jagged.flat(values)
            frames[field] = Filled(counts=counts, columns=columns)
        return frames

    def categories(self) -> dict[str, Sequence[Parameters]]:
        """Parameters of the other categories of frames; those that hold collections are left out."""
        names = (name for name in self._file.categories() if not self._file.infos(name))
        return {name: self._file.frame_parameters(name) for name in names}


def _info(collections: Sequence[tuple[DataModel, CollectionInfo]]) -> dict[str, list[Any]]:
    """Description of the collections of a category, by member."""
    full = [(model, row, dataclasses.replace(row, is_subset=False)) for model, row in collections]
    rows = [
        (row.id, row.data_type, row.is_subset, row.schema_version, row.name, next(iter(model.fields(whole).values())))
        for model, row, whole in full
    ]
    names = ("collectionID", "dataType", "isSubset", "schemaVersion", "name", "storageType")
    columns = (
        dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {name: [] for name in names}
    )
    return {**columns, "storageType": [f"std::vector<{name}>" for name in columns["storageType"]]}


def _parameters(frames: Iterable[Parameters]) -> dict[str, Filled]:
    """Fields ``GPIntKeys``, ``GPIntValues`` and so on of consecutive frames."""
    fields, frames = {}, list(frames)
    for kind in PARAMETER_TYPES:
        tables = [frame.get(kind, {}) for frame in frames]
        counts = np.array([len(table) for table in tables], dtype=np.int64)
        keys = [key for table in tables for key in table]
        values = [row for table in tables for row in table.values()]
        fields[f"GP{kind}Keys"] = Filled(counts=counts, columns={"": keys})
        fields[f"GP{kind}Values"] = Filled(counts=counts, columns={"": values})
    return fields
