"""One photon told from two: in all events, and where the photons of a pair open far enough."""

from __future__ import annotations

import numpy as np

from pflow.metrics.counting import CountMetrics
from pflow.metrics.intervals import fraction
from pflow.metrics.number import Number

__all__ = ["ABOVE", "always_one", "told_apart"]

ABOVE = 30.0
"""Opening angle in mrad from which on pairs are also counted apart; an edge of the bins of `CountMetrics`."""


def told_apart(count: CountMetrics) -> dict[str, Number]:
    """Fractions of single photons and pairs that are told right: ``separated``, and without the narrower pairs."""
    (one, ones), (two, twos) = count.singles, count.pairs.sum(axis=1)
    wide, wides = _wide(count)
    return {"separated": fraction(one + two, ones + twos), "separated_above": fraction(one + wide, ones + wides)}


def always_one(count: CountMetrics) -> dict[str, Number]:
    """The same of an answer that is always one particle."""
    ones, twos = count.singles[1], count.pairs[1].sum()
    return {"separated": fraction(ones, ones + twos), "separated_above": fraction(ones, ones + _wide(count)[1])}


def _wide(count: CountMetrics) -> tuple[int, int]:
    """Pairs that open by more than `ABOVE`: told right, and all."""
    columns = np.flatnonzero(count.axis.edges[:-1] >= ABOVE)
    right, total = count.pairs[:, columns].sum(axis=1)
    return int(right), int(total)
