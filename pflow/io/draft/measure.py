"""Measure calorimeters: extent, cells and layers, digitisation, scale of hadrons; and the field."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.scales import Entries
from pflow.io.draft.collect import Group, HitSample
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.physics import geometry
from pflow.physics.arrays import Floats
from pflow.physics.detector import Detector

OUTLIERS = 0.005  # fraction of hits that may lie outside a calorimeter without visible layers
STRAY = 0.05  # layers with fewer hits than this fraction of the median layer's are not real layers

MIN_SAME_CELLS = 10  # cells with a digitised and a simulated hit that a scale needs at least

MIN_TRACKS = 3  # that an estimate of the field needs; the spread of fewer is unreliable
ELECTRON = 11

MIN_HADRONS = 20  # isolated tracks that a scale of hadrons needs at least
SURE = 0.1  # largest relative uncertainty of it
MAX_TRACKS = 200  # tracks of an event that are looked at, on average

PARAMETER = r"(?i)(b_?field|magnetic_?field|solenoid_?field)(_?z)?$"
"""Parameters of a file's metadata that give the field, T."""
MAX_FIELD = 10.0  # larger values of such a parameter are in other units


class Extent(NamedTuple):
    """Where a barrel or an endcap begins and ends."""

    sample: HitSample
    layer: npt.NDArray[np.int32] | None  # of each hit, if the hits lie on the layers that the file numbers
    distance: Floats  # of each hit from the axis, along the normal of its side, or |z|; mm
    range: geometry.LayerRange  # of the distances
    on_layers: bool  # if not, the range holds 99% of the hits: half a percent is cut on each side
    shape: geometry.BarrelShape | None  # of a barrel on layers


def measure_extent(groups: Sequence[Group], region: str) -> Extent | None:
    """Extent of the ``barrel`` or ``endcap`` that these calorimeters make; None without hits."""
    sample = _hits(groups, simulated=False) or _hits(groups, simulated=True)
    if sample is None:
        return None
    x, y, z = sample.position.T
    # Layer numbers that start again in each module, or count towers, are of no use.
    for layer in (sample.layer, None) if sample.layer is not None else (None,):
        if region == "barrel":
            shape = geometry.barrel_shape(x, y, layer)
            distance = geometry.distance_to_sides(x, y, *(shape.sides, shape.phase) if shape else (0, 0.0))
            on_layers = shape is not None
        else:
            shape, distance = None, np.abs(z)
            on_layers = geometry.fraction_on_layers(distance, layer) >= geometry.MIN_ON_LAYERS
        if on_layers:
            return Extent(sample, layer, distance, geometry.layer_range(distance, layer), on_layers, shape)
    front, back = np.quantile(distance, [OUTLIERS, 1 - OUTLIERS]).tolist()
    return Extent(
        sample, None, distance, geometry.LayerRange(front=front, back=back, spacing=0.0, count=0), False, None
    )


class Cells(NamedTuple):
    """Where a calorimeter begins, mm, the shape of its barrel, and its cells and layers.

    Hits that lie on no layers make one layer, as deep as they are.
    """

    on_layers: bool
    face: dict[str, float | int]  # fields of `pflow.physics.detector.Calorimeter`
    size: float  # mm, 0: not known
    pitches: list[tuple[int, float]]  # number and thickness, mm, of consecutive layers that are alike


def measure_cells(group: Group, slope: float) -> Cells | None:
    """Cells and layers of a calorimeter, of rings and the like as of endcaps; None without hits.

    Of a muon system, barrel and endcaps are told apart by `slope`, the ratio of radius and |z| of the ECAL's corner.
    """
    extent = measure_extent([group], "barrel" if group.region == "barrel" else "endcap")
    if extent is None:
        return None
    position, distance, shape = extent.sample.position, extent.distance, extent.shape
    face: dict[str, float | int] = {}
    if not extent.on_layers:
        radius, length = extent.sample.radius, np.abs(position[:, 2])
        in_barrel = radius > slope * length if group.kind == "muon" else np.full(len(radius), group.region == "barrel")
        depth = 1.0
        for name, behind in (("inner_radius", radius[in_barrel]), ("inner_z", length[~in_barrel])):
            if len(behind):
                face[name] = round(float(np.quantile(behind, OUTLIERS)), 1)
                depth = max(depth, float(behind.max()) - face[name])
        return Cells(False, face, 0.0, [(1, round(depth, 2))])
    face["inner_z" if shape is None else "inner_radius"] = round(extent.range.front, 1)
    if shape is not None:
        face |= {"sides": shape.sides, "phase": round(shape.phase, 4)}
    layered = distance
    if extent.layer is None:  # without the hits on stray layers
        layer = geometry.layers_by_position(distance)
        counts = np.bincount(layer)
        layered = distance[counts[layer] > STRAY * np.median(counts)]
    runs = geometry.layer_pitches(layered, extent.layer)
    pitches = [(count, rounded) for count, pitch in runs if (rounded := round(pitch, 2)) > 0]
    return Cells(True, face, round(geometry.cell_pitch(position, distance), 2), pitches)


class Digitisation(NamedTuple):
    """What digitisation did to the simulated hits of one calorimeter."""

    scale: float  # median ratio of digitised and simulated energy of a cell
    threshold: float  # smallest simulated energy of a cell that was kept, GeV
    n_cells: int  # with digitised and simulated energy
    measures_time: bool  # whether digitised hits have times other than 0


