import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.io.edm4hep.data_model import collection_id
from pflow.io.edm4hep.podio import Joined, bit_field, expand, layer_from_cell_id, open_podio

CLD = "system:0:5,side:5:2,module:7:8,stave:15:4,layer:19:9,submodule:28:4,x:32:-16,y:48:-16"


@pytest.mark.parametrize(
    ("encoding", "field"),
    [
        (CLD, (19, 9, False)),
        ("system:5,side:-2,layer:6,module:11", (7, 6, False)),
        ("system:8:4,layer:6", (12, 6, False)),
    ],
    ids=["with offsets", "without", "without after one with"],
)
def test_a_field_is_where_the_encoding_says(encoding, field):
    assert bit_field(encoding, "layer") == field


def test_what_is_not_an_encoding_is_refused():
    for encoding in ("", ":4", "layer", *(f"layer:{bits}" for bits in ("x", "1:2:3", "0", "60:8", "-1:4"))):
        with pytest.raises(ValueError, match="is not name:offset:width or name:width within 64 bits"):
            bit_field(encoding, "layer")


def test_the_layer_is_read_from_among_other_fields():
    layers = np.array([0, 39, 511], dtype=np.uint64)
    cells = (layers << np.uint64(19)) | np.uint64(0xFFFF_FFFF_F007_FFFF)
    np.testing.assert_array_equal(layer_from_cell_id(cells, CLD), [0, 39, 511])


def test_a_signed_layer_may_be_negative():
    cells = np.array([0b1111, 0b1000, 0b0111], dtype=np.uint64)
    np.testing.assert_array_equal(layer_from_cell_id(cells, "layer:0:-4"), [-1, -8, 7])


def test_without_a_layer_it_is_unknown():
    np.testing.assert_array_equal(layer_from_cell_id(np.array([5], dtype=np.uint64), "system:8,x:8"), [-1])


IDS = {11: "A1", 4_000_000_000: "A2", 13: "B", 14: "Tracks", 15: "MCParticles", 16: "Other"}
IDS |= {21: "SimAContributions", 22: "SimBContributions"}


@pytest.mark.parametrize("layout", ["new", "rec", "old", "rntuple"])
def test_collection_ids_are_found_in_every_layout(write, content, layout):
    file = open_podio(write(content, layout))
    assert file.ids == IDS
    file.close()


def test_without_a_table_ids_are_hashes_of_names(write, content):
    hashes = {name: collection_id(name) for name in ("A1", "A2", "B", "Tracks", "MCParticles", "Other")}
    hashed = {
        key: [[hashes[IDS[number]] for number in event] for event in values] if key.endswith("collectionID") else values
        for key, values in content.items()
    }
    file = open_podio(write(hashed, ids={}))
    assert not file.ids_stored
    assert file.names(np.array([hashes["A2"], hashes["Other"]])) == ["A2"]
    file.close()


def test_without_a_table_other_ids_are_refused(write, content):
    file = open_podio(write(content, ids={}))
    with pytest.raises(InputError, match="no table of collection ids"):
        file.names(np.array([11, 13]))
    file.close()


@pytest.mark.parametrize(
    ("ids", "index", "event", "joined", "known"),
    [
        ([11, 4_000_000_000, 4_000_000_000], [1, 2, 0], [0, 0, 1], [1, 4, 0], [True] * 3),
        ([4_000_000_000 - 2**32], [2], [0], [4], [True]),
        ([13, 99], [0, 0], [0, 0], [-1, -1], [False] * 2),
        ([11, 11, 4_000_000_000], [2, -3, 40], [0, 0, 0], [5, -3, 40], [True] * 3),
    ],
    ids=["from where its collection begins", "signed id", "another collection", "outside its collection and the event"],
)
def test_references(write, content, ids, index, event, joined, known):
    """In event 0 to A1 with 2 objects and A2 with 3, and in event 1 with 0 and 1."""
    file = open_podio(write(content))
    resolved = Joined(["A1", "A2"], [[2, 0], [3, 1]]).resolve(file, *map(np.array, (ids, index, event)))
    file.close()
    assert [values.tolist() for values in resolved] == [joined, known]


@pytest.mark.parametrize(
    ("begin", "end", "sizes", "owners", "members"),
    [
        ([[0, 1], [0]], [[1, 3], [2]], [3, 2], [0, 1, 1, 2, 2], [0, 1, 2, 3, 4]),
        ([[1, 2]], [[1, 0]], [3], [], []),
        ([[1], [0]], [[9], [1]], [2, 1], [0, 1], [1, 2]),
    ],
    ids=["over all events", "empty and inverted", "beyond the list"],
)
def test_ranges(begin, end, sizes, owners, members):
    expanded = expand(ak.Array(begin), ak.Array(end), np.array(sizes))
    assert [values.tolist() for values in expanded] == [owners, members]


def test_metadata_without_entries_are_empty(write, content, monkeypatch):
    """As in public files of FCC: uproot reads the events, and gives no entries of parameters that are maps."""
    path = write(content)
    with uproot.update(path) as file:
        file.mktree("metadata", {"GPStringKeys": "var * int64", "GPStringValues": "var * int64"})
    num_entries = uproot.TTree.num_entries.fget
    monkeypatch.setattr(uproot.TTree, "num_entries", property(lambda self: num_entries(self) or 1))
    file = open_podio(path)
    assert (file.encodings, file.parameters) == ({}, {})
    assert file.ids == IDS
    file.close()
