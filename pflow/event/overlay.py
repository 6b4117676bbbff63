"""Overlay: several events joined into one, as if their particles had been produced together.

Cells that several of the events hit are summed, as the detector would. Energy below the threshold of a cell is in no
file and is lost. The particles of another algorithm (``reference``) are dropped: they belong to the single events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.links import Links
from pflow.event.merge_hits import sum_hits
from pflow.event.schema import SCHEMA

Index = npt.NDArray[np.int64]
Values = npt.NDArray[np.floating[Any]]

ECAL_TOLERANCE = 2.4
"""Largest distance, mm, of hits of two events in the same cell of an electromagnetic calorimeter. Rotated events do not
lie on one grid, so it is just below half a cell, 5 mm in the built-in detectors; at half a cell a hit would share two
cells of another event."""

HCAL_TOLERANCE = 14.0
"""The same, mm, in all other calorimeters: the built-in detectors have cells of 30 mm."""

SLAB = 3.0
"""Thickness of the slabs of `_near_others`, in tolerances; above 2, so that at most one of the two grids separates
hits closer than the tolerance."""

MIN_SLAB = 1.0
"""Smallest thickness, mm: numbers of slabs are exact."""

PRIME = 73856093
"""Spreads the numbers of slabs over the buckets of a hash."""


def overlay(
    events: Events,
    groups: ak.Array | Sequence[Sequence[int]],
    *,
    ecal_tolerance: float = ECAL_TOLERANCE,
    hcal_tolerance: float = HCAL_TOLERANCE,
) -> Events:
    """Join groups of events, int [group, member], into one event each, without ``reference``.

    Objects follow one another in the order of the group, and indices are shifted. Hits of different events with the
    same subdetector, layer and position are one cell (`pflow.event.merge_hits.sum_hits`), in which the weights of the
    particles follow their energies and sum to 1. Hits of one event alone are never summed. Entry and event number are
    the first event's. The tolerances are the largest distance in mm of two hits in the same cell, in electromagnetic
    and in other calorimeters; above half the distance of neighbouring cells, a hit between two joins both.
    ConfigError: an empty group, or a tolerance that is not above 0; IndexError: no such event.
    """
    for tolerance in (ecal_tolerance, hcal_tolerance):
        if not 0 < tolerance < np.inf:
            raise ConfigError(f"overlay: a tolerance must be a length in mm above 0, found {tolerance}")
    if len(groups) == 0:
        return dataclasses.replace(events[:0], reference=None, reference_name="")
    groups = ak.Array(groups)
    sizes = jagged.count(groups)
    if not sizes.all():
        raise ConfigError("overlay: a group needs at least one event")
    order = jagged.flat(groups)
    if order.min() < -len(events) or order.max() >= len(events):
        raise IndexError(f"event {order.min() if order.min() < 0 else order.max()} of {len(events)}")
    picked = events if np.array_equal(order, np.arange(len(events))) else events[order]
    group = jagged.event_index(sizes)
    shift = {name: _shift(part, sizes) for name, part in picked.parts()}

    values: dict[str, Any] = {"reference": None}
    for name, part in picked.parts():
        if name == "reference":
            continue
        columns, counts = jagged.columns(part), jagged.count(part)
        for field in SCHEMA[name]:
            if field.points_to in shift:  # an index counts the objects of the whole group
                index = columns[field.name]
                columns[field.name] = np.where(index < 0, index, index + np.repeat(shift[field.points_to], counts))
        values[name] = jagged.records(columns, np.bincount(group, counts).astype(np.int64))
    first = jagged.offsets(sizes)[:-1]
    joined = dataclasses.replace(
        picked,
        **values,
        reference_name="",
        entry=picked.entry[first],
        event=picked.event[first],
        flags=np.bitwise_or.reduceat(picked.flags, first),
    )
    return sum_cells(joined, *_shared_cells(picked, group, ecal_tolerance, hcal_tolerance))


def _shift(part: ak.Array, sizes: Index) -> npt.NDArray[np.int32]:
    """Number of objects of the group's earlier events, for each picked event."""
    starts = jagged.offsets(jagged.count(part))[:-1]
    return (starts - np.repeat(starts[jagged.offsets(sizes)[:-1]], sizes)).astype(np.int32)


def _shared_cells(picked: Events, group: Index, ecal_tolerance: float, hcal_tolerance: float) -> tuple[Index, Index]:
    """Hits in the cells that several events hit, rising, and the first hit of each one's cell; in the flat list."""
    counts = jagged.count(picked.hits)
    flat = jagged.columns(picked.hits)
    kinds = [calorimeter.kind for calorimeter in picked.detector.calorimeters]
    tolerances = np.array([ecal_tolerance if kind == "ecal" else hcal_tolerance for kind in kinds])
    n_layers = int(flat["layer"].max(initial=0)) + 2  # from -1
    layer = flat["subdetector"].astype(np.int32) * n_layers + flat["layer"]
    near = _near_others(flat, tolerances, layer, counts, group)
    if not len(near):
        return near, near
    # In units of the tolerance; joined events, subdetectors and layers lie far apart along a fourth axis.
    event = jagged.event_index(counts)[near]
    place = group[event] * (len(kinds) * n_layers) + layer[near]
    tolerance = tolerances[flat["subdetector"][near]]
    position = [flat[f"position.{axis}"][near] / tolerance for axis in "xyz"]
    tree = cKDTree(np.column_stack([*position, 10.0 * place]), balanced_tree=False)  # built in less time
    pairs = tree.query_pairs(1.0, output_type="ndarray")
    pairs = pairs[event[pairs[:, 0]] != event[pairs[:, 1]]]
    shared, ends = np.unique(pairs, return_inverse=True)
    one, other = ends.reshape(-1, 2).T
    _, cell = connected_components(coo_array((np.ones(len(pairs)), (one, other)), shape=(len(shared), len(shared))))
    _, first = np.unique(cell, return_index=True)
    return near[shared], near[shared[first[cell]]]


