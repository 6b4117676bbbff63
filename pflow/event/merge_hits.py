"""Hit merging: sum cells into coarser ones before the encoder, whose attention costs the square of their number.

A coarse cell is a group of layers of one subdetector, cut by a grid in the surface: in a barrel in phi and z, elsewhere
(endcaps, rings) in x and y. The grid is fixed in the detector, so that the merging of a hit depends neither on the
order of the hits nor on the rest of the event. Energy and energy-weighted barycentre are kept exactly (float64).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.schema import fields_of
from pflow.physics.detector import Detector

Index = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Merge:
    """Size of the coarse cells.

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
        Depth that is summed together in place of layers, in the measure of `pflow.physics.geometry.Depths.of_kinds`:
        radiation lengths in an electromagnetic calorimeter, tenths of an interaction length in others. 0: layers.

    Raises
    ------
    ConfigError
        A size that is not a length above 0, or less than one layer.
    """

    ecal_mm: float
    hcal_mm: float
    layers: int = 1
    depth: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ecal_mm", "hcal_mm"):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < np.inf:
                raise ConfigError(f"merge: {name} must be a length in mm above 0, found {size!r}")
            object.__setattr__(self, name, float(size))
        if type(self.layers) is not int or self.layers < 1:
            raise ConfigError(f"merge: layers must be a whole number of at least 1, found {self.layers!r}")
        if not 0 <= self.depth < np.inf:
            raise ConfigError(f"merge: depth must be at least 0, found {self.depth!r}")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Merged:
    """Summed hits, records [event, coarse cell], and the coarse cell of each original hit, int64 [event, hit]."""

    hits: ak.Array
    cell_of: ak.Array


def merge_hits(events: Events, merge: Merge, *, with_time: bool = True, depth: Values | None = None) -> Merged:
    """Sum the hits of each event that lie in the same coarse cell, in the order of subdetector and place.

    Total energy and energy-weighted mean position are the event's. Without `with_time` their time is unknown (NaN),
    which saves work. `depth` float64 [all hits] is needed where the cells are cut in depth and not in layers.
    """
    counts = jagged.count(events.hits)
    hits = jagged.columns(events.hits)
    hits |= {name: hits[name].astype(np.float64) for name in ("energy", "position.x", "position.y", "position.z")}
    event = jagged.event_index(counts)
    steps = None if depth is None or not merge.depth else _floor(depth / merge.depth)
    group, first_hit = equal_rows(event, *_cells(hits, Grid.of(events.detector, merge), steps))
    n_cells = np.bincount(event[first_hit], minlength=len(counts))
    cell_of = group - np.repeat(jagged.offsets(n_cells)[:-1], counts)
    sums = sum_hits(hits, group, first_hit, with_time)
    return Merged(hits=jagged.records(sums, n_cells), cell_of=jagged.unflatten(cell_of, counts))


def sum_hits(
    columns: Mapping[str, npt.NDArray[Any]], group: Index, first: Index, with_time: bool = True
) -> dict[str, npt.NDArray[Any]]:
    """Columns of the sums of hits by group, as the schema says: energy [GeV], position [mm], time [ns] in float64.

    The position is the plain mean where all energies are 0, the time the earliest known one. Of N hits with `columns`
    as of ``events.hits``: `group` int [N], from 0 without gaps; `first` int64 [group], index of the first hit of each.
    """
    n = len(first)
    energy = columns["energy"].astype(np.float64, copy=False)
    total = np.bincount(group, energy, minlength=n)
    weight = energy if (total > 0).all() else np.where(total[group] > 0, energy, 1.0)
    norm = total if weight is energy else np.bincount(group, weight, minlength=n)
    sums: dict[str, npt.NDArray[Any]] = {}
    for name, field in fields_of("hits").items():
        values = columns[name]
        if field.merge == "sum":
            sums[name] = np.bincount(group, values, minlength=n)
        elif field.merge == "mean":
            sums[name] = np.bincount(group, weight * values, minlength=n) / norm
        elif field.merge == "first":
            sums[name] = values.take(first)
        elif name == "time" and not with_time:
            sums[name] = np.full(n, np.nan)
        else:
            lowest = values.take(first)
            minimum = np.fmin if np.isnan(values).any() else np.minimum  # takes half of the time
            minimum.at(lowest, group, values)
            sums[name] = lowest.astype(np.float64) if lowest.dtype.kind == "f" else lowest
    return sums


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """The coarse cells of each subdetector of a detector, [subdetector] each."""

    size: Values  # of a cell, mm
    sectors: Index  # number of cells around the axis in a barrel
    barrel: npt.NDArray[np.bool_]
    alone: npt.NDArray[np.bool_]  # whether hits are not merged
    layers: int  # summed together

    @classmethod
    def of(cls, detector: Detector, merge: Merge) -> Grid:
        """The cells of `merge` in a detector."""
        sizes = {"ecal": merge.ecal_mm, "hcal": merge.hcal_mm}
        hcal_radius = detector.ecal_outer_radius if detector.hcal_inner_radius is None else detector.hcal_inner_radius
        radii = {"ecal": detector.ecal_inner_radius, "hcal": hcal_radius}
        kinds = [calorimeter.kind for calorimeter in detector.calorimeters]
        return cls(
            size=np.array([sizes.get(kind, 1.0) for kind in kinds]),
            sectors=np.array([max(1, round(2 * np.pi * radii.get(k, 1.0) / sizes.get(k, 1.0))) for k in kinds]),
            barrel=np.array([calorimeter.region == "barrel" for calorimeter in detector.calorimeters]),
            alone=np.array([kind not in sizes for kind in kinds]),
            layers=merge.layers,
        )


def _cells(hits: Mapping[str, npt.NDArray[Any]], grid: Grid, steps: Index | None) -> tuple[Index, ...]:
    """Coarse cell of each hit: subdetector, depth, two numbers in the surface; where hits stay alone, their number.

    The depth is by layer, or in given `steps`.
    """
    subdetector = hits["subdetector"].astype(np.int64)
    size, barrel = grid.size.take(subdetector), grid.barrel.take(subdetector)
    x, y, z = (hits[f"position.{axis}"] for axis in "xyz")
    first = _floor(x / size)
    in_barrel = np.flatnonzero(barrel)
    sectors = grid.sectors.take(subdetector.take(in_barrel))
    first[in_barrel] = _floor(np.arctan2(y.take(in_barrel), x.take(in_barrel)) / (2 * np.pi) * sectors) % sectors
    second = _floor(np.where(barrel, z, y) / size)
    if steps is None:
        layer = hits["layer"].astype(np.int64)
        steps = layer // grid.layers
        unknown = np.flatnonzero(layer < 0)
        steps[unknown] = -1 - _floor(np.where(barrel, np.hypot(x, y), np.abs(z))[unknown] / size[unknown])
    # Both endcaps are one subdetector: the sign of z tells them apart, and twice the depth leaves room for it.
    depth = 2 * steps + (~barrel & (z < 0))
    cells = (subdetector, depth, first, second)
    if not grid.alone.any():
        return cells
    return (*cells, np.where(grid.alone.take(subdetector), np.arange(len(x)), 0))


def _floor(values: Values) -> Index:
    return np.floor(values).astype(np.int64)


def equal_rows(*columns: Index) -> tuple[Index, Index]:
    """Group of equal rows of integer columns [N], from 0 in the order of the rows, and the first row of each group."""
    if not len(columns[0]):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    lowest = [int(column.min()) for column in columns]
    sizes = [int(column.max()) - low + 1 for column, low in zip(columns, lowest, strict=True)]
    if math.prod(sizes) > np.iinfo(np.int64).max:  # more rows are possible than an integer can count
        _, first, group = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
        return group.reshape(-1), first
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column, low, size in zip(columns, lowest, sizes, strict=True):
        key *= size
        key += column - low
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    return group, first
