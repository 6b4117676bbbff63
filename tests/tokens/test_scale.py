import numpy as np
import pytest

from pflow.errors import ConfigError
from pflow.tokens.scale import Moments, Normaliser


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
