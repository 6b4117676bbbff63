from __future__ import annotations

import math

import numpy as np
import pytest

from pflow.physics.barycentre import log_weighted_barycentre


def test_equal_hits_have_their_middle():
    found = log_weighted_barycentre(np.array([0, 0]), np.array([1.0, 1.0]), np.array([[0.0, 0, 0], [2.0, 4.0, 0]]), 1)
    assert found.tolist() == [[1.0, 2.0, 0.0]]


def test_weights_are_logarithmic():
    # shares 0.9 and 0.1: weights 4 + ln 0.9 and 4 + ln 0.1
    found = log_weighted_barycentre(np.array([0, 0]), np.array([9.0, 1.0]), np.array([[0.0, 0, 0], [1.0, 0, 0]]), 1)
    a, b = 4 + math.log(0.9), 4 + math.log(0.1)
    assert found[0, 0] == pytest.approx(b / (a + b))


def test_hit_of_a_small_share_does_not_count():
    found = log_weighted_barycentre(np.array([0, 0]), np.array([100.0, 1.0]), np.array([[0.0, 0, 0], [1.0, 0, 0]]), 1)
    assert found[0, 0] == 0


def test_shower_of_small_shares_only_has_its_plain_mean():
    found = log_weighted_barycentre(np.zeros(100, dtype=int), np.ones(100), np.stack([np.arange(100.0)] * 3, axis=1), 1)
    assert found[0] == pytest.approx([49.5] * 3)


def test_shower_without_hits_is_at_the_origin():
    found = log_weighted_barycentre(np.zeros(0, dtype=int), np.zeros(0), np.zeros((0, 3)), 2)
    assert found.tolist() == [[0, 0, 0], [0, 0, 0]]
