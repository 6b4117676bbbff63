"""Clopper-Pearson intervals against their definition and scipy's implementation."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from pflow.metrics.intervals import LEVEL, clopper_pearson, fraction


def test_ends_solve_the_binomial_tail_equations():
    low, high = clopper_pearson(3, 10)
    tail = (1 - LEVEL) / 2
    assert stats.binom.sf(2, 10, low) == pytest.approx(tail)
    assert stats.binom.cdf(3, 10, high) == pytest.approx(tail)


def test_agrees_with_scipy():
    wanted = stats.binomtest(7, 19).proportion_ci(LEVEL, method="exact")
    assert clopper_pearson(7, 19) == pytest.approx((wanted.low, wanted.high))


def test_none_passed_has_low_end_zero_and_high_end_by_hand():
    # (1 - high)^n = tail
    low, high = clopper_pearson(0, 4)
    assert low == 0
    assert high == pytest.approx(1 - ((1 - LEVEL) / 2) ** 0.25)


def test_all_passed_has_high_end_one():
    low, high = clopper_pearson(4, 4)
    assert high == 1
    assert low == pytest.approx(((1 - LEVEL) / 2) ** 0.25)


def test_nothing_tried_says_nothing():
    number = fraction(0, 0)
    assert math.isnan(number.value)
    assert (number.low, number.high) == (0, 1)


@pytest.mark.parametrize(("passed", "total"), [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(passed, total):
    with pytest.raises(ValueError, match="0 <= passed <= total"):
        clopper_pearson(passed, total)


def test_impossible_level_is_refused():
    with pytest.raises(ValueError, match="level"):
        clopper_pearson(1, 2, level=1.0)
