"""RNTuples as ROOT's own writer makes them; `edm4hep/test_root.py` has ROOT merge them."""

import awkward as ak
import numpy as np
import pytest
import uproot
import xxhash

from pflow.io.rntuple import SPLIT, make_rntuple


@pytest.fixture
def path(tmp_path):
    """Two chunks with numbers of all types, in lists of different lengths and in arrays of two."""
    fields = {"n": np.array([3, -4, 5]), "flag": np.array([True, False, True]), "text": ak.Array(["a", "", "bc"])}
    for name in SPLIT:
        limits = np.iinfo(name) if "int" in name else np.finfo(name)
        values = np.array([limits.min, limits.max, 0, 1, 2, 100], name)
        values[3:4] = -1 if "u" not in name else 1
        fields |= {name: ak.unflatten(values, [2, 0, 4]), f"{name}_pairs": values.reshape(3, 2)}
    fields["float32"] = ak.unflatten(np.array([np.nan, -np.inf, -0.0, 1e-40, 2, 3], "float32"), [2, 0, 4])
    data = ak.Array(fields)
    with uproot.recreate(tmp_path / "a.root") as file:
        ntuple = make_rntuple(file, "t", data.layout.form)
        for _ in range(2):
            ntuple.extend(data)
    return tmp_path / "a.root", ak.concatenate([data, data])


def test_numbers_of_all_types_come_back_bit_by_bit(path):
    with uproot.open(path[0]) as file:
        arrays = file["t"].arrays()
    assert len(arrays) == 6
    for field in path[1].fields:
        read, written = (ak.flatten(array[field], axis=None) for array in (arrays, path[1]))
        assert np.asarray(read).tobytes() == np.asarray(written).tobytes(), field


def test_numbers_are_split_encoded_and_every_page_is_followed_by_its_checksum(path):
    data = path[0].read_bytes()
    with uproot.open(path[0]) as file:
        assert {column.type for column in file["t"].column_records} >= set(SPLIT.values())
        pages = [page for column in file["t"].page_link_list[0] for page in column.pages]
    for page in pages:
        end = page.locator.offset + page.locator.num_bytes
        assert page.has_checksum
        assert data[end : end + 8] == xxhash.xxh3_64_digest(data[page.locator.offset : end])[::-1]
    assert len(pages) > 2 * len(SPLIT)