def measure_digitisation(group: Group) -> Digitisation | None:
    """Compare digitised and simulated hits of a calorimeter; None if too few cells have both."""
    hits, visible = (_hits([group], simulated=flag) for flag in (False, True))
    if hits is None or visible is None:
        return None
    _, in_hits, in_visible = np.intersect1d(hits.cell, visible.cell, return_indices=True)
    ratio = hits.energy[in_hits] / visible.energy[in_visible]
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    if len(ratio) < MIN_SAME_CELLS:
        return None
    scale = float(np.median(ratio))
    threshold = float(hits.energy[in_hits].min()) / scale
    return Digitisation(scale, threshold, len(ratio), bool((hits.time[np.isfinite(hits.time)] != 0).any()))


def _hits(groups: Sequence[Group], *, simulated: bool) -> HitSample | None:
    """Digitised or simulated hits, joined; None without hits. Layers only if all collections have them."""
    samples = [sample for group in groups for sample in group.of(simulated=simulated) if len(sample)]
    if not samples:
        return None
    joined: dict[str, Any] = {}
    for field in ("cell", "position", "energy", "time", "layer"):
        parts = [getattr(sample, field) for sample in samples]
        joined[field] = None if any(part is None for part in parts) else np.concatenate(parts)
    return dataclasses.replace(samples[0], **joined)


def measure_field(file: PodioFile, detector: Detector, stop: int) -> list[tuple[float, float, str]]:
    """Values of the field along z, T, from the first `stop` entries, each with its uncertainty and source in words.

    The most certain is the first; one that the file states has no uncertainty. Of `detector` the collections count,
    not the field.
    """
    estimates = []
    for key, values in file.parameters.items():
        if re.search(PARAMETER, key) and len(values) == 1:
            with suppress(ValueError):
                if 0 < (value := abs(float(values[0]))) < MAX_FIELD:
                    estimates.append((value, 0.0, f"parameter '{key}' of the file's metadata"))
    of_tracks = _field_of_tracks(file, detector, stop)
    if len(of_tracks) >= MIN_TRACKS:
        text = f"{len(of_tracks)} tracks and the particles that they are linked to"
        estimates.append((*_median(of_tracks), text))
    return sorted(estimates, key=lambda estimate: estimate[1])


def _field_of_tracks(file: PodioFile, detector: Detector, stop: int) -> Floats:
    """By the transverse momenta of charged particles and their tracks in 1 T; electrons, which radiate, left out."""
    reader = Edm4hepReader(file, detector=dataclasses.replace(detector, b_field=1.0))
    try:
        events = reader.read(0, stop)
    except InputError:
        return np.zeros(0)
    tracks, truth, links = events.tracks, events.truth, events.track_links
    if tracks is None or truth is None or links is None:
        return np.zeros(0)
    good = (links.source < ak.num(tracks)) & (links.particle >= 0) & (links.particle < ak.num(truth))
    links = links[good & (links.weight > 0.5)]
    particles, pt_per_tesla = truth[links.particle], jagged.flat(tracks.momentum.pt[links.source], np.float64)
    use = (jagged.flat(particles.charge) != 0) & (np.abs(jagged.flat(particles.pdg)) != ELECTRON)
    with np.errstate(divide="ignore", invalid="ignore"):
        b_field: Floats = (jagged.flat(particles.momentum.pt, np.float64) / pt_per_tesla)[use]
    return b_field[np.isfinite(b_field)]


def measure_hadron_scale(file: PodioFile, detector: Detector, stop: int) -> tuple[float, str]:
    """`hadron_scale` of the HCAL by isolated tracks of the first `stop` entries, and how sure it is; NaN: why not."""
    if not any(calorimeter.kind == "hcal" for calorimeter in detector.calorimeters):
        return np.nan, "no HCAL"
    try:
        events = Edm4hepReader(file, detector=detector).read(0, stop, truth=False)
    except InputError as error:
        return np.nan, str(error)
    if events.tracks is None:
        return np.nan, "no tracks"
    scales = Entries.of(events, most=len(events) * MAX_TRACKS).hadron_scales()
    n_tracks = counted(len(scales), "isolated track")
    if len(scales) < MIN_HADRONS:
        return np.nan, f"{n_tracks}, {MIN_HADRONS} are needed (--entries)"
    scale, uncertainty = _median(scales)
    measured = f"{scale:.2f} +- {uncertainty:.2f} by {n_tracks}"
    if not uncertainty < SURE * scale:
        return np.nan, f"{measured}, {SURE:.0%} is needed (--entries)"
    return scale, f"{measured}; if they are of jets, the scale is some 6% larger"


def _median(values: Floats) -> tuple[float, float]:
    """Median, and its uncertainty from the median deviation."""
    median = float(np.median(values))
    # Of a Gaussian: 1.4826 standard deviation over median deviation; 1.2533 error of the median over the mean's.
    return median, 1.2533 * 1.4826 * float(np.median(np.abs(values - median))) / len(values) ** 0.5


def counted(number: int, what: str) -> str:
    """A number with its noun, e.g. ``1 event`` and ``3 events``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
