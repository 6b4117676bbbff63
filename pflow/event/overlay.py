"""Overlay: join several events into one, as if their particles had been produced together.

Cells hit in several of the events are summed, as a detector does. Energy below a cell's threshold in a single event is
missing in the file and in the sum. The particles of another algorithm (``reference``) belong to the single events and
are dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import awkward as ak
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import Links
from pflow.event.merge_hits import sum_hits
from pflow.event.schema import SCHEMA
from pflow.physics.arrays import Index

ECAL_TOLERANCE = 2.4
"""Largest distance, mm, of hits of two events in the same cell of an electromagnetic calorimeter. Rotated events do not
lie on one grid, so it is just below half a cell of 5 mm (built-in detectors): above, a hit could share two cells of
another event."""

HCAL_TOLERANCE = 14.0  # the same, mm, for all other calorimeters; the built-in detectors have cells of 30 mm


def overlay(events: Events, sizes: Sequence[int] | Index) -> Events:
    """Join groups of consecutive events, int `sizes` [group], into one event each, without ``reference``.

    Objects are concatenated in the order of the events, and indices are shifted. Hits of different events with the
    same subdetector, layer and position are one cell (`pflow.event.merge_hits.sum_hits`), in which the weights of the
    particles are proportional to their energies and sum to 1. Hits of the same event are never summed. Entry and event
    number are the first event's. ConfigError: an empty group, or sizes that do not sum to the number of events.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    if (sizes < 1).any() or sizes.sum() != len(events):
        raise ConfigError(f"overlay: sizes of groups must be at least 1 and sum to the number of events, {len(events)}")
    members = dataclasses.replace(events, reference=None, reference_name="")
    group, first = jagged.event_index(sizes), jagged.offsets(sizes)[:-1]
    # Number of objects in the earlier events of the group, [member].
    starts = {name: jagged.offsets(jagged.count(part))[:-1] for name, part in members.parts()}
    shift = {name: (start - start[first][group]).astype(np.int32) for name, start in starts.items()}

    values: dict[str, Any] = {}
    for name, part in members.parts():
        columns, counts = jagged.columns(part), jagged.count(part)
        for field in SCHEMA[name]:
            if field.points_to in shift:  # an index counts the objects of the whole group
                index = columns[field.name]
                columns[field.name] = np.where(index < 0, index, index + np.repeat(shift[field.points_to], counts))
        values[name] = jagged.records(columns, np.bincount(group, counts).astype(np.int64))
    flags = np.bitwise_or.reduceat(members.flags, first)
    values |= {"entry": members.entry[first], "event": members.event[first], "flags": flags}
    return sum_cells(dataclasses.replace(members, **values), *_shared_cells(members, group))


def _shared_cells(members: Events, group: Index) -> tuple[Index, Index]:
    """Indices of the hits in cells that several events hit, rising, and of the first hit in each one's cell."""
    counts = jagged.count(members.hits)
    flat = jagged.columns(members.hits)
    kinds = [calorimeter.kind for calorimeter in members.detector.calorimeters]
    tolerances = np.array([ECAL_TOLERANCE if kind == "ecal" else HCAL_TOLERANCE for kind in kinds])
    n_layers = int(flat["layer"].max(initial=0)) + 2  # from -1
    layer = flat["subdetector"].astype(np.int32) * n_layers + flat["layer"]
    near = np.flatnonzero(np.repeat((np.bincount(group) > 1)[group], counts))  # of joined events
    if not len(near):
        return near, near
    # In units of the tolerance; a fourth axis keeps joined events, subdetectors and layers far apart.
    event = jagged.event_index(counts)[near]
    place = group[event] * (len(kinds) * n_layers) + layer[near]
    tolerance = tolerances[flat["subdetector"][near]]
    position = [flat[f"position.{axis}"][near] / tolerance for axis in "xyz"]
    tree = cKDTree(np.column_stack([*position, 10.0 * place]), balanced_tree=False)  # an unbalanced one builds faster
    pairs = tree.query_pairs(1.0, output_type="ndarray")
    pairs = pairs[event[pairs[:, 0]] != event[pairs[:, 1]]]
    shared, ends = np.unique(pairs, return_inverse=True)
    graph = coo_array((np.ones(len(pairs)), tuple(ends.reshape(-1, 2).T)), shape=(len(shared), len(shared)))
    _, cell = connected_components(graph)
    _, first = np.unique(cell, return_index=True)
    return near[shared], near[shared[first[cell]]]


def sum_cells(events: Events, hits: Index, first: Index) -> Events:
    """The events with each of `hits` summed into the `first` hit of its cell; indices of all events' hits, int64."""
    if not len(hits):
        return events
    counts = jagged.count(events.hits)
    event = np.searchsorted(jagged.offsets(counts), hits, side="right") - 1
    is_cell = np.ones(int(counts.sum()), dtype=np.bool_)  # False for hits that are summed into another
    is_first = hits == first
    is_cell[hits] = is_first
    cell = np.cumsum(is_cell) - 1  # of each hit
    cell[hits] = cell[first]
    shared, group = np.unique(cell[hits], return_inverse=True)
    n_cells = counts - np.bincount(event[~is_first], minlength=len(counts))

    columns = jagged.columns(events.hits)
    summed = {name: values[hits] for name, values in columns.items()}
    sums = sum_hits(summed, group, np.flatnonzero(is_first))
    cells = {name: values[is_cell] for name, values in columns.items()}  # copies
    for name, values in sums.items():
        cells[name][shared] = values
    links = events.hit_links
    if links is not None:
        links = _summed_links(events.hits, links, cell, shared, n_cells)
    return dataclasses.replace(events, hits=jagged.records(cells, n_cells), hit_links=links)


def _summed_links(hits: ak.Array, records: ak.Array, cell: Index, shared: Index, n_cells: Index) -> ak.Array:
    """Links of cells instead of hits; weights in a shared cell are proportional to the energies."""
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
