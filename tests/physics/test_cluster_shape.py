from __future__ import annotations

import numpy as np
import pytest

from pflow.physics.cluster_shape import cluster_shape


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


def test_a_cluster_without_energy_has_the_plain_mean():
    mean, _ = one([0.0, 0.0], [[0.0, 0.0, 100.0], [40.0, 0.0, 100.0]])
    np.testing.assert_allclose(mean, [20.0, 0.0, 100.0])
