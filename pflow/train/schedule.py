"""Learning-rate schedule: linear warm-up, then half a cosine."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["warmup_cosine"]


def warmup_cosine(*, total: int, warmup: int, final: float) -> Callable[[int], float]:
    """Factor on the learning rate as a function of the step, from 0.

    Rises linearly to 1 over `warmup` steps, then falls as half a cosine to `final` at step `total`, and stays there.

    >>> factor = warmup_cosine(total=10, warmup=2, final=0.0)
    >>> [round(factor(step), 3) for step in (0, 1, 2, 6, 10, 11)]
    [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    """

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        progress = min((step - warmup) / max(total - warmup, 1), 1.0)
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return factor
