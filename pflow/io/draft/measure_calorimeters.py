"""Where the ECAL and the HCAL begin and end, which bits of cell ids count layers, and what digitisation did."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pflow.io.draft.collect import Group
from pflow.io.draft.hits import HitSample, join_samples
from pflow.io.edm4hep.cellid import find_layer_bits
from pflow.physics.calorimeter_shape import (
    MIN_ON_LAYERS,
    BarrelShape,
    LayerRange,
    barrel_shape,
    distance_to_sides,
    fraction_on_layers,
    layer_range,
    layers_by_position,
)

__all__ = [
    "Digitisation",
    "Extent",
    "measure_barrel",
    "measure_digitisation",
    "measure_encoding",
    "measure_endcap",
]

OUTLIERS = 0.005
"""Fraction of hits that may lie outside a calorimeter without visible layers."""

STRAY = 0.05
"""Layers with less than this fraction of the hits that the median layer has are made of hits that lie elsewhere."""

MIN_SAME_CELLS = 10
"""Cells with a digitised and a simulated hit that a scale needs at least."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extent:
    """Where a barrel or an endcap begins and ends.

    Parameters
    ----------
    range
        Distances from the axis, or |z|; mm.
    on_layers
        Whether they are those of layers; if not, of the hits, but for the outermost half percent on both sides.
    shape
        Of a barrel on layers.
    outer_radius
        Largest radius of a hit, mm.
    max_z
        Largest |z|, mm.
    z_fronts
        Where the endcaps at negative and at positive z begin, |z| in mm; None unless both have hits.
    n_hits, n_events
        Hits, and events with hits, that were seen.
    """

    range: LayerRange
    on_layers: bool
    shape: BarrelShape | None
    outer_radius: float
    max_z: float
    z_fronts: tuple[float, float] | None
    n_hits: int
    n_events: int


def measure_barrel(groups: Sequence[Group]) -> Extent | None:
    """Extent of the barrel that these calorimeters make; None without hits."""
    sample = _hits(groups)
    if sample is None:
        return None
    x, y, _ = sample.position.T
    layer = sample.layer
    shape = barrel_shape(x, y, layer)
    if shape is None and layer is not None:  # layers that are numbered anew in each module, or of towers
        layer, shape = None, barrel_shape(x, y)
    distance = distance_to_sides(x, y, *(shape.sides, shape.phase) if shape else (0, 0.0))
    return _extent(sample, layer_range(distance, layer) if shape else _quantiles(distance), shape, shape is not None)


def measure_endcap(groups: Sequence[Group]) -> Extent | None:
    """Extent of the endcaps that these calorimeters make; None without hits."""
    sample = _hits(groups)
    if sample is None:
        return None
    distance = np.abs(sample.position[:, 2])
    layer = sample.layer
    if layer is not None and fraction_on_layers(distance, layer) < MIN_ON_LAYERS:
        layer = None
    on_layers = fraction_on_layers(distance, layer) >= MIN_ON_LAYERS
    return _extent(sample, layer_range(distance, layer) if on_layers else _quantiles(distance), None, on_layers)


def measure_encoding(group: Group) -> str | None:
    """Cell encoding with the layer only, by the bits of the cell ids that follow the layers; None if none do."""
    sample = _hits([group])
    if sample is None:
        return None
    x, y, z = sample.position.T
    distance = np.abs(z)
    if (group.region != "endcap" and fraction_on_layers(distance) < MIN_ON_LAYERS) or group.region == "barrel":
        shape = barrel_shape(x, y)
        if shape is None:
            return None
        distance = distance_to_sides(x, y, shape.sides, shape.phase)
    layer = layers_by_position(distance)
    counts = np.bincount(layer)
    real = counts[layer] > STRAY * np.median(counts)
    found = find_layer_bits(sample.cell_id[real], layer[real])
    return None if found is None else f"layer:{found[0]}:{found[1]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digitisation:
    """What digitisation did to the simulated hits of one calorimeter.

    Parameters
    ----------
    scale
        Median ratio of digitised and simulated energy of a cell.
    threshold
        Smallest simulated energy of a cell that was kept, GeV.
    n_cells
        Cells that have both.
    measures_time
        Whether digitised hits have times other than 0.
    """

    scale: float
    threshold: float
    n_cells: int
    measures_time: bool


def measure_digitisation(group: Group) -> Digitisation | None:
    """Compare the digitised hits of a calorimeter with its simulated ones; None if too few cells have both."""
    digitised, simulated = ([sample for sample in group.of(simulated=flag) if len(sample)] for flag in (False, True))
    if not digitised or not simulated:
        return None
    hits, visible = join_samples(digitised), join_samples(simulated)
    _, here, there = np.intersect1d(hits.cells(), visible.cells(), return_indices=True)
    ratio = hits.energy[here] / visible.energy[there]
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    if len(ratio) < MIN_SAME_CELLS:
        return None
    scale = float(np.median(ratio))
    return Digitisation(
        scale=scale,
        threshold=float(hits.energy[here].min()) / scale,
        n_cells=len(ratio),
        measures_time=bool((hits.time[np.isfinite(hits.time)] != 0).any()),
    )


def _hits(groups: Sequence[Group]) -> HitSample | None:
    """Digitised hits; simulated ones where there are none."""
    for simulated in (False, True):
        samples = [sample for group in groups for sample in group.of(simulated=simulated) if len(sample)]
        if samples:
            return join_samples(samples)
    return None


def _extent(sample: HitSample, found: LayerRange, shape: BarrelShape | None, on_layers: bool) -> Extent:
    x, y, z = sample.position.T
    return Extent(
        range=found,
        on_layers=on_layers,
        shape=shape,
        outer_radius=float(np.hypot(x, y).max()),
        max_z=float(np.abs(z).max()),
        z_fronts=(float(-z[z < 0].max()), float(z[z > 0].min())) if (z < 0).any() and (z > 0).any() else None,
        n_hits=len(sample),
        n_events=len(np.unique(sample.event)),
    )


def _quantiles(distance: npt.NDArray[np.float64]) -> LayerRange:
    front, back = np.quantile(distance, [OUTLIERS, 1 - OUTLIERS])
    return LayerRange(front=float(front), back=float(back), spacing=0.0, count=0)
