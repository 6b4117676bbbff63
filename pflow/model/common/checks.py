"""Checks of options; each names the field that is out of range."""

from __future__ import annotations

from typing import Any

__all__ = ["MAX_LAYERS", "MAX_SIZE", "check_positive", "check_probability"]

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


def check_probability(config: Any, *names: str) -> None:
    """Raise ValueError unless the named fields are in [0, 1]."""
    for name in names:
        if not 0.0 <= getattr(config, name) <= 1.0:
            raise ValueError(f"{name}: {getattr(config, name)} is not in [0, 1]")
