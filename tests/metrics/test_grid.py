"""Distributions by row and column."""

from __future__ import annotations

import math

import numpy as np

from pflow.metrics.grid import DistributionGrid

ROWS = np.array([0, 1, 1, 0, 1])
COLUMNS = np.array([0, 0, 2, 0, 2])
VALUES = np.array([1.0, 2.0, 3.0, 5.0, 7.0])


def filled():
    grid = DistributionGrid(2, 3)
    grid.add(ROWS, COLUMNS, VALUES)
    return grid


def test_cells_hold_their_values():
    assert filled().bin(0, 0).median().value == 3
    assert filled().bin(1, 2).median().value == 5
    assert math.isnan(filled().bin(0, 1).median().value)


def test_column_of_all_rows():
    assert filled().bin(None, 0).count == 3


def test_totals():
    assert filled().total().count == 5
    assert filled().total(1).median().value == 3


def test_merge():
    grid = filled()
    grid.merge(filled())
    assert grid.total().count == 10
    assert grid.bin(0, 0).count == 4


def test_nothing_added():
    grid = DistributionGrid(1, 1)
    grid.add(ROWS[:0], COLUMNS[:0], VALUES[:0])
    assert grid.total().count == 0
