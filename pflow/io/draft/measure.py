"""Measure calorimeters: extent, layers, bits of cell ids that count them, digitisation, scale of hadrons; the field."""

from __future__ import annotations

import dataclasses
import itertools
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
from pflow.io.draft.collect import Group, HitSample, join_samples
from pflow.io.edm4hep.podio import PodioFile, relation
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.edm4hep.simulated import BY_SECONDARY, read_contributions, time_after_flight
from pflow.physics import geometry
from pflow.physics.arrays import Floats, Mask
from pflow.physics.detector import Detector
from pflow.physics.kinematics import GEV_PER_TESLA_MM

OUTLIERS = 0.005  # fraction of hits that may lie outside a calorimeter without visible layers
STRAY = 0.05  # layers with fewer hits than this fraction of the median layer's are not real layers

MIN_LAYERS = 4  # fewer layers do not show which bits count them
USUAL_WIDTH = 8  # bits that a layer's field has at least, where those above are free

MIN_SAME_CELLS = 10  # cells with a digitised and a simulated hit that a scale needs at least

LATEST = (1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 40, 50, 70, 100, 150, 200, 300, 500, 1000)
"""Latest times that are tried, ns: usual choices."""
EARLIEST = -1.0  # earliest possible time, ns, relative to a straight flight at c
SAME_ENERGY = 1e-3  # relative difference of a cell's energies that counts as agreement
MIN_LATE_CELLS = 5  # cells that a time window must explain beyond those that are explained without one
MIN_EXPLAINED = 0.9  # fraction of the cells that it must explain; with fewer, digitisation did something else

MIN_PT = 0.1  # slower particles lose too much energy on the way from one tracker layer to the next, GeV
MIN_STEPS = 3  # values for an estimate; the spread of fewer is unreliable
MIN_CHORD = 5.0  # shorter steps turn particles by less than what scattering does, mm
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


def _on_real_layers(distance: Floats) -> Mask:
    """Which hits, at distances [N] from the axis or plane, are on layers that many others are on, too."""
    layer = geometry.layers_by_position(distance)
    counts = np.bincount(layer)
    return np.asarray(counts[layer] > STRAY * np.median(counts))


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
    layered = distance[_on_real_layers(distance)] if extent.layer is None else distance
    runs = geometry.layer_pitches(layered, extent.layer)
    pitches = [(count, rounded) for count, pitch in runs if (rounded := round(pitch, 2)) > 0]
    return Cells(True, face, round(geometry.cell_pitch(position, distance), 2), pitches)


def find_layer_bits(cell_id: npt.NDArray[Any], layer: npt.NDArray[Any]) -> tuple[int, int] | None:
    """Offset and width of the bits of cell ids, uint64 [cell], that count the layers, int [cell]; None if no bits do.

    The layers are in order, numbered with or without gaps.

    >>> find_layer_bits(np.array([0x203, 0x213, 0x223, 0x133, 0x143], dtype=np.uint64), np.arange(5))
    (4, 4)
    """
    first = np.flatnonzero(np.diff(np.sort(layer), prepend=-1) != 0)
    if len(first) < MIN_LAYERS:
        return None
    cells = np.asarray(cell_id).astype(np.uint64)[np.argsort(layer, kind="stable")]
    ones, some = np.bitwise_and.reduceat(cells, first), np.bitwise_or.reduceat(cells, first)
    same = ~np.bitwise_or.reduce(ones ^ some)  # bits that all cells of a layer share, in every layer
    differ = same & (np.bitwise_and.reduce(ones) ^ np.bitwise_or.reduce(some))
    bits = [bit for bit in range(64) if int(differ) >> bit & 1]
    for lowest, highest in itertools.combinations_with_replacement(bits, 2):
        width = highest - lowest + 1
        value = (ones >> np.uint64(lowest)) & np.uint64((1 << width) - 1)
        if (value[1:] > value[:-1]).all():
            used = int(np.bitwise_or.reduce(some))
            while width < USUAL_WIDTH and lowest + width < 64 and not used >> (lowest + width) & 1:
                width += 1
            return lowest, width
    return None


