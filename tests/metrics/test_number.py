"""Axes, series and trees of results."""

from __future__ import annotations

import numpy as np
import pytest

from pflow.metrics.number import Axis, Number, Series, leaves


@pytest.mark.parametrize("edges", [[1.0], [1.0, 1.0], [2.0, 1.0], [[0.0, 1.0]]])
def test_edges_must_rise(edges):
    with pytest.raises(ValueError, match="rising edges"):
        Axis(name="x", label="x", unit="", edges=np.array(edges))


def test_number_in_another_unit():
    assert Number(1.0, 0.5, 2.0) * 10 == Number(10.0, 5.0, 20.0)


def test_series_of_numbers():
    series = Series.of([Number(1, 0, 2), Number(3, 2, 4)])
    assert series.value.tolist() == [1, 3]
    assert series.low.tolist() == [0, 2]
    assert series.high.tolist() == [2, 4]


def test_series_of_no_bins():
    assert len(Series.of([]).value) == 0


def test_leaves_have_dotted_keys():
    assert dict(leaves({"a": {"b": 1, "c": {"d": 2}}, "e": 3})) == {"a.b": 1, "a.c.d": 2, "e": 3}
