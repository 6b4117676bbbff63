from __future__ import annotations

import math

import numpy as np
import pytest

from pflow.physics.barycentre import log_weighted_barycentre

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


def test_shower_without_hits_is_at_the_origin():
    found = log_weighted_barycentre(np.zeros(0, dtype=int), np.zeros(0), np.zeros((0, 3)), 2)
    assert found.tolist() == [[0, 0, 0], [0, 0, 0]]
