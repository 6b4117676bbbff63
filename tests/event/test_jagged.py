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


def test_a_part_of_the_events_is_flattened_alone():
    array = ak.Array([[9.0], *LISTS, [9.0, 9.0]])[1:4]
    assert jagged.flat(array).tolist() == [3, 1, 2]
    assert jagged.count(array).tolist() == [2, 0, 1]
    assert jagged.flat_records(ak.zip({"energy": array})).energy.to_list() == [3, 1, 2]


def test_events_in_another_order_are_flattened_in_it():
    array = ak.Array(LISTS)[np.array([2, 0])]
    assert jagged.flat(array).tolist() == [2, 3, 1]
    assert jagged.count(array).tolist() == [1, 2]


def test_records_are_those_of_awkward():
    columns = {"x": np.arange(3.0), "y": np.zeros(3), "z": np.array([1.0, 5, 2])}
    found = jagged.records(columns, np.array([2, 0, 1]), name="Vector3D")
    vectors = ak.zip(columns, with_name="Vector3D", behavior=found.behavior)
    assert found.to_list() == ak.unflatten(vectors, [2, 0, 1]).to_list()
    assert found.type == ak.unflatten(vectors, [2, 0, 1]).type
    assert found.mag[0].to_list() == pytest.approx([1, np.sqrt(26)])
    assert jagged.vectors(found[1:]).tolist() == [[2, 0, 2]]


def test_counts_and_columns_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 values for 4 objects"):
        jagged.unflatten(np.arange(3), np.array([2, 2]))
    with pytest.raises(ValueError, match="different lengths"):
        jagged.records({"x": np.arange(3), "y": np.arange(2)})
