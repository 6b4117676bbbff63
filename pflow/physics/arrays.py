"""Array functions for formulas that take NumPy arrays and torch tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt


def namespace(values: Any) -> Any:
    """The module torch for a tensor, else numpy."""
    return sys.modules["torch"] if type(values).__module__.partition(".")[0] == "torch" else np


def double(values: Any) -> Any:
    """A tensor or array-like in double precision."""
    return np.asarray(values, dtype=np.float64) if namespace(values) is np else values.double()


def constant(values: npt.NDArray[Any], like: Any) -> Any:
    """The array, or a tensor of it if `like` is a tensor."""
    xp = namespace(like)
    return values if xp is np else xp.from_numpy(values)
