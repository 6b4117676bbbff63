"""Awkward arrays [event, row, column] in HDF5 groups in the buffers of `ak.to_buffers`, as in the first paper's files.

A group's attribute ``form`` is the array's form as JSON and ``length`` the number of events; its datasets are the
buffers, named by form key and role: ``node0-offsets``, ``node2-data``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import awkward as ak
import h5py
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError, first_line, nearest
from pflow.event import jagged

__all__ = ["TableReader", "TableWriter", "open_hdf5"]

Rows = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def open_hdf5(path: str | Path) -> Any:
    """Open an HDF5 file for reading.

    Raises
    ------
    InputError
        No such file, not an HDF5 file, or a damaged one.
    """
    path = Path(path)
    if not path.exists():
        raise InputError("no such file", file=path)
    try:
        return h5py.File(path, "r")
    except Exception as error:  # damaged bytes make h5py raise errors of many types
        raise InputError(f"expected an HDF5 file of the first paper, cannot open it: {error}", file=path) from error


class TableReader:
    """One group of an open file: rows of columns, read a range of events at a time.

    Ranges are read from the buffers of [event, row, column] with a fixed number of columns; an array of any other form
    is read as a whole.

    Parameters
    ----------
    file
        Open `h5py.File`.
    name
        Name of the group.
    columns
        Names of the columns that each row must have.
    path
        Path of the file, for messages.

    Raises
    ------
    InputError
        The group or one of its attributes is missing, or they and the buffers are not such an array.
    """

    def __init__(self, file: Any, name: str, columns: tuple[str, ...], path: str) -> None:
        self._name = name
        self._path = path
        self._columns = len(columns)
        try:
            self._find(file, columns)
        except InputError:
            raise
        except Exception as error:  # as in open_hdf5
            raise self._error(f"cannot be read, damaged file: {first_line(error)}") from error

    def rows(self, start: int, stop: int) -> Rows:
        """Rows of the events `start` to `stop` (exclusive), float64 [row, column].

        Raises
        ------
        InputError
            They cannot be read; names file, first entry and group.
        """
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        if self._data.ndim == 1:
            first, last = first * self._columns, last * self._columns
        try:
            return np.asarray(self._data[first:last], dtype=np.float64).reshape(-1, self._columns)
        except Exception as error:  # as in open_hdf5
            raise InputError(
                f"events up to {stop} cannot be read, damaged file: {first_line(error)}",
                file=self._path,
                entry=start,
                field=self._name,
            ) from error

    def _find(self, file: Any, columns: tuple[str, ...]) -> None:
        """Set the offsets of the events and the numbers, and check that they fit."""
        name = self._name
        group = file.get(name)
        if not isinstance(group, h5py.Group):
            raise self._error("no such group; expected groups 'feature' and 'label'", nearest(name, file))
        form, length = self._attributes(group)
        found = _in_place(form, group)
        if found is None:
            self.offsets, self._data = self._assembled(group, form, length)
            n_columns = self._data.shape[1] if len(self._data) else len(columns)
        else:
            offsets, self._data, n_columns = found
            self.offsets = np.asarray(offsets[()], dtype=np.int64)[: length + 1]
        if n_columns != len(columns):
            raise self._error(f"expected {len(columns)} columns ({', '.join(columns)}), found {n_columns}")
        rows, rest = divmod(self._data.size, self._columns)
        steps = np.diff(self.offsets)
        if len(self.offsets) != length + 1 or self.offsets[0] < 0 or (steps < 0).any() or self.offsets[-1] > rows:
            raise self._error(
                f"the offsets do not fit: expected {length + 1} that rise up to at most {rows} rows"
                f" of {self._columns} columns"
            )
        if rest:
            raise self._error(f"expected rows of {self._columns} columns, found {rest} numbers too many")

    def _attributes(self, group: Any) -> tuple[dict[str, Any], int]:
        for attribute in ("form", "length"):
            if attribute not in group.attrs:
                raise self._error(f"attribute '{attribute}' is missing", nearest(attribute, group.attrs))
        try:
            form = json.loads(group.attrs["form"])
        except (TypeError, ValueError) as error:
            raise self._error(f"attribute 'form' is no JSON: {error}") from error
        if not isinstance(form, dict):
            raise self._error(f"attribute 'form' must be an Awkward form, found {type(form).__name__}")
        try:
            length = int(group.attrs["length"])
        except (TypeError, ValueError) as error:
            raise self._error(f"attribute 'length' must be a number of events: {error}") from error
        if length < 0:
            raise self._error(f"attribute 'length' must be a number of events, found {length}")
        return form, length

    def _assembled(self, group: Any, form: dict[str, Any], length: int) -> tuple[Index, npt.NDArray[Any]]:
        try:
            buffers = {key: value[()] for key, value in group.items()}
            prefix = "part0-" if any(key.startswith("part0-") for key in buffers) else ""
            array = ak.from_buffers(
                ak.forms.from_json(json.dumps(form)), length, buffers, buffer_key=prefix + "{form_key}-{attribute}"
            )
            flat = ak.to_numpy(ak.to_regular(ak.flatten(array, axis=1), axis=1))
            counts = ak.to_numpy(ak.num(array, axis=1))
        except Exception as error:  # whatever a form that does not fit its buffers makes Awkward raise
            raise self._error(
                "expected an Awkward array [event, row, column] of numbers as ak.to_buffers takes it apart:"
                f" {first_line(error)}"
            ) from error
        if flat.ndim != 2 or flat.dtype.kind not in "fiu":
            raise self._error(f"expected numbers [event, row, column], found {array.type}")
        return jagged.offsets(counts), flat

    def _error(self, message: str, suggestions: Iterable[str] = ()) -> InputError:
        return InputError(message, file=self._path, field=self._name, suggestions=suggestions)


class TableWriter:
    """Writes one group event by event, in the buffers of `ak.to_buffers`.

    Parameters
    ----------
    group
        Empty `h5py.Group` of a file open for writing.
    columns
        Number of columns.
    dtype
        Type of the numbers, ``float32`` or ``float64``.
    """

    def __init__(self, group: Any, columns: int, dtype: str) -> None:
        self._group = group
        self._events = 0
        self._rows = 0
        numbers = {"class": "NumpyArray", "primitive": dtype, "inner_shape": [], "parameters": {}, "form_key": "node2"}
        rows = {"class": "RegularArray", "size": columns, "content": numbers, "parameters": {}, "form_key": "node1"}
        form = {"class": "ListOffsetArray", "offsets": "i64", "content": rows, "parameters": {}, "form_key": "node0"}
        group.attrs["form"] = json.dumps(form)
        self._offsets = group.create_dataset(
            "node0-offsets", data=np.zeros(1, np.int64), maxshape=(None,), chunks=(4096,)
        )
        self._data = group.create_dataset(
            "node2-data", shape=(0,), maxshape=(None,), chunks=(65536,), dtype=np.dtype(dtype), compression="gzip"
        )

    def append(self, counts: Index, rows: npt.NDArray[Any]) -> None:
        """Add events with `counts` rows each; `rows` is [row, column], all events in order."""
        self._offsets.resize((self._events + len(counts) + 1,))
        self._offsets[self._events + 1 :] = self._rows + np.cumsum(counts)
        begin = self._data.shape[0]
        self._data.resize((begin + rows.size,))
        self._data[begin:] = rows.reshape(-1)
        self._events += len(counts)
        self._rows += len(rows)

    def finish(self) -> None:
        """Note the number of events, as text, as the paper's files have it."""
        self._group.attrs["length"] = str(self._events)


def _in_place(form: Mapping[str, Any], group: Any) -> tuple[Any, Any, int] | None:
    """Datasets of offsets and numbers, and the number of columns, if the form is the paper's; else None."""
    rows = form.get("content")
    numbers = rows.get("content") if isinstance(rows, dict) else None
    if (
        form.get("class") not in ("ListOffsetArray", "ListOffsetArray64")
        or not isinstance(rows, dict)
        or rows.get("class") != "RegularArray"
        or not isinstance(numbers, dict)
        or numbers.get("class") != "NumpyArray"
        or numbers.get("inner_shape")
    ):
        return None
    for prefix in ("", "part0-"):
        offsets = group.get(f"{prefix}{form.get('form_key')}-offsets")
        data = group.get(f"{prefix}{numbers.get('form_key')}-data")
        if _is_vector(offsets, "iu") and _is_vector(data, "fiu") and isinstance(rows.get("size"), int):
            return offsets, data, rows["size"]
    return None


def _is_vector(dataset: Any, kinds: str) -> bool:
    return isinstance(dataset, h5py.Dataset) and dataset.ndim == 1 and dataset.dtype.kind in kinds
