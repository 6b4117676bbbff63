"""Between jagged arrays [event, object] and the flat list of all events' objects, which NumPy computes on.

Used as ``jagged.flat(hits.energy)``. The way back is ``jagged.unflatten(values, counts)``. Both do what functions of
awkward do, without their dispatch, which takes longer than the work on the events of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from vector.backends.awkward import behavior as vector_behavior

__all__ = [
    "columns",
    "count",
    "emptied",
    "event_index",
    "extended",
    "flat",
    "flat_records",
    "global_index",
    "join",
    "local_index",
    "offsets",
    "picked",
    "records",
    "replaced",
    "take",
    "unflatten",
    "vectors",
]

Index = npt.NDArray[np.int64]
Choice = Index | npt.NDArray[np.bool_] | list[slice]
"""Which of the objects of all events: their indices, a mask, or slices one after the other."""

LONG = 256
"""Mean number of objects of an event from which on copying event by event is faster than picking by indices."""


def flat(array: Any, dtype: Any = None) -> npt.NDArray[Any]:
    """Values of all events one after the other, [N], or [N, ...] for regular inner axes.

    Raises
    ------
    ValueError
        A value is missing (None).
    """
    content = _content(array)
    if isinstance(content, ak.contents.NumpyArray):
        return np.asarray(content.data, dtype=dtype)
    return np.asarray(ak.to_numpy(ak.flatten(array, axis=1), allow_missing=False), dtype=dtype)


def columns(array: ak.Array) -> dict[str, npt.NDArray[Any]]:
    """Values of all fields of records, one after the other, by name; those of vectors as ``position.x``.

    Parameters
    ----------
    array
        Records [event, object], or a flat list of records [N].

    Returns
    -------
    dict
        [N] each, or [N, ...]; views where the records lie one after the other.

    Raises
    ------
    ValueError
        A value is missing (None).

    >>> columns(ak.Array([[{"a": 1, "b": {"x": 2.0}}], []]))
    {'a': array([1]), 'b.x': array([2.])}
    """
    layout = array.layout
    if array.ndim == 1:
        leaves = _leaves(layout, (), 0, layout.length)
    elif isinstance(layout, ak.contents.ListOffsetArray):
        bounds = layout.offsets.data
        leaves = _leaves(layout.content, (), int(bounds[0]), int(bounds[-1]))
    else:
        layout = flat_records(array).layout
        leaves = _leaves(layout, (), 0, layout.length)
    return {".".join(path): values for path, values in leaves}


def _leaves(
    content: Any, path: tuple[str, ...], start: int, stop: int
) -> Iterator[tuple[tuple[str, ...], npt.NDArray[Any]]]:
    """Path and values of each leaf of some of the records; NumPy cuts the leaves, in less time than awkward records."""
    if isinstance(content, ak.contents.NumpyArray):
        yield path, np.asarray(content.data)[start:stop]
    elif content.fields:
        if not isinstance(content, ak.contents.RecordArray):
            content = content[start:stop].to_packed()
            start, stop = 0, content.length
        for name, part in zip(content.fields, content.contents, strict=True):
            yield from _leaves(part, (*path, name), start, stop)
    else:
        yield path, np.asarray(ak.to_numpy(ak.Array(content[start:stop]), allow_missing=False))


def replaced(array: ak.Array, columns: Mapping[str, npt.NDArray[Any]]) -> ak.Array:
    """The same records with other values of some fields.

    Parameters
    ----------
    array
        Records [event, object].
    columns
        Values by name, as of the function `columns`; [N] each, one after the other.

    >>> replaced(ak.Array([[{"a": 1, "b": {"x": 2}}], []]), {"b.x": np.array([3.5])}).to_list()
    [[{'a': 1, 'b': {'x': 3.5}}], []]
    """
    content = _content(array)
    content = flat_records(array).layout if content is None else content
    layout = ak.contents.ListOffsetArray(ak.index.Index64(offsets(count(array))), _with(content, columns, ""))
    return ak.Array(layout, behavior=array.behavior)


def _with(content: Any, columns: Mapping[str, npt.NDArray[Any]], prefix: str) -> Any:
    """A layout of records with other values of some fields, by their names with the prefix."""
    content = content.to_packed() if not isinstance(content, ak.contents.RecordArray) else content
    parts = []
    for field, part in zip(content.fields, content.contents, strict=True):
        name = prefix + field
        part = _cut(part, 0, content.length)
        if name in columns:
            part = _layout(columns[name])
        elif any(other.startswith(f"{name}.") for other in columns):
            part = _with(part, columns, f"{name}.")
        parts.append(part)
    return ak.contents.RecordArray(parts, content.fields, content.length, parameters=content.parameters)


def flat_records(array: ak.Array) -> ak.Array:
    """Records of all events one after the other, [N]."""
    content = _content(array)
    return ak.flatten(array, axis=1) if content is None else ak.Array(content, behavior=array.behavior)


def vectors(array: ak.Array, dtype: type[np.floating[Any]] = np.float64) -> npt.NDArray[Any]:
    """Components of vectors [event, object], or of a flat list of vectors [N], in the order of their fields: [N, 3].

    Raises
    ------
    ValueError
        A value is missing (None).

    >>> vectors(ak.Array([[{"x": 1, "y": 2, "z": 3}], []]))
    array([[1., 2., 3.]])
    """
    content = _content(array) if array.ndim > 1 else array.layout
    if isinstance(content, ak.contents.RecordArray):
        parts = [part[: content.length] for part in content.contents]
        if all(isinstance(part, ak.contents.NumpyArray) for part in parts):
            return np.stack([np.asarray(part.data, dtype=dtype) for part in parts], axis=-1)
    flat = ak.flatten(array, axis=1) if array.ndim > 1 else array
    return np.stack([np.asarray(flat[field], dtype=dtype) for field in ak.fields(flat)], axis=-1)


def records(
    columns: Mapping[str, ak.Array | npt.NDArray[Any]],
    counts: npt.NDArray[Any] | None = None,
    *,
    name: str | None = None,
) -> ak.Array:
    """Records from flat columns of equal length, with the behaviour of `vector`.

    Parameters
    ----------
    columns
        [N] each, or [N, ...].
    counts
        int [event]: number of records of each event, for records [event, object]; None: a flat list [N].
    name
        Of the kind of vector that the records are.

    Raises
    ------
    ValueError
        Columns of different lengths, or of another one than `counts` add up to.
    """
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns {', '.join(columns)} are of different lengths: {sorted(lengths)}")
    layout = ak.contents.RecordArray(
        [_layout(values) for values in columns.values()],
        list(columns),
        parameters=None if name is None else {"__record__": name},
    )
    flat = ak.Array(layout, behavior=vector_behavior)
    return flat if counts is None else unflatten(flat, counts)


def unflatten(values: ak.Array | npt.NDArray[Any], counts: npt.NDArray[Any]) -> ak.Array:
    """A flat list of all events' values, [N] or [N, ...], as [event, object].

    Raises
    ------
    ValueError
        The counts do not add up to the number of values.
    """
    bounds = offsets(counts)
    if bounds[-1] != len(values):
        raise ValueError(f"{len(values)} values for {bounds[-1]} objects")
    layout = ak.contents.ListOffsetArray(ak.index.Index64(bounds), _layout(values))
    return ak.Array(layout, behavior=values.behavior if isinstance(values, ak.Array) else None)


def take(array: ak.Array, events: npt.NDArray[np.integer[Any]]) -> ak.Array:
    """Some of the events in another order, as ``array[events]``, whose objects lie one after the other.

    Parameters
    ----------
    array
        [event, object].
    events
        int [n], from 0; an event may be there more than once.
    """
    content = _content(array)
    if content is None:
        return array[events]
    counts = count(array)
    taken = counts[events]
    begin, bounds = offsets(counts)[events], offsets(taken)
    chosen: Choice
    if bounds[-1] > LONG * len(taken):
        chosen = list(map(slice, begin.tolist(), (begin + taken).tolist()))
    else:
        chosen = np.arange(int(bounds[-1]))
        chosen += np.repeat(begin - bounds[:-1], taken)
    return ak.Array(
        ak.contents.ListOffsetArray(ak.index.Index64(bounds), _carried(content, chosen, int(bounds[-1]))),
        behavior=array.behavior,
    )


def picked(records: ak.Array, index: Index | npt.NDArray[np.bool_]) -> ak.Array:
    """Some of a flat list of records, [N], in the order of their indices, int64 [n], or by a mask, bool [N].

    A mask is faster than indices where it keeps nearly all.
    """
    n = int(np.count_nonzero(index)) if index.dtype == np.bool_ else len(index)
    return ak.Array(_carried(records.layout, index, n), behavior=records.behavior)


def extended(records: ak.Array, columns: Mapping[str, npt.NDArray[Any]]) -> ak.Array:
    """A flat list of records, [N], with further fields, [N] each.

    >>> extended(ak.Array([{"a": 1}, {"a": 2}]), {"b": np.array([3, 4])}).to_list()
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]
    """
    content = records.layout
    content = content if isinstance(content, ak.contents.RecordArray) else content.to_packed()
    layout = ak.contents.RecordArray(
        [*content.contents, *map(_layout, columns.values())],
        [*content.fields, *columns],
        content.length,
        parameters=content.parameters,
    )
    return ak.Array(layout, behavior=records.behavior)


def join(columns: Mapping[str, Sequence[ak.Array]]) -> dict[str, ak.Array]:
    """In each event, the objects of several lists one after the other, as `ak.concatenate` along the second axis.

    Parameters
    ----------
    columns
        For each quantity, its numbers in each of the same one or more lists, [event, object] each.

    Raises
    ------
    ValueError
        The lists of a quantity have other lengths than those of the first one.

    >>> join({"a": [ak.Array([[1], [2, 3]]), ak.Array([[4], []])]})["a"].to_list()
    [[1, 4], [2, 3]]
    """
    if all(len(arrays) == 1 for arrays in columns.values()):
        return {name: arrays[0] for name, arrays in columns.items()}
    counts = np.stack([count(array) for array in next(iter(columns.values()))])  # [list, event]
    total = counts.sum(axis=0)
    first = offsets(total)[:-1] + np.cumsum(counts, axis=0) - counts  # [list, event]
    place = np.concatenate([np.repeat(begin - offsets(n)[:-1], n) for begin, n in zip(first, counts, strict=True)])
    place += np.concatenate([np.arange(n) for n in counts.sum(axis=1)])
    joined = {}
    for name, arrays in columns.items():
        values = np.concatenate([flat(array) for array in arrays])
        if len(values) != len(place):
            raise ValueError(f"{name} has {len(values)} values, expected {len(place)}")
        ordered = np.empty_like(values)
        ordered[place] = values
        joined[name] = unflatten(ordered, total)
    return joined


def count(array: Any) -> Index:
    """Number of objects of each event, int64 [event]."""
    layout = array.layout if isinstance(array, ak.Array) else None
    if isinstance(layout, ak.contents.ListOffsetArray):
        bounds = np.asarray(layout.offsets.data, dtype=np.int64)
        return bounds[1:] - bounds[:-1]
    return np.asarray(ak.to_numpy(ak.num(array, axis=1)), dtype=np.int64)


def emptied(array: ak.Array, bad: npt.NDArray[np.bool_]) -> ak.Array:
    """The same array [event, object] without the objects of the events where `bad`, bool [event], holds.

    >>> emptied(ak.Array([[1, 2], [3]]), np.array([True, False])).tolist()
    [[], [3]]
    """
    counts = count(array)
    return unflatten(flat_records(array)[np.repeat(~bad, counts)], np.where(bad, 0, counts))


def offsets(counts: npt.NDArray[Any]) -> Index:
    """Where each event's objects begin in the flat list, int64 [event + 1]; the last is the number of all objects.

    >>> offsets(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    bounds = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


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


def _layout(values: ak.Array | npt.NDArray[Any]) -> Any:
    return values.layout if isinstance(values, ak.Array) else ak.contents.NumpyArray(np.ascontiguousarray(values))


def _content(array: Any) -> Any:
    """Layout of the objects of all events, where they lie one after the other; else None."""
    layout = array.layout if isinstance(array, ak.Array) else None
    if not isinstance(layout, ak.contents.ListOffsetArray):
        return None
    bounds = layout.offsets.data
    return _cut(layout.content, int(bounds[0]), int(bounds[-1]))


def _cut(content: Any, start: int, stop: int) -> Any:
    """Part of a layout, the layout itself where that is all of it."""
    if start == 0 and stop == content.length:
        return content
    return content[start:stop]


def _carried(content: Any, chosen: Choice, n: int) -> Any:
    """Layout of `n` of the objects of another, in this order."""
    if isinstance(content, ak.contents.NumpyArray):
        return ak.contents.NumpyArray(_chosen(content.data, chosen), parameters=content.parameters)
    if isinstance(content, ak.contents.RecordArray):
        parts = [_carried(_cut(part, 0, content.length), chosen, n) for part in content.contents]
        return ak.contents.RecordArray(parts, content.fields, n, parameters=content.parameters)
    return content[_chosen(np.arange(content.length), chosen)]


def _chosen(values: npt.NDArray[Any], chosen: Choice) -> npt.NDArray[Any]:
    """Some of the values of all objects, [N] or [N, ...]."""
    if isinstance(chosen, list):
        return np.concatenate([values[objects] for objects in chosen])
    if chosen.dtype == np.bool_:
        return values[chosen]
    return values.take(chosen, axis=0)  # needs three quarters of the time of brackets
