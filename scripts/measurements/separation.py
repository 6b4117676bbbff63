"""Fraction of single photons and of photon pairs that are reconstructed as one and as two particles."""

from __future__ import annotations

import numpy as np

from pflow.metrics.counting import CountMetrics
from pflow.metrics.stats import Number, fraction

ABOVE_MRAD = 30.0
"""Opening angle above which pairs are also counted separately; an edge of the bins of `CountMetrics`."""


def one_or_two(count: CountMetrics) -> dict[str, Number]:
    """Correct fractions: ``separated``, and ``separated_above`` without the narrower pairs."""
    (one, ones), (two, twos) = count.singles.tolist(), count.pairs.sum(axis=1).tolist()
    wide, wides = _wide(count)
    return {"separated": fraction(one + two, ones + twos), "separated_above": fraction(one + wide, ones + wides)}


def always_one(count: CountMetrics) -> dict[str, Number]:
    """The same of an algorithm that always finds one particle."""
    ones, twos = int(count.singles[1]), int(count.pairs[1].sum())
    return {"separated": fraction(ones, ones + twos), "separated_above": fraction(ones, ones + _wide(count)[1])}


def _wide(count: CountMetrics) -> tuple[int, int]:
    """Pairs that open by more than `ABOVE_MRAD`: correct, and all."""
    columns = np.flatnonzero(count.axis.edges[:-1] >= ABOVE_MRAD)
    right, total = count.pairs[:, columns].sum(axis=1)
    return int(right), int(total)
