"""Collections of an EDM4hep file as podio stores them, to be copied into another file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.io.edm4hep.data_model import ARRAY, PRIMITIVES, DataModel
from pflow.io.edm4hep.frame_writer import Filled, Frames, Parameters, fields_of
from pflow.io.edm4hep.podio import CollectionInfo, PodioFile

__all__ = ["InputCopy"]


class InputCopy:
    """Reads collections of one file member by member.

    Parameters
    ----------
    file
        Of a podio later than 1.0: its metadata name the types.

    Attributes
    ----------
    collections
        All collections of its events, with the ids that they have there.
    definitions
        Its data models, by name, as JSON.
    model
        Their types.

    Raises
    ------
    InputError
        The metadata lack the types of the collections or the data model.
    """

    def __init__(self, file: PodioFile) -> None:
        self._file = file
        self.definitions = file.definitions()
        infos = file.infos()
        if not infos or not self.definitions or not all(info.data_type for info in infos):
            raise InputError(
                "the file does not say the types of its collections, so they cannot be copied; expected a file of "
                "a podio later than 1.0, with names in events___CollectionTypeInfo, and EDMDefinitions",
                file=file.path,
                field="podio_metadata",
            )
        self.model = DataModel(*(json.loads(text) for text in self.definitions.values()))
        self.collections = tuple(infos)
        for collection in self.collections:
            try:
                self.model.collection(collection.data_type)
            except KeyError as error:
                raise InputError(str(error.args[0]), file=file.path, field=collection.name) from error

    def read(self, collections: Iterable[CollectionInfo], start: int, stop: int) -> Frames:
        """Content of these collections, with their references, in entries `start` to `stop` (exclusive).

        Raises
        ------
        InputError
            A member that the type has is not in the file, or cannot be decoded.
        """
        frames = {}
        for collection in collections:
            kind = self.model.collection(collection.data_type)
            for field, cpp_type in fields_of(collection, kind).items():
                frames[field] = self._field(field, cpp_type, start, stop)
        return frames

    def parameters(self, start: int, stop: int) -> list[Parameters]:
        """Parameters of the entries `start` to `stop` (exclusive)."""
        return list(self._file.frame_parameters("events", start, stop))

    def categories(self) -> dict[str, list[Parameters]]:
        """Parameters of the other categories of frames; those that hold collections are left out."""
        return {name: list(self._file.frame_parameters(name)) for name in self._file.categories() if self._bare(name)}

    def _bare(self, category: str) -> bool:
        return not self._file.infos(category)

    def _field(self, field: str, cpp_type: str, start: int, stop: int) -> Filled:
        columns: dict[str, npt.NDArray[Any]] = {}
        counts = np.zeros(stop - start, dtype=np.int64)
        for path, length in self._leaves(cpp_type):
            names = (path,) if length is None else (f"{path}[{length}]", path)
            values = self._file.columns.get(field, *names, start=start, stop=stop)
            counts = jagged.count(values)
            columns[path] = np.asarray(ak.to_numpy(ak.flatten(values, axis=1)))
        return Filled(counts=counts, columns=columns)

    def _leaves(self, cpp_type: str, path: str = "") -> list[tuple[str, int | None]]:
        """Path of each number or array of numbers in a type, and the length of an array."""
        if cpp_type in PRIMITIVES:
            return [(path, None)]
        if found := ARRAY.fullmatch(cpp_type):
            return [(path, int(found[2]))]
        prefix = f"{path}." if path else ""
        return [leaf for name, inner in self.model.members(cpp_type) for leaf in self._leaves(inner, f"{prefix}{name}")]
