import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged

LISTS = [[3.0, 1.0], [], [2.0]]


def test_missing_values_are_refused():
    with pytest.raises(ValueError, match="None"):
        jagged.flat(ak.Array([[1.0, None]]))


def test_a_part_of_the_events_is_flattened_alone():
    array = ak.Array([[9.0], *LISTS, [9.0, 9.0]])[1:4]
    assert jagged.flat(array).tolist() == [3, 1, 2]
    assert jagged.count(array).tolist() == [2, 0, 1]
    assert jagged.flat_records(ak.zip({"energy": array})).energy.to_list() == [3, 1, 2]


def test_records_are_those_of_awkward():
    columns = {"v.x": np.arange(3.0), "v.y": np.zeros(3), "v.z": np.array([1.0, 5, 2]), "a": np.arange(3)}
    counts = np.array([2, 0, 1])
    found = jagged.records(columns, counts)
    inner = {name[-1]: values for name, values in columns.items()}
    vectors = ak.zip({axis: inner[axis] for axis in "xyz"}, with_name="Vector3D", behavior=found.behavior)
    expected = ak.unflatten(ak.zip({"v": vectors, "a": inner["a"]}, depth_limit=1), counts)
    assert (found.to_list(), found.type) == (expected.to_list(), expected.type)
    assert found.v.mag[0].to_list() == pytest.approx([1, np.sqrt(26)])
    assert jagged.vectors(found.v[1:]).tolist() == [[2, 0, 2]]
    assert {name: values.tolist() for name, values in jagged.columns(found).items()} == {
        name: values.tolist() for name, values in columns.items()
    }


def particles() -> ak.Array:
    """Two events: a pion of 50 GeV and a photon; nothing."""
    columns = {
        "pdg": [211, 22],
        "energy": [50.0, 3.0],
        "mass": [0.13957, 0.0],
        "px": [30.0, 0],
        "py": [40, 0],
        "pz": [0, 3],
    }
    floats = {name: np.array(values, dtype=np.float32) for name, values in columns.items()}
    return jagged.records(floats, np.array([2, 0]))


def test_particles_are_four_momenta_with_their_own_mass():
    found = particles()
    assert found.pt.to_list() == [[50, 0], []]
    assert found.eta[0, 0] == 0
    assert found.mass[0].to_list() == pytest.approx([0.13957, 0.0])  # E^2 - p^2 is 0 in float32
    assert found[0, 0].mass == pytest.approx(0.13957)
    assert found[0, 1].E == found[0, 1].energy == 3
    assert found.momentum.px.to_list() == [[30, 0], []]
    assert found.momentum[0, 0].to_list() == {"px": 30, "py": 40, "pz": 0}
    assert found.momentum.p.to_list() == [[50, 3], []]


def test_the_sum_of_two_particles_has_the_mass_of_both():
    found = particles()
    pair = found[0, 0] + found[0, 1]
    assert (pair.energy, pair.px, pair.pz) == (53, 30, 3)
    assert pair.mass == pytest.approx(np.sqrt(53**2 - 30**2 - 40**2 - 9), rel=1e-6)
    assert (found + found).mass[0, 1] == 0
    assert ak.sum(found, axis=1).energy.to_list() == [53, 0]


def test_counts_and_columns_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 values for 4 objects"):
        jagged.unflatten(np.arange(3), np.array([2, 2]))
    with pytest.raises(ValueError, match="different lengths"):
        jagged.records({"x": np.arange(3), "y": np.arange(2)}, np.array([3]))


RECORDS = ak.Array([[{"a": 3, "b": {"x": 1.0}}, {"a": 1, "b": {"x": 2.0}}], [], [{"a": 2, "b": {"x": 3.0}}]])


@pytest.mark.parametrize("array", [RECORDS, RECORDS[np.array([2, 0, 1, 0])], RECORDS[1:], ak.flatten(RECORDS)[::2]])
def test_columns_are_the_fields(array):
    flat = ak.flatten(array, axis=1) if array.ndim > 1 else array
    columns = jagged.columns(array)
    assert {name: values.tolist() for name, values in columns.items()} == {
        "a": flat.a.to_list(),
        "b.x": flat.b.x.to_list(),
    }


@pytest.mark.parametrize("array", [RECORDS, RECORDS[1:], RECORDS[np.array([2, 0])], ak.Array(LISTS)[:2]])
def test_events_are_taken_in_any_order(array):
    for events in ([1, 0, 1, 1], []):
        index = np.array(events, dtype=np.int64)
        taken = jagged.take(array, index)
        assert taken.to_list() == array[index].to_list()
        assert str(taken.type) == str(array[index].type)


@pytest.mark.parametrize("n_lists", [1, 2, 3])
def test_lists_are_joined_event_by_event(n_lists):
    rng = np.random.default_rng(n_lists)
    counts = [rng.integers(0, 4, 6) for _ in range(n_lists)]
    arrays = [jagged.unflatten(rng.random(n.sum(), dtype=np.float32), n) for n in counts]
    joined = jagged.join({"x": arrays, "y": [ak.values_astype(array * 10, np.int32) for array in arrays]})
    assert joined["x"].to_list() == ak.concatenate(arrays, axis=1).to_list()
    assert joined["y"].to_list() == ak.values_astype(joined["x"] * 10, np.int32).to_list()


@pytest.mark.parametrize("array", [RECORDS, RECORDS[1:], RECORDS[np.array([2, 0])]])
def test_records_with_other_values_of_some_fields(array):
    values = {"a": np.array([7, 8, 9])[: ak.count(array.a)], "b.x": np.arange(3.0)[: ak.count(array.a)]}
    for columns in ({"a": values["a"]}, {"b.x": values["b.x"]}, values):
        changed = jagged.columns(jagged.replaced(array, columns))
        expected = jagged.columns(array) | columns
        assert {name: column.tolist() for name, column in changed.items()} == {
            name: column.tolist() for name, column in expected.items()
        }
