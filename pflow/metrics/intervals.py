"""68.3% intervals of fractions."""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv

from pflow.metrics.number import Number

__all__ = ["LEVEL", "clopper_pearson", "fraction"]

LEVEL = 0.683
"""Content of every interval: that of one standard deviation of a normal distribution."""


def clopper_pearson(passed: float, total: float, level: float = LEVEL) -> tuple[float, float]:
    """Central interval of a fraction that never covers less than `level`.

    C. J. Clopper, E. S. Pearson, Biometrika 26 (1934) 404, through the quantiles of the beta distribution. Numbers
    that are not whole (effective counts of weighted entries) are allowed. Nothing tried gives (0, 1).

    >>> low, high = clopper_pearson(5, 10)
    >>> round(low, 3), round(high, 3)
    (0.305, 0.695)

    Raises
    ------
    ValueError
        Not 0 <= passed <= total, or a level outside (0, 1).
    """
    if not 0 <= passed <= total:
        raise ValueError(f"expected 0 <= passed <= total, found {passed} of {total}")
    if not 0 < level < 1:
        raise ValueError(f"expected a level between 0 and 1, found {level}")
    tail = (1 - level) / 2
    low = 0.0 if passed == 0 else float(betaincinv(passed, total - passed + 1, tail))
    high = 1.0 if passed == total else float(betaincinv(passed + 1, total - passed, 1 - tail))
    return low, high


def fraction(passed: float, total: float) -> Number:
    """Passed over total with its Clopper-Pearson interval; undefined with the interval (0, 1) where total is 0."""
    low, high = clopper_pearson(passed, total)
    return Number(float(np.divide(passed, total)) if total else float("nan"), low, high)
