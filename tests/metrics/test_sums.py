"""Sums that do not depend on their order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from pflow.metrics.sums import ExactSum, Mean, WeightedFraction


def spread(n=5000):
    rng = np.random.default_rng(1)
    return rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, size=n)


def test_sum_is_rounded_once_like_fsum():
    values = spread()
    total = ExactSum()
    total.add(values)
    assert float(total) == math.fsum(values)


def test_chunks_and_order_do_not_matter():
    values = spread()
    whole, parts = ExactSum(), ExactSum()
    whole.add(values)
    for part in np.array_split(values[::-1], 7):
        chunk = ExactSum()
        chunk.add(part)
        parts.merge(chunk)
    assert parts.exact() == whole.exact()


@pytest.mark.parametrize("value", [5e-324, -5e-324, 1.7976931348623157e308, 0.0, -0.1])
def test_single_values_are_kept_exactly(value):
    total = ExactSum()
    total.add([value])
    assert float(total) == value


def test_many_equal_mantissas_do_not_overflow():
    total = ExactSum()
    total.add(np.full(100_000, np.nextafter(1.0, 0.0)))
    assert total.exact() == 100_000 * (1 - Fraction(1, 2**53))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused(value):
    with pytest.raises(ValueError, match="infinite or not a number"):
        ExactSum().add([1.0, value])


def test_mean_and_standard_error_by_hand():
    # mean of 1, 2, 3, 6 is 3; variance (4 + 1 + 0 + 9) / 3; error sqrt(14 / 3 / 4)
    mean = Mean()
    mean.add([1.0, 2.0, 3.0, 6.0])
    number = mean.result()
    assert number.value == 3
    assert number.high - 3 == pytest.approx(math.sqrt(14 / 12))
    assert 3 - number.low == pytest.approx(math.sqrt(14 / 12))


def test_mean_of_nothing_is_undefined():
    assert math.isnan(Mean().result().value)


def test_mean_of_one_value_has_no_error():
    mean = Mean()
    mean.add([2.0])
    assert mean.result().value == 2
    assert math.isnan(mean.result().low)


def test_merged_means_equal_one_pass():
    values = spread(1000)
    whole, merged, part = Mean(), Mean(), Mean()
    whole.add(values)
    merged.add(values[600:])
    part.add(values[:600])
    merged.merge(part)
    assert merged.result() == whole.result()


def test_weighted_fraction_by_hand():
    # 3 of 3 + 1 + 1 = 5; effective number 25 / 11
    share = WeightedFraction()
    share.add(np.array([3.0, 1.0, 1.0]), np.array([True, False, False]))
    number = share.result()
    assert number.value == pytest.approx(0.6)
    assert number.low < 0.6 < number.high


def test_weighted_fraction_of_equal_weights_has_the_binomial_interval():
    from pflow.metrics.intervals import fraction

    share = WeightedFraction()
    share.add(np.full(10, 0.5), np.arange(10) < 3)
    number, wanted = share.result(), fraction(3, 10)
    assert (number.value, number.low, number.high) == pytest.approx((wanted.value, wanted.low, wanted.high))


def test_weighted_fraction_of_nothing_is_undefined():
    assert math.isnan(WeightedFraction().result().value)


def test_merged_weighted_fractions_equal_one_pass():
    weights = np.abs(spread(200))
    passed = np.arange(200) % 3 == 0
    whole, merged, part = WeightedFraction(), WeightedFraction(), WeightedFraction()
    whole.add(weights, passed)
    merged.add(weights[:50], passed[:50])
    part.add(weights[50:], passed[50:])
    merged.merge(part)
    assert merged.result() == whole.result()
