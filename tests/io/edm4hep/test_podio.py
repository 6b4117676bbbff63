import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.io.edm4hep.data_model import collection_id
from pflow.io.edm4hep.podio import Joined, expand, open_podio

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
