"""Overlay: several events joined into one, as if their particles had been produced together.

Cells that several of the events hit are summed, as the detector would. Energy below the threshold of a cell is in no
file and is lost. The particles of another algorithm (``reference``) are dropped: they belong to the single events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.build import flat_links, make_hits
from pflow.event.cells import sum_hits
from pflow.event.events import LINKED, Events

__all__ = ["ECAL_TOLERANCE", "HCAL_TOLERANCE", "overlay"]

Index = npt.NDArray[np.int64]

ECAL_TOLERANCE = 2.4
"""Largest distance, mm, of hits of two events in the same cell of an electromagnetic calorimeter. Rotated events do not
lie on one grid, so it is just below half a cell, 5 mm in the built-in detectors; at half a cell a hit would share two
cells of another event."""

HCAL_TOLERANCE = 14.0
"""The same, mm, in all other calorimeters: the built-in detectors have cells of 30 mm."""


def overlay(
    events: Events,
    groups: ak.Array | Sequence[Sequence[int]],
    *,
    ecal_tolerance: float = ECAL_TOLERANCE,
    hcal_tolerance: float = HCAL_TOLERANCE,
) -> Events:
    """Join groups of events into one event each.

    Hits, tracks, tracker hits and truth follow one another in the order of the group; indices of links and parents are
    shifted. Hits of different events with the same subdetector, layer and position are one cell: energies are summed,
    the position is the energy-weighted mean, the time the earliest, and the weights of the particles follow their
    energies (and sum to 1 even where some hits have no links). Hits of one event alone are never summed. Entry and
    event number are those of the first event.

    Parameters
    ----------
    events
        Events of one detector; `pflow.event.events.concatenate` joins those of several files.
    groups
        int [group, member]: at least one index of an event in each group; an event may be in several.
    ecal_tolerance, hcal_tolerance
        Largest distance in mm of two hits in the same cell, in electromagnetic and in other calorimeters. Above half
        the distance of neighbouring cells, a hit of another event between two neighbours joins both.

    Returns
    -------
    Events
        One for each group, without ``reference``.

    Raises
    ------
    ConfigError
        An empty group, or a tolerance that is not above 0.
    IndexError
        No such event.
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
    picked = events[order]
    group = jagged.event_index(sizes)
    shift = {name: _shift(part, group) for name, part in picked.parts()}

    values: dict[str, Any] = {"reference": None}
    for name, part in picked.parts():
        columns = jagged.columns(part)
        if name in LINKED:
            shifts, counts = {"source": shift[LINKED[name]], "particle": shift["truth"]}, jagged.count(part)
            moved = {field: columns[field] + np.repeat(shifts[field], counts) for field in shifts}
            part = jagged.replaced(part, {field: values.astype(np.int32) for field, values in moved.items()})
        elif name == "truth":
            parent = columns["parent"]
            parent = np.where(parent < 0, parent, parent + np.repeat(shift["truth"], jagged.count(part)))
            part = jagged.replaced(part, {"parent": parent.astype(np.int32)})
        if name != "reference":
            counts = np.bincount(group, jagged.count(part)).astype(np.int64)
            values[name] = jagged.unflatten(jagged.flat_records(part), counts)
    first = jagged.offsets(sizes)[:-1]
    joined = dataclasses.replace(
        picked,
        **values,
        reference_name="",
        entry=picked.entry[first],
        event=picked.event[first],
        flags=np.bitwise_or.reduceat(picked.flags, first),
    )
    return _with_shared_cells_summed(joined, _cells(picked, group, ecal_tolerance, hcal_tolerance))


def _shift(part: ak.Array, group: Index) -> Index:
    """Number of objects of the group's earlier events, for each picked event."""
    starts = jagged.offsets(jagged.count(part))[:-1]
    _, first = np.unique(group, return_index=True)
    return np.asarray(starts - starts[first][group])


def _cells(picked: Events, group: Index, ecal_tolerance: float, hcal_tolerance: float) -> Index:
    """Number of the cell of each hit in the flat list, in the order of the cells' first hits."""
    event = jagged.event_index(jagged.count(picked.hits))
    flat = jagged.columns(picked.hits)
    label = np.arange(len(event))
    among = np.flatnonzero(np.bincount(group)[group][event] > 1)
    if len(among):
        kinds = [calorimeter.kind for calorimeter in picked.detector.calorimeters]
        tolerances = np.array([ecal_tolerance if kind == "ecal" else hcal_tolerance for kind in kinds])
        subdetector = flat["subdetector"][among]
        layer = flat["layer"][among].astype(np.int64)
        n_layers = int(layer.max()) - int(layer.min()) + 1
        place = (group[event[among]] * len(kinds) + subdetector) * n_layers + layer
        # In units of the tolerance; joined events, subdetectors and layers lie far apart along a fourth axis.
        tolerance = tolerances[subdetector]
        position = [flat[f"position.{axis}"][among].astype(np.float64) / tolerance for axis in "xyz"]
        tree = cKDTree(np.column_stack([*position, 10.0 * place]), balanced_tree=False)  # half the time to build
        pairs = among[tree.query_pairs(1.0, output_type="ndarray")]
        pairs = pairs[event[pairs[:, 0]] != event[pairs[:, 1]]].astype(np.int32)
        links = coo_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(len(event),) * 2)
        _, label = connected_components(links, directed=False)
    _, first, cell = np.unique(label, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[cell], dtype=np.int64)


def _with_shared_cells_summed(events: Events, cell: Index) -> Events:
    if int(cell.max(initial=-1)) + 1 == len(cell):
        return events
    summed = sum_hits(events.hits, cell)
    hits = make_hits(
        energy=summed.energy,
        **{axis: summed.position[axis] for axis in ("x", "y", "z")},
        time=summed.time,
        subdetector=summed.subdetector,
        layer=summed.layer,
    )
    links = events.hit_links
    if links is not None:
        links = _summed_links(events.hits, links, cell, jagged.count(hits))
    return dataclasses.replace(events, hits=hits, hit_links=links)


def _summed_links(hits: ak.Array, links: ak.Array, cell: Index, n_cells: Index) -> ak.Array:
    """Links of cells instead of hits; in a cell of several hits, weights follow the energies."""
    n_links = jagged.count(links)
    hit = jagged.global_index(links.source, jagged.count(hits))
    of_link = cell[hit]
    fraction = jagged.flat(links.weight, np.float64)
    energy = fraction * jagged.flat(hits.energy)[hit]
    total = np.bincount(of_link, energy, minlength=len(cell))[of_link]
    several = np.bincount(cell)[of_link] > 1
    equal = 1.0 / np.bincount(of_link, minlength=len(cell))[of_link]
    weight = np.where(several, np.divide(energy, total, out=equal, where=total > 0), fraction)
    local = of_link - jagged.offsets(n_cells)[jagged.event_index(n_links)]
    return flat_links(n_links, source=local, particle=jagged.flat(links.particle), weight=weight)