def _near_others(
    hits: Mapping[str, npt.NDArray[Any]], tolerances: Values, layer: npt.NDArray[np.int32], counts: Index, group: Index
) -> Index:
    """All hits within the tolerance of a hit of another event in the same layer, and some that are farther away.

    Looks for slabs across x, y and z, one after the other, in which several events of a group hit the same layer. Two
    hits closer than the tolerance share a slab in at least one of two grids shifted by half a slab. The numbers of slab
    and layer are hashed; collisions only keep a few extra hits.
    """
    sizes = np.bincount(group)
    is_joined = (sizes > 1)[group]  # of each event
    near = np.flatnonzero(np.repeat(is_joined, counts))
    slab = np.maximum(SLAB * tolerances, MIN_SLAB).astype(np.float32).take(hits["subdetector"].take(near))
    layer = layer.take(near)
    n_buckets = 2 ** (4 * len(slab) // max(len(sizes), 1)).bit_length()
    bucket = np.repeat(group[is_joined] * n_buckets, counts[is_joined])  # the first one of the group
    number = jagged.local_index(sizes).astype(np.min_scalar_type(sizes.max(initial=0)))  # of an event in its group
    member = np.repeat(number[is_joined], counts[is_joined])
    last = np.empty(n_buckets * len(sizes), dtype=member.dtype)
    for axis in 2 * "xyz":  # fewer hits are left the second time, and fewer collide
        position = hits[f"position.{axis}"].take(near)
        position /= slab
        is_near = np.zeros(len(near), dtype=np.bool_)
        for shift in (0.0, 0.5):
            key = np.floor(position + np.float32(shift)).astype(np.int32)
            key *= PRIME
            key ^= layer
            key ^= key >> 15
            key &= n_buckets - 1
            key = bucket + key
            last[key] = member  # any one of each bucket
            is_shared = np.zeros(len(last), dtype=np.bool_)
            is_shared[key.take(np.flatnonzero(last.take(key) != member))] = True
            is_near |= is_shared.take(key)
        left = np.flatnonzero(is_near)
        near, slab, layer = near.take(left), slab.take(left), layer.take(left)
        bucket, member = bucket.take(left), member.take(left)
    return near


def sum_cells(events: Events, hits: Index, first: Index) -> Events:
    """The events with some `hits` summed into the `first` hit of each one's cell; int64, in the list of all hits."""
    if not len(hits):
        return events
    counts = jagged.count(events.hits)
    event = np.searchsorted(jagged.offsets(counts), hits, side="right") - 1
    is_left = np.ones(int(counts.sum()), dtype=np.bool_)
    is_first = hits == first
    is_left[hits] = is_first
    cell = np.cumsum(is_left) - 1  # of each hit
    cell[hits] = cell[first]
    shared = np.unique(cell[hits])
    n_cells = counts - np.bincount(event[~is_first], minlength=len(counts))

    columns = jagged.columns(events.hits)
    of_shared = {name: values[hits] for name, values in columns.items()}
    sums = sum_hits(of_shared, np.searchsorted(shared, cell[hits]), np.flatnonzero(is_first))
    left = {name: values[is_left] for name, values in columns.items()}  # copies
    for name, values in sums.items():
        left[name][shared] = values
    links = events.hit_links
    if links is not None:
        links = _summed_links(events.hits, links, cell, shared, n_cells)
    return dataclasses.replace(events, hits=jagged.records(left, n_cells), hit_links=links)


def _summed_links(hits: ak.Array, records: ak.Array, cell: Index, shared: Index, n_cells: Index) -> ak.Array:
    """Links of cells instead of hits; in a shared cell, weights follow the energies."""
    links = Links.of(records)
    hit = links.flat_source(jagged.count(hits))
    of_link, weight = cell.take(hit), links.weight.copy()
    is_shared = np.zeros(len(cell), dtype=np.bool_)
    is_shared[shared] = True
    changed = np.flatnonzero(is_shared.take(of_link))
    _, group = np.unique(of_link[changed], return_inverse=True)
    energy = weight[changed].astype(np.float64) * jagged.columns(hits)["energy"][hit[changed]]
    total, equal = np.bincount(group, energy)[group], 1.0 / np.bincount(group)[group]
    weight[changed] = np.divide(energy, total, out=equal, where=total > 0)
    source = of_link - np.repeat(jagged.offsets(n_cells)[:-1], links.counts)
    return dataclasses.replace(links, source=source, weight=weight).records()
