"""What a metric is handed over as: a number with its interval, a row of them in bins, a histogram."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Axis", "Histogram", "Number", "Series", "Tree", "leaves"]

Tree: TypeAlias = dict[str, Any]
"""Results by name: `Number`, `Series`, `Histogram`, plain data, or further trees."""

Floats: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True)
class Number:
    """A value and its 68.3% interval, in the value's unit. NaN where the data do not define it."""

    value: float
    low: float
    high: float

    @classmethod
    def undefined(cls) -> Number:
        """What a metric of no events is."""
        return cls(float("nan"), float("nan"), float("nan"))

    def __mul__(self, factor: float) -> Number:
        """The same in another unit; the factor is positive."""
        return Number(self.value * factor, self.low * factor, self.high * factor)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Axis:
    """A quantity in bins.

    Parameters
    ----------
    name, label, unit
        Key in the results, text on a plot's axis, and its unit ("" for none).
    edges
        float64 [bins + 1], rising.
    log
        Whether a plot shows it on a logarithmic scale.
    """

    name: str
    label: str
    unit: str
    edges: Floats
    log: bool = False

    def __post_init__(self) -> None:
        edges = np.asarray(self.edges, dtype=np.float64)
        if edges.ndim != 1 or len(edges) < 2 or not np.all(np.diff(edges) > 0):
            raise ValueError(f"axis '{self.name}' needs at least two rising edges, found {edges.tolist()}")
        object.__setattr__(self, "edges", edges)

    def __len__(self) -> int:
        """Number of bins."""
        return len(self.edges) - 1

    def index(self, values: Floats) -> npt.NDArray[np.int64]:
        """Bin of each value, int64 [N]; bins hold their lower edge, the last one both. Outside: the number of bins."""
        bins = np.searchsorted(self.edges, values, side="right") - 1
        bins[values == self.edges[-1]] = len(self) - 1
        return np.where((bins < 0) | (bins >= len(self)), len(self), bins)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Series:
    """A metric in the bins of an axis: value, low and high, float64 [bins]."""

    value: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, numbers: Iterable[Number]) -> Series:
        """From one number a bin."""
        columns = np.array([(n.value, n.low, n.high) for n in numbers], dtype=np.float64).reshape(-1, 3)
        return cls(value=columns[:, 0], low=columns[:, 1], high=columns[:, 2])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Histogram:
    """Counts between edges, for pictures. Never the source of a quantile.

    Parameters
    ----------
    edges
        float64 [bins + 1].
    counts
        float64 [bins]. Whole numbers up to the resolution of `Distribution`.
    below, above
        How many values lie outside the edges.
    """

    edges: Floats
    counts: Floats
    below: float = 0.0
    above: float = 0.0


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and content of everything in a tree that is not a tree itself, in its order."""
    for name, content in tree.items():
        key = f"{prefix}.{name}" if prefix else name
        if isinstance(content, Mapping):
            yield from leaves(content, key)
        else:
            yield key, content
