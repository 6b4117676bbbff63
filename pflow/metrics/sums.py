"""Sums of floating-point numbers that do not depend on their order, so that partial results merge exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from pflow.metrics.intervals import fraction
from pflow.metrics.number import Floats, Number

__all__ = ["ExactSum", "Mean", "WeightedFraction"]

UNIT_EXPONENT = 1126
"""Every float64 is a whole multiple of 2**-1126 (the smallest mantissa bit that frexp can return)."""
MANTISSA_BITS = 53
LOW_BITS = 27


class ExactSum:
    """Sum of float64 values without rounding: a whole number of any length, in units of 2**-1126.

    Memory is about 300 bytes whatever the number of values. Adding is vectorised: mantissas are summed as integers,
    one group for each exponent.
    """

    def __init__(self) -> None:
        self._units = 0

    def add(self, values: npt.ArrayLike) -> None:
        """Add all values.

        Raises
        ------
        ValueError
            A value is infinite or not a number.
        """
        flat = np.asarray(values, dtype=np.float64).ravel()
        if not len(flat):
            return
        if not np.isfinite(flat).all():
            raise ValueError("cannot sum values that are infinite or not a number")
        mantissa, exponent = np.frexp(flat)
        whole = np.ldexp(mantissa, MANTISSA_BITS).astype(np.int64)
        order = np.argsort(exponent, kind="stable")
        whole, exponent = whole[order], exponent[order]
        starts = np.flatnonzero(np.diff(exponent, prepend=exponent[0] - 1))
        # In two halves: sums of 53-bit numbers would overflow 64 bits after 2048 of them.
        high = np.add.reduceat(whole >> LOW_BITS, starts)
        low = np.add.reduceat(whole & ((1 << LOW_BITS) - 1), starts)
        for h, lo, e in zip(high.tolist(), low.tolist(), exponent[starts].tolist(), strict=True):
            self._units += ((h << LOW_BITS) + lo) << (e - MANTISSA_BITS + UNIT_EXPONENT)

    def merge(self, other: ExactSum) -> None:
        """Add what another sum holds."""
        self._units += other._units

    def exact(self) -> Fraction:
        """The sum as it is."""
        return Fraction(self._units, 1 << UNIT_EXPONENT)

    def __float__(self) -> float:
        """The sum, rounded once."""
        return float(self.exact())


class Mean:
    """Mean of values and its standard error, s / sqrt(n)."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = ExactSum()
        self._squares = ExactSum()

    def add(self, values: npt.ArrayLike) -> None:
        """Count all values; raises ValueError for one that is not finite."""
        flat = np.asarray(values, dtype=np.float64).ravel()
        self._sum.add(flat)
        self._squares.add(flat**2)
        self.count += len(flat)

    def merge(self, other: Mean) -> None:
        """Count what another mean has counted."""
        self.count += other.count
        self._sum.merge(other._sum)
        self._squares.merge(other._squares)

    def result(self) -> Number:
        """Mean, and mean -+ standard error (NaN for fewer than two values)."""
        if not self.count:
            return Number.undefined()
        mean = self._sum.exact() / self.count
        value = float(mean)
        if self.count < 2:
            return Number(value, float("nan"), float("nan"))
        variance = max(Fraction(0), self._squares.exact() / self.count - mean**2) * self.count / (self.count - 1)
        error = math.sqrt(float(variance) / self.count)
        return Number(value, value - error, value + error)


class WeightedFraction:
    """Share of a total weight (an energy, say) that passes.

    The interval is Clopper-Pearson's for the number of equal weights that would fluctuate as much,
    n = (sum of w)^2 / (sum of w^2).
    """

    def __init__(self) -> None:
        self._passed = ExactSum()
        self._total = ExactSum()
        self._squares = ExactSum()

    def add(self, weights: Floats, passed: npt.NDArray[np.bool_]) -> None:
        """Count entries of the given weights (at least 0)."""
        self._passed.add(weights[passed])
        self._total.add(weights)
        self._squares.add(weights**2)

    def merge(self, other: WeightedFraction) -> None:
        """Count what another one has counted."""
        self._passed.merge(other._passed)
        self._total.merge(other._total)
        self._squares.merge(other._squares)

    def result(self) -> Number:
        """Share and interval; undefined with the interval (0, 1) where the total is 0."""
        total = self._total.exact()
        if not total:
            return fraction(0, 0)
        share = float(self._passed.exact() / total)
        effective = float(total**2 / self._squares.exact())
        return fraction(share * effective, effective)
