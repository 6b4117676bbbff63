"""Quantiles and resolutions: exact for few values, within the stated error for many, the same for any chunking."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pflow.metrics.distribution import EXACT, RELATIVE_WIDTH, Distribution

ALL = ("median", "resolution_68", "resolution_68_over_median", "resolution_iqr", "rms90")


def filled(values) -> Distribution:
    distribution = Distribution()
    distribution.add(values)
    return distribution


def responses(n, seed=0):
    """A core of 3% with tails on both sides, and a few far away."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(1.0, 0.03, n), rng.exponential(0.3, n // 5), [0.0, 1e-9, 1e6, -2.0]])
    return rng.permutation(values)


def narrowest(values, content):
    ordered = np.sort(values)
    size = math.ceil(content * len(ordered))
    return ordered, size, ordered[size - 1 :] - ordered[: len(ordered) - size + 1]


def test_quantiles_of_few_values_are_numpys():
    values = responses(1000)
    for q in (0.0, 0.01, 0.3, 0.5, 0.68, 1.0):
        assert filled(values).quantile(q).value == np.quantile(values, q)


@pytest.mark.parametrize("q", [0.01, 0.25, 0.5, 0.68, 0.99])
def test_quantiles_of_many_values_are_within_a_bin(q):
    values = responses(100_000)
    assert filled(values).quantile(q).value == pytest.approx(np.quantile(values, q), rel=RELATIVE_WIDTH)


def test_median_of_many_values_is_far_better_than_a_bin():
    values = responses(100_000)
    assert filled(values).median().value == pytest.approx(np.median(values), rel=RELATIVE_WIDTH / 10)


def test_resolution_of_many_values_agrees_with_all_of_them():
    values = responses(100_000)
    wanted = 0.5 * narrowest(values, 0.683)[2].min()
    assert filled(values).resolution_68().value == pytest.approx(wanted, rel=2e-3)


def test_rms90_of_many_values_agrees_with_all_of_them():
    values = responses(100_000)
    ordered, size, lengths = narrowest(values, 0.9)
    start = lengths.argmin()
    assert filled(values).rms90().value == pytest.approx(ordered[start : start + size].std(), rel=2e-3)


def test_resolution_by_hand():
    # 7 of 10 values: the narrowest run of seven is 1.0 ... 1.6
    values = [0.0, 0.5, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 9.0]
    assert filled(values).resolution_68().value == pytest.approx(0.3)


def test_resolution_over_median_by_hand():
    values = 2 * np.array([0.0, 0.5, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 9.0])
    assert filled(values).resolution_68_over_median().value == pytest.approx(0.3 / 1.25)


def test_iqr_by_hand():
    # quartiles of 0 ... 4 are 1 and 3
    assert filled([4.0, 0.0, 2.0, 1.0, 3.0]).resolution_iqr().value == pytest.approx(2 / 1.349)


def test_rms90_by_hand():
    # nine of ten: 0 ... 8, whose variance is 60 / 9
    assert filled([*range(9), 1000.0]).rms90().value == pytest.approx(math.sqrt(60 / 9))


def test_equal_values_have_no_width():
    distribution = filled([2.0] * 5)
    assert distribution.resolution_68().value == 0
    assert distribution.rms90().value == 0
    assert distribution.median().value == 2


def test_nothing_is_undefined():
    for name in ALL:
        assert math.isnan(getattr(Distribution(), name)().value)


def test_one_value_has_a_median_and_no_width():
    distribution = filled([3.0])
    assert distribution.median().value == 3
    assert math.isnan(distribution.resolution_68().value)
    assert math.isnan(distribution.resolution_iqr().value)
    assert math.isnan(distribution.rms90().value)


def test_median_of_zero_has_no_relative_resolution():
    assert math.isnan(filled([0.0, 0.0, 1.0]).resolution_68_over_median().value)


@pytest.mark.parametrize("n", [EXACT - 500, EXACT + 500, 5 * EXACT])
def test_chunks_and_merging_do_not_change_a_bit(n):
    values = responses(n)[:n]
    whole = filled(values)
    merged = Distribution()
    for k, part in enumerate(np.array_split(np.roll(values, 17), 23)):
        if k % 2:
            merged.add(part)
        else:
            merged.merge(filled(part))
    for name in ALL:
        assert getattr(merged, name)() == getattr(whole, name)()
    assert merged.quantile(0.68) == whole.quantile(0.68)


def test_memory_does_not_grow_with_the_number_of_values():
    distribution = Distribution()
    for seed in range(60):
        distribution.add(np.random.default_rng(seed).uniform(0.5, 2.0, 10_000))
    # two octaves of 4096 bins each
    assert len(distribution._keys) <= 2 * 4096 + 1
    assert distribution._n_recent <= EXACT


def test_negative_values_and_zero_are_ordered():
    values = np.concatenate([-np.geomspace(1e-300, 1e300, 6000), [0.0], np.geomspace(1e-300, 1e300, 6000)])
    distribution = filled(values)
    assert distribution.median().value == pytest.approx(0.0, abs=1e-290)
    assert distribution.quantile(0.0).value == pytest.approx(-1e300, rel=RELATIVE_WIDTH)
    assert distribution.quantile(1.0).value == pytest.approx(1e300, rel=RELATIVE_WIDTH)


@pytest.mark.parametrize("name", ["median", "resolution_68", "resolution_iqr", "rms90"])
def test_intervals_cover_the_truth_in_about_two_of_three_experiments(name):
    rng = np.random.default_rng(3)
    truth = getattr(filled(rng.normal(1, 0.1, 400_000)), name)().value
    covered = 0
    for _ in range(300):
        number = getattr(filled(rng.normal(1, 0.1, 400)), name)()
        covered += number.low <= truth <= number.high
    # Narrowest intervals of a finite sample are biased low, hence the room below.
    assert 0.55 < covered / 300 < 0.80


def test_histogram_counts_every_value_once():
    histogram = filled([-1.0, 0.0, 0.5, 1.0, 1.0, 2.0]).histogram([0.0, 1.0, 2.0])
    assert histogram.counts.tolist() == [2, 3]
    assert (histogram.below, histogram.above) == (1, 0)


def test_histogram_of_many_values_agrees_with_numpy():
    values = responses(100_000)
    edges = np.linspace(0.8, 1.2, 41)
    histogram = filled(values).histogram(edges)
    assert histogram.counts == pytest.approx(np.histogram(values, edges)[0], abs=40)
    assert histogram.counts.sum() + histogram.below + histogram.above == pytest.approx(len(values))


def test_histogram_of_nothing_is_empty():
    assert Distribution().histogram([0.0, 1.0]).counts.tolist() == [0]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused(value):
    with pytest.raises(ValueError, match="infinite or not a number"):
        Distribution().add([1.0, value])


def test_values_are_copied():
    values = np.array([1.0, 2.0, 3.0])
    distribution = filled(values)
    values[:] = 0
    assert distribution.median().value == 2


@pytest.mark.parametrize("name", ["median", "resolution_68", "resolution_iqr", "rms90"])
def test_two_values_have_no_interval(name):
    number = getattr(filled([1.0, 2.0]), name)()
    assert math.isfinite(number.value)
    assert math.isnan(number.low)
    assert math.isnan(number.high)
