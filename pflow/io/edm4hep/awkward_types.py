"""Awkward contents of the types that podio stores, from flat NumPy columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.io.edm4hep.data_model import ARRAY, PRIMITIVES, DataModel

__all__ = ["lists", "objects", "parameters", "strings"]

Content = Any
"""An Awkward layout (`awkward.contents.Content`)."""


def objects(
    model: DataModel, cpp_type: str, columns: Mapping[str, npt.NDArray[Any]], n: int, *, path: str = ""
) -> Content:
    """`n` objects of a C++ type.

    Parameters
    ----------
    model
        Knows the type.
    cpp_type
        Struct or primitive.
    columns
        [n] or, for arrays, [n, length]: values of members by their path, e.g. ``momentum.x`` or ``covMatrix.values``;
        "" for a primitive. Members without values are 0.
    n
        Number of objects.
    path
        Path of this type within the columns.
    """
    if cpp_type in PRIMITIVES:
        dtype = PRIMITIVES[cpp_type]
        values = columns.get(path)
        return ak.contents.NumpyArray(
            np.zeros(n, dtype) if values is None else np.ascontiguousarray(values, dtype).reshape(n)
        )
    if found := ARRAY.fullmatch(cpp_type):
        length = int(found[2])
        values = columns.get(path)
        flat = {} if values is None else {"": np.ascontiguousarray(values).reshape(n * length)}
        return ak.contents.RegularArray(objects(model, found[1], flat, n * length), length, zeros_length=n)
    members = model.members(cpp_type)
    contents = [objects(model, inner, columns, n, path=f"{path}.{name}" if path else name) for name, inner in members]
    names = [name for name, _ in members]
    return ak.contents.RecordArray(contents, names, length=n, parameters={"__record__": cpp_type})


def lists(content: Content, counts: npt.NDArray[Any]) -> Content:
    """Cut a flat content into lists, int [list] long each."""
    return ak.contents.ListOffsetArray(ak.index.Index64(jagged.offsets(counts)), content)


def strings(texts: Sequence[str]) -> Content:
    """Strings, one after the other."""
    data = [text.encode() for text in texts]
    characters = ak.contents.NumpyArray(np.frombuffer(b"".join(data), np.uint8), parameters={"__array__": "char"})
    counts = np.array([len(text) for text in data], dtype=np.int64)
    return ak.contents.ListOffsetArray(
        ak.index.Index64(jagged.offsets(counts)), characters, parameters={"__array__": "string"}
    )


PARAMETER_TYPES: dict[str, Any] = {"Int": np.int32, "Float": np.float32, "Double": np.float64, "String": str}
"""Kinds of parameters of a frame, as podio names them, and type of their values."""


def parameters(frames: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]]) -> dict[str, Content]:
    """Fields ``GPIntKeys``, ``GPIntValues`` and so on of consecutive frames.

    Parameters
    ----------
    frames
        Of each frame the values of each parameter by kind (``Int``, ``Float``, ``Double``, ``String``) and key.
    """
    fields = {}
    for kind, dtype in PARAMETER_TYPES.items():
        tables = [frame.get(kind, {}) for frame in frames]
        n_keys = np.array([len(table) for table in tables], dtype=np.int64)
        rows = [list(values) for table in tables for values in table.values()]
        flat = [value for row in rows for value in row]
        content = strings(flat) if dtype is str else ak.contents.NumpyArray(np.array(flat, dtype=dtype))
        fields[f"GP{kind}Keys"] = lists(strings([key for table in tables for key in table]), n_keys)
        fields[f"GP{kind}Values"] = lists(lists(content, np.array([len(row) for row in rows], dtype=np.int64)), n_keys)
    return fields