def measure_encoding(group: Group) -> str | None:
    """Cell encoding with the layer only, by the bits of the cell ids that follow the layers; None if none do."""
    for region in ("endcap", "barrel"):
        extent = measure_extent([group], region) if group.region in (region, "other") else None
        if extent is not None and (extent.on_layers or group.region == "endcap"):
            real = _on_real_layers(extent.distance)
            layer = geometry.layers_by_position(extent.distance)
            bits = find_layer_bits(extent.sample.cell["id"][real], layer[real])
            return None if bits is None else f"layer:{bits[0]}:{bits[1]}"
    return None


class TimeWindow(NamedTuple):
    """Latest time that counts, ns after a straight flight at c; cells explained with it, without it, and in all."""

    latest: float
    explained: int
    explained_without: int
    n_cells: int


class Digitisation(NamedTuple):
    """What digitisation did to the simulated hits of one calorimeter."""

    scale: float  # median ratio of digitised and simulated energy of a cell
    threshold: float  # smallest simulated energy of a cell that was kept, GeV
    n_cells: int  # with digitised and simulated energy
    measures_time: bool  # whether digitised hits have times other than 0
    window: TimeWindow | None


def measure_digitisation(file: PodioFile, group: Group, stop: int) -> Digitisation | None:
    """Compare digitised and simulated hits of a calorimeter in `stop` entries; None if too few cells have both."""
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
    before = dataclasses.replace(hits, energy=hits.energy / scale)
    window = _time_window(file, group.of(simulated=True), before, threshold, stop)
    return Digitisation(scale, threshold, len(ratio), bool((hits.time[np.isfinite(hits.time)] != 0).any()), window)


def _time_window(
    file: PodioFile, simulated: Sequence[HitSample], digitised: HitSample, threshold: float, stop: int
) -> TimeWindow | None:
    """The time up to which contributions count, by the simulated cells that it explains.

    A cell is explained if its energy up to then is above the threshold and is what was digitised (`digitised` has the
    energies before the scale), or is below and the cell was not digitised. None where no time explains most cells and
    `MIN_LATE_CELLS` more than no time window does.
    """
    times = np.array([*LATEST, np.inf])
    explained = np.zeros(len(times), dtype=np.int64)
    n_cells = 0
    for sample in simulated:
        contributions = None
        with suppress(InputError):  # the file does not say which collection they are in
            contributions = read_contributions(file, sample.name, 0, stop)
        if contributions is None or int(contributions.counts.sum()) != len(sample) or not len(sample):
            continue
        n_cells += len(sample)
        flown = time_after_flight(contributions.time, sample.position[contributions.hit])
        _, in_digitised, in_sample = np.intersect1d(digitised.cell, sample.cell, return_indices=True)
        energy = np.zeros(len(sample))
        energy[in_sample] = digitised.energy[in_digitised]
        for number, latest in enumerate(times):
            early = flown < latest
            visible = np.bincount(contributions.hit[early], contributions.energy[early], minlength=len(sample))
            visible[visible < threshold * (1 - SAME_ENERGY)] = 0.0
            explained[number] += int(np.sum(np.abs(visible - energy) <= SAME_ENERGY * energy))
    best = int(np.argmax(explained))
    if explained[best] < max(explained[-1] + MIN_LATE_CELLS, MIN_EXPLAINED * n_cells):
        return None
    return TimeWindow(float(times[best]), int(explained[best]), int(explained[-1]), n_cells)


def _hits(groups: Sequence[Group], *, simulated: bool) -> HitSample | None:
    """Digitised or simulated hits; None without hits."""
    samples = [sample for group in groups for sample in group.of(simulated=simulated) if len(sample)]
    return join_samples(samples) if samples else None


class FieldEstimate(NamedTuple):
    """A field along z, T: median of `n_values`, and its uncertainty (from their median deviation)."""

    b_field: float
    uncertainty: float
    n_values: int

    @classmethod
    def of(cls, values: Floats) -> FieldEstimate | None:
        """From values [N], T; None for less than `MIN_STEPS` finite ones."""
        values = values[np.isfinite(values)]
        if len(values) < MIN_STEPS:
            return None
        return cls(*_median(values), len(values))


