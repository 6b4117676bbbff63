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

__all__ = ["Grid", "Merge", "Merged", "merge_hits", "sum_hits"]

Index = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.integer[Any]]

LARGEST_CELL = 2**31 - 1
"""Largest number of a cell in each direction, farther out than any detector."""

CHECKED = ("energy", "position.x", "position.y", "position.z")
"""What hits are merged by, which must be finite."""


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

    Raises
    ------
    ConfigError
        A size that is not a length above 0, or less than one layer.
    """

    ecal_mm: float
    hcal_mm: float
    layers: int = 1

    def __post_init__(self) -> None:
        for name in ("ecal_mm", "hcal_mm"):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < np.inf:
                raise ConfigError(f"merge: {name} must be a length in mm above 0, found {size!r}")
            object.__setattr__(self, name, float(size))
        if type(self.layers) is not int or self.layers < 1:
            raise ConfigError(f"merge: layers must be a whole number of at least 1, found {self.layers!r}")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Merged:
    """Summed hits, records [event, coarse cell], and the coarse cell of each original hit, int64 [event, hit]."""

    hits: ak.Array
    cell_of: ak.Array


def merge_hits(events: Events, merge: Merge, *, with_time: bool = True) -> Merged:
    """Sum the hits of each event that lie in the same coarse cell, in the order of subdetector and place.

    Total energy and energy-weighted mean position are the event's. Without `with_time` their time is unknown (NaN),
    which saves work. A hit without a finite energy or position is an `InputError`.
    """
    counts = jagged.count(events.hits)
    columns = _checked(events, counts)
    hits = columns | {name: columns[name].astype(np.float64) for name in CHECKED}
    event = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    group, first_hit = _groups(event, *_cells(hits, Grid.of(events.detector, merge)))
    n_cells = np.bincount(event[first_hit], minlength=len(counts))
    cell_of = group - np.repeat(jagged.offsets(n_cells)[:-1], counts)
    sums = sum_hits(hits, group, first_hit, with_time)
    return Merged(hits=jagged.records(sums, n_cells), cell_of=jagged.unflatten(cell_of, counts))


def sum_hits(
    columns: Mapping[str, npt.NDArray[Any]], group: npt.NDArray[np.integer[Any]], first: Index, with_time: bool = True
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


def _checked(events: Events, counts: Index) -> dict[str, npt.NDArray[Any]]:
    """The flat columns of the hits, of which energies and positions are finite."""
    columns = jagged.columns(events.hits)
    for name in CHECKED:
        values = columns[name]
        finite = np.isfinite(values)
        if not finite.all():
            bad = int(np.argmin(finite))
            raise events.error(
                f"hits are merged by energy and position, which must be finite, found {values[bad]}",
                index=jagged.event_index(counts)[bad],
                field=f"hits.{name}",
            )
    return columns


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """The coarse cells of each subdetector of a detector, [subdetector] each."""

    size: Values  # of a cell, mm
    sectors: npt.NDArray[np.int32]  # number of cells around the axis in a barrel
    barrel: npt.NDArray[np.bool_]
    alone: npt.NDArray[np.bool_]  # whether hits are not merged
    layers: int  # summed together

    @classmethod
    def of(cls, detector: Detector, merge: Merge) -> Grid:
        """The cells of `merge` in a detector."""
        sizes = {"ecal": merge.ecal_mm, "hcal": merge.hcal_mm}
        radii = {
            "ecal": detector.ecal_inner_radius,
            "hcal": detector.ecal_outer_radius if detector.hcal_inner_radius is None else detector.hcal_inner_radius,
        }
        kinds = [calorimeter.kind for calorimeter in detector.calorimeters]
        sectors = [max(1, round(2 * np.pi * radii.get(kind, 1.0) / sizes.get(kind, 1.0))) for kind in kinds]
        return cls(
            size=np.array([sizes.get(kind, 1.0) for kind in kinds]),
            sectors=np.minimum(sectors, LARGEST_CELL).astype(np.int32),
            barrel=np.array([calorimeter.region == "barrel" for calorimeter in detector.calorimeters]),
            alone=np.array([kind not in sizes for kind in kinds]),
            layers=merge.layers,
        )


def _cells(hits: Mapping[str, npt.NDArray[Any]], grid: Grid) -> tuple[Numbers, ...]:
    """Coarse cell of each hit: subdetector, depth, two numbers in the surface; where hits stay alone, their number."""
    subdetector = hits["subdetector"].astype(np.int64)
    size, barrel = grid.size.take(subdetector), grid.barrel.take(subdetector)

    x, y, z = (hits[f"position.{axis}"] for axis in "xyz")
    layer = hits["layer"].astype(np.int32)
    first = _floor(x / size)
    in_barrel = np.flatnonzero(barrel)
    sectors = grid.sectors.take(subdetector.take(in_barrel))
    turns = np.arctan2(y.take(in_barrel), x.take(in_barrel))
    turns /= 2 * np.pi
    turns *= sectors
    sector = np.floor(turns, out=turns).astype(np.int32)
    first[in_barrel] = sector + sectors * (sector < 0)  # from 0: less work than the remainder of a division
    second = _floor(np.where(barrel, z, y) / size)
    depth = layer // grid.layers
    unknown = np.flatnonzero(layer < 0)
    if len(unknown):
        beyond = np.where(barrel, np.hypot(x, y), np.abs(z))[unknown] / size[unknown]
        depth = depth.astype(np.int64)
        depth[unknown] = -1 - _floor(beyond).astype(np.int64)
    # Both endcaps are one subdetector: the sign of z tells them apart, and twice the depth leaves room for it.
    depth *= 2
    depth += ~barrel & (z < 0)
    cells = (hits["subdetector"], depth, first, second)
    if not grid.alone.any():
        return cells
    return (*cells, np.where(grid.alone.take(subdetector), np.arange(len(x), dtype=np.int32), 0))


def _floor(values: Values) -> Numbers:
    """Largest whole numbers that are no larger than the values, as far out as a cell can be; changes the values."""
    floored = np.floor(values, out=values)
    if len(floored) and not -LARGEST_CELL <= floored.min() <= floored.max() <= LARGEST_CELL:
        floored = np.clip(floored, -LARGEST_CELL, LARGEST_CELL)
    return floored.astype(np.int32)


def _groups(*columns: Numbers) -> tuple[Index, Index]:
    """Group of equal rows of integer columns [N], from 0 in the order of the rows, and the first row of each group."""
    if not len(columns[0]):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    lowest = [int(column.min()) for column in columns]
    sizes = [int(column.max()) - low + 1 for column, low in zip(columns, lowest, strict=True)]
    n_keys = math.prod(sizes)
    if n_keys > np.iinfo(np.int64).max:  # more rows are possible than an integer can count
        _, first, group = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
        return group.reshape(-1), first
    key: Numbers = np.zeros(len(columns[0]), dtype=np.int32 if n_keys <= np.iinfo(np.int32).max else np.int64)
    for column, low, size in zip(columns, lowest, sizes, strict=True):
        if size > 1:
            key *= size
            key += column
            if low:
                key -= low
    order, ordered = _sorted(key, n_keys)
    is_new = np.ones(len(key), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.cumsum(is_new.astype(np.int64)) - 1
    return group, order.take(np.flatnonzero(is_new))  # faster than by a mask


def _sorted(key: Numbers, n_keys: int) -> tuple[Index, Numbers]:
    """Indices that sort integers from 0 to `n_keys` - 1, and the sorted ones; equal ones keep their order."""
    n_bits = (len(key) - 1).bit_length()  # of an index
    # Keys and indices share one integer where it has room for both: numbers are sorted in a third of the time.
    if (n_keys - 1).bit_length() + n_bits < 64:
        both = key.astype(np.int64)
        both <<= n_bits
        both |= np.arange(len(key))
        both.sort()
        return both & ((1 << n_bits) - 1), both >> n_bits
    order = np.argsort(key, kind="stable")
    return order, key.take(order)
