"""Between jagged arrays [event, object] and the flat list of all events' objects, which NumPy computes on.

Used as ``jagged.flat(hits.energy)``. The way back is ``ak.unflatten(values, counts)``.
"""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

__all__ = ["count", "event_index", "flat", "global_index", "local_index", "offsets", "vectors"]

Index = npt.NDArray[np.int64]


def flat(array: Any, dtype: Any = None) -> npt.NDArray[Any]:
    """Values of all events one after the other, [N], or [N, ...] for regular inner axes.

    Raises
    ------
    ValueError
        A value is missing (None).
    """
    return np.asarray(ak.to_numpy(ak.flatten(array, axis=1), allow_missing=False), dtype=dtype)


def vectors(array: ak.Array, dtype: type[np.floating[Any]] = np.float64) -> npt.NDArray[Any]:
    """Components of vectors [event, object], or of a flat list of vectors [N], in the order of their fields: [N, 3].

    Raises
    ------
    ValueError
        A value is missing (None).

    >>> vectors(ak.Array([[{"x": 1, "y": 2, "z": 3}], []]))
    array([[1., 2., 3.]])
    """
    flat = ak.flatten(array, axis=1) if array.ndim > 1 else array
    return np.stack([np.asarray(flat[field], dtype=dtype) for field in ak.fields(flat)], axis=-1)


def count(array: Any) -> Index:
    """Number of objects of each event, int64 [event]."""
    return np.asarray(ak.to_numpy(ak.num(array, axis=1)), dtype=np.int64)


def offsets(counts: npt.NDArray[Any]) -> Index:
    """Where each event's objects begin in the flat list, int64 [event + 1]; the last is the number of all objects.

    >>> offsets(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def event_index(counts: npt.NDArray[Any]) -> Index:
    """Event of each object of the flat list, int64 [N].

    >>> event_index(np.array([2, 0, 3])).tolist()
    [0, 0, 2, 2, 2]
    """
    return np.repeat(np.arange(len(counts)), counts)


def local_index(counts: npt.NDArray[Any]) -> Index:
    """Index of each object of the flat list within its event, int64 [N].

    >>> local_index(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.asarray(np.arange(int(np.sum(counts))) - np.repeat(offsets(counts)[:-1], counts))


def global_index(index: Any, counts: npt.NDArray[Any]) -> Index:
    """Indices into each event's objects as indices into the flat list, int64 [N].

    Parameters
    ----------
    index
        int [event, n], e.g. the ``source`` of links; no negative ones.
    counts
        int [event]: number of objects that they point into, e.g. of hits.

    >>> global_index(ak.Array([[1, 0], [], [2]]), np.array([2, 0, 3])).tolist()
    [1, 0, 4]
    """
    return np.asarray(flat(index, np.int64) + np.repeat(offsets(counts)[:-1], count(index)))
