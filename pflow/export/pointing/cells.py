"""Hits summed into the coarse cells of `pflow.event.merge_hits`, in torch. Letters: N hits, S cells."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pflow.event.merge_hits import Grid, Merge
from pflow.physics.detector import Detector

DEPTH_BITS, PLACE_BITS = 12, 23
"""Bits of a cell's depth and of each of its two places in one integer: 20 m of depth and kilometres of surface in cells
of 20 mm. Cells farther out count as the outermost."""


class Hits(NamedTuple):
    """Hits or cells of one event."""

    energy: Tensor  # float [N], GeV
    position: Tensor  # float [N, 3], mm
    time: Tensor | None  # float [N], ns
    subdetector: Tensor  # int64 [N]
    layer: Tensor  # int64 [N]


class Cells(NamedTuple):
    """Summed hits, in double precision, and the index of the cell of each hit, int64 [N]."""

    hits: Hits
    cell_of: Tensor


def merge_hits(hits: Hits, merge: Merge | None, detector: Detector) -> Cells:
    """Sum the hits that lie in the same coarse cell; without `merge` each hit is one."""
    precise = hits._replace(energy=hits.energy.double(), position=hits.position.double())
    if hits.time is not None:
        precise = precise._replace(time=hits.time.double())
    if merge is None:
        return Cells(precise, _count(hits.energy))
    number, order = torch.sort(_cell_numbers(precise, merge, detector))
    is_first = (_count(number) == 0) | (number != torch.cat([number[:1], number[:-1]]))
    rank = torch.cumsum(is_first.long(), 0) - 1
    cell_of = torch.zeros_like(rank).scatter(0, order, rank)
    first = order[is_first.nonzero().squeeze(1)]  # a hit of each cell, [S]
    zeros = torch.zeros_like(first, dtype=torch.float64)
    energy = zeros.scatter_add(0, cell_of, precise.energy)
    weight = torch.where(energy.index_select(0, cell_of) > 0, precise.energy, 1.0)
    norm = zeros.scatter_add(0, cell_of, weight)
    position = [zeros.scatter_add(0, cell_of, weight * x) / norm for x in precise.position.unbind(1)]
    layer = (zeros + math.inf).scatter_reduce(0, cell_of, hits.layer.double(), "amin").long()
    time = None
    if precise.time is not None:
        known = torch.where(precise.time.isnan(), math.inf, precise.time)
        time = (zeros + math.inf).scatter_reduce(0, cell_of, known, "amin")
    return Cells(Hits(energy, torch.stack(position, dim=1), time, hits.subdetector[first], layer), cell_of)


def _count(values: Tensor) -> Tensor:
    """0, 1 ... N - 1 for N values, int64 [N]."""
    return torch.cumsum(torch.ones_like(values, dtype=torch.int64), 0) - 1


def _cell_numbers(hits: Hits, merge: Merge, detector: Detector) -> Tensor:
    """One number for each cell, int64 [N]; see `pflow.event.merge_hits`."""
    grid = Grid.of(detector, merge)
    size, turn = torch.from_numpy(np.stack([grid.size, grid.sectors], axis=1))[hits.subdetector].unbind(1)
    barrel, alone = torch.from_numpy(np.stack([grid.barrel, grid.alone], axis=1))[hits.subdetector].unbind(1)

    x, y, z = hits.position.unbind(1)
    in_phi = torch.remainder(torch.floor(torch.atan2(y, x) / (2 * math.pi) * turn), turn)
    first = torch.where(barrel, in_phi, torch.floor(x / size))
    second = torch.where(barrel, torch.floor(z / size), torch.floor(y / size))
    steps = torch.floor(torch.where(barrel, torch.hypot(x, y), z.abs()) / size)
    layers = torch.div(hits.layer, merge.layers, rounding_mode="floor").double()
    depth = 2.0 * torch.where(hits.layer >= 0, layers, -1.0 - steps)
    depth = torch.where(barrel, depth, depth + (z < 0))
    first = torch.where(alone, _count(x).double(), first)
    second = torch.where(alone, 0.0, second)
    number = hits.subdetector
    for values, bits in ((depth, DEPTH_BITS), (first, PLACE_BITS), (second, PLACE_BITS)):
        half = 2 ** (bits - 1)
        number = number * 2**bits + (values.clamp(-half, half - 1) + half).long()
    return number
