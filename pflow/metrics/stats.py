"""Numbers with their 68.3% intervals: fractions, means, quantiles and resolutions, alone or in bins.

Events are independent, particles of one event are not. So intervals come from a bootstrap over events: each event gets
a Poisson weight of mean 1, drawn `N_RESAMPLES` times (ATL-PHYS-PUB-2021-011). The weight depends on the event's place
in its input alone, so that all algorithms, and other evaluations of the same events, are resampled together:
`difference` and `ratio` of two numbers have the errors of a paired comparison. Counts of events, which are independent,
have Clopper-Pearson intervals; quantiles in bins, with few particles per event, have intervals by rank.

An interval has the quantiles of the resampled values, shifted so that their median is the value: widths of small
samples are biased, and widths of resamples twice. With fewer than three entries or events it is NaN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

LEVEL = 0.683
"""Content of every interval: one standard deviation of a normal distribution."""

N_RESAMPLES = 200
"""Resamples of a bootstrap: the length of an interval is known to 6%."""
SEED = 1
"""Seed of the events' weights."""

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Ints: TypeAlias = npt.NDArray[np.int64]
Tree: TypeAlias = dict[str, Any]
"""Results by name: `Number`, `Series`, plain data, or further trees."""


@dataclasses.dataclass(frozen=True)
class Number:
    """A value and its 68.3% interval, in the value's unit. NaN where the data do not define it.

    `replicas`: the values of the resamples, float64 [N_RESAMPLES], for `difference` and `ratio`; not in every number.
    """

    value: float
    low: float
    high: float
    replicas: Floats | None = dataclasses.field(default=None, repr=False, compare=False)

    @classmethod
    def undefined(cls) -> Number:
        """A metric without entries."""
        return cls(math.nan, math.nan, math.nan)

    @classmethod
    def resampled(cls, value: float, replicas: Floats, *, few: bool = False) -> Number:
        """A value with the interval of its resamples; an interval of NaN if `few` (too few entries or events)."""
        defined = replicas[np.isfinite(replicas)]
        # A minority of defined resamples would tell of unusual ones only.
        if few or 2 * len(defined) <= len(replicas) or not math.isfinite(value):
            return cls(value, math.nan, math.nan, replicas)
        low, middle, high = np.quantile(defined, (0.5 * (1 - LEVEL), 0.5, 0.5 * (1 + LEVEL))).tolist()
        return cls(value, value + low - middle, value + high - middle, replicas)

    def __mul__(self, factor: float) -> Number:
        """The number in another unit; the factor is positive."""
        replicas = None if self.replicas is None else self.replicas * factor
        return Number(self.value * factor, self.low * factor, self.high * factor, replicas)


def difference(a: Number, b: Number) -> Number:
    """a - b of the same events, with the error of the paired comparison; NaN where all resamples agree."""
    return _paired(np.subtract, a, b)


def ratio(a: Number, b: Number) -> Number:
    """a / b of the same events, with the error of the paired comparison; NaN where all resamples agree."""
    return _paired(np.divide, a, b)


def _paired(function: Callable[[Any, Any], Any], a: Number, b: Number) -> Number:
    with np.errstate(divide="ignore", invalid="ignore"):
        # NumPy's numbers: Python's raise at a division by 0.
        value = float(function(np.float64(a.value), np.float64(b.value)))
        if a.replicas is None or b.replicas is None:
            return Number(value, math.nan, math.nan)
        replicas = function(a.replicas, b.replicas)
    # If one of the numbers has no interval, the comparison has none.
    unknown = any(math.isnan(number.low) for number in (a, b))
    defined = replicas[np.isfinite(replicas)]
    # Resamples of a stored scan have six digits.
    agree = not len(defined) or float(np.ptp(defined)) <= 1e-5 * max(abs(value), 1e-2)
    return Number.resampled(value, replicas, few=unknown or agree)


def in_quadrature(a: Number, b: Number) -> Number:
    """Root of a^2 - b^2 with the sign of this, as `difference`."""

    def root(x: Any, y: Any) -> Any:
        return np.sign(x**2 - y**2) * np.sqrt(np.abs(x**2 - y**2))

    return _paired(root, a, b)


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
        # NaN sorts behind all edges, and so is outside.
        bins = np.searchsorted(self.edges, values, side="right") - 1
        bins[values == self.edges[-1]] = len(self) - 1
        return np.where((bins < 0) | (bins >= len(self)), len(self), bins)


