import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from pflow.metrics.stats import LEVEL, Axis, Distribution, WeightedFraction, fraction, fractions, leaves

WIDTHS = ("resolution_68", "iqr_over_median", "rms90")


def responses(n, seed=0):
    """A core of 3% with tails on both sides, and a few far away."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(1.0, 0.03, n), rng.exponential(0.3, n // 5), [0.0, 1e-9, 1e6, -2.0]])
    return rng.permutation(values)


def test_clopper_pearson_agrees_with_scipy():
    passed = np.array([0, 3, 7, 19])
    result = fractions(passed, np.full(4, 19))
    for k, interval in zip(passed.tolist(), zip(result.low, result.high, strict=True), strict=True):
        expected = stats.binomtest(k, 19).proportion_ci(LEVEL, method="exact")
        assert interval == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("passed", "value"), [(-1, np.nan), (3, np.inf)])
def test_impossible_counts_and_values_that_are_not_finite_are_refused(passed, value):
    with pytest.raises(ValueError, match="passed <="):
        fractions(passed, 2)
    with pytest.raises(ValueError, match="infinite or not a number"):
        Distribution([1.0, value])


@pytest.mark.parametrize(
    ("weights", "n_passed", "value", "effective"),
    [([3.0, 1.0, 1.0], 1, 0.6, 25 / 11), ([0.1] * 10, 3, 0.3, 10)],
    ids=["(sum w)^2 / sum w^2 = 25 / 11", "equal weights: binomial"],
)
def test_weighted_fraction(weights, n_passed, value, effective):
    weighted = WeightedFraction()
    weighted.add(np.array(weights), np.arange(len(weights)) < n_passed)
    expected = fraction(value * effective, effective)
    assert dataclasses.astuple(weighted.result()) == pytest.approx((value, expected.low, expected.high))


def test_mean_and_standard_error():
    # mean of 1, 2, 3, 6 is 3; variance (4 + 1 + 0 + 9) / 3; error sqrt(14 / 3 / 4)
    error = math.sqrt(14 / 12)
    assert dataclasses.astuple(Distribution([1.0, 2.0, 3.0, 6.0]).mean()) == pytest.approx((3, 3 - error, 3 + error))


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_quantiles_are_numpys(q):
    values = responses(20_000)
    assert Distribution(values).quantile(q).value == pytest.approx(np.quantile(values, q), rel=1e-14)


RUN = [0.0, 0.5, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 9.0]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("resolution_68", RUN, 0.3),  # 7 of 10 values: the narrowest run is 1.0 ... 1.6
        ("resolution_68_over_median", RUN, 0.3 / 1.25),
        ("iqr_over_median", [4.0, 0.0, 2.0, 1.0, 3.0], 1),  # quartiles 1 and 3
        ("rms90", [*range(9), 1000.0], math.sqrt(60 / 9)),  # nine of ten: 0 ... 8
        ("median", [2.0] * 5, 2),
        *((name, [2.0] * 5, 0) for name in WIDTHS),
    ],
)
def test_widths(name, values, expected):
    assert getattr(Distribution(values), name)().value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "min_values", "min_interval"),
    [
        ("mean", 1, 2),
        ("median", 1, 3),
        *((name, 2, 3) for name in (*WIDTHS, "resolution_68_over_median")),
    ],
)
def test_numbers_of_few_values_are_undefined(name, min_values, min_interval):
    for n in range(4):
        number = getattr(Distribution(np.arange(1.0, n + 1)), name)()
        assert math.isnan(number.value) == (n < min_values)
        assert math.isnan(number.low) == math.isnan(number.high) == (n < min_interval)


@pytest.mark.parametrize("name", ["median", *WIDTHS])
def test_intervals_cover_the_truth(name):
    rng = np.random.default_rng(3)
    truth = getattr(Distribution(rng.normal(1, 0.1, 400_000)), name)().value
    numbers = [getattr(Distribution(rng.normal(1, 0.1, 400)), name)() for _ in range(300)]
    # Narrowest intervals of a finite sample are biased low.
    assert 0.55 < np.mean([number.low <= truth <= number.high for number in numbers]) < 0.80


def test_chunks_give_identical_results():
    values = responses(10_000)
    at_once, in_chunks = Distribution(values), Distribution()
    for chunk in np.array_split(np.roll(values, 17), 23):
        in_chunks.add(chunk)
        assert in_chunks.median().value  # sorted in between
    assert in_chunks.count == at_once.count
    for name in ("mean", "median", "resolution_68_over_median", *WIDTHS):
        assert getattr(in_chunks, name)() == getattr(at_once, name)()


def test_histogram_counts_every_value_once_the_upper_edge_in_the_last_bin():
    histogram = Distribution([-1.0, 0.0, 0.5, 1.0, 1.0, 2.0]).histogram([0.0, 1.0, 2.0])
    assert histogram.counts.tolist() == [2, 3]
    assert (histogram.below, histogram.above) == (1, 0)
    axis = Axis(name="x", label="x", unit="", edges=np.array([1.0, 10.0, 30.0]))
    assert axis.index(np.array([0.5, 1.0, 10.0, 30.0, 30.1])).tolist() == [2, 0, 1, 1, 2]


def test_leaves_have_dotted_keys():
    assert dict(leaves({"a": {"b": 1, "c": {"d": 2}}, "e": 3})) == {"a.b": 1, "a.c.d": 2, "e": 3}
