import math

import numpy as np
import pytest

from pflow.physics.geometry import cluster_shape, log_weighted_barycentre

A, B = 4 + math.log(0.9), 4 + math.log(0.1)
"""Weights of hits with 90% and 10% of a shower's energy."""


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
    barycentre = log_weighted_barycentre(np.zeros(len(energy), dtype=int), np.array(energy), position, 1)
    assert barycentre[0] == pytest.approx([mean, 2 * mean, 0.0])


LINE = np.array([[1000.0, 10.0, 0.0], [1100.0, 10.0, 100.0], [1200.0, 10.0, 200.0]])
DIAGONAL = [np.sqrt(0.5), 0.0, np.sqrt(0.5)]
PLACE = [0.0, -1800.0, 2400.0]


@pytest.mark.parametrize(
    ("energy", "position", "mean", "axis"),
    [
        ([1.0, 3.0], [[0.0, 0.0, 100.0], [40.0, 0.0, 100.0]], [30.0, 0.0, 100.0], [1.0, 0.0, 0.0]),
        ([1.0] * 3, LINE, LINE[1], DIAGONAL),
        ([1.0] * 3, LINE[::-1], LINE[1], DIAGONAL),
        ([0.1], [PLACE], PLACE, [0.0, -0.6, 0.8]),
        ([0.1] * 3, [PLACE] * 3, PLACE, [0.0, -0.6, 0.8]),
    ],
    ids=["energy-weighted", "along the spread", "outwards", "a single hit", "no spread"],
)
def test_one_cluster(energy, position, mean, axis):
    means, axes = cluster_shape(np.zeros(len(energy), dtype=int), np.array(energy), np.array(position), 1)
    np.testing.assert_allclose(means[0], mean)
    np.testing.assert_allclose(axes[0], axis, atol=1e-12)


def test_clusters_are_independent_of_each_other_and_may_be_empty():
    position = np.array([[1000.0, 0, 0], [0, 0, 500.0], [1010.0, 0, 0]])
    mean, axis = cluster_shape(np.array([0, 2, 0]), np.array([1.0, 1.0, 1.0]), position, 3)
    np.testing.assert_allclose(mean, [[1005.0, 0, 0], [0, 0, 0], [0, 0, 500.0]])
    np.testing.assert_allclose(axis, [[1.0, 0, 0], [0, 0, 1.0], [0, 0, 1.0]], atol=1e-12)