def series_in_bins(axis: Axis, bins: Ints, numbers: Callable[[Ints], dict[str, Number]]) -> dict[str, Series]:
    """`numbers` of the rows in each bin as series; `bins` int [rows] as of `Axis.index`."""
    parts = [numbers(np.flatnonzero(bins == k)) for k in range(len(axis))]
    # An empty bin has the same keys, with undefined numbers: the first part knows them all.
    return {key: Series.of(part[key] for part in parts) for key in parts[0]}


def in_bins(axis: Axis, bins: Ints, numbers: Callable[[Ints], dict[str, Number]], *, count: str) -> Tree:
    """The same with edges, unit and, under the name `count`, numbers of rows."""
    counts = np.bincount(bins, minlength=len(axis))[: len(axis)].tolist()
    series = series_in_bins(axis, bins, numbers)
    return {"edges": axis.edges.tolist(), "unit": axis.unit or "1", count: counts, **series}


def fractions(passed: npt.ArrayLike, total: npt.ArrayLike) -> Series:
    """passed / total in bins; their central intervals cover at least `LEVEL`.

    C. J. Clopper, E. S. Pearson, Biometrika 26 (1934) 404, by quantiles of the beta distribution. Effective counts of
    weighted entries may be fractional. A total of 0 gives NaN in (0, 1); ValueError unless 0 <= passed <= total.

    >>> half = fractions(5, 10)
    >>> round(float(half.low), 3), round(float(half.high), 3)
    (0.305, 0.695)
    """
    k, n = np.asarray(passed, dtype=np.float64), np.asarray(total, dtype=np.float64)
    # Written with `not`, so that NaN is refused, too.
    if not np.all((k >= 0) & (k <= n)):
        raise ValueError(f"expected 0 <= passed <= total, found {k} of {n}")
    tail = (1 - LEVEL) / 2
    # np.where computes both sides, and betaincinv is not defined for a parameter of 0.
    low = np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1e-300), n - k + 1, tail))
    high = np.where(k == n, 1.0, betaincinv(k + 1, np.maximum(n - k, 1e-300), 1 - tail))
    return Series(value=np.divide(k, n, out=np.full(n.shape, np.nan), where=n > 0), low=low, high=high)


class Bootstrap:
    """Weights of E events in the resamples of a bootstrap, uint8 [resamples, E].

    `positions`: places of the events in their input, int64 [E], or their number; an event has the same weights
    wherever it has the same place. With `n` of 0 numbers have no intervals.
    """

    def __init__(self, positions: Ints | int, *, n: int = N_RESAMPLES) -> None:
        places = np.arange(positions) if isinstance(positions, int) else positions
        generator = np.random.default_rng(SEED)
        n_places, at_once = int(places.max(initial=-1)) + 1, 10_000
        # In parts, because the draws have eight bytes each before they become uint8.
        sizes = [min(at_once, n_places - start) for start in range(0, n_places, at_once)]
        # Event by event, so that the weights do not depend on the number of events.
        draws = [generator.poisson(1.0, (size, n)).astype(np.uint8) for size in sizes]
        drawn = np.concatenate([np.zeros((0, n), dtype=np.uint8), *draws])
        # The weights of a resample lie together, as `Distribution` reads one resample after the other.
        self.weights = np.ascontiguousarray(drawn[places].T)

    def fractions(self, passed: Floats, total: Floats, squares: Floats | None = None) -> list[Number]:
        """Sum of `passed` / sum of `total` over events, float64 [E, K]; one ratio per column.

        Where all or nothing passes, or fewer than three events have a total, resamples give no interval; it is then
        Clopper-Pearson's for (sum of w)^2 / (sum of w^2) entries of weights w. `squares` float64 [E, K] has each
        event's sum of w^2; by default the weights are 1. NaN in (0, 1) where the total is 0.
        """
        squares = total if squares is None else squares
        sums, totals = passed.sum(axis=0), total.sum(axis=0)
        effective = np.divide(totals**2, squares.sum(axis=0), out=np.zeros(len(totals)), where=totals > 0)
        share = np.divide(sums, totals, out=np.full(len(totals), np.nan), where=totals > 0)
        exact = fractions(np.clip(np.nan_to_num(share), 0, 1) * effective, effective)
        # Converted once, for both products.
        weights = self.weights.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            replicas = (weights @ passed) / (weights @ total)  # [resamples, K]
        n_events = np.count_nonzero(total, axis=0)
        numbers = []
        for k, value in enumerate(share.tolist()):
            number = Number.resampled(value, replicas[:, k])
            if n_events[k] < 3 or not 0 < value < 1 or number.low == number.high:
                number = Number(value, float(exact.low[k]), float(exact.high[k]), replicas[:, k])
            # The shift of the interval to the value can carry an end beyond 0 or 1.
            low, high = np.clip((number.low, number.high), 0.0, 1.0).tolist()
            numbers.append(Number(value, low, high, replicas[:, k]))
        return numbers

    def fraction(self, passed: npt.ArrayLike, total: npt.ArrayLike, squares: npt.ArrayLike | None = None) -> Number:
        """`fractions` for one column, [E]."""
        columns = (None if x is None else np.asarray(x, dtype=np.float64)[:, None] for x in (passed, total, squares))
        return self.fractions(*columns)[0]  # type: ignore[arg-type]

    def count(self, passed: npt.NDArray[np.bool_], counted: npt.NDArray[np.bool_] | None = None) -> Number:
        """Fraction of the events, of those `counted` bool [E], that pass, with its Clopper-Pearson interval."""
        total = np.ones(len(passed)) if counted is None else counted.astype(np.float64)
        exact, of_resamples = fractions(np.sum(passed * total), total.sum()), self.fraction(passed * total, total)
        return Number(float(exact.value), float(exact.low), float(exact.high), of_resamples.replicas)


