from __future__ import annotations

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged

LISTS = [[3.0, 1.0], [], [2.0]]


def test_flat_and_back():
    array = ak.Array(LISTS)
    assert ak.unflatten(jagged.flat(array), jagged.count(array)).to_list() == LISTS


def test_flat_takes_plain_lists_and_a_type():
    assert jagged.flat(LISTS, np.float32).dtype == np.float32


def test_missing_values_are_refused():
    with pytest.raises(ValueError, match="None"):
        jagged.flat(ak.Array([[1.0, None]]))


def test_indices_of_objects_and_their_events():
    counts = jagged.count(LISTS)
    assert jagged.offsets(counts).tolist() == [0, 2, 2, 3]
    assert jagged.event_index(counts).tolist() == [0, 0, 2]
    assert jagged.local_index(counts).tolist() == [0, 1, 0]


def test_global_index_points_to_the_same_objects():
    index = ak.Array([[1, 0, 1], [], [0]])
    expected = ak.Array(LISTS)[index]
    found = jagged.flat(LISTS)[jagged.global_index(index, jagged.count(LISTS))]
    assert ak.unflatten(found, jagged.count(index)).to_list() == expected.to_list()


@pytest.mark.parametrize("lists", [[], [[]], [[], []]])
def test_no_objects(lists):
    array = ak.values_astype(ak.Array(lists), np.int64) if lists else ak.Array(lists)[:, np.newaxis][:0]
    counts = np.zeros(len(lists), dtype=np.int64)
    assert jagged.offsets(counts).tolist() == [0] * (len(lists) + 1)
    assert len(jagged.event_index(counts)) == len(jagged.local_index(counts)) == 0
    assert not lists or len(jagged.flat(array)) == 0
