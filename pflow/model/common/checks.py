"""Checks of options; each names the field that is out of range."""

from __future__ import annotations

import math
from typing import Any

MAX_SIZE = 2**16
"""Largest width, and the like, of a network: far above any in use, and small enough to compute with."""

MAX_LAYERS = 512
"""Largest number of layers of a stack."""


def check_positive(config: Any, *names: str, largest: int = MAX_SIZE) -> None:
    """Raise ValueError unless the named fields are None or whole numbers from 1 to `largest`."""
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name}: {value!r} is not a whole number")
        if value < 1:
            raise ValueError(f"{name}: {value} is not positive")
        if value > largest:
            raise ValueError(f"{name}: {value} is more than {largest}")


def check_range(config: Any, interval: str, *names: str) -> None:
    """Raise ValueError unless the named fields are in an interval, e.g. ``[0, 1)``; its ends may be inf and pi."""
    low, high = (float({"pi": math.pi}.get(end, end)) for end in interval[1:-1].split(", "))
    for name in names:
        value = getattr(config, name)
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below):
            raise ValueError(f"{name}: {value} is not in {interval}")
