"""Jagged arrays [event, object] as flat lists of all events' objects, and links between objects, for NumPy.

Awkward's functions do the same, but their dispatch takes longer than the work on a chunk of events.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from vector.backends.awkward import MomentumArray4D, MomentumRecord4D
from vector.backends.awkward import behavior as vector_behavior

from pflow.physics.arrays import Floats, Index, Mask

NONE = "objects that are None: choose with hits[...], not with hits.mask[...] or padding"
"""Message for arrays of option types."""


class _Particle:
    """A four-momentum (`vector`) that also stores its mass, which E^2 - p^2 in float32 would lose.

    The field is called ``rest_mass``, because `vector` takes either the energy or the mass as a coordinate.
    """

    @property
    def mass(self) -> Any:
        """The stored mass, GeV; computed from energy and momentum where none is stored, e.g. for a sum."""
        return self["rest_mass"] if {"energy", "rest_mass"} <= set(ak.fields(self)) else super().mass  # type: ignore[index,misc]

    M = m = mass

    @property
    def momentum(self) -> Any:
        """The three-momentum, GeV."""
        if "px" not in ak.fields(self):
            return self.to_Vector3D()  # type: ignore[attr-defined]
        return ak.with_name(self[["px", "py", "pz"]], "Momentum3D")  # type: ignore[index]


class Momentum4DArray(_Particle, MomentumArray4D):  # type: ignore[misc]
    """Particles."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Awkward joins the behaviours of two arrays to a plain dict, whose functions cannot be pickled.
        return super(_Particle, ak.Array(self, behavior=BEHAVIOR)).__reduce_ex__(protocol)


class Momentum4DRecord(_Particle, MomentumRecord4D):  # type: ignore[misc]
    """One particle."""


class _Behavior(dict[Any, Any]):
    """A behaviour that is pickled by its name, because `vector`'s functions cannot be pickled."""

    def __reduce__(self) -> str:
        return "BEHAVIOR"


BEHAVIOR = _Behavior(vector_behavior)
"""Behaviour of our records: vectors, and particles with the names of `vector` (pt, eta, mass, +)."""
BEHAVIOR |= {("*", "Momentum4D"): Momentum4DArray, "Momentum4D": Momentum4DRecord}
ak.behavior.update(BEHAVIOR)  # for arrays from Parquet files, which carry no behaviour


def flat(array: Any, dtype: Any = None) -> npt.NDArray[Any]:
    """Concatenated values of all events, [N], or [N, ...] for regular inner axes; ValueError for a None."""
    (values,) = columns(array if isinstance(array, ak.Array) else ak.Array(array)).values()
    return np.asarray(values, dtype=dtype)


def unflatten(values: ak.Array | npt.NDArray[Any], counts: npt.NDArray[Any]) -> ak.Array:
    """Split a flat list [N] or [N, ...] into [event, object]; ValueError unless the counts sum to N."""
    bounds = offsets(counts)
    if bounds[-1] != len(values):
        raise ValueError(f"{len(values)} values for {bounds[-1]} objects")
    layout = ak.contents.ListOffsetArray(ak.index.Index64(bounds), _layout(values))
    return ak.Array(layout, behavior=values.behavior if isinstance(values, ak.Array) else None)


def columns(array: ak.Array) -> dict[str, npt.NDArray[Any]]:
    """Flat values of each field of records [event, object] or [N], by name; components of vectors as ``position.x``.

    [N] or [N, ...] each; views if the records are contiguous. ValueError for a None.

    >>> columns(ak.Array([[{"a": 1, "b": {"x": 2.0}}], []]))
    {'a': array([1]), 'b.x': array([2.])}
    """
    layout = array.layout
    if array.ndim > 1 and isinstance(layout, ak.contents.ListOffsetArray):
        # The offsets of a slice of events begin where it does in the whole content, not at 0.
        bounds = layout.offsets.data
        leaves = _leaves(layout.content, "", int(bounds[0]), int(bounds[-1]))
    else:
        layout = layout if array.ndim == 1 else ak.flatten(array, axis=1).layout
        leaves = _leaves(layout, "", 0, layout.length)
    return dict(leaves)


