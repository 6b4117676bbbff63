from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import awkward as ak
import h5py
import numpy as np
import pytest

from pflow.errors import InputError
from pflow.io.legacy_hdf5.buffers import TableReader, TableWriter, open_hdf5

COLUMNS = ("a", "b")
ROWS = [[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]]
"""Three events with two, no and one row."""


def stored(path: Path, array: ak.Array, **changes: Any) -> Path:
    """The array as `ak.to_buffers` takes it apart, with some attributes (str keys) or datasets (`node...`) changed."""
    form, length, buffers = ak.to_buffers(array)
    attributes = {"form": form.to_json(), "length": str(length)}
    with h5py.File(path, "w") as file:
        group = file.create_group("table")
        for name, value in (attributes | {k: v for k, v in changes.items() if k in attributes}).items():
            if value is not None:
                group.attrs[name] = value
        for name, value in (buffers | {k.replace("_", "-"): v for k, v in changes.items() if "node" in k}).items():
            group.create_dataset(name, data=value)
    return path


def regular() -> ak.Array:
    return ak.to_regular(ak.Array(ROWS), axis=2)


def table(path: Path) -> TableReader:
    return TableReader(open_hdf5(path), "table", COLUMNS, str(path))


def as_lists(found: TableReader) -> list[Any]:
    return [found.rows(i, i + 1).tolist() for i in range(len(found.offsets) - 1)]


@pytest.mark.parametrize(
    "shape",
    [
        regular,
        lambda: ak.Array(ROWS),
        lambda: ak.unflatten(ak.Array(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])), [2, 0, 1]),
        lambda: ak.values_astype(regular(), np.float32),
        lambda: ak.values_astype(regular(), np.int64),
    ],
    ids=["regular", "jagged", "two-dimensional", "float32", "integer"],
)
def test_rows_are_read_however_awkward_stored_them(tmp_path, shape):
    found = table(stored(tmp_path / "in.h5", shape()))
    assert as_lists(found) == ROWS
    assert found.rows(0, 3).dtype == np.float64


@pytest.mark.parametrize("part", [slice(1, None), slice(0, 0)])
def test_a_slice_of_a_larger_array(tmp_path, part):
    found = table(stored(tmp_path / "in.h5", regular()[part]))
    assert as_lists(found) == ROWS[part]
    assert found.rows(0, 0).shape == (0, 2)


def test_buffers_named_by_the_first_awkward(tmp_path):
    form, length, buffers = ak.to_buffers(regular())
    with h5py.File(tmp_path / "in.h5", "w") as file:
        group = file.create_group("table")
        group.attrs["form"] = form.to_json().replace("ListOffsetArray", "ListOffsetArray64")
        group.attrs["length"] = json.dumps(length)
        for name, value in buffers.items():
            group.create_dataset(f"part0-{name}", data=value)
    assert as_lists(table(tmp_path / "in.h5")) == ROWS


def test_only_empty_events(tmp_path):
    found = table(stored(tmp_path / "in.h5", ak.values_astype(ak.Array([[], []]), np.float64)[..., np.newaxis]))
    assert as_lists(found) == [[], []]


def test_the_output_is_read(tmp_path):
    with h5py.File(tmp_path / "out.h5", "w") as file:
        writer = TableWriter(file.create_group("table"), 2, "float32")
        writer.append(np.array([2, 0]), np.array([[1.0, 2.0], [3.0, 4.0]]))
        writer.append(np.array([], dtype=np.int64), np.empty((0, 2)))
        writer.append(np.array([1]), np.array([[5.0, 6.0]]))
        writer.finish()
    assert as_lists(table(tmp_path / "out.h5")) == ROWS


