import math

import numpy as np
import pytest
from scipy import stats

from pflow.metrics.stats import (
    LEVEL,
    Axis,
    Bootstrap,
    Distribution,
    Number,
    by_rank,
    difference,
    fractions,
    in_quadrature,
    iqr_over_median,
    jet_energy_resolution,
    leaves,
    mean,
    mean90,
    median,
    quantile,
    ratio,
    resolution_68,
    rms90,
    rms90_over_mean90,
)

WIDTHS = (resolution_68, iqr_over_median, rms90)


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
        Distribution([1.0, value], np.arange(2), Bootstrap(2))


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_quantiles_are_numpys(q):
    values = np.sort(responses(20_000))
    assert quantile(values, q) == pytest.approx(np.quantile(values, q), rel=1e-14)


RUN = [0.0, 0.5, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 9.0]


@pytest.mark.parametrize(
    ("statistic", "values", "expected"),
    [
        (resolution_68, RUN, 0.3),  # 7 of 10 values: the narrowest run is 1.0 ... 1.6
        (iqr_over_median, [0.0, 1.0, 2.0, 3.0, 4.0], 1),  # quartiles 1 and 3
        (rms90, [*range(9), 1000.0], math.sqrt(60 / 9)),  # nine of ten: 0 ... 8
        (mean90, [*range(9), 1000.0], 4),
        (rms90_over_mean90, [*range(9), 1000.0], math.sqrt(60 / 9) / 4),
        (jet_energy_resolution, [*range(9), 1000.0], math.sqrt(2 * 60 / 9) / 4),
        # The narrowest nine, 1 ... 9, have most of their values at the ends; 0 ... 8.5 have the smaller RMS.
        (rms90, [0.0, 1.0, 4.7, 4.7, 4.7, 4.7, 4.7, 4.7, 8.5, 8.9], np.std([1.0, *[4.7] * 6, 8.5, 8.9])),
        (median, [2.0] * 5, 2),
        *((width, [2.0] * 5, 0) for width in WIDTHS),
    ],
)
def test_statistics(statistic, values, expected):
    assert statistic(np.array(values, dtype=np.float64)) == pytest.approx(expected)


def test_rms90_is_the_smallest_of_any_90_percent():
    values = np.sort(responses(60))
    size = math.ceil(0.9 * len(values))
    assert rms90(values) == pytest.approx(min(np.std(values[k : k + size]) for k in range(len(values) - size + 1)))


@pytest.mark.parametrize(("statistic", "min_values"), [(mean, 1), (median, 1), *((width, 2) for width in WIDTHS)])
def test_numbers_of_few_values_and_events_are_undefined(statistic, min_values):
    for n in range(4):
        number = Distribution(np.arange(1.0, n + 1), np.arange(n), Bootstrap(n)).number(statistic)
        assert math.isnan(number.value) == (n < min_values)
        assert math.isnan(number.low) == math.isnan(number.high) == (n < 3)
    of_two_events = Distribution([1.0, 2.0, 3.0, 4.0], np.array([0, 0, 1, 1]), Bootstrap(2)).number(statistic)
    assert not math.isnan(of_two_events.value)
    assert math.isnan(of_two_events.low)


def coverage(numbers, truth) -> float:
    return float(np.mean([number.low <= truth <= number.high for number in numbers]))


@pytest.mark.parametrize("statistic", [median, *WIDTHS])
def test_intervals_cover_the_truth(statistic):
    rng, bootstrap = np.random.default_rng(3), Bootstrap(400)
    truth = statistic(np.sort(rng.normal(1, 0.1, 400_000)))
    samples = [Distribution(rng.normal(1, 0.1, 400), np.arange(400), bootstrap) for _ in range(150)]
    # Narrowest intervals of a finite sample are biased low.
    assert 0.55 < coverage([sample.number(statistic) for sample in samples], truth) < 0.82
    if statistic in (median, resolution_68):
        options = (quantile, 0.5) if statistic is median else (resolution_68, LEVEL)
        numbers = [by_rank(options[0], sample.values, options[1]) for sample in samples]
        assert 0.55 < coverage(numbers, truth) < 0.82


def test_particles_of_one_event_are_no_independent_entries():
    """Half of 300 events lose all of their ten particles: the error is that of 300 events, not of 3000 particles."""
    rng, total = np.random.default_rng(5), np.full(300, 10.0)
    numbers = [Bootstrap(300).fraction(10.0 * (rng.uniform(size=300) < 0.5), total) for _ in range(100)]
    assert np.median([0.5 * (number.high - number.low) for number in numbers]) == pytest.approx(0.5 / 300**0.5, rel=0.1)
    assert 0.55 < coverage(numbers, 0.5) < 0.82


