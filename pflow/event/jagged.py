"""Between jagged arrays [event, object] and the flat list of all events' objects, which NumPy computes on.

Functions of awkward do the same, but their dispatch takes longer than the work on the events of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from vector.backends.awkward import MomentumArray4D, MomentumRecord4D
from vector.backends.awkward import behavior as vector_behavior

Index = npt.NDArray[np.int64]

LONG = 256
"""Mean number of objects of an event from which on copying event by event is faster than picking by indices."""


class _Particle:
    """A four-momentum (`vector`) that also stores its mass: E^2 - p^2 in float32 would lose it.

    The field is called ``rest_mass``, as `vector` takes either energy or mass for a coordinate.
    """

    @property
    def mass(self) -> Any:
        """As stored, GeV; from energy and momentum where these are others, e.g. of a sum."""
        return self["rest_mass"] if {"energy", "rest_mass"} <= set(ak.fields(self)) else super().mass  # type: ignore[index,misc]

    M = m = mass

    @property
    def momentum(self) -> Any:
        """The momentum in space, GeV."""
        if "px" not in ak.fields(self):
            return self.to_Vector3D()  # type: ignore[attr-defined]
        return ak.with_name(self[["px", "py", "pz"]], "Momentum3D")  # type: ignore[index]


class Momentum4DArray(_Particle, MomentumArray4D):  # type: ignore[misc]
    """Particles."""


class Momentum4DRecord(_Particle, MomentumRecord4D):  # type: ignore[misc]
    """One particle."""


class _Behavior(dict[Any, Any]):
    """A behaviour that is pickled and copied by its name, as the functions of `vector` cannot be."""

    def __reduce__(self) -> str:
        return "BEHAVIOR"


BEHAVIOR = _Behavior(vector_behavior)
"""Behaviour of our records: vectors, and particles with the names of `vector` (pt, eta, mass, +)."""
BEHAVIOR |= {("*", "Momentum4D"): Momentum4DArray, "Momentum4D": Momentum4DRecord}
ak.behavior.update(BEHAVIOR)  # for arrays from Parquet files, which carry no behaviour


def flat(array: Any, dtype: Any = None) -> npt.NDArray[Any]:
    """Values of all events one after the other, [N], or [N, ...] for regular inner axes; none may be missing (None)."""
    content = _content(array)
    if isinstance(content, ak.contents.NumpyArray):
        return np.asarray(content.data, dtype=dtype)
    return np.asarray(ak.to_numpy(ak.flatten(array, axis=1), allow_missing=False), dtype=dtype)


def unflatten(values: ak.Array | npt.NDArray[Any], counts: npt.NDArray[Any]) -> ak.Array:
    """A flat list of all events' values, [N] or [N, ...], as [event, object], if the counts add up to N."""
    bounds = offsets(counts)
    if bounds[-1] != len(values):
        raise ValueError(f"{len(values)} values for {bounds[-1]} objects")
    layout = ak.contents.ListOffsetArray(ak.index.Index64(bounds), _layout(values))
    return ak.Array(layout, behavior=values.behavior if isinstance(values, ak.Array) else None)


def columns(array: ak.Array) -> dict[str, npt.NDArray[Any]]:
    """Values of all fields of records [event, object], or of a flat list [N], by name; of vectors as ``position.x``.

    [N] each, or [N, ...]; views where the records lie one after the other. A missing value (None) is a ValueError.

    >>> columns(ak.Array([[{"a": 1, "b": {"x": 2.0}}], []]))
    {'a': array([1]), 'b.x': array([2.])}
    """
    layout = array.layout
    if array.ndim > 1 and isinstance(layout, ak.contents.ListOffsetArray):
        bounds = layout.offsets.data
        leaves = _leaves(layout.content, "", int(bounds[0]), int(bounds[-1]))
    else:
        layout = layout if array.ndim == 1 else flat_records(array).layout
        leaves = _leaves(layout, "", 0, layout.length)
    return dict(leaves)


