"""Types of arrays, and array functions for formulas that take NumPy arrays and torch tensors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def namespace(values: Any) -> Any:
    """The module torch for a tensor, else numpy."""
    # Who has a tensor has loaded torch: it is not imported here for those who have arrays.
    return sys.modules["torch"] if type(values).__module__.partition(".")[0] == "torch" else np


def double(values: Any) -> Any:
    """A tensor or array-like in double precision."""
    return np.asarray(values, dtype=np.float64) if namespace(values) is np else values.double()


def single(values: Any) -> Any:
    """A tensor or array-like in single precision."""
    return np.asarray(values, dtype=np.float32) if namespace(values) is np else values.float()


def constant(values: npt.NDArray[Any], like: Any) -> Any:
    """The array, or a tensor of it if `like` is a tensor."""
    xp = namespace(like)
    return values if xp is np else xp.from_numpy(values)


def integer(values: Any) -> Any:
    """A tensor or array as int64."""
    return values.astype(np.int64) if namespace(values) is np else values.long()


def sums_of(values: Any, group: Any, first: Any) -> Any:
    """Sums [G] of values [N] by group int64 [N], added in their order in float64; `first` is any int64 [G]."""
    if namespace(values) is np:
        return np.bincount(group, values, minlength=len(first))
    return namespace(values).zeros_like(first, dtype=double(values).dtype).scatter_add(0, group, double(values))


def lowest_of(values: Any, group: Any, first: Any) -> Any:
    """Smallest known value [G] of values [N] by group, float64, NaN without one; parameters as of `sums_of`."""
    xp, values = namespace(values), double(values)
    # The minimum of a group with a NaN would be NaN: unknown values count as infinite.
    known, infinite = xp.where(xp.isnan(values), np.inf, values), xp.full_like(values[first], np.inf)
    if xp is np:
        np.minimum.at(infinite, group, known)
        lowest = infinite
    else:
        lowest = infinite.scatter_reduce(0, group, known, "amin")
    return xp.where(xp.isinf(lowest), np.nan, lowest)


def groups_of(keys: Any) -> tuple[Any, Any]:
    """Group of equal integers [N], from 0 in rising order, and the index of one of each group (the first, of NumPy)."""
    xp = namespace(keys)
    if xp is np:
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        return group, first
    # torch.unique returns no index of a member of each group.
    keys, order = xp.sort(keys)
    is_first = xp.cat([xp.ones_like(keys[:1]), keys[1:] != keys[:-1]])
    rank = xp.cumsum(is_first, 0) - 1
    return xp.zeros_like(rank).scatter(0, order, rank), order[is_first.nonzero().squeeze(1)]
