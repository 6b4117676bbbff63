"""RNTuples as ROOT's own writer makes them: types of records by name, checksums of pages, split encoding of numbers.

uproot writes no such thing. Without the name of its type ROOT does not read a record as a struct, without checksums
``hadd`` aborts, and without the encoding files are larger. uproot has no public class to extend: its private ones are
extended here, so that its versions are bounded (pyproject.toml) and a test fails first. The format: RNTuple Binary
Format Specification 1.0 of ROOT.
"""

from __future__ import annotations

import struct
from typing import Any

import awkward as ak
import numpy as np
import uproot
import xxhash
from uproot.writing import _cascadentuple as writing
from uproot.writing.writable import WritableNTuple

SPLIT = {
    **{"int16": 0x11, "uint16": 0x12, "int32": 0x13, "uint32": 0x14, "int64": 0x15, "uint64": 0x16},
    **{"float32": 0x18, "float64": 0x19},
}
"""Column type of numbers in split encoding by NumPy type."""


def make_rntuple(directory: Any, name: str, form: ak.forms.Form) -> Any:
    """Make an empty RNTuple (an uproot `WritableNTuple`) with the fields of a record, in a directory open for writing.

    A record whose parameter ``__record__`` is a C++ type becomes a struct of that type.
    """
    parent = directory._cascading
    header = _Header(None, name, "", form)
    footer = writing.NTuple_Footer(None, header._checksum)
    anchor = writing.NTuple_Anchor(None, *uproot.const.rntuple_version_for_writing, *[None] * 6, 0)
    ntuple = _NTuple(parent, form, parent.freesegments, header, footer, [], anchor)
    ntuple.write(directory.file.sink)
    return WritableNTuple((*directory.path, name), directory.file, ntuple)


class _Header(writing.NTuple_Header):  # type: ignore[misc]
    def _build_field_col_records(self, akform: Any, **options: Any) -> None:
        field, column = len(self._field_records), len(self._column_records)
        super()._build_field_col_records(akform, **options)
        if akform.is_record and (record := akform.parameter("__record__")):
            self._field_records[field].type_name = record
        elif (
            isinstance(akform, ak.forms.ListOffsetForm)
            and akform.content.is_record
            and (record := akform.content.parameter("__record__"))
        ):
            self._field_records[field].type_name = f"std::vector<{record}>"
        elif akform.is_numpy and akform.primitive in SPLIT:
            self._column_records[column].type_num = SPLIT[akform.primitive]


class _NTuple(writing.NTuple):  # type: ignore[misc]
    pages: tuple[bytes, ...] = ()  # where the pages are that no list of pages names yet

    def extend(self, file: Any, sink: Any, data: Any) -> None:
        super().extend(file, sink, ak.transform(_split, ak.to_packed(ak.Array(data))))

    def add_rblob(self, sink: Any, raw_data: Any, uncompressed_bytes: int) -> Any:
        """Write a page with its checksum behind it, or what describes the pages, which has one at its end already."""
        data = bytes(raw_data)
        if data[-8:] != _checksum(data[:-8]):
            key = super().add_rblob(sink, data + _checksum(data), uncompressed_bytes)
            self.pages += (struct.pack("<iQ", len(data), key.location + key.allocation),)
            return key
        content = bytearray(data[:-8])
        place = 0
        for page in self.pages:
            place = content.index(page, place)
            (n,) = struct.unpack_from("<i", content, place - 4)
            struct.pack_into("<i", content, place - 4, -n)  # the number of values; negative: a checksum follows
        self.pages = ()
        return super().add_rblob(sink, bytes(content) + _checksum(content), uncompressed_bytes)


def _checksum(data: bytes | bytearray) -> bytes:
    return xxhash.xxh3_64_digest(data)[::-1]


def _split(layout: Any, **_: Any) -> Any:
    """Numbers, as bytes of all in the order of their significance, signed ones by absolute value first (zigzag)."""
    if not layout.is_numpy or layout.dtype.name not in SPLIT:
        return None
    values = layout.data
    if values.dtype.kind == "i":
        values = (values << 1) ^ (values >> (8 * values.itemsize - 1))
    split = np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)
    return ak.contents.NumpyArray(split.reshape(-1).view(values.dtype), parameters=layout.parameters)
