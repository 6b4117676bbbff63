import math

import numpy as np
import pytest

from pflow.physics.showers import cluster_shape, log_weighted_barycentre

A, B = 4 + math.log(0.9), 4 + math.log(0.1)
"""Weights of hits with these shares of a shower's energy."""


@pytest.mark.parametrize(
    ("energy", "x", "mean"),
    [
        ([1.0, 1.0], [0.0, 2.0], 1.0),
        ([9.0, 1.0], [0.0, 1.0], B / (A + B)),
        ([100.0, 1.0], [0.0, 1.0], 0.0),
        ([1.0] * 100, np.arange(100.0), 49.5),
    ],
    ids=["equal hits", "logarithmic weights", "a small share does not count", "small shares only: the plain mean"],
)
def test_one_shower(energy, x, mean):
    position = np.outer(x, [1.0, 2.0, 0.0])
    found = log_weighted_barycentre(np.zeros(len(energy), dtype=int), np.array(energy), position, 1)
    assert found[0] == pytest.approx([mean, 2 * mean, 0.0])


def one(energy, position):
    mean, axis = cluster_shape(np.zeros(len(energy), dtype=int), np.array(energy), np.array(position), 1)
    return mean[0], axis[0]


def test_the_position_is_weighted_with_energy():
    mean, _ = one([1.0, 3.0], [[0.0, 0.0, 100.0], [40.0, 0.0, 100.0]])
    np.testing.assert_allclose(mean, [30.0, 0.0, 100.0])


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_the_axis_is_that_of_the_largest_spread_and_points_outwards(order):
    line = np.array([[1000.0, 10.0, 0.0], [1100.0, 10.0, 100.0], [1200.0, 10.0, 200.0]])
    _, axis = one([1.0, 1.0, 1.0], line[order])
    np.testing.assert_allclose(axis, [np.sqrt(0.5), 0.0, np.sqrt(0.5)], atol=1e-12)


@pytest.mark.parametrize("n", [1, 3])
def test_without_a_spread_it_is_the_direction_of_the_position(n):
    _, axis = one([0.1] * n, [[0.0, -1800.0, 2400.0]] * n)
    np.testing.assert_allclose(axis, [0.0, -0.6, 0.8])


def test_clusters_are_independent_of_each_other_and_may_be_empty():
    position = np.array([[1000.0, 0, 0], [0, 0, 500.0], [1010.0, 0, 0]])
    mean, axis = cluster_shape(np.array([0, 2, 0]), np.array([1.0, 1.0, 1.0]), position, 3)
    np.testing.assert_allclose(mean, [[1005.0, 0, 0], [0, 0, 0], [0, 0, 500.0]])
    np.testing.assert_allclose(axis, [[1.0, 0, 0], [0, 0, 1.0], [0, 0, 1.0]], atol=1e-12)
