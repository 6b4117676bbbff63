"""Numbers with their 68.3% intervals: fractions, means, quantiles and resolutions, alone or in bins.

A `Distribution` keeps every value, so quantiles and resolutions are exact and do not depend on the order of the values
or on chunks. A `WeightedFraction` depends on the order of chunks by rounding only (1e-15 relative).

Intervals of quantiles assume no shape: a quantile q of n values lies between the quantiles q -+ sqrt(q (1 - q) / n),
and the narrowest interval of content c between contents c -+ sqrt(c (1 - c) / n). To first order this is the standard
error of a sample quantile, and of the length of the narrowest interval (R. Grübel, Annals of Statistics 16 (1988) 619).
With fewer than three values the interval is NaN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

LEVEL = 0.683
"""Content of every interval: one standard deviation of a normal distribution."""

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Ints: TypeAlias = npt.NDArray[np.int64]
Tree: TypeAlias = dict[str, Any]
"""Results by name: `Number`, `Series`, `Histogram`, plain data, or further trees."""


@dataclasses.dataclass(frozen=True)
class Number:
    """A value and its 68.3% interval, in the value's unit. NaN where the data do not define it."""

    value: float
    low: float
    high: float

    @classmethod
    def undefined(cls) -> Number:
        """A metric without entries."""
        return cls(math.nan, math.nan, math.nan)

    def __mul__(self, factor: float) -> Number:
        """The number in another unit; the factor is positive."""
        return Number(self.value * factor, self.low * factor, self.high * factor)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Series:
    """A metric in the bins of an axis: value, low and high, float64 [bins]."""

    value: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, numbers: Iterable[Number]) -> Series:
        """From a number for each bin."""
        columns = np.array([(n.value, n.low, n.high) for n in numbers], dtype=np.float64).reshape(-1, 3)
        return cls(value=columns[:, 0], low=columns[:, 1], high=columns[:, 2])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Histogram:
    """Counts between `edges` [bins + 1], and numbers of values `below` and `above`, for plots only."""

    edges: Floats
    counts: Floats
    below: float = 0.0
    above: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Axis:
    """A quantity in bins between rising `edges` [bins + 1]; `log` shows it on a logarithmic scale."""

    name: str
    label: str
    unit: str
    edges: Floats
    log: bool = False

    def __len__(self) -> int:
        """Number of bins."""
        return len(self.edges) - 1

    def index(self, values: Floats) -> Ints:
        """Bin of each value, int64 [N]; bins hold their lower edge, the last one both. Outside: the number of bins."""
        bins = np.searchsorted(self.edges, values, side="right") - 1
        bins[values == self.edges[-1]] = len(self) - 1
        return np.where((bins < 0) | (bins >= len(self)), len(self), bins)


def fractions(passed: npt.ArrayLike, total: npt.ArrayLike) -> Series:
    """passed / total in bins; their central intervals cover at least `LEVEL`.

    C. J. Clopper, E. S. Pearson, Biometrika 26 (1934) 404, by quantiles of the beta distribution. Effective counts of
    weighted entries may be fractional. A total of 0 gives NaN in (0, 1); ValueError unless 0 <= passed <= total.

    >>> half = fractions(5, 10)
    >>> round(float(half.low), 3), round(float(half.high), 3)
    (0.305, 0.695)
    """
    k, n = np.asarray(passed, dtype=np.float64), np.asarray(total, dtype=np.float64)
    if not np.all((k >= 0) & (k <= n)):
        raise ValueError(f"expected 0 <= passed <= total, found {k} of {n}")
    tail = (1 - LEVEL) / 2
    low = np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1e-300), n - k + 1, tail))
    high = np.where(k == n, 1.0, betaincinv(k + 1, np.maximum(n - k, 1e-300), 1 - tail))
    return Series(value=np.divide(k, n, out=np.full(n.shape, np.nan), where=n > 0), low=low, high=high)


def fraction(passed: float, total: float) -> Number:
    """passed / total with its Clopper-Pearson interval; NaN in (0, 1) where total is 0."""
    series = fractions(passed, total)
    return Number(float(series.value), float(series.low), float(series.high))


class WeightedFraction:
    """Fraction of a total weight that passes; Clopper-Pearson interval for n = (sum of w)^2 / (sum of w^2) entries."""

    def __init__(self) -> None:
        self.passed = self.total = self.squares = 0.0

    def add(self, weights: Floats, passed: npt.NDArray[Any]) -> None:
        """Count entries with weights of at least 0; `passed`: whether (bool), or what fraction of, each passes."""
        self.passed += float(np.sum(weights * passed))
        self.total += float(np.sum(weights))
        self.squares += float(np.sum(weights**2))

    def result(self) -> Number:
        """Fraction and interval; NaN in (0, 1) if the total is 0."""
        effective = self.total**2 / self.squares if self.total else 0.0
        return fraction(min(self.passed / (self.total or 1.0), 1.0) * effective, effective)


class Chunks(list[npt.NDArray[Any]]):
    """Arrays that never change, so that the copies that are made before each file, in case it fails, share them."""

    def __deepcopy__(self, _: object) -> Chunks:
        return Chunks(self)


