"""Sums of hits: several cells merged into a coarser one, and events overlaid as if their particles came together.

Cells are merged before the encoder, whose attention costs the square of their number. A coarse cell is a group of
layers of one subdetector, cut by a grid in the surface: in a barrel in phi and z, elsewhere (endcaps, rings) in x and
y. The grid is fixed in the detector, so that the merging of a hit depends neither on the order of the hits nor on the
rest of the event. Energy and energy-weighted barycentre are kept exactly (float64).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from pflow.errors import ConfigError, check_options
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import Links
from pflow.event.schema import MAX_LAYER, SCHEMA, fields_of
from pflow.physics.arrays import (
    Floats,
    Index,
    Mask,
    constant,
    double,
    groups_of,
    integer,
    lowest_of,
    namespace,
    sums_of,
)
from pflow.physics.detector import Detector

DEPTH_BITS, PLACE_BITS = 12, 23
"""Bits of a cell's depth and of each of its two places in one integer, see `equal_cells`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Merge:
    """Size of the coarse cells; ConfigError: a value out of range.

    Parameters
    ----------
    ecal_mm, hcal_mm
        Size of a coarse cell in the surface, mm, in electromagnetic and hadronic calorimeters; in a barrel, whose cells
        span the same phi in all layers, at the inner radius. Hits of other kinds (muon systems, luminosity
        calorimeters) are not merged.
    layers
        Layers summed together, from the first. Where the layer is unknown (-1), the depth takes its place: the distance
        from the axis in a barrel and from the plane z = 0 elsewhere, in steps of the cell's size.
    depth
        Depth that is summed together instead of layers, in the measure of `pflow.physics.geometry.Depths.of_kinds`:
        radiation lengths in an electromagnetic calorimeter, tenths of an interaction length in others. 0: layers.
    ecal_sizes
        Values of `ecal_mm`, mm, that a training draws from for each chunk, each as often as it is named. The
        model then works with any size between the smallest and the largest; it needs the hit feature ``token_size``.
    """

    ecal_mm: float
    hcal_mm: float
    layers: int = 1
    depth: float = 0.0
    ecal_sizes: Sequence[float] = ()

    def __post_init__(self) -> None:
        check_options(self, "merge", "a length in mm above 0", lambda size: 0 < size < np.inf, "ecal_mm", "hcal_mm")
        whole = f"a whole number from 1 to {MAX_LAYER}"
        check_options(self, "merge", whole, lambda n: type(n) is int and 1 <= n <= MAX_LAYER, "layers")
        check_options(self, "merge", "at least 0", lambda depth: 0 <= depth < np.inf, "depth")
        object.__setattr__(self, "ecal_sizes", tuple(self.ecal_sizes))
        lengths = "lengths in mm above 0"
        check_options(self, "merge", lengths, lambda sizes: all(0 < size < np.inf for size in sizes), "ecal_sizes")


def merge_hits(events: Events, merge: Merge, *, depth: Floats | None = None) -> tuple[ak.Array, ak.Array]:
    """Sum the hits of each event that lie in the same coarse cell, in the order of subdetector and place.

    Returns records [event, coarse cell], and the coarse cell of each original hit, int64 [event, hit]. Total energy and
    energy-weighted mean position are the event's. `depth` float64 [all hits]: needed where the cells are cut in depth
    and not in layers; else a ConfigError.
    """
    if merge.depth and depth is None:
        remedy = "pflow.tokens.tokens.select gives the tokens of a model"
        raise ConfigError(f"merge.depth cuts cells by the depth of hits, which is not given; {remedy}")
    counts = jagged.count(events.hits)
    event = jagged.event_index(counts)
    cells = cells_of(jagged.columns(events.hits), Grid.of(events.detector, merge), depth)
    group, first_hit = equal_rows(event, *cells)
    n_cells = np.bincount(event[first_hit], minlength=len(counts))
    cell_of = group - np.repeat(jagged.offsets(n_cells)[:-1], counts)
    sums = sum_hits(jagged.columns(events.hits), group, first_hit)
    return jagged.records(sums, n_cells), jagged.unflatten(cell_of, counts)