def _leaves(content: Any, path: str, start: int, stop: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Path and values of each leaf of records `start` to `stop`; slicing leaves is faster than slicing records."""
    if isinstance(content, ak.contents.NumpyArray):
        yield path, np.asarray(content.data)[start:stop]
    elif content.fields:
        # A selection may be an index over records, whose fields hold all of them: it is copied first.
        if not isinstance(content, ak.contents.RecordArray):
            content = content[start:stop].to_packed()
            if content.is_option:
                raise ValueError(NONE)
            start, stop = 0, content.length
        for name, part in zip(content.fields, content.contents, strict=True):
            yield from _leaves(part, f"{path}.{name}" if path else name, start, stop)
    else:
        values = ak.Array(content[start:stop])
        if ak.any(ak.is_none(values)):
            raise ValueError(NONE)
        yield path, np.asarray(ak.to_numpy(values, allow_missing=False))


def records(columns: Mapping[str, npt.NDArray[Any]], counts: npt.NDArray[Any]) -> ak.Array:
    """Records [event, object] from flat columns by name, [N] or [N, ...] each; the inverse of the function `columns`.

    Components ``v.x, v.y, v.z`` and ``v.px, v.py, v.pz`` become vectors, and records with px, py, pz and energy
    particles; see `BEHAVIOR`. `counts`, int [event]: number of records in each event. ValueError: lengths do not fit.

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
    """The records [event, object] with columns [N] replaced or added.

    >>> replaced(ak.Array([[{"a": 1, "b": {"x": 2}}], []]), {"b.x": np.array([3.5])}).to_list()
    [[{'a': 1, 'b': {'x': 3.5}}], []]
    """
    return records({**columns(array), **changed}, count(array))


def vectors(array: ak.Array, dtype: type[np.floating[Any]] = np.float64, *, field: str = "") -> npt.NDArray[Any]:
    """Components of vectors [event, object] or [N], or faster, of the vectors `field` of records: [N, 3].

    >>> vectors(ak.Array([[{"x": 1, "y": 2, "z": 3}], []]))
    array([[1., 2., 3.]])
    """
    components = [values for name, values in columns(array).items() if name.startswith(field and f"{field}.")]
    return np.stack([np.asarray(values, dtype=dtype) for values in components], axis=-1)


def quantities(particles: ak.Array, names: Iterable[str]) -> dict[str, Floats]:
    """Quantities of four-momenta [event, particle], float64 [particle] each, also where `vector` has pt and eta."""
    known = particles.fields  # they need no computing, which takes a millisecond
    columns = {name: particles[name] if name in known else getattr(particles, name) for name in names}
    return {name: flat(values, np.float64) for name, values in columns.items()}


def momenta(particles: ak.Array) -> Floats:
    """Momenta of four-momenta [event, particle], GeV, float64 [particle, 3]."""
    return np.stack([*quantities(particles, ("px", "py", "pz")).values()], axis=1)


def concatenate(arrays: Sequence[ak.Array | int]) -> ak.Array:
    """Join chunks of events, [event, object] records each; columns that a chunk lacks are dropped.

    An int n stands for n events without objects, which lack no column.

    >>> concatenate([ak.Array([[{"a": 1, "b": 2}]]), 1, ak.Array([[{"a": 3}]])]).to_list()
    [[{'a': 1}], [], [{'a': 3}]]
    """
    counts = [np.zeros(array, dtype=np.int64) if isinstance(array, int) else count(array) for array in arrays]
    chunks = [columns(array) for array in arrays if not isinstance(array, int)]
    names = [name for name in chunks[0] if all(name in chunk for chunk in chunks)]
    return records({name: np.concatenate([chunk[name] for chunk in chunks]) for name in names}, np.concatenate(counts))


def join(columns: Mapping[str, Sequence[ak.Array]]) -> dict[str, ak.Array]:
    """Join several lists of objects within each event, as `ak.concatenate` along the second axis.

    `columns`: for each quantity, its values in each list, [event, object]. ValueError: a quantity's lists have other
    lengths than the first quantity's.

    >>> join({"a": [ak.Array([[1], [2, 3]]), ak.Array([[4], []])]})["a"].to_list()
    [[1, 4], [2, 3]]
    """
    if all(len(arrays) == 1 for arrays in columns.values()):
        return {name: arrays[0] for name, arrays in columns.items()}
    counts = [count(array) for array in next(iter(columns.values()))]
    # Stable, so that within an event the lists, and the objects in each, stay in their order.
    order = np.argsort(np.concatenate([event_index(n) for n in counts]), kind="stable")
    joined = {}
    for name, arrays in columns.items():
        values = np.concatenate([flat(array) for array in arrays])
        if len(values) != len(order):
            raise ValueError(f"{name} has {len(values)} values, expected {len(order)}")
        joined[name] = unflatten(values[order], np.sum(counts, axis=0))
    return joined


def count(array: Any) -> Index:
    """Number of objects of each event, int64 [event]."""
    layout = array.layout if isinstance(array, ak.Array) else None
    if isinstance(layout, ak.contents.ListOffsetArray):
        bounds = np.asarray(layout.offsets.data, dtype=np.int64)
        return bounds[1:] - bounds[:-1]
    numbers = ak.num(array, axis=1)
    if isinstance(numbers, ak.Array) and numbers.layout.is_option:
        raise ValueError("events that are None: choose with events[...], not with a mask or padding")
    return np.asarray(ak.to_numpy(numbers), dtype=np.int64)


def offsets(counts: npt.NDArray[Any]) -> Index:
    """Where each event begins in the flat list, and the number of all objects: [2, 0, 3] gives int64 [0, 2, 2, 5]."""
    bounds = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def event_index(counts: npt.NDArray[Any]) -> Index:
    """Event of each object of the flat list, int64 [N]: counts [2, 0, 3] give [0, 0, 2, 2, 2]."""
    return np.repeat(np.arange(len(counts)), counts)


def total(values: npt.NDArray[Any], bounds: Index) -> Floats:
    """Sum of the values of each event, float64 [event], which lie between neighbouring `bounds`, as of `offsets`.

    >>> total(np.array([1, 2, 3]), np.array([0, 2, 2, 3])).tolist()
    [3.0, 0.0, 3.0]
    """
    sums, some = np.zeros(len(bounds) - 1), np.flatnonzero(np.diff(bounds))
    sums[some] = np.add.reduceat(values, bounds[:-1][some], dtype=np.float64) if len(some) else 0.0
    return sums


MAX_PAIRS = 2**20  # of objects that are compared at once: more leave the cache, then the memory; matching takes 150 MB


def blocks(*bounds: npt.NDArray[Any]) -> Iterator[tuple[slice, ...]]:
    """Where the objects of each event are in flat lists, by the `bounds` of each list, as of `offsets`.

    The first objects of an event come in blocks of at most `MAX_PAIRS` pairs with any others of it.
    """
    slices = ([slice(*pair) for pair in itertools.pairwise(of.tolist())] for of in bounds)
    for first, *others in zip(*slices, strict=True):
        size = max(1, MAX_PAIRS // max(1, *(of.stop - of.start for of in others)))
        for start in range(first.start, first.stop, size):
            yield slice(start, min(start + size, first.stop)), *others


def finite_events(columns: Iterable[npt.NDArray[Any]], counts: Index) -> Mask:
    """Whether all numbers of each event in columns, [N] or [N, ...], are finite, bool [event]."""
    good = np.all([np.isfinite(values).all(axis=tuple(range(1, values.ndim))) for values in columns], axis=0)
    return np.equal(np.bincount(event_index(counts)[~good], minlength=len(counts)), 0)


def local_index(counts: npt.NDArray[Any]) -> Index:
    """Index of each object of the flat list within its event, int64 [N]: counts [2, 0, 3] give [0, 1, 0, 1, 2]."""
    return np.asarray(np.arange(int(np.sum(counts))) - np.repeat(offsets(counts)[:-1], counts))


def _layout(values: ak.Array | npt.NDArray[Any]) -> Any:
    return values.layout if isinstance(values, ak.Array) else ak.contents.NumpyArray(np.ascontiguousarray(values))


MIN_HIT_FRACTION = 0.01  # smaller fractions of a hit or track are not stored as links


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Links:
    """Links of consecutive events; L in all.

    `counts` int64 [event]; `source` and `particle` int [L], indices of the hit or track and of the particle within the
    event; `weight` float [L], the particle's fraction of the source.
    """

    counts: Index
    source: npt.NDArray[np.integer[Any]]
    particle: npt.NDArray[np.integer[Any]]
    weight: npt.NDArray[np.floating[Any]]

    @classmethod
    def of(cls, records: ak.Array | None, n_events: int = 0) -> Links:
        """From records [event, link] such as ``events.hit_links``; for None, `n_events` events without links."""
        if records is None:
            none = np.zeros(0, dtype=np.int64)
            return cls(counts=np.zeros(n_events, dtype=np.int64), source=none, particle=none, weight=np.zeros(0))
        return cls(counts=count(records), **columns(records))

    @classmethod
    def by_event(cls, event: Index, source: Index, particle: Index, weight: Any, n_events: int) -> Links:
        """From columns [L] with the event of each link, in any order; stable within an event."""
        columns = {"source": source, "particle": particle, "weight": weight}
        if (event[1:] < event[:-1]).any():
            order = np.argsort(event, kind="stable")
            columns = {name: values[order] for name, values in columns.items()}
        return cls(counts=np.bincount(event, minlength=n_events), **columns)

    @classmethod
    def join(cls, pieces: Sequence[Links]) -> Links:
        """Join one or more sets of links of the same events."""
        columns = zip(*((piece.event, piece.source, piece.particle, piece.weight) for piece in pieces), strict=True)
        event, source, particle, weight = map(np.concatenate, columns)
        return cls.by_event(event, source, particle, weight, len(pieces[0].counts))

    def __len__(self) -> int:
        """Number of links."""
        return len(self.source)

    def records(self) -> ak.Array:
        """Records [event, link]: source and particle int32, weight float32."""
        types = {"source": np.int32, "particle": np.int32, "weight": np.float32}
        columns = {name: getattr(self, name).astype(dtype, copy=False) for name, dtype in types.items()}
        return records(columns, self.counts)

    @property
    def event(self) -> Index:
        """Event of each link, int64 [L]."""
        return event_index(self.counts)

    def flat_source(self, n_sources: Index) -> Index:
        """Each link's index into the flat list of sources, int64 [L]; `n_sources` int64 [event]."""
        return np.asarray(self.source + np.repeat(offsets(n_sources)[:-1], self.counts))

    def flat_particle(self, n_particles: Index) -> Index:
        """The same for particles."""
        return np.asarray(self.particle + np.repeat(offsets(n_particles)[:-1], self.counts))

    def take(self, rows: npt.NDArray[Any], **changed: npt.NDArray[Any]) -> Links:
        """Links chosen by a mask, or by indices in the order of the events, from these with columns `changed`."""
        columns = {name: getattr(self, name) for name in ("source", "particle", "weight")} | changed
        if rows.dtype == np.bool_:
            # From running sums at the bounds of events, without the event of each link.
            counts = self.counts if rows.all() else np.diff(offsets(rows)[offsets(self.counts)])
        else:
            counts = np.bincount(self.event[rows], minlength=len(self.counts))
        return Links(counts=counts, **{name: values[rows] for name, values in columns.items()})

    def to(self, particle: npt.NDArray[Any], n_particles: Index) -> Links:
        """Renumber the particles: `particle` has the new index of each in the flat list, -1 drops its links."""
        number = particle.take(self.flat_particle(n_particles))
        return self.take(number >= 0, particle=number)

    def kept(self, keep: Mask, n_sources: Index) -> Links:
        """Links of the sources where `keep`, bool [all sources], holds, with new indices."""
        source = self.flat_source(n_sources)
        place = np.cumsum(keep) - 1 - np.repeat(offsets(keep)[offsets(n_sources)[:-1]], n_sources)
        return self.take(keep[source], source=place[source])

    def normalised(self) -> Links:
        """With the weights of each source divided by their sum, float64.

        Weights in files are not comparable between calorimeters (4e-5 to 3.3 in one event), so only fractions are
        kept. A source whose weights sum to 0 has equal weights. A negative weight stays, and makes all others of its
        source NaN, which `Events.validate` reports.
        """
        if not len(self):
            return self
        # Sources from files are not validated yet, and may be negative.
        first = int(self.source.min())
        stride = int(self.source.max()) - first + 1
        group = self.event * stride + (self.source.astype(np.int64) - first)
        if len(self.counts) * stride > 16 * len(self) + 1024:  # else counting the sources is faster than sorting
            _, group = np.unique(group, return_inverse=True)
        weight = np.where(self.weight < 0, np.nan, self.weight).astype(np.float64)
        total = np.bincount(group, weight)[group]
        with np.errstate(divide="ignore", invalid="ignore"):
            fractions = np.where(total == 0, 1.0 / np.bincount(group)[group], weight / total)
        return dataclasses.replace(self, weight=np.where(self.weight < 0, self.weight, fractions))

    def summed(self, ancestor: Index, n_sources: Index, n_particles: Index) -> Links:
        """Links to each particle's ancestor, int64 [all particles], -1 none; weights summed for each pair."""
        particle = ancestor.take(self.flat_particle(n_particles))
        linked = np.flatnonzero(particle >= 0)
        weight = self.weight[linked].astype(np.float64)
        source, particle, weight = sum_by_pair(self.flat_source(n_sources)[linked], particle[linked], weight)
        event = np.searchsorted(offsets(n_sources), source, side="right") - 1
        source, particle = source - offsets(n_sources)[event], particle - offsets(n_particles)[event]
        return Links.by_event(event, source, particle, weight, len(n_sources)).take(weight > 0)


def sum_by_pair(source: Index, particle: Index, weight: Floats) -> tuple[Index, Index, Floats]:
    """Sum the weights [L] of links with the same source and particle; sorted by source, then particle."""
    lowest = int(particle.min(initial=0))
    stride = int(particle.max(initial=0)) - lowest + 1
    pairs, group = np.unique(source * stride + particle - lowest, return_inverse=True)
    return pairs // stride, pairs % stride + lowest, np.bincount(group, weight, len(pairs)).astype(np.float64)


def with_same_source(first: Index, second: Index) -> tuple[Index, Index]:
    """All pairs of a link of one set and a link of another from the same source: the links' indices, int64 [pair] each.

    `first` and `second` hold the source of each link, over all events.
    """
    order = np.argsort(second, kind="stable")
    begin = np.searchsorted(second[order], first, side="left")
    n_partners = np.searchsorted(second[order], first, side="right") - begin
    return event_index(n_partners), order[np.repeat(begin, n_partners) + local_index(n_partners)]


def largest_weight(source: Index, particle: npt.NDArray[Any], weight: npt.NDArray[Any]) -> Index:
    """Index of each source's link with the largest weight, by rising source; ties take the lowest particle."""
    # np.lexsort sorts by its last key first.
    order = np.lexsort((particle, -weight, source))
    _, first = np.unique(source[order], return_index=True)
    return np.asarray(order[first])


def assigned_particle(links: ak.Array, sources: ak.Array) -> ak.Array:
    """Particle with the largest weight for each of `sources`, int32 [event, source]; -1 without a link."""
    flat, n_sources = Links.of(links), count(sources)
    source = flat.flat_source(n_sources)
    assigned = np.full(int(n_sources.sum()), -1, dtype=np.int32)
    assigned[source] = flat.particle
    # Most sources have one link: sorting these would take most of the time.
    several = np.flatnonzero((np.bincount(source) > 1)[source])
    largest = several[largest_weight(source[several], flat.particle[several], flat.weight[several])]
    assigned[source[largest]] = flat.particle[largest]
    return unflatten(assigned, n_sources)