@pytest.mark.parametrize(
    ("passed", "total", "effective"),
    [([2, 3, 5], [2, 3, 5], 10), ([0, 0, 0], [2, 3, 5], 10), ([3, 1], [4, 1], 5)],
    ids=["all", "nothing", "two events"],
)
def test_where_resamples_tell_no_interval_it_is_clopper_pearsons(passed, total, effective):
    expected = fractions(sum(passed) / sum(total) * effective, effective)
    number = Bootstrap(len(total)).fraction(passed, total)
    assert (number.value, number.low, number.high) == (expected.value, expected.low, expected.high)
    assert expected.low < expected.high


def test_an_effective_number_of_entries_of_unequal_weights_and_of_none():
    # weights 3, 1, 1, one an event: (sum w)^2 / sum w^2 = 25 / 11
    weights = np.array([3.0, 1.0, 1.0])
    expected = fractions(25 / 11, 25 / 11)
    number = Bootstrap(3).fraction(weights, weights, weights**2)
    assert (number.low, number.high) == pytest.approx((float(expected.low), float(expected.high)))
    number = Bootstrap(5).fraction(np.zeros(5), np.zeros(5))
    assert math.isnan(number.value)
    assert (number.low, number.high) == (0, 1)


def test_an_event_has_the_same_weights_wherever_it_has_the_same_place():
    few, many = Bootstrap(10), Bootstrap(20_000)
    assert np.array_equal(few.weights, many.weights[:, :10])
    assert np.array_equal(Bootstrap(np.array([3, 7])).weights, few.weights[:, [3, 7]])
    assert many.weights.mean() == pytest.approx(1, abs=0.01)
    assert many.weights.var() == pytest.approx(1, abs=0.01)


def test_comparisons_of_the_same_events_have_the_errors_of_pairs():
    """Two measurements that share most of their noise: the difference is known better than either one."""
    rng, n = np.random.default_rng(1), 500
    common, bootstrap = rng.normal(1.0, 0.1, n), Bootstrap(n)
    a, b = (Distribution(common + rng.normal(shift, 0.01, n), np.arange(n), bootstrap) for shift in (0.0, 0.1))
    first, second = a.number(mean), b.number(mean)
    expected = 0.01 * math.sqrt(2 / n)
    of_ratio = 0.01 * math.sqrt((1 + 1 + 1.1**2) / n)  # the common noise is that of a tenth
    for number, value, error in (
        (difference(second, first), 0.1, expected),
        (ratio(second, first), second.value / first.value, of_ratio),
    ):
        assert number.value == pytest.approx(value, abs=5 * expected)
        assert 0.5 * (number.high - number.low) == pytest.approx(error, rel=0.2)
    assert 0.5 * (first.high - first.low) == pytest.approx(0.1 / math.sqrt(n), rel=0.25)
    same = difference(first, first)
    assert same.value == 0
    assert math.isnan(same.low)  # not known, and not exact


def test_differences_in_quadrature_keep_their_sign():
    three, five = (Number(x, x - 0.1, x + 0.1, np.linspace(x - 0.2, x + 0.2, 200)) for x in (3.0, 5.0))
    assert in_quadrature(five, three).value == pytest.approx(4)
    assert in_quadrature(three, five).value == pytest.approx(-4)
    assert in_quadrature(five, three).low < 4 < in_quadrature(five, three).high


def test_a_minority_of_defined_resamples_gives_no_interval():
    for undefined, interval in ((1, [1.0, 1.0]), (2, [math.nan] * 2)):
        number = Number.resampled(1.0, np.array([2.0] * (4 - undefined) + [math.nan] * undefined))
        assert [number.low, number.high] == pytest.approx(interval, nan_ok=True)


def test_a_histogram_counts_every_value_once_and_leaves_have_keys():
    distribution = Distribution([-1.0, 0.0, 0.5, 1.0, 1.0, 2.0], np.arange(6), Bootstrap(6))
    histogram = distribution.histogram(np.array([0.0, 1.0, 2.0]))
    assert histogram == {"edges": [0.0, 1.0, 2.0], "counts": [2, 3], "below": 1, "above": 0}
    axis = Axis(name="x", label="x", unit="", edges=np.array([1.0, 10.0, 30.0]))
    assert axis.index(np.array([0.5, 1.0, 10.0, 30.0, 30.1])).tolist() == [2, 0, 1, 1, 2]
    assert dict(leaves({"a": {"b": 1, "c": {"d": 2}}, "e": 3})) == {"a.b": 1, "a.c.d": 2, "e": 3}