class Columns:
    """Columns of entries that grow chunk by chunk; all chunks have the same names."""

    def __init__(self) -> None:
        self.chunks: dict[str, list[npt.NDArray[Any]]] = {}

    def __deepcopy__(self, _: object) -> Self:
        # Made before each file, in case it fails: the arrays do not change, and are shared.
        copy = type(self)()
        copy.chunks = {name: list(chunks) for name, chunks in self.chunks.items()}
        return copy

    def add(self, **columns: npt.NDArray[Any]) -> None:
        """Append entries."""
        for name, values in columns.items():
            self.chunks.setdefault(name, []).append(values)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """A column of all entries; empty before the first chunk."""
        parts = self.chunks.get(name)
        # Empty columns are integers, so that they can still be indices.
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


class Metrics:
    """Metrics of events that come chunk by chunk: `n_events` so far, and `columns` of events or of their parts.

    A subclass has `update` and `numbers`.
    """

    def __init__(self) -> None:
        self.n_events = 0
        self.columns = Columns()

    def add(self, counts: npt.NDArray[Any], **columns: npt.NDArray[Any]) -> None:
        """Append the columns of events, one for each of `counts`; ``event`` numbers the events of this chunk."""
        if "event" in columns:
            columns["event"] = (self.n_events + columns["event"]).astype(np.int32)
        self.columns.add(**columns)
        self.n_events += len(counts)

    def numbers(self, bootstrap: Bootstrap) -> Tree:
        """Results by key, with intervals by a bootstrap of all events."""
        raise NotImplementedError

    def result(self) -> Tree:
        """The same without intervals."""
        return self.numbers(Bootstrap(self.n_events, n=0))


Statistic: TypeAlias = Callable[[Floats], float]
"""A function of rising values, float64 [N]; NaN where they are too few."""


def mean(values: Floats) -> float:
    """Mean of the values."""
    return float(np.mean(values)) if len(values) else math.nan


def quantile(values: Floats, q: float) -> float:
    """Quantile q (0 to 1) of rising values, linear between neighbours as numpy.quantile's default."""
    if not len(values):
        return math.nan
    place = q * (len(values) - 1)
    k = int(place)
    low, high = float(values[k]), float(values[min(k + 1, len(values) - 1)])
    return low + (place - k) * (high - low)


def median(values: Floats) -> float:
    """Quantile 1/2."""
    return quantile(values, 0.5)


def quantile_68(values: Floats) -> float:
    """Quantile 0.68."""
    return quantile(values, 0.68)


def resolution_68(values: Floats, content: float = LEVEL) -> float:
    """Half the length of the narrowest interval that holds 68.3% (`content`) of at least two rising values.

    It lies low by its own fluctuation, of a normal distribution by 18% with 20 values, 10% with 60, 6% with 100 and 2%
    with 1,000; `rms90` by 3% with 20 and less than 1% from 60 on.
    """
    if len(values) < 2:
        return math.nan
    size = _size(content, len(values))
    return 0.5 * float(np.min(values[size - 1 :] - values[: len(values) - size + 1]))


def iqr_over_median(values: Floats) -> float:
    """Interquartile range / median; NaN unless there are two values and the median is above 0."""
    middle = median(values)
    return (quantile(values, 0.75) - quantile(values, 0.25)) / middle if len(values) > 1 and middle > 0 else math.nan


