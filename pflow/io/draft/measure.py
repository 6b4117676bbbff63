"""Where ECAL and HCAL begin and end, which bits of cell ids count layers, and what digitisation did."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pflow.io.draft.collect import Group, HitSample, join_samples
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

__all__ = ["Digitisation", "Extent", "measure_digitisation", "measure_encoding", "measure_extent"]

OUTLIERS = 0.005  # fraction of hits that may lie outside a calorimeter without visible layers

STRAY = 0.05
"""Layers with less than this fraction of the hits that the median layer has are made of hits that lie elsewhere."""

MIN_SAME_CELLS = 10  # cells with a digitised and a simulated hit that a scale needs at least


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extent:
    """Where a barrel or an endcap begins and ends."""

    sample: HitSample
    range: LayerRange  # distances from the axis, or |z|; mm
    on_layers: bool  # if not, the range is that of all hits but the outermost half percent on both sides
    shape: BarrelShape | None  # of a barrel on layers


def measure_extent(groups: Sequence[Group], region: str) -> Extent | None:
    """Extent of the ``barrel`` or ``endcap`` that these calorimeters make; None without hits."""
    sample = _hits(groups)
    if sample is None:
        return None
    x, y, z = sample.position.T
    layer, shape = sample.layer, None
    if region == "barrel":
        shape = barrel_shape(x, y, layer)
        if shape is None and layer is not None:  # layers that are numbered anew in each module, or of towers
            layer, shape = None, barrel_shape(x, y)
        distance = distance_to_sides(x, y, *(shape.sides, shape.phase) if shape else (0, 0.0))
        on_layers = shape is not None
    else:
        distance = np.abs(z)
        if layer is not None and fraction_on_layers(distance, layer) < MIN_ON_LAYERS:
            layer = None
        on_layers = fraction_on_layers(distance, layer) >= MIN_ON_LAYERS
    if on_layers:
        found = layer_range(distance, layer)
    else:
        front, back = np.quantile(distance, [OUTLIERS, 1 - OUTLIERS])
        found = LayerRange(front=float(front), back=float(back), spacing=0.0, count=0)
    return Extent(sample=sample, range=found, on_layers=on_layers, shape=shape)


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
    found = find_layer_bits(sample.cell["id"][real], layer[real])
    return None if found is None else f"layer:{found[0]}:{found[1]}"


class Digitisation(NamedTuple):
    """What digitisation did to the simulated hits of one calorimeter."""

    scale: float  # median ratio of digitised and simulated energy of a cell
    threshold: float  # smallest simulated energy of a cell that was kept, GeV
    n_cells: int  # with digitised and simulated energy
    measures_time: bool  # whether digitised hits have times other than 0


def measure_digitisation(group: Group) -> Digitisation | None:
    """Compare the digitised hits of a calorimeter with its simulated ones; None if too few cells have both."""
    digitised, simulated = ([sample for sample in group.of(simulated=flag) if len(sample)] for flag in (False, True))
    if not digitised or not simulated:
        return None
    hits, visible = join_samples(digitised), join_samples(simulated)
    _, here, there = np.intersect1d(hits.cell, visible.cell, return_indices=True)
    ratio = hits.energy[here] / visible.energy[there]
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    if len(ratio) < MIN_SAME_CELLS:
        return None
    scale = float(np.median(ratio))
    measures_time = bool((hits.time[np.isfinite(hits.time)] != 0).any())
    return Digitisation(scale, float(hits.energy[here].min()) / scale, len(ratio), measures_time)


def _hits(groups: Sequence[Group]) -> HitSample | None:
    """Digitised hits; simulated ones where there are none."""
    for simulated in (False, True):
        samples = [sample for group in groups for sample in group.of(simulated=simulated) if len(sample)]
        if samples:
            return join_samples(samples)
    return None
