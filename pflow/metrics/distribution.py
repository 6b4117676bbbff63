"""Distributions in bounded memory: quantiles, narrowest intervals and RMS90 of any number of values.

Up to `EXACT` values are kept as they are, and every result is exact. Beyond, values are counted in fixed bins whose
edges are the floating-point numbers with 12 bits of mantissa: bins of relative width 2.4e-4 (2**-12) or less at any
scale and sign, without an upper end. Values of one bin count as evenly spread in it, so no result is off by more than
one such width, and a quantile of many values by far less. Either way the state is a function of the set of values
alone: neither their order nor the way they were split over chunks and merged changes a result by one bit.

Intervals are free of assumptions on the shape: a quantile q of n values moves between the quantiles
q -+ sqrt(q (1 - q) / n), and an interval of content c between those of content c -+ sqrt(c (1 - c) / n) (to first
order that is the standard error of a sample quantile, and of the length of the narrowest interval: R. Grübel,
Annals of Statistics 16 (1988) 619). Fewer than three values have no interval (NaN).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pflow.metrics.number import Floats, Histogram, Number

__all__ = ["EXACT", "RELATIVE_WIDTH", "Distribution"]

EXACT = 8192
"""Number of values up to which a distribution keeps them all."""
RELATIVE_WIDTH = 2.0**-12
"""Largest width of a bin relative to the values in it."""

CONTENT = 0.683
IQR_TO_SIGMA = 1.349
"""Interquartile range of a normal distribution in units of its standard deviation."""
PIECES = 64
"""Arrays held before they are joined: an array of one value costs fifteen times its value."""
DROPPED_BITS = 40
"""Low bits of the 52-bit mantissa that a bin ignores."""


class Distribution:
    """Values of one quantity; add, merge, then ask."""

    def __init__(self) -> None:
        self.count = 0
        self._recent: list[Floats] = []
        self._n_recent = 0
        self._keys = np.empty(0, dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)

    def add(self, values: npt.ArrayLike) -> None:
        """Count all values.

        Raises
        ------
        ValueError
            A value is infinite or not a number.
        """
        flat = np.array(values, dtype=np.float64).ravel()
        if not len(flat):
            return
        if not np.isfinite(flat).all():
            raise ValueError("cannot count values that are infinite or not a number")
        self.count += len(flat)
        self._hold(flat)

    def merge(self, other: Distribution) -> None:
        """Count what another distribution has counted."""
        self.count += other.count
        self._insert(other._keys, other._counts)
        for values in other._recent:
            self._hold(values)

    def _hold(self, values: Floats) -> None:
        self._recent.append(values)
        self._n_recent += len(values)
        if self._n_recent > EXACT:
            self._bin_recent()
        elif len(self._recent) >= PIECES:
            self._recent = [np.concatenate(self._recent)]

    def _bin_recent(self) -> None:
        if self._n_recent:
            keys, counts = np.unique(_keys(np.concatenate(self._recent)), return_counts=True)
            self._recent, self._n_recent = [], 0
            self._insert(keys, counts)

    def _insert(self, keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        if not len(keys):
            return
        merged, inverse = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        totals = np.zeros(len(merged), dtype=np.int64)
        np.add.at(totals, inverse, np.concatenate([self._counts, counts]))
        self._keys, self._counts = merged, totals

    def _ordered(self) -> _Ordered:
        """The values by rank, in whichever form they are."""
        if self.count <= EXACT:
            return _Exact(np.sort(np.concatenate(self._recent)))
        self._bin_recent()
        return _Binned(self._keys, self._counts)

    def quantile(self, q: float) -> Number:
        """Quantile q (0 to 1), linear between neighbouring values as numpy.quantile's default."""
        if not self.count:
            return Number.undefined()
        ordered = self._ordered()
        spread = math.sqrt(q * (1 - q) / self.count)
        low, value, high = (
            float(ordered.at(np.array([(self.count - 1) * min(1.0, max(0.0, x))]))[0])
            for x in (q - spread, q, q + spread)
        )
        return self._number(value, low, high)

    def median(self) -> Number:
        """Quantile 1/2."""
        return self.quantile(0.5)

    def resolution_68(self) -> Number:
        """Half the length of the narrowest interval that holds 68.3% of the values; needs two."""
        if self.count < 2:
            return Number.undefined()
        ordered = self._ordered()
        spread = math.sqrt(CONTENT * (1 - CONTENT) / self.count)
        low, value, high = (
            0.5 * self._narrowest(ordered, min(1.0, c))[1] for c in (CONTENT - spread, CONTENT, CONTENT + spread)
        )
        return self._number(value, low, high)

    def resolution_68_over_median(self) -> Number:
        """`resolution_68` in units of the median, which does not depend on the scale; undefined for a median of 0.

        The interval is that of `resolution_68`: the median's own uncertainty is smaller and left out.
        """
        median = self.median().value
        return self.resolution_68() * (1 / median) if median > 0 else Number.undefined()

    def resolution_iqr(self) -> Number:
        """Interquartile range / 1.349: the standard deviation if the values were normal; needs two."""
        if self.count < 2:
            return Number.undefined()
        ordered = self._ordered()
        spread = 0.5 / math.sqrt(self.count)
        low, value, high = (
            float(np.diff(ordered.at((self.count - 1) * np.array([(1 - c) / 2, (1 + c) / 2])))[0]) / IQR_TO_SIGMA
            for c in (max(0.0, 0.5 - spread), 0.5, min(1.0, 0.5 + spread))
        )
        return self._number(value, low, high)

    def iqr_over_median(self) -> Number:
        """Interquartile range in units of the median; undefined for a median of 0. The median is taken as exact."""
        median = self.median().value
        return self.resolution_iqr() * (IQR_TO_SIGMA / median) if median > 0 else Number.undefined()

    def rms90(self) -> Number:
        """Standard deviation of the values in the narrowest interval that holds 90% of them; needs two.

        M. A. Thomson, NIM A 611 (2009) 25. The interval is the value's standard error on either side, from its
        influence function with the two ends of the interval taken as equally far from the mean.
        """
        if self.count < 2:
            return Number.undefined()
        content = 0.9
        ordered = self._ordered()
        start, length = self._narrowest(ordered, content)
        values, weights = ordered.between(start, start + _size(content, self.count) - 1)
        mean = float(np.average(values, weights=weights))
        squares = (values - mean) ** 2
        variance = float(np.average(squares, weights=weights))
        rms = math.sqrt(variance)
        if not rms:
            return Number(0.0, 0.0, 0.0)
        influence = squares - (0.5 * length) ** 2
        inside = content * float(np.average(influence, weights=weights))
        spread = content * float(np.average(influence**2, weights=weights)) - inside**2
        error = math.sqrt(max(0.0, spread) / self.count) / content / (2 * rms)
        return self._number(rms, max(0.0, rms - error), rms + error)

    def _number(self, value: float, low: float, high: float) -> Number:
        return Number(value, low, high) if self.count >= 3 else Number(value, float("nan"), float("nan"))

    def _narrowest(self, ordered: _Ordered, content: float) -> tuple[float, float]:
        """First rank and length of the narrowest interval from value to value with this share of all of them."""
        size = _size(content, self.count)
        last = self.count - size
        knots = ordered.knots()
        starts = np.concatenate([knots, knots - (size - 1), [0, last]])
        # The length is linear in the first rank between knots of either end, so its minimum is at one of them.
        starts = np.unique(starts[(starts >= 0) & (starts <= last)])
        lengths = ordered.at(starts + (size - 1)) - ordered.at(starts)
        best = int(np.argmin(lengths))
        return float(starts[best]), float(lengths[best])

    def histogram(self, edges: npt.ArrayLike) -> Histogram:
        """Counts between edges, for a plot."""
        wanted = np.asarray(edges, dtype=np.float64)
        if not self.count:
            return Histogram(edges=wanted, counts=np.zeros(len(wanted) - 1))
        below = self._ordered().below(wanted)
        return Histogram(
            edges=wanted, counts=np.diff(below), below=float(below[0]), above=float(self.count - below[-1])
        )