def rms90(values: Floats) -> float:
    """Smallest root mean square of any 90% of at least two rising values, about their mean.

    As ILDPerformance's UdsAnalysis; M. Thomson, NIM A 611 (2009) 25.
    """
    return float(np.std(_of_90(values))) if len(values) > 1 else math.nan


def mean90(values: Floats) -> float:
    """Mean of the 90% of `rms90`."""
    return float(np.mean(_of_90(values))) if len(values) > 1 else math.nan


def rms90_over_mean90(values: Floats) -> float:
    """`rms90` / `mean90`; NaN unless the mean is above 0."""
    core = _of_90(values) if len(values) > 1 else values
    return float(np.std(core) / np.mean(core)) if len(values) > 1 and np.mean(core) > 0 else math.nan


def jet_energy_resolution(values: Floats) -> float:
    """sqrt(2) `rms90_over_mean90` of the summed energies of two equal jets (UdsAnalysis)."""
    return math.sqrt(2) * rms90_over_mean90(values)


def _of_90(values: Floats) -> Floats:
    """The 90% of rising values with the smallest root mean square: they are neighbours."""
    size = _size(0.9, len(values))
    shifted = values - values[len(values) // 2]  # so that squares keep their digits
    # Cumulative sums give all windows in one pass instead of one pass for each window.
    sums, squares = (np.concatenate([[0.0], np.cumsum(x)]) for x in (shifted, shifted**2))
    variance = (squares[size:] - squares[:-size]) / size - ((sums[size:] - sums[:-size]) / size) ** 2
    start = int(np.argmin(variance))
    return values[start : start + size]


def _size(content: float, n: int) -> int:
    """Number of values in a fraction of n; at least one. Rounded, because 0.9 * 10 is 9.000...1."""
    return max(1, math.ceil(round(content * n, 9)))


def by_rank(statistic: Callable[[Floats, float], float], values: Floats, p: float) -> Number:
    """A `quantile` p, or the `resolution_68` with content p, of rising values that are independent.

    The interval ends at the values for p -+ sqrt(p (1 - p) / n), which of the narrowest interval's length is to first
    order the standard error (R. Grübel, Ann. Stat. 16 (1988) 619).
    """
    if len(values) < 3:
        return Number(statistic(values, p), math.nan, math.nan)
    spread = math.sqrt(p * (1 - p) / len(values))
    value, low, high = (statistic(values, of) for of in (p, max(p - spread, 0.0), min(p + spread, 1.0)))
    return Number(value, low, high)


class Distribution:
    """All values of one quantity, float64 [N], rising; ValueError for an infinity or NaN.

    `event` int [N]: each value's event, in the order of the `bootstrap`.
    """

    def __init__(self, values: npt.ArrayLike, event: npt.NDArray[Any], bootstrap: Bootstrap) -> None:
        flat = np.asarray(values, dtype=np.float64).ravel()
        if not np.isfinite(flat).all():
            raise ValueError("cannot count values that are infinite or not a number")
        order = np.argsort(flat, kind="stable")
        self.values, self.event, self.bootstrap = flat[order], event[order], bootstrap

    def __len__(self) -> int:
        """Number of values."""
        return len(self.values)

    def numbers(self, **statistics: Statistic) -> dict[str, Number]:
        """Statistics by name, each with its interval; all of the same resamples."""
        replicas = np.full((len(statistics), len(self.bootstrap.weights)), np.nan)
        too_few = len(self) < 3 or len(np.unique(self.event)) < 3
        if not too_few:
            for row, weights in enumerate(self.bootstrap.weights):
                resample = np.repeat(self.values, weights[self.event])  # still rising
                replicas[:, row] = [statistic(resample) for statistic in statistics.values()]
        return {
            name: Number.resampled(statistic(self.values), of, few=too_few)
            for (name, statistic), of in zip(statistics.items(), replicas, strict=True)
        }

    def number(self, statistic: Statistic) -> Number:
        """One statistic with its interval."""
        return self.numbers(number=statistic)["number"]

    def histogram(self, edges: Floats) -> Tree:
        """Counts between `edges` [bins + 1], and numbers of values `below` and `above`; as `numpy.histogram`."""
        below, above = np.sum(self.values < edges[0]), np.sum(self.values > edges[-1])
        counts = np.histogram(self.values, edges)[0].astype(np.float64)
        return {"edges": edges.tolist(), "counts": counts.tolist(), "below": float(below), "above": float(above)}


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and content of each leaf of a tree, in order."""
    for name, content in tree.items():
        key = f"{prefix}.{name}" if prefix else name
        if isinstance(content, Mapping):
            yield from leaves(content, key)
        else:
            yield key, content