class Distribution:
    """All values of one quantity."""

    def __init__(self, values: npt.ArrayLike = ()) -> None:
        self._chunks = Chunks([np.empty(0)])  # the first one is sorted
        self.add(values)

    def add(self, values: npt.ArrayLike) -> None:
        """Count all values; ValueError for an infinity or NaN."""
        flat = np.array(values, dtype=np.float64).ravel()
        if not np.isfinite(flat).all():
            raise ValueError("cannot count values that are infinite or not a number")
        if len(flat):
            self._chunks.append(flat)

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(map(len, self._chunks))

    @property
    def values(self) -> Floats:
        """float64 [count], rising."""
        if len(self._chunks) > 1:
            self._chunks = Chunks([np.sort(np.concatenate(self._chunks))])
        return self._chunks[0]

    def mean(self) -> Number:
        """Mean and standard error; NaN without values, the error also with one."""
        if not self.count:
            return Number.undefined()
        mean = float(np.mean(self.values))
        error = float(np.std(self.values, ddof=1)) / math.sqrt(self.count) if self.count > 1 else math.nan
        return Number(mean, mean - error, mean + error)

    def quantile(self, q: float) -> Number:
        """Quantile q (0 to 1), linear between neighbouring values as numpy.quantile's default."""
        if not self.count:
            return Number.undefined()
        spread = math.sqrt(q * (1 - q) / self.count)
        return self._number(*self._quantiles(q, q - spread, q + spread))

    def median(self) -> Number:
        """Quantile 1/2."""
        return self.quantile(0.5)

    def resolution_68(self) -> Number:
        """Half the length of the narrowest interval that holds 68.3% of at least two values."""
        if self.count < 2:
            return Number.undefined()
        spread = math.sqrt(LEVEL * (1 - LEVEL) / self.count)
        return self._number(*(0.5 * self._narrowest(c)[2] for c in (LEVEL, LEVEL - spread, LEVEL + spread)))

    def resolution_68_over_median(self) -> Number:
        """`resolution_68` / median, without the median's error; undefined unless the median is above 0."""
        median = self.median().value
        return self.resolution_68() * (1 / median) if median > 0 else Number.undefined()

    def iqr_over_median(self) -> Number:
        """Interquartile range / median, without the median's error; undefined unless the median is above 0."""
        median = self.median().value
        if self.count < 2 or not median > 0:
            return Number.undefined()
        spread = 0.5 / math.sqrt(self.count)
        contents: list[float] = [0.5, max(0.0, 0.5 - spread), min(1.0, 0.5 + spread)]
        ends = [self._quantiles((1 - c) / 2, (1 + c) / 2) for c in contents]
        return self._number(*[(high - low) / median for low, high in ends])

    def rms90(self) -> Number:
        """Standard deviation in the narrowest interval with 90% of at least two values; Thomson, NIM A 611 (2009) 25.

        The interval is the standard error from the influence function, with both ends equally far from the mean.
        """
        if self.count < 2:
            return Number.undefined()
        content = 0.9
        start, stop, length = self._narrowest(content)
        squares = (self.values[start:stop] - np.mean(self.values[start:stop])) ** 2
        rms = math.sqrt(np.mean(squares))
        if not rms:
            return Number(0.0, 0.0, 0.0)
        influence = squares - (0.5 * length) ** 2
        variance = content * float(np.mean(influence**2)) - (content * float(np.mean(influence))) ** 2
        error = math.sqrt(max(0.0, variance) / self.count) / content / (2 * rms)
        return self._number(rms, max(0.0, rms - error), rms + error)

    def histogram(self, edges: npt.ArrayLike) -> Histogram:
        """Counts between edges; bins hold their lower edge, the last one both."""
        bounds = np.asarray(edges, dtype=np.float64)
        below, above = np.sum(self.values < bounds[0]), np.sum(self.values > bounds[-1])
        counts = np.histogram(self.values, bounds)[0].astype(np.float64)
        return Histogram(edges=bounds, counts=counts, below=float(below), above=float(above))

    def _quantiles(self, *q: float) -> list[float]:
        return list(map(float, np.quantile(self.values, np.clip(q, 0.0, 1.0))))

    def _narrowest(self, content: float) -> tuple[int, int, float]:
        """First rank, last rank + 1, and length of the first narrowest interval with this fraction of the values."""
        # Rounded, because 0.9 * 10 is 9.000...1; the interval holds at least one value.
        size = min(self.count, max(1, math.ceil(round(min(content, 1.0) * self.count, 9))))
        lengths = self.values[size - 1 :] - self.values[: self.count - size + 1]
        start = int(np.argmin(lengths))
        return start, start + size, float(lengths[start])

    def _number(self, value: float, low: float, high: float) -> Number:
        return Number(value, low, high) if self.count >= 3 else Number(value, math.nan, math.nan)


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and content of each leaf of a tree, in order."""
    for name, content in tree.items():
        key = f"{prefix}.{name}" if prefix else name
        if isinstance(content, Mapping):
            yield from leaves(content, key)
        else:
            yield key, content
