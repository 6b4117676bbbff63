import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.schema import make_tracker_hits
from pflow.tokens.features import Moments, Normaliser, feature_matrix, feature_transforms


def test_columns_are_the_values_in_the_order_asked_for(events):
    matrix = feature_matrix(events, "hits", ("z", "log_energy"))
    assert matrix.dtype == np.float64
    assert matrix.tolist() == [[0, 5], [100, 12], [120, 8], [-500, 2], [30, 2.5], [20, 0]]


def test_the_unit_direction_has_length_one_and_the_right_sense(events):
    matrix = feature_matrix(events, "hits", ("nx", "ny", "nz"))
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, rtol=1e-12)
    assert matrix[0].tolist() == [1, 0, 0]


def test_the_distance_is_that_from_the_origin(events):
    # The fourth hit is at (0, 1850, -500).
    assert feature_matrix(events, "hits", ("log_r",))[3, 0] == pytest.approx(np.sqrt(1850**2 + 500**2))


def test_subdetectors_by_kind_and_region(events):
    matrix = feature_matrix(events, "hits", ("ecal", "hcal", "muon", "barrel", "endcap"))
    assert matrix[0].tolist() == [1, 0, 0, 1, 0]
    assert matrix[3].tolist() == [0, 1, 0, 1, 0]


def test_a_track_gives_its_momentum_and_where_it_meets_the_calorimeter(events):
    matrix = feature_matrix(events, "tracks", ("log_p", "log_pt", "ny", "charge", "calo_y"))
    # p = (0, 2.9, -0.75).
    p = np.hypot(2.9, 0.75)
    assert matrix.tolist() == [pytest.approx([p, 2.9, 2.9 / p, -1, 1805])]


@pytest.mark.parametrize(
    ("names", "message"),
    [(("log_enery",), r"no hits feature 'log_enery'.*log_energy"), (("x", "y", "x"), "named twice")],
)
def test_unknown_names_and_those_given_twice_are_errors(names, message):
    with pytest.raises(ConfigError, match=message):
        feature_transforms("hits", names)


def test_a_part_that_the_file_does_not_hold_is_an_error_that_names_the_file(events):
    without = dataclasses.replace(events, tracks=None, track_links=None)
    with pytest.raises(InputError, match=r"made/by/hand.root, 'tracks': the model reads tracks"):
        feature_matrix(without, "tracks", ("log_p",))


def test_an_unknown_value_is_an_error_that_names_file_entry_and_field(events):
    time = ak.Array([[6.0, 6.1, 6.2], [6.5, np.nan, 7.0], []])
    broken = dataclasses.replace(events, hits=ak.with_field(events.hits, time, "time"))
    with pytest.raises(InputError, match=r"hand.root, entry 8, 'hits.time': .* 1 of 3 values"):
        feature_matrix(broken, "hits", ("time",))


def test_an_unknown_layer_is_missing_and_not_minus_one(events):
    hits = make_tracker_hits(x=[[1.0], [], []], y=[[1.0], [], []], z=[[1.0], [], []])
    with pytest.raises(InputError, match=r"'tracker_hits\.layer'"):
        feature_matrix(dataclasses.replace(events, tracker_hits=hits), "tracker_hits", ("layer",))


@pytest.fixture
def values() -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.stack([10 ** rng.normal(-2, 0.5, 1000), rng.normal(1800, 50, 1000)], axis=1)


def moments() -> Moments:
    return Moments(("log_energy", "x"), ("log10", "identity"))


def test_normalised_values_have_mean_zero_and_deviation_one_and_invert_undoes_apply(values):
    normaliser = moments().update(values).result()
    normalised = normaliser.apply(values)
    assert normalised.dtype == np.float32
    np.testing.assert_allclose(normalised.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(normalised.std(axis=0), 1, atol=1e-5)
    np.testing.assert_allclose(normaliser.invert(normalised), values, rtol=1e-5)


@pytest.mark.parametrize("n_chunks", [2, 1000])
def test_the_fit_does_not_depend_on_the_chunks(values, n_chunks):
    at_once = moments().update(values).result()
    parts = moments()
    for chunk in np.array_split(values, n_chunks):
        parts.update(chunk)
    np.testing.assert_allclose(parts.result().mean, at_once.mean, rtol=1e-12)
    np.testing.assert_allclose(parts.result().std, at_once.std, rtol=1e-12)


def test_a_large_offset_does_not_destroy_the_deviation():
    offset = np.array([[1e9], [1e9 + 1], [1e9 + 2]])
    one_by_one = Moments(("x",), ("identity",))
    for row in offset:
        one_by_one.update(row[np.newaxis])
    # Deviations -1, 0, 1, so the variance is 2/3.
    assert one_by_one.squares[0] / 3 == pytest.approx(2 / 3, rel=1e-9)


def test_a_constant_feature_and_one_never_seen_get_deviation_one():
    normaliser = Moments(("x",), ("identity",)).update([[0.1]] * 7).result()
    assert normaliser.std == (1.0,)
    assert normaliser.apply([[0.1]])[0, 0] == pytest.approx(0, abs=1e-6)
    assert Moments(("x",), ("identity",)).update(np.empty((0, 1))).result().apply([[3.0]]).tolist() == [[3.0]]


def test_the_logarithm_of_zero_is_that_of_the_floor():
    normaliser = Normaliser(names=("e",), transforms=("log10",), mean=(0.0,), std=(1.0,))
    assert normaliser.apply([[0.0], [1e-9], [1e-6], [0.1]])[:, 0].tolist() == pytest.approx([-6, -6, -6, -1])


def test_fitting_on_unknown_values_is_an_error_that_names_the_feature():
    with pytest.raises(ConfigError, match="normalisation of x"):
        moments().update([[1.0, np.nan]])