def _leaves(content: Any, path: str, start: int, stop: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Path and values of each leaf of some of the records; NumPy cuts the leaves, in less time than awkward records."""
    if isinstance(content, ak.contents.NumpyArray):
        yield path, np.asarray(content.data)[start:stop]
    elif content.fields:
        if not isinstance(content, ak.contents.RecordArray):
            content = content[start:stop].to_packed()
            start, stop = 0, content.length
        for name, part in zip(content.fields, content.contents, strict=True):
            yield from _leaves(part, f"{path}.{name}" if path else name, start, stop)
    else:
        yield path, np.asarray(ak.to_numpy(ak.Array(content[start:stop]), allow_missing=False))


def records(columns: Mapping[str, npt.NDArray[Any]], counts: npt.NDArray[Any]) -> ak.Array:
    """Records [event, object] from flat columns by name; the inverse of the function `columns`.

    Components ``v.x, v.y, v.z`` and ``v.px, v.py, v.pz`` become vectors, and records with px, py, pz and energy
    particles; see `BEHAVIOR`.

    Columns are [N] each, or [N, ...]; `counts`, int [event], is the number of records of each event. Lengths that do
    not fit are a ValueError.

    >>> records({"a": np.array([1]), "b.x": np.array([2.0])}, np.array([1, 0])).to_list()
    [[{'a': 1, 'b': {'x': 2.0}}], []]
    """
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns {', '.join(columns)} are of different lengths: {sorted(lengths)}")
    return unflatten(ak.Array(_record(columns), behavior=BEHAVIOR), counts)


def _record(columns: Mapping[str, npt.NDArray[Any]]) -> Any:
    parts: dict[str, Any] = {}
    for path, values in columns.items():
        name, _, inner = path.partition(".")
        if inner:
            parts.setdefault(name, {})[inner] = values
        else:
            parts[name] = _layout(values)
    names = set(parts)
    kind = "Vector3D" if names == {"x", "y", "z"} else "Momentum3D" if names == {"px", "py", "pz"} else None
    kind = "Momentum4D" if names >= {"px", "py", "pz", "energy"} else kind
    return ak.contents.RecordArray(
        [_record(part) if isinstance(part, dict) else part for part in parts.values()],
        list(parts),
        parameters=kind and {"__record__": kind},
    )


def replaced(array: ak.Array, changed: Mapping[str, npt.NDArray[Any]]) -> ak.Array:
    """The same records [event, object] with other values of some columns, or with further ones; [N] each.

    >>> replaced(ak.Array([[{"a": 1, "b": {"x": 2}}], []]), {"b.x": np.array([3.5])}).to_list()
    [[{'a': 1, 'b': {'x': 3.5}}], []]
    """
    return records({**columns(array), **changed}, count(array))


def flat_records(array: ak.Array) -> ak.Array:
    """Records of all events one after the other, [N]."""
    content = _content(array)
    return ak.flatten(array, axis=1) if content is None else ak.Array(content, behavior=array.behavior)


def vectors(array: ak.Array, dtype: type[np.floating[Any]] = np.float64) -> npt.NDArray[Any]:
    """Components of vectors [event, object], or of a flat list of vectors [N], in the order of their fields: [N, 3].

    >>> vectors(ak.Array([[{"x": 1, "y": 2, "z": 3}], []]))
    array([[1., 2., 3.]])
    """
    return np.stack([np.asarray(values, dtype=dtype) for values in columns(array).values()], axis=-1)


def take(array: ak.Array, events: slice | npt.NDArray[np.integer[Any]]) -> ak.Array:
    """Some of the events [event, object], int [n] from 0 in any order, objects copied; a slice is a view."""
    if isinstance(events, slice):
        return array[events]
    counts = count(array)
    taken, begin = counts[events], offsets(counts)[events]
    bounds = offsets(taken)
    if bounds[-1] > LONG * len(taken):
        slices = list(map(slice, begin.tolist(), (begin + taken).tolist()))

        def chosen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.concatenate([values[objects] for objects in slices])
    else:
        index = np.arange(int(bounds[-1])) + np.repeat(begin - bounds[:-1], taken)

        def chosen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.asarray(values.take(index, axis=0))  # needs three quarters of the time of brackets

    if not array.fields:
        return unflatten(chosen(flat(array)), taken)
    return records({name: chosen(values) for name, values in columns(array).items()}, taken)


def concatenate(arrays: Sequence[ak.Array | int]) -> ak.Array:
    """Records of several chunks of events, one chunk after the other; columns that not all chunks have are dropped.

    A number stands for so many events without objects, which have every column.

    >>> concatenate([ak.Array([[{"a": 1, "b": 2}]]), 1, ak.Array([[{"a": 3}]])]).to_list()
    [[{'a': 1}], [], [{'a': 3}]]
    """
    counts = [np.zeros(array, dtype=np.int64) if isinstance(array, int) else count(array) for array in arrays]
    found = [columns(array) for array in arrays if not isinstance(array, int)]
    names = [name for name in found[0] if all(name in one for one in found)]
    return records({name: np.concatenate([one[name] for one in found]) for name in names}, np.concatenate(counts))


def join(columns: Mapping[str, Sequence[ak.Array]]) -> dict[str, ak.Array]:
    """In each event, the objects of several lists one after the other, as `ak.concatenate` along the second axis.

    `columns` are the numbers of each quantity in each of the same one or more lists, [event, object]. Lists of other
    lengths than the first quantity's are a ValueError.

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
    """Indices [event, n] into each event's objects, `counts` of each, as indices into the flat list, int64 [N].

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
    start, stop = int(layout.offsets.data[0]), int(layout.offsets.data[-1])
    return layout.content if (start, stop) == (0, layout.content.length) else layout.content[start:stop]