def sum_hits(columns: Mapping[str, Any], group: Any, first: Any) -> dict[str, Any]:
    """Columns of the sums of hits by group, as the schema says: energy [GeV], position [mm], time [ns] in float64.

    The position is the plain mean where all energies are 0, the time the earliest known one. Of N hits with `columns`
    as of ``events.hits``, arrays or tensors: `group` int [N], from 0 without gaps; `first` int64 [group], index of the
    first hit of each.
    """
    energy = double(columns["energy"])
    xp, total = namespace(energy), sums_of(energy, group, first)
    weight = xp.where(total[group] > 0, energy, 1.0)
    norm = sums_of(weight, group, first)
    sums: dict[str, Any] = {}
    for name, field in fields_of("hits").items():
        if field.merge == "sum":
            sums[name] = sums_of(columns[name], group, first)
        elif field.merge == "mean":
            sums[name] = sums_of(weight * columns[name], group, first) / norm
        elif field.merge == "first":
            sums[name] = columns[name][first]
        elif name in columns:  # the time, which a graph may lack
            lowest = lowest_of(columns[name], group, first)
            sums[name] = integer(lowest) if field.dtype.startswith("int") else lowest
    return sums


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """The coarse cells of each subdetector of a detector, [subdetector] each."""

    size: Floats  # of a cell, mm
    sectors: Index  # number of cells around the axis in a barrel
    barrel: Mask
    alone: Mask  # whether hits are not merged
    merge: Merge

    @classmethod
    def of(cls, detector: Detector, merge: Merge) -> Grid:
        """The cells of `merge` in a detector."""
        hcal_radius = detector.ecal_outer_radius if detector.hcal_inner_radius is None else detector.hcal_inner_radius
        of_kind = {"ecal": (merge.ecal_mm, detector.ecal_inner_radius), "hcal": (merge.hcal_mm, hcal_radius)}
        kinds = [calorimeter.kind for calorimeter in detector.calorimeters]
        size, radius = np.array([of_kind.get(kind, (1.0, 1.0)) for kind in kinds], dtype=np.float64).T
        return cls(
            size=size,
            sectors=np.maximum(1, np.round(2 * np.pi * radius / size)).astype(np.int64),
            barrel=np.array([calorimeter.region == "barrel" for calorimeter in detector.calorimeters]),
            alone=np.array([kind not in of_kind for kind in kinds]),
            merge=merge,
        )


