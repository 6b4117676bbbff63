"""Files of podio's: frames of collections in RNTuples, and the metadata by which podio's `RNTupleReader` opens them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.io.edm4hep.awkward_types import lists, objects, parameters, strings
from pflow.io.edm4hep.data_model import CollectionType, DataModel
from pflow.io.edm4hep.podio import CollectionInfo
from pflow.io.typed_rntuple import make_typed_rntuple

__all__ = ["Filled", "FrameWriter", "Frames"]

PODIO_VERSION = (1, 7, 0)
"""Version of podio whose layout is written."""
EDM4HEP_VERSION = (1, 0, 0)

WRITE_INFO = "podio::root_utils::CollectionWriteInfo"
"""Struct of podio's that describes one collection of a category."""

Parameters = Mapping[str, Mapping[str, Sequence[Any]]]
"""Values of the parameters of a frame by kind and key (`pflow.io.edm4hep.awkward_types.parameters`)."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Filled:
    """Content of one field in consecutive frames.

    Parameters
    ----------
    counts
        int64 [frame]: number of objects.
    columns
        Values of their members by path (`pflow.io.edm4hep.awkward_types.objects`).
    """

    counts: npt.NDArray[np.int64]
    columns: Mapping[str, npt.NDArray[Any]]


Frames = Mapping[str, Filled]
"""Content of each field of consecutive frames, by name; fields that are left out are empty."""


def fields_of(collection: CollectionInfo, kind: CollectionType) -> dict[str, str]:
    """Fields in which podio stores a collection, and the C++ type of their elements."""
    if collection.is_subset:
        return {f"{collection.name}_objIdx": "podio::ObjectID"}
    return {
        collection.name: kind.content,
        **{f"_{collection.name}_{relation}": "podio::ObjectID" for relation in kind.relations},
        **{f"_{collection.name}_{vector}": cpp_type for vector, cpp_type in kind.vectors},
    }


class FrameWriter:
    """Writes one category of frames, ``events``, chunk by chunk, then the metadata.

    Parameters
    ----------
    file
        ROOT file of uproot, open for writing.
    collections
        What every frame holds, and the data model that knows the types; two may know a type in different versions.
    definitions
        Data models by name, as JSON, to be stored in the file.

    Raises
    ------
    ConfigError
        Two collections have the same name or id.
    """

    def __init__(
        self, file: Any, *, collections: Sequence[tuple[DataModel, CollectionInfo]], definitions: Mapping[str, str]
    ) -> None:
        self._file = file
        self._collections = sorted(collections, key=lambda pair: pair[1].name)
        for (_, one), (_, other) in itertools.combinations(self._collections, 2):
            if one.name == other.name or one.id == other.id:
                raise ConfigError(f"two collections of a file have the same name or id: {one.name}, {other.name}")
        self._definitions = definitions
        self._fields: dict[str, tuple[DataModel, str]] = {}
        for model, collection in self._collections:
            fields = fields_of(collection, model.collection(collection.data_type))
            self._fields |= {name: (model, cpp_type) for name, cpp_type in fields.items()}
        self._events = make_typed_rntuple(file, "events", self._layout({}, [], 0).form)

    def extend(self, frames: Frames, frame_parameters: Sequence[Parameters]) -> None:
        """Append consecutive frames, as many as there are parameters of frames.

        Raises
        ------
        ValueError
            A field that no collection has, or with another number of frames.
        """
        n = len(frame_parameters)
        for name, filled in frames.items():
            if name not in self._fields or len(filled.counts) != n:
                raise ValueError(f"field '{name}' of {len(filled.counts)} frames, expected one of a collection, {n}")
        if n:
            self._events.extend(ak.Array(self._layout(frames, frame_parameters, n)))

    def finish(self, categories: Mapping[str, Sequence[Parameters]]) -> None:
        """Write the other categories, the parameters of whose frames are given, and podio's metadata."""
        for name, frames in categories.items():
            self._write(name, parameters(frames), len(frames))
        names = ["events", *categories]
        info = {
            f"{name}___CollectionTypeInfo": self._info(() if name != "events" else self._collections) for name in names
        }
        versions = {"PodioBuildVersion": PODIO_VERSION, "edm4hep___Version": EDM4HEP_VERSION}
        pairs = ak.contents.RecordArray(
            [strings(list(self._definitions)), strings(list(self._definitions.values()))], None
        )
        self._write(
            "podio_metadata",
            {
                **{
                    name: _one(ak.contents.NumpyArray(np.array(version, np.uint16)))
                    for name, version in versions.items()
                },
                "EDMDefinitions": _one(pairs),
                "availableCategories": _one(strings(names)),
                **info,
            },
            1,
        )

    def _layout(self, frames: Frames, frame_parameters: Sequence[Parameters], n: int) -> Any:
        none = Filled(counts=np.zeros(n, dtype=np.int64), columns={})
        fields = {}
        for name, (model, cpp_type) in self._fields.items():
            filled = frames.get(name, none)
            content = objects(model, cpp_type, filled.columns, int(filled.counts.sum()))
            fields[name] = lists(content, filled.counts)
        fields |= parameters(frame_parameters)
        return ak.contents.RecordArray(list(fields.values()), list(fields), length=n)

    def _info(self, collections: Sequence[tuple[DataModel, CollectionInfo]]) -> Any:
        """Description of the collections of a category."""
        rows = [collection for _, collection in collections]
        storages = [model.collection(row.data_type).storage for model, row in collections]
        contents = {
            "collectionID": ak.contents.NumpyArray(np.array([row.id for row in rows], np.uint32)),
            "dataType": strings([row.data_type for row in rows]),
            "isSubset": ak.contents.NumpyArray(np.array([row.is_subset for row in rows], np.bool_)),
            "schemaVersion": ak.contents.NumpyArray(np.array([row.schema_version for row in rows], np.uint32)),
            "name": strings([row.name for row in rows]),
            "storageType": strings(storages),
        }
        return _one(
            ak.contents.RecordArray(
                list(contents.values()), list(contents), length=len(rows), parameters={"__record__": WRITE_INFO}
            )
        )

    def _write(self, name: str, fields: Mapping[str, Any], n: int) -> None:
        """Write a whole RNTuple of `n` entries."""
        layout = ak.contents.RecordArray(list(fields.values()), list(fields), length=n)
        ntuple = make_typed_rntuple(self._file, name, layout.form)
        if n:
            ntuple.extend(ak.Array(layout))


def _one(content: Any) -> Any:
    """A list as the only entry."""
    return lists(content, np.array([content.length]))