def _size(content: float, count: int) -> int:
    """Fewest values that are a share `content` of `count`, at least one; safe against 0.9 * 10 = 9.000...1."""
    return min(count, max(1, math.ceil(round(content * count, 9))))


def _keys(values: Floats) -> npt.NDArray[np.int64]:
    """Bin of each value: rising with it, 0 for the smallest positive ones and 0, negative for negative ones."""
    magnitude = np.abs(values).view(np.int64) >> DROPPED_BITS
    return np.where(values < 0, -magnitude - 1, magnitude)


def _lower_edges(keys: npt.NDArray[np.int64]) -> Floats:
    """Lower edge of each bin; the edge of key + 1 is the upper one."""
    return np.where(keys >= 0, _from_bits(keys), -_from_bits(-keys))


def _from_bits(keys: npt.NDArray[np.int64]) -> Floats:
    return (np.maximum(keys, 0) << DROPPED_BITS).view(np.float64)


class _Exact:
    """All values, sorted."""

    def __init__(self, values: Floats) -> None:
        self.values = values

    def at(self, ranks: Floats) -> Floats:
        return np.interp(ranks, np.arange(len(self.values)), self.values)

    def knots(self) -> Floats:
        return np.arange(len(self.values), dtype=np.float64)

    def between(self, first: float, last: float) -> tuple[Floats, Floats]:
        values = self.values[round(first) : round(last) + 1]
        return values, np.ones(len(values))

    def below(self, edges: Floats) -> Floats:
        counts = np.searchsorted(self.values, edges, side="left").astype(np.float64)
        counts[-1] = np.searchsorted(self.values, edges[-1], side="right")
        return counts


class _Binned:
    """Values spread evenly over their bins: the j-th of c values lies at (j + 1/2) / c of the width."""

    def __init__(self, keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        lower, upper = _lower_edges(keys), _lower_edges(keys + 1)
        self.lower, self.upper, self.counts = lower, upper, counts
        self.cumulative = np.concatenate([[0], np.cumsum(counts)]).astype(np.float64)
        half = 0.5 * (upper - lower) / counts
        ranks = np.stack([self.cumulative[:-1], self.cumulative[1:] - 1], axis=1).ravel()
        positions = np.stack([lower + half, upper - half], axis=1).ravel()
        self.ranks, unique = np.unique(ranks, return_index=True)
        self.positions = positions[unique]

    def at(self, ranks: Floats) -> Floats:
        return np.interp(ranks, self.ranks, self.positions)

    def knots(self) -> Floats:
        return self.ranks

    def between(self, first: float, last: float) -> tuple[Floats, Floats]:
        """Middles of the bins, and how many of the values from rank `first` to `last` lie in each."""
        inside = np.clip(self.cumulative, first, last + 1)
        weights = np.diff(inside)
        return 0.5 * (self.lower + self.upper), weights

    def below(self, edges: Floats) -> Floats:
        points = np.stack([self.lower, self.upper], axis=1).ravel()
        heights = np.stack([self.cumulative[:-1], self.cumulative[1:]], axis=1).ravel()
        return np.interp(edges, points, heights)


_Ordered = _Exact | _Binned
