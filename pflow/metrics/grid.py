"""A table of distributions: one for each class and bin."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pflow.metrics.distribution import Distribution
from pflow.metrics.number import Floats
from pflow.metrics.table import Ints

__all__ = ["DistributionGrid"]


class DistributionGrid:
    """Distributions by row and column; a column of values is spread over them at once.

    Parameters
    ----------
    n_rows, n_columns
        Its size. A distribution comes into being with its first value.
    """

    def __init__(self, n_rows: int, n_columns: int) -> None:
        self.shape = (n_rows, n_columns)
        self._cells: dict[int, Distribution] = {}

    def add(self, rows: Ints, columns: Ints, values: Floats) -> None:
        """Count each value in the distribution of its row and column."""
        if not len(values):
            return
        cells = rows * self.shape[1] + columns
        order = np.argsort(cells, kind="stable")
        cells, values = cells[order], values[order]
        starts = np.flatnonzero(np.diff(cells, prepend=-1))
        for cell, part in zip(cells[starts].tolist(), np.split(values, starts[1:]), strict=True):
            self._cells.setdefault(cell, Distribution()).add(part)

    def merge(self, other: DistributionGrid) -> None:
        """Count what another grid of the same shape has counted."""
        for cell, distribution in other._cells.items():
            self._cells.setdefault(cell, Distribution()).merge(distribution)

    def total(self, row: int | None = None) -> Distribution:
        """All values of a row, or of the whole grid."""
        return self._merged(cell for cell in self._cells if row is None or cell // self.shape[1] == row)

    def bin(self, row: int | None, column: int) -> Distribution:
        """The values of one cell, or of a column in all rows."""
        rows = range(self.shape[0]) if row is None else [row]
        return self._merged(r * self.shape[1] + column for r in rows)

    def _merged(self, cells: Iterable[int]) -> Distribution:
        total = Distribution()
        for cell in cells:
            if cell in self._cells:
                total.merge(self._cells[cell])
        return total
