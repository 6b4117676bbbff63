"""Damaged files declare more than they hold: this is noticed before memory is taken for it."""

from __future__ import annotations

import struct
import tracemalloc

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.io.columns import open_root, open_tree
from pflow.io.open import open_events
from pflow.io.rootfile import read_branch

LARGE = 2**31 - 1000
MEGABYTE = 2**20


@pytest.fixture
def content(sample_dir) -> bytearray:
    """A flat ntuple, TTree."""
    return bytearray((sample_dir / "multi_test_small.root").read_bytes())


def patched(content: bytearray, seek: int, before: int, after: int, path) -> None:
    """Write the content with one 4-byte number replaced."""
    assert struct.unpack_from(">i", content, seek) == (before,)
    struct.pack_into(">i", content, seek, after)
    path.write_bytes(content)


def test_a_basket_that_declares_2_gb_is_refused_before_they_are_allocated(content, sample_dir, tmp_path):
    with uproot.open(sample_dir / "multi_test_small.root") as file:
        branch = next(branch for branch in file["events"].branches if "energy" in branch.name.lower())
        seek = int(branch.member("fBasketSeek")[0])
        declared = branch.basket_key(0).data_uncompressed_bytes
    patched(content, seek + 6, declared, LARGE, tmp_path / "a.root")  # after fNbytes and fVersion
    with open_events(tmp_path / "a.root") as file:
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match=f"{LARGE} bytes are declared, the compressed blocks hold {declared}"):
                file.read(0, 3)
            assert tracemalloc.get_traced_memory()[1] < 50 * MEGABYTE
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("offset", [-(2**31) + 80, 2**31 - 1, -1])
def test_a_basket_whose_lists_declare_2_gb_is_refused_before_they_are_allocated(tmp_path, offset):
    path = tmp_path / "a.root"
    with uproot.recreate(path, compression=None) as file:
        file.mktree("events", {"x": "var * float32"}).extend({"x": [[1.0, 2.0], [3.0], []]})
    with uproot.open(path) as file:
        key = file["events/x"].basket_key(0)
        seek = file["events/x"].member("fBasketSeek")[0] + key.data_uncompressed_bytes + key.fKeylen - 4 * 4
        values = file["events/x"].basket(0).byte_offsets.tolist()
    patched(bytearray(path.read_bytes()), seek, values[0] + key.fKeylen, offset, path)
    with open_root(path) as file:
        tree = open_tree(file, "events", str(path))
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match=r"'x': .*the lists of a basket do not lie .* within its 3 values"):
                read_branch(tree, "x", 0, 3, path)
            assert tracemalloc.get_traced_memory()[1] < 5 * MEGABYTE
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("ends", [[2, 10**12, 3], [-5, 3, 3], [2, 1, 3]])
def test_lists_of_an_rntuple_that_end_before_they_begin_are_refused(tmp_path, ends):
    path = tmp_path / "a.root"
    with uproot.recreate(path, compression=None) as file:
        file.mkrntuple("events", {"x": "var * float64"}).extend({"x": ak.Array([[1.0, 2.0], [3.0], []])})
    whole = np.array([2, 3, 3], "<i8").tobytes()
    content = path.read_bytes()
    assert content.count(whole) == 1
    path.write_bytes(content.replace(whole, np.array(ends, "<i8").tobytes()))
    with open_root(path) as file, pytest.raises(InputError, match=r"'x': .*a list of -\d+ values is declared"):
        read_branch(open_tree(file, "events", str(path)), "x", 0, 3, path)


def test_more_entries_than_the_branches_have_are_refused(sample_dir, monkeypatch):
    with open_root(sample_dir / "multi_test_small.root") as file:
        tree = file["events"]
        monkeypatch.setitem(tree._members, "fEntries", 10**15)
        monkeypatch.setattr(type(file), "__getitem__", lambda *_: tree)
        with pytest.raises(InputError, match=rf"'events': {10**15} entries are declared, the branches have 25"):
            open_tree(file, "events", "a.root")


@pytest.fixture
def ntuple(tmp_path):
    """An RNTuple of three events with lists of numbers."""
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        file.mkrntuple("events", {"x": "int64"}).extend({"x": [1, 2, 3]})
    with open_root(path) as file:
        yield file["events"], file


@pytest.mark.parametrize("number", [2**31 - 1, -5])
def test_a_page_that_declares_more_values_than_fit_is_refused(ntuple, monkeypatch, number):
    tree, file = ntuple
    tree.page_link_list[0][0].pages[0].num_elements = number
    monkeypatch.setattr(type(file), "__getitem__", lambda *_: tree)
    with pytest.raises(InputError, match=rf"a\.root, 'x': a page of \d+ bytes cannot hold the {number} values"):
        open_tree(file, "events", "a.root")


def test_the_header_of_an_rntuple_that_declares_2_gb_is_refused(ntuple, monkeypatch):
    tree, file = ntuple
    monkeypatch.setitem(tree._members, "fLenHeader", LARGE)
    monkeypatch.setattr(type(file), "__getitem__", lambda *_: tree)
    with pytest.raises(InputError, match=f"{LARGE} bytes are declared, the compressed blocks hold"):
        open_tree(file, "events", "a.root")


@pytest.mark.parametrize("compression", [None, uproot.ZLIB(1), uproot.LZ4(1), uproot.LZMA(1), uproot.ZSTD(1)])
def test_whole_files_of_any_compression_and_number_of_blocks_are_read(tmp_path, compression):
    values = np.zeros(3 * MEGABYTE, np.int64)  # 24 MB: two blocks
    with uproot.recreate(tmp_path / "a.root", compression=compression) as file:
        file.mktree("events", {"x": "int64"}).extend({"x": values})
    with open_root(tmp_path / "a.root") as file:
        assert open_tree(file, "events", "a.root")["x"].array(library="np").tobytes() == values.tobytes()
