import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.schema import make_tracker_hits
from pflow.tokens.features import feature_matrix, feature_transforms


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
