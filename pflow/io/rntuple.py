"""RNTuples as ROOT's own writer makes them: types of records by name, checksums of pages, split encoding of numbers.

uproot writes no such thing. Without the name of its type ROOT does not read a record as a struct, without checksums
``hadd`` aborts, and without the encoding files are larger. It is added to private parts of uproot, so that its versions
are bounded (pyproject.toml) and a test fails first. The format: RNTuple Binary Format Specification 1.0 of ROOT.
"""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import xxhash
from uproot.writing import _cascadentuple as writing

SPLIT = {
    **{"int16": 0x11, "uint16": 0x12, "int32": 0x13, "uint32": 0x14, "int64": 0x15, "uint64": 0x16},
    **{"float32": 0x18, "float64": 0x19},
}
"""Column type of numbers in split encoding by NumPy type."""


def make_rntuple(directory: Any, name: str, types: Any) -> Any:
    """Make an empty RNTuple with fields of `types`, as of uproot's ``mkrntuple``, in a directory open for writing.

    A record whose parameter ``__record__`` is a C++ type becomes a struct of that type.
    """
    unnamed, columns = writing._cpp_typename, writing._ak_primitive_to_num_dict

    def named(form: Any, subcall: bool = False) -> str:
        record = form.parameter("__record__") if isinstance(form, ak.forms.RecordForm) else None
        return record or str(unnamed(form, subcall=subcall))

    writing._cpp_typename, writing._ak_primitive_to_num_dict = named, columns | SPLIT
    try:
        ntuple = directory.mkrntuple(name, types)
    finally:
        writing._cpp_typename, writing._ak_primitive_to_num_dict = unnamed, columns
    ntuple._cascading.__class__ = _NTuple
    return ntuple


class _NTuple(writing.NTuple):  # type: ignore[misc]
    def extend(self, file: Any, sink: Any, data: Any) -> None:
        described = writing.NTuple_PageDescription
        layout = writing._to_packed(writing._regularize_input_type_to_awkward(data).layout)
        writing.NTuple_PageDescription = lambda n, locator: described(-n, locator)  # negative: a checksum follows
        try:
            super().extend(file, sink, ak.transform(_split, ak.Array(layout)))
        finally:
            writing.NTuple_PageDescription = described

    def add_rblob(self, sink: Any, raw_data: Any, uncompressed_bytes: int) -> Any:
        """Write a page, followed by its checksum; of other blobs nothing reads it."""
        data = bytes(raw_data)
        return super().add_rblob(sink, data + xxhash.xxh3_64_digest(data)[::-1], uncompressed_bytes)


def _split(layout: Any, **_: Any) -> Any:
    """Numbers, as bytes of all in the order of their significance, signed ones by absolute value first (zigzag)."""
    if not layout.is_numpy or layout.dtype.name not in SPLIT:
        return None
    values = layout.data
    if values.dtype.kind == "i":
        values = (values << 1) ^ (values >> (8 * values.itemsize - 1))
    split = np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)
    return ak.contents.NumpyArray(split.reshape(-1).view(values.dtype), parameters=layout.parameters)