def test_awkward_puts_together_what_is_written(tmp_path):
    with h5py.File(tmp_path / "out.h5", "w") as file:
        writer = TableWriter(file.create_group("table"), 2, "float64")
        writer.append(np.array([2, 0, 1]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        writer.finish()
        group = file["table"]
        buffers = {key: np.asarray(value) for key, value in group.items()}
        array = ak.from_buffers(group.attrs["form"], json.loads(group.attrs["length"]), buffers)
    assert str(array.type) == "3 * var * 2 * float64"
    assert array.to_list() == ROWS


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.h5: no such file"):
        open_hdf5(tmp_path / "nowhere.h5")


def test_not_an_hdf5_file(tmp_path):
    (tmp_path / "in.h5").write_text("hello")
    with pytest.raises(InputError, match=r"in\.h5: expected an HDF5 file"):
        open_hdf5(tmp_path / "in.h5")


def test_a_truncated_file(tmp_path):
    path = stored(tmp_path / "in.h5", regular())
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(InputError, match="cannot open it"):
        open_hdf5(path)


def test_a_missing_group_names_the_nearest(tmp_path):
    path = stored(tmp_path / "in.h5", regular())
    with pytest.raises(InputError, match=r"'tables': no such group.*nearest matches: table"):
        TableReader(open_hdf5(path), "tables", COLUMNS, str(path))


def test_a_dataset_is_no_group(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["table"] = np.zeros(3)
    with pytest.raises(InputError, match="'table': no such group"):
        table(tmp_path / "in.h5")


RECORDS = ak.to_buffers(ak.Array([{"x": 1.0}]))[0].to_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"form": None}, "attribute 'form' is missing"),
        ({"length": None}, "attribute 'length' is missing"),
        ({"form": "{broken"}, "attribute 'form' is no JSON"),
        ({"form": 3}, "attribute 'form' is no JSON"),
        ({"form": "[1, 2]"}, "attribute 'form' must be an Awkward form, found list"),
        ({"form": '{"class": "Nonsense"}'}, "expected an Awkward array"),
        ({"form": RECORDS}, "expected an Awkward array"),
        ({"length": "many"}, "attribute 'length' must be a number of events"),
        ({"length": "-1"}, "attribute 'length' must be a number of events, found -1"),
        ({"length": "4"}, "the offsets do not fit: expected 5"),
        (
            {"node0_offsets": np.array([0, 2, 2, 4])},
            "the offsets do not fit: expected 4 that rise up to at most 3 rows",
        ),
        ({"node0_offsets": np.array([0, 2, 1, 3])}, "the offsets do not fit"),
        ({"node0_offsets": np.array([-1, 2, 2, 3])}, "the offsets do not fit"),
        ({"node2_data": np.zeros(7)}, "expected rows of 2 columns, found 1 numbers too many"),
        ({"node2_data": np.array([b"text"] * 6)}, "expected an Awkward array"),
    ],
)
def test_what_a_group_cannot_be(tmp_path, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        table(stored(tmp_path / "in.h5", regular(), **changes))
    assert (caught.value.file, caught.value.field) == (str(tmp_path / "in.h5"), "table")


@pytest.mark.parametrize("array", [[[[1.0, 2.0, 3.0]]], [[[1.0]]]])
@pytest.mark.parametrize("fixed", [True, False])
def test_another_number_of_columns(tmp_path, array, fixed):
    values = ak.to_regular(ak.Array(array), axis=2) if fixed else ak.Array(array)
    with pytest.raises(InputError, match=rf"expected 2 columns \(a, b\), found {len(array[0][0])}"):
        table(stored(tmp_path / "in.h5", values))


def test_rows_of_different_lengths(tmp_path):
    with pytest.raises(InputError, match="expected an Awkward array"):
        table(stored(tmp_path / "in.h5", ak.Array([[[1.0, 2.0], [3.0]]])))


def test_damaged_numbers_name_file_entry_and_group(tmp_path):
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as file:
        writer = TableWriter(file.create_group("table"), 2, "float64")
        writer.append(np.array([500, 500]), np.random.default_rng(1).normal(size=(1000, 2)))
        writer.finish()
    with h5py.File(path) as file:
        chunk = file["table/node2-data"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\xff" * chunk.size
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged file") as caught:
        table(path).rows(1, 2)
    assert (caught.value.file, caught.value.entry, caught.value.field) == (str(path), 1, "table")
