from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.io.edm4hep.collection_id import collection_id
from pflow.io.edm4hep.podio import Joined, expand, open_podio, relation, vector_member

Write = Callable[..., Path]

IDS = {11: "A1", 4_000_000_000: "A2", 13: "B", 14: "Tracks", 15: "MCParticles", 16: "Other"}


@pytest.mark.parametrize("layout", ["new", "rec", "old", "rntuple"])
def test_collection_ids_are_found_in_every_layout(write, content, layout):
    file = open_podio(write(content, layout))
    assert file.ids == IDS
    file.close()


def test_without_a_table_ids_are_hashes_of_names(write, content):
    own = {name: collection_id(name) for name in ("A1", "A2", "B", "Tracks", "MCParticles", "Other")}
    hashed = {
        key: [[own[IDS[number]] for number in event] for event in values] if key.endswith("collectionID") else values
        for key, values in content.items()
    }
    file = open_podio(write(hashed, ids={}))
    assert not file.ids_stored
    assert file.names(np.array([own["A2"], own["Other"]])) == ["A2"]
    file.close()


def test_without_a_table_other_ids_are_refused(write, content):
    file = open_podio(write(content, ids={}))
    with pytest.raises(InputError, match="no table of collection ids"):
        file.names(np.array([11, 13]))
    file.close()


def test_cell_encodings_are_found(write, content):
    file = open_podio(write(content, encodings={"A1": "layer:8"}))
    assert file.encodings == {"A1": "layer:8"}
    file.close()


def test_metadata_that_is_no_tree_is_somebody_else_s(write, content):
    path = write(content)
    with uproot.update(path) as file:
        file["metadata"] = "a note"
    file = open_podio(path)
    assert file.encodings == {}
    file.close()


@pytest.mark.parametrize(
    ("layout", "expected"), [("new", "_HitLinks_from"), ("rec", "_HitLinks_rec"), ("old", "HitLinks#0")]
)
def test_a_relation_is_found_by_name_or_number(write, content, layout, expected):
    file = open_podio(write(content, layout))
    assert relation(file.columns, "HitLinks", 0, "from", "rec") == expected
    assert relation(file.columns, "HitLinks", 7, "nothing") is None
    file.close()


@pytest.mark.parametrize(("layout", "expected"), [("new", "_Tracks_trackStates"), ("old", "Tracks_1")])
def test_a_vector_member_is_found_by_name_or_number(write, content, layout, expected):
    file = open_podio(write(content, layout))
    assert vector_member(file.columns, "Tracks", 1, "trackStates") == expected
    file.close()


@pytest.fixture
def resolve(write: Write, content: dict[str, Any]) -> Callable[..., tuple[list[int], list[bool]]]:
    """Resolve references in event 0 against A1 with 2 objects and A2 with 3, and in event 1 with 0 and 1."""

    def resolve_them(ids: list[int], index: list[int], event: list[int]) -> tuple[list[int], list[bool]]:
        file = open_podio(write(content))
        joined, known = Joined(["A1", "A2"], [[2, 0], [3, 1]]).resolve(
            file, np.array(ids), np.array(index), np.array(event)
        )
        file.close()
        return joined.tolist(), known.tolist()

    return resolve_them


def test_a_reference_counts_from_where_its_collection_begins(resolve):
    joined, known = resolve([11, 4_000_000_000, 4_000_000_000], [1, 2, 0], [0, 0, 1])
    assert joined == [1, 4, 0]
    assert known == [True, True, True]


def test_a_signed_collection_id_is_the_same(resolve):
    assert resolve([4_000_000_000 - 2**32], [2], [0]) == ([4], [True])


def test_a_reference_to_another_collection_is_unknown(resolve):
    assert resolve([13, 99], [0, 0], [0, 0]) == ([-1, -1], [False, False])


def test_a_reference_outside_its_collection_stays_outside_the_event(resolve):
    joined, known = resolve([11, 11, 4_000_000_000], [2, -3, 40], [0, 0, 0])
    assert joined == [5, -3, 40]
    assert known == [True, True, True]


def test_ranges_count_over_all_events():
    owner, member = expand(ak.Array([[0, 1], [0]]), ak.Array([[1, 3], [2]]), np.array([3, 2]))
    assert owner.tolist() == [0, 1, 1, 2, 2]
    assert member.tolist() == [0, 1, 2, 3, 4]


def test_an_empty_or_inverted_range_owns_nothing():
    owner, _ = expand(ak.Array([[1, 2]]), ak.Array([[1, 0]]), np.array([3]))
    assert owner.tolist() == []


def test_a_range_ends_where_the_list_does():
    owner, member = expand(ak.Array([[1], [0]]), ak.Array([[9], [1]]), np.array([2, 1]))
    assert owner.tolist() == [0, 1]
    assert member.tolist() == [1, 2]
