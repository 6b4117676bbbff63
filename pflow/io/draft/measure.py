"""Where ECAL and HCAL begin and end, which bits of cell ids count layers, and what digitisation did."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pflow.errors import InputError
from pflow.io.draft.collect import Group, HitSample, join_samples
from pflow.io.edm4hep.cellid import find_layer_bits
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.edm4hep.simulated import read_contributions, time_after_flight
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

__all__ = ["EARLIEST", "Digitisation", "Extent", "TimeWindow"]
__all__ += ["measure_digitisation", "measure_encoding", "measure_extent", "measure_time_window"]

OUTLIERS = 0.005  # fraction of hits that may lie outside a calorimeter without visible layers

STRAY = 0.05
"""Layers with less than this fraction of the hits that the median layer has are made of hits that lie elsewhere."""

MIN_SAME_CELLS = 10  # cells with a digitised and a simulated hit that a scale needs at least

LATEST = (1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 40, 50, 70, 100, 150, 200, 300, 500, 1000)
"""Latest times that are tried, ns: those that people choose."""

EARLIEST = -1.0  # earliest possible time, ns, relative to a straight flight at c
SAME_ENERGY = 1e-3  # relative difference of a cell's energies that counts as agreement
MIN_LATE_CELLS = 5  # cells that a time window must explain beyond those that are explained without one
MIN_EXPLAINED = 0.9  # fraction of the cells that it must explain; with fewer, digitisation did something else


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extent:
    """Where a barrel or an endcap begins and ends."""

    sample: HitSample
    range: LayerRange  # distances from the axis, or |z|; mm
    on_layers: bool  # if not, the range is that of all hits but the outermost half percent on both sides
    shape: BarrelShape | None  # of a barrel on layers

    @property
    def z_fronts(self) -> tuple[float, float] | None:
        """Where the endcaps at negative and at positive z begin, |z| in mm; None unless both have hits."""
        z = self.sample.position[:, 2]
        return (float(-z[z < 0].max()), float(z[z > 0].min())) if (z < 0).any() and (z > 0).any() else None


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


class TimeWindow(NamedTuple):
    """Latest time that counts, ns after a straight flight at c; cells explained with it, without it, and in all."""

    latest: float
    explained: int
    explained_without: int
    n_cells: int


def measure_time_window(file: PodioFile, group: Group, found: Digitisation, stop: int) -> TimeWindow | None:
    """The time up to which contributions count, by the simulated cells of `stop` entries that it explains.

    A cell is explained if its energy up to then is above the threshold and is what was digitised, or is below and the
    cell was not digitised. None where no time explains most cells and `MIN_LATE_CELLS` more than no time window does.
    """
    digitised = join_samples([sample for sample in group.of(simulated=False) if len(sample)])
    times = np.array([*LATEST, np.inf])
    explained = np.zeros(len(times), dtype=np.int64)
    n_cells = 0
    for sample in group.of(simulated=True):
        try:
            contributions = read_contributions(file, sample.name, 0, stop)
        except InputError:  # the file does not say which collection they are in
            continue
        if contributions is None or int(contributions.counts.sum()) != len(sample) or not len(sample):
            continue
        n_cells += len(sample)
        flown = time_after_flight(contributions.time, sample.position[contributions.hit])
        _, here, there = np.intersect1d(digitised.cell, sample.cell, return_indices=True)
        energy = np.zeros(len(sample))
        energy[there] = digitised.energy[here] / found.scale
        for number, latest in enumerate(times):
            early = flown < latest
            visible = np.bincount(contributions.hit[early], contributions.energy[early], minlength=len(sample))
            visible[visible < found.threshold * (1 - SAME_ENERGY)] = 0.0
            explained[number] += int(np.sum(np.abs(visible - energy) <= SAME_ENERGY * energy))
    best = int(np.argmax(explained))
    if explained[best] < max(explained[-1] + MIN_LATE_CELLS, MIN_EXPLAINED * n_cells):
        return None
    return TimeWindow(float(times[best]), int(explained[best]), int(explained[-1]), n_cells)


def _hits(groups: Sequence[Group]) -> HitSample | None:
    """Digitised hits; simulated ones where there are none."""
    for simulated in (False, True):
        samples = [sample for group in groups for sample in group.of(simulated=simulated) if len(sample)]
        if samples:
            return join_samples(samples)
    return None