def cells_of(hits: Mapping[str, Any], grid: Grid, depth: Any = None) -> tuple[Any, ...]:
    """Coarse cell of each hit: subdetector, depth, two numbers in the surface; int64 [N], arrays or tensors.

    Where hits of some calorimeters stay alone, a fifth column has their number, from 1, and 0 of other hits. The
    `depth` of the hits, float64 [N], is needed where the cells are cut in depth and not in layers.
    """
    x, y, z = (double(hits[f"position.{axis}"]) for axis in "xyz")
    xp, subdetector = namespace(x), integer(hits["subdetector"])
    size, sectors, barrel = (constant(part, like=x)[subdetector] for part in (grid.size, grid.sectors, grid.barrel))
    # Modulo, so that a cell at azimuth pi is the same from both sides.
    in_phi = _floor(xp.arctan2(y, x) / (2 * np.pi) * sectors) % sectors
    first = xp.where(barrel, in_phi, _floor(x / size))
    second = _floor(xp.where(barrel, z, y) / size)
    if depth is not None and grid.merge.depth:
        steps = _floor(depth / grid.merge.depth)
    else:
        layer, place = integer(hits["layer"]), xp.where(barrel, xp.hypot(x, y), xp.abs(z))
        # Negative, so that hits without a layer never share a cell with hits of a layer.
        steps = xp.where(layer < 0, -1 - _floor(place / size), layer // grid.merge.layers)
    # Both endcaps are one subdetector: the sign of z tells them apart, and twice the depth leaves room for it.
    cells = (subdetector, 2 * steps + integer(~barrel & (z < 0)), first, second)
    if not grid.alone.any():
        return cells
    number = xp.cumsum(xp.ones_like(subdetector), 0)
    return (*cells, xp.where(constant(grid.alone, like=x)[subdetector], number, 0))


def _floor(values: Any) -> Any:
    return integer(namespace(values).floor(values))


def equal_cells(subdetector: Any, depth: Any, first: Any, second: Any, alone: Any = None) -> tuple[Any, Any]:
    """The same as `equal_rows` for the cells of one event, tensors.

    A graph has no branch for numbers that do not fit into one integer: cells beyond 20 m of depth in cells of 20 mm, or
    kilometres of surface, count as the outermost.
    """
    xp, key = namespace(first), subdetector
    if alone is not None:
        first = xp.where(alone > 0, alone, first)
    for values, bits in ((depth, DEPTH_BITS), (first, PLACE_BITS), (second, PLACE_BITS)):
        half = 2 ** (bits - 1)
        key = key * 2**bits + values.clip(-half, half - 1) + half
    return groups_of(key)


def equal_rows(*columns: Index) -> tuple[Index, Index]:
    """Group of equal rows of integer columns [N], from 0 in the order of the rows, and the first row of each group."""
    key, n_keys = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        low = int(column.min(initial=0))
        size = int(column.max(initial=0)) - low + 1
        if n_keys * size > np.iinfo(np.int64).max:  # more rows are possible than an integer can count
            key, n_keys = groups_of(key)[0], len(key)
        key = key * size + (column - low)
        n_keys *= size
    return groups_of(key)


ECAL_TOLERANCE = 2.4
"""Largest distance, mm, of hits of two events in the same cell of an electromagnetic calorimeter. Rotated events do not
lie on one grid, so it is just below half a cell of 5 mm (built-in detectors): above, a hit could share two cells of
another event."""

HCAL_TOLERANCE = 14.0  # the same, mm, for all other calorimeters; the built-in detectors have cells of 30 mm


def overlay(events: Events, sizes: Sequence[int] | Index) -> Events:
    """Join groups of consecutive events, int `sizes` [group], into one event each, without ``reference``.

    Objects are concatenated in the order of the events, and indices are shifted. Hits of different events with the
    same subdetector, layer and position are one cell, as in a detector, but for energy below the threshold of a single
    event; in it the weights of the particles are proportional to their energies and sum to 1. Hits of the same event
    are never summed. Entry and event number are the first event's. ConfigError: an empty group, or sizes that do not
    sum to the number of events.
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
                # A negative index, of a particle without a parent, points nowhere and must stay.
                index = columns[field.name]
                columns[field.name] = np.where(index < 0, index, index + np.repeat(shift[field.points_to], counts))
        values[name] = jagged.records(columns, np.bincount(group, counts).astype(np.int64))
    # reduceat is wrong for empty groups, which are refused above.
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
    # Hits of three events in a cell need not all be within the tolerance of each other.
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
    # Cells are numbered by their first hits, so these are in the order of the groups.
    sums = sum_hits(summed, group, np.flatnonzero(is_first))
    cells = {name: values[is_cell] for name, values in columns.items()}  # copies
    for name, values in sums.items():
        cells[name][shared] = values
    links = None if events.hit_links is None else _summed_links(events, cell, shared, n_cells)
    return dataclasses.replace(events, hits=jagged.records(cells, n_cells), hit_links=links)


def _summed_links(events: Events, cell: Index, shared: Index, n_cells: Index) -> ak.Array:
    """Links of cells instead of hits; weights in a shared cell are shares of its energy, of which noise has some."""
    links = Links.of(events.hit_links)
    hit = links.flat_source(jagged.count(events.hits))
    of_link, weight = cell.take(hit), links.weight.copy()
    is_shared = np.zeros(len(cell), dtype=np.bool_)
    is_shared[shared] = True
    changed = np.flatnonzero(is_shared.take(of_link))
    _, group = np.unique(of_link[changed], return_inverse=True)
    of_hits = jagged.columns(events.hits)["energy"].astype(np.float64)
    energy, equal = weight[changed] * of_hits[hit[changed]], 1.0 / np.bincount(group)[group]
    # With the energy of hits without links in it, such as noise.
    total = np.maximum(np.bincount(group, energy)[group], np.bincount(cell, of_hits)[of_link[changed]])
    # Links of a cell without energy would have 0 / 0.
    weight[changed] = np.divide(energy, total, out=equal, where=total > 0)
    source = of_link - np.repeat(jagged.offsets(n_cells)[:-1], links.counts)
    return dataclasses.replace(links, source=source, weight=weight).records()
