from __future__ import annotations

import pytest

from pflow.train.schedule import warmup_cosine


def test_it_rises_linearly_and_falls_as_half_a_cosine_to_the_final_value_where_it_stays():
    factor = warmup_cosine(total=12, warmup=4, final=0.2)
    assert [factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    # By hand: half way the cosine is 0, so the factor is (1 + 0.2) / 2.
    assert [factor(step) for step in (8, 12, 50)] == pytest.approx([0.6, 0.2, 0.2])
    values = [factor(step) for step in range(4, 13)]
    assert values == sorted(values, reverse=True)


def test_a_final_value_of_one_is_a_constant_rate():
    factor = warmup_cosine(total=10, warmup=2, final=1.0)
    assert [factor(step) for step in range(1, 12)] == [1.0] * 11


def test_a_run_of_warm_up_only_does_not_divide_by_zero():
    assert warmup_cosine(total=2, warmup=2, final=0.0)(2) == 1.0