def measure_field(
    file: PodioFile, detector: Detector, sim_tracker_hits: Sequence[str], stop: int
) -> list[tuple[FieldEstimate, str]]:
    """All estimates of the field from the first `stop` entries, the most certain first, each with its source in words.

    A value that the file states has no uncertainty. Of `detector` the collections count, not the field;
    `sim_tracker_hits` are names of collections.
    """
    estimates = []
    for key, values in file.parameters.items():
        if re.search(PARAMETER, key) and len(values) == 1:
            with suppress(ValueError):
                if 0 < (value := abs(float(values[0]))) < MAX_FIELD:
                    estimates.append((FieldEstimate(value, 0.0, 1), f"parameter '{key}' of the file's metadata"))
    for estimate, what in (
        (_from_tracks(file, detector, stop), "tracks and the particles that they are linked to"),
        (_from_steps(file, sim_tracker_hits, stop), "steps of particles between simulated tracker hits"),
    ):
        if estimate is not None:
            estimates.append((estimate, f"{estimate.n_values} {what}"))
    return sorted(estimates, key=lambda pair: pair[0].uncertainty)


def _from_tracks(file: PodioFile, detector: Detector, stop: int) -> FieldEstimate | None:
    """From the transverse momenta of charged particles and their tracks in 1 T; electrons, which radiate, left out."""
    reader = Edm4hepReader(file, detector=dataclasses.replace(detector, b_field=1.0))
    try:
        events = reader.read(0, stop)
    except InputError:
        return None
    tracks, truth, links = events.tracks, events.truth, events.track_links
    if tracks is None or truth is None or links is None:
        return None
    good = (links.source < ak.num(tracks)) & (links.particle >= 0) & (links.particle < ak.num(truth))
    links = links[good & (links.weight > 0.5)]
    particles, pt_per_tesla = truth[links.particle], jagged.flat(tracks.momentum.pt[links.source], np.float64)
    use = (jagged.flat(particles.charge) != 0) & (np.abs(jagged.flat(particles.pdg)) != ELECTRON)
    with np.errstate(divide="ignore", invalid="ignore"):
        return FieldEstimate.of((jagged.flat(particles.momentum.pt, np.float64) / pt_per_tesla)[use])


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


def _from_steps(file: PodioFile, collections: Sequence[str], stop: int) -> FieldEstimate | None:
    """From the change of direction of particles of charge 1 between consecutive tracker hits.

    On a step with chord c the direction turns by 2 asin(c / 2R), with R = pt / (0.299792458e-3 B).
    """
    pieces = [piece for name in collections if (piece := _tracker_hits(file, name, stop)) is not None]
    if not pieces:
        return None
    particle, time, position, momentum = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    order = np.lexsort((time, *particle.T[::-1]))
    particle, (x, y), (px, py) = particle[order], position[order].T, momentum[order].T
    start = np.flatnonzero((particle[1:] == particle[:-1]).all(axis=1))
    end = start + 1
    pt, chord = np.hypot(px, py), np.hypot(x[end] - x[start], y[end] - y[start])
    dot = px[start] * px[end] + py[start] * py[end]
    turn = np.abs(np.arctan2(px[start] * py[end] - py[start] * px[end], dot))
    # Less than a quarter turn.
    use = (np.minimum(pt[start], pt[end]) > MIN_PT) & (chord > MIN_CHORD) & (dot > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return FieldEstimate.of((np.sin(turn / 2) / chord * (pt[start] + pt[end]) / GEV_PER_TESLA_MM)[use])


def _tracker_hits(file: PodioFile, name: str, stop: int) -> tuple[Floats, ...] | None:
    """Hits of a collection that secondaries did not make; None without links to particles.

    Particle (event, collection id, index) [N, 3], time [N] in ns, position [N, 2] in mm, momentum [N, 2] in GeV.
    """
    branch = relation(file.columns, name, 0, "particle", "MCParticle")
    if branch is None or not file.columns.has(name, "time"):
        return None

    def get(member: str) -> Floats:
        return jagged.flat(file.columns.get(name, member, start=0, stop=stop), np.float64)

    counts = jagged.count(file.columns.get(name, "time", start=0, stop=stop))
    _, ids, index = file.references(branch, 0, stop, of=counts)
    particle = np.stack([jagged.event_index(counts), ids, index], axis=1)
    position, momentum = (
        np.stack([get(f"{what}.{axis}") for axis in "xy"], axis=1) for what in ("position", "momentum")
    )
    primary = np.ones(len(particle), dtype=np.bool_)
    if file.columns.has(name, "quality"):
        primary = (get("quality").astype(np.int64) & BY_SECONDARY) == 0
    return particle[primary], get("time")[primary], position[primary], momentum[primary]


def counted(number: int, what: str) -> str:
    """A number with its noun, e.g. ``1 event`` and ``3 events``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
