import dataclasses

import awkward as ak
import numpy as np
import pytest
from numpy import arcsinh

from pflow.errors import ConfigError, InputError
from pflow.physics.detector import load_detector
from pflow.tokens.features import Moments, Normaliser, feature_columns, features_of


def test_columns_are_the_values_in_the_order_asked_for(events):
    z, energy = feature_columns(events, "hits", ("z", "log_energy"))
    assert z.dtype == energy.dtype == np.float64
    assert z.tolist() == [0, 100, 120, -500, 30, 20]
    assert energy.tolist() == [5, 12, 8, 2, 2.5, 0]


R, P = np.hypot(1850, 500), np.hypot(2.9, 0.75)
"""Of the fourth hit at (0, 1850, -500) mm, and of the track with p = (0, 2.9, -0.75) GeV."""
TO_ENTRY, STEEPER = -np.arctan(5 / 1805), np.arctan(0.75 / 2.9) - np.arctan(480 / np.hypot(5, 1805))
"""The track's angles from its momentum to its entry at (5, 1805, -480) mm, rad."""


@pytest.mark.parametrize(
    ("part", "row", "expected"),
    [
        ("hits", 0, {"nx": 1, "ny": 0, "nz": 0}),
        ("hits", 3, {"nx": 0, "ny": 1850 / R, "nz": -500 / R, "log_r": R}),
        ("hits", 0, {"ecal": 1, "hcal": 0, "muon": 0, "barrel": 1, "endcap": 0}),
        ("hits", 3, {"ecal": 0, "hcal": 1, "muon": 0, "barrel": 1, "endcap": 0}),
        ("hits", 3, {"face_barrel": arcsinh(45 / 100), "face_endcap": arcsinh((500 - 2412) / 100)}),
        ("hits", 0, {"depth": arcsinh(5 / 100)}),
        ("tracks", 0, {"log_p": P, "ny": 2.9 / P, "charge": -1, "calo_y": 1805}),
        ("tracks", 0, {"bend": arcsinh(100 * TO_ENTRY), "bend_there": arcsinh(100 * (0.01 - TO_ENTRY))}),
        ("tracks", 0, {"bend_difference": arcsinh(1e3 * (0.01 - 2 * TO_ENTRY))}),
        ("tracks", 0, {"steeper": arcsinh(1e3 * STEEPER), "steeper_there": arcsinh(1e3 * (0.02 - STEEPER))}),
    ],
)
def test_values_by_hand(events, part, row, expected):
    values = [column[row] for column in feature_columns(events, part, [*expected])]
    assert values == pytest.approx([*expected.values()], rel=1e-5)


def test_a_feature_named_twice_or_fitted_on_unknown_values_is_an_error():
    with pytest.raises(ConfigError, match="normalisation of x"):
        Moments.of(("log_energy", "x"), ("log10", "identity"), np.array([[1.0], [np.nan]]))
    with pytest.raises(ConfigError, match="named twice"):
        features_of("hits", ("x", "y", "x"))


def test_a_missing_part_is_an_error_that_names_the_file(events):
    without = dataclasses.replace(events, tracks=None, track_links=None, tracker_hits=None)
    with pytest.raises(InputError, match=r"made/by/hand.root, 'tracks': the model reads tracks.* give a file with"):
        feature_columns(without, "tracks", ("log_p",))
    without = dataclasses.replace(without, detector=load_detector("cld"))  # which describes how to make tracks
    with pytest.raises(InputError, match=r"the model reads tracker hits, and none were read$"):
        feature_columns(without, "tracker_hits", ("x",))


def test_an_unknown_value_is_an_error_that_names_file_entry_and_field(events):
    time = ak.Array([[6.0, 6.1, 6.2], [6.5, np.nan, 7.0], []])
    broken = dataclasses.replace(events, hits=ak.with_field(events.hits, time, "time"))
    with pytest.raises(InputError, match=r"hand.root, entry 8, 'hits.time': .* 1 of 3 values"):
        feature_columns(broken, "hits", ("time",))


def test_normalisation_to_mean_0_deviation_1_and_back():
    floor = Normaliser(names=("e",), transforms=("log10",), mean=(0.0,), std=(1.0,))
    assert floor.apply(np.array([[0.0, 1e-9, 1e-6, 0.1]]))[:, 0].tolist() == pytest.approx([-6, -6, -6, -1])
    rng = np.random.default_rng(3)
    values = np.stack([10 ** rng.normal(-2, 0.5, 1000), rng.normal(1800, 50, 1000)])
    normaliser = Moments.of(("log_energy", "x"), ("log10", "identity"), values).result()
    normalised = normaliser.apply(values)
    assert normalised.dtype == np.float32
    np.testing.assert_allclose(normalised.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(normalised.std(axis=0), 1, atol=1e-5)
    np.testing.assert_allclose(normaliser.invert(normalised), values.T, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"transforms": ()}, {"mean": (0.0,)}, {"std": ()}, {"std": (1.0, 0.0)}])
def test_a_normaliser_has_all_numbers_of_each_feature(wrong):
    right = {"names": ("e", "x"), "transforms": ("log10", "identity"), "mean": (0.0, 0.0), "std": (1.0, 1.0)}
    with pytest.raises(ConfigError, match="normaliser of e, x: expected"):
        Normaliser(**right | wrong)


def test_deviations_of_large_offsets_and_of_constant_features():
    def moments(*values: float) -> Moments:
        return Moments.of(("x",), ("identity",), [np.array(values)])

    one_by_one = moments() + moments(1e9) + moments(1e9 + 1) + moments() + moments(1e9 + 2)
    assert one_by_one.squares[0] / 3 == pytest.approx(2 / 3, rel=1e-9)  # of deviations -1, 0, 1
    normaliser = moments(*[0.1] * 7).result()
    assert normaliser.std == moments(1e-9, -1e-9).result().std == (1.0,)
    assert normaliser.apply(np.array([[0.1]]))[0, 0] == pytest.approx(0, abs=1e-6)
    assert moments().result().apply(np.array([[3.0]])).tolist() == [[3.0]]
