"""Measure calorimeters with their hits: extent, layers, cells, digitisation; and the field and scales with tracks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError, PflowError
from pflow.event import jagged
from pflow.event.closure import ROUNDS, TrackDeposits
from pflow.event.scales import ELECTRON
from pflow.io.edm4hep.podio import Joined, PodioFile, track_states
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.edm4hep.simulated import particles_of_hits
from pflow.physics import geometry
from pflow.physics.arrays import Floats
from pflow.physics.detector import HADRON_SCALES, Detector
from pflow.physics.kinematics import GEV_PER_TESLA_MM

OUTLIERS = 0.005  # fraction of hits that may lie outside a calorimeter without visible layers
OTHER_END = 50.0  # endcaps whose first hits differ by more than this in |z| begin at different |z|, mm
STRAY = 0.05  # layers with fewer hits than this fraction of the median layer's are not real layers
MIDDLE = 0.75  # part of a side, around its middle, whose hits show the layers
MIN_SAME_CELLS = 10  # cells with a digitised and a simulated hit that a scale needs at least
MIN_TRACKS = 3  # that an estimate of the field needs; the spread of fewer is unreliable
MIN_SCALES = 20  # fewest tracks for a scale of hadrons or electrons
SURE, SURE_OF_ELECTRONS = 0.1, 0.03  # largest relative uncertainties of the scales of hadrons and electrons
DIFFERENT = 0.05  # smallest relative difference of the scale of electrons from 1 that counts
MIN_ELECTRON = 2.0  # GeV, momentum of an electron; softer ones lose more in front of the ECAL
MAX_BEHIND = 0.01  # largest energy of an electron in the HCAL over its momentum
PEAK = 0.22  # largest difference of the logarithm of an electron's energy over its momentum from the median
NARROW_PEAK = 0.08  # largest median deviation of these, as a fraction: electrons have 0.03 to 0.05
MOST = 0.55  # smallest fraction of tracks like electrons near it: 0.6 to 0.9, in jets and without electrons 0.3 to 0.5
JETS = 8.0  # tracks of an event, on average, from which on the events are of jets
NEUTRALS = 1.06  # factor by which neutral particles near tracks of jets make the scale too small, in ild_g4's Z -> qq
MIN_CHORD = 200.0  # mm, from the vertex to a tracker hit that shows the field: nearer ones are scattered as much
MAX_FIELD = 10.0  # T, of a detector; a larger one shows other units of lengths or momenta

THRESHOLDS = {
    "ecal": 5e-5,
    "hcal": 2.5e-4,
}  # GeV, of CLD's silicon and scintillator, some 0.3 and 0.5 of a MIP's energy
MOST_BELOW = 0.1  # largest fraction of the deposited energy below a guessed threshold

CELL = np.dtype([("event", np.int64), ("id", np.uint64)])
"""What identifies a cell with a hit."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HitSample:
    """Hits of one collection, or of several joined ones, whose position is finite."""

    name: str
    simulated: bool  # edm4hep::SimCalorimeterHit
    cell: npt.NDArray[Any]  # `CELL` [hit]
    position: Floats  # [hit, 3], mm
    energy: Floats  # [hit], GeV
    time: Floats  # [hit], ns; NaN where unknown
    layer: npt.NDArray[np.int32] | None  # [hit]; None if the file does not say how cell ids are made

    def __len__(self) -> int:
        return len(self.cell)

    def __getitem__(self, mask: npt.NDArray[np.bool_]) -> HitSample:
        picked = {name: getattr(self, name)[mask] for name in ("cell", "position", "energy", "time")}
        return dataclasses.replace(self, **picked, layer=None if self.layer is None else self.layer[mask])

    @property
    def radius(self) -> Floats:
        """Distance from the z axis, mm."""
        return np.asarray(np.hypot(self.position[:, 0], self.position[:, 1]))

    @property
    def seen(self) -> str:
        """Numbers of hits and of events in words."""
        n_events = len(np.unique(self.cell["event"]))
        return f"{counted(len(self), 'hit')} in {counted(n_events, 'event')}"


class Cells(NamedTuple):
    """Where a barrel or endcaps begin and end along the normal of the face, and their layers and cells; mm."""

    sample: HitSample
    front: float
    back: float
    shape: geometry.BarrelShape | None  # of a barrel on layers
    pitches: tuple[float, ...]  # thickness of each layer, from the inside; empty if the hits show no layers, or one
    on_layers: bool  # if not, 99% of the hits are between front and back
    size: float  # distance of neighbouring cells, 0: not known

    def like(self, other: Cells) -> bool:
        """Whether these are hits of the same technology as another collection's, and not far behind or before it."""
        too_few = min(len(self.sample), len(other.sample)) < geometry.MIN_CELLS
        gap = max(self.front - other.back, other.front - self.back)
        pitch, others = (float(np.median(cells.pitches)) if cells.pitches else 0.0 for cells in (self, other))
        sizes, pitches = sorted((self.size, other.size)), sorted((pitch, others))
        # With few hits neither size is reliable, and 0 is an unknown one: such collections count as alike.
        same_cells = too_few or not sizes[0] or sizes[1] < 1.25 * sizes[0]
        same_layers = too_few or pitches[1] <= 1.15 * pitches[0]
        # At least 1 mm: without layers both pitches are 0, and any gap would be too wide.
        return same_cells and same_layers and gap < 3 * max(*pitches, 1.0)

    def among(self, other: Cells) -> bool:
        """Whether the middle of these is not behind those of another collection, on the same side."""
        z, others = self.sample.position[:, 2], other.sample.position[:, 2]
        return (self.front + self.back) / 2 < other.back and z.min() < others.max() and others.min() < z.max()


def measure_cells(samples: Sequence[HitSample], region: str) -> Cells | None:
    """Measure a ``barrel``, or endcaps and rings, by the digitised hits, else by the simulated ones; None without."""
    sample = joined(samples, simulated=False) or joined(samples, simulated=True)
    if sample is None:
        return None
    x, y, z = sample.position.T
    if region != "barrel" and other_end(z):  # together they would seem to have twice as many layers
        near = sample[np.sign(z) == np.sign(z[np.argmin(np.abs(z))])]
        if cells := measure_cells([near], region):
            return cells._replace(sample=sample)
    # Layer numbers that start again in each module, or count towers, are of no use.
    for layer in (sample.layer, None) if sample.layer is not None else (None,):
        if region == "barrel":
            shape = geometry.barrel_shape(x, y, layer)
            distance = geometry.distance_to_sides(x, y, *(shape.sides, shape.phase) if shape else (0, 0.0))
            on_layers = shape is not None
        else:
            shape, distance = None, np.abs(z)
            on_layers = geometry.fraction_on_layers(distance, layer) >= geometry.MIN_ON_LAYERS
        # By position alone, rows of towers that point to the origin look like layers.
        if on_layers and not (layer is None and _rows_of_towers(sample.position, distance, region)):
            layered = distance
            if layer is None and shape is not None and shape.sides:
                # The centre of a cell at the edge of a side may be in the next one's sector, where it is in no layer.
                across = np.sqrt(np.maximum(x**2 + y**2 - distance**2, 0.0))
                layered = distance[across < MIDDLE * distance * np.tan(np.pi / shape.sides)]
            front, back = geometry.layer_range(layered, layer)
            if layer is None:  # without the hits on stray layers
                by_position = geometry.layers_by_position(layered)
                counts = np.bincount(by_position)
                layered = layered[counts[by_position] > STRAY * np.median(counts)]
            runs = geometry.layer_pitches(layered, layer)
            pitches = tuple(round(pitch, 2) for count, pitch in runs for _ in range(count) if round(pitch, 2) > 0)
            size = round(geometry.cell_pitch(sample.position, distance), 2)
            return Cells(sample, front, back, shape, pitches, True, size)
    front, back = np.quantile(distance, [OUTLIERS, 1 - OUTLIERS]).tolist()
    # Cells of towers that point to the origin are neighbours in no plane: by all positions.
    size = round(geometry.cell_pitch(sample.position, np.zeros(len(sample))), 2)
    return Cells(sample, front, back, None, (), False, size)


def other_end(z: Floats) -> str:
    """That the endcaps with hits at `z` [hit], mm, begin at different |z|, in words; "": they do not."""
    ahead, behind = z[z > 0], z[z < 0]
    # Of few hits none may be in the first layers.
    if min(len(ahead), len(behind)) < geometry.MIN_CELLS or abs(ahead.min() + behind.max()) <= OTHER_END:
        return ""
    places = f"z = {behind.max():.0f} and {ahead.min():.0f} mm"
    return f"the first hits of the endcaps are at {places}; this is the nearer one"


def crossed_bars(sample: HitSample, region: str) -> str:
    """That cells are long along one axis in some layers, and along the other one in others, in words; "": not so."""
    if sample.layer is None:
        return ""
    x, y, z = np.round(sample.position.T)
    axes = (z, np.round(np.arctan2(y, x), 3)) if region == "barrel" else (x, y)
    layers = [sample.layer == number for number in np.unique(sample.layer)]
    n_first, n_second = (np.array([len(np.unique(axis[mine])) for mine in layers]) for axis in axes)
    crossed = min((n_first > 2 * n_second).mean(), (n_second > 2 * n_first).mean()) > 0.25
    return "the cells are bars, which cross from layer to layer" if crossed else ""


def _rows_of_towers(position: Floats, distance: Floats, region: str) -> bool:
    """Whether each row of cells has a different distance, as for towers that point to the origin, unlike layers."""
    x, y, z = np.abs(position.T)
    rows = np.round(np.stack([z] if region == "barrel" else [x, y]))
    _, row, counts = np.unique(rows, axis=1, return_inverse=True, return_counts=True)
    order = np.lexsort((distance, row.reshape(-1)))  # NumPy 2.0 gives it the shape [1, hit]
    end = np.cumsum(counts)
    spread = distance[order][end - 1] - distance[order][end - counts]
    several = counts > 1
    # In a single layer, too, each row has hits at one distance only.
    one_layer = np.ptp(distance) <= 2 * geometry.TOLERANCE
    alike = counts[several & (spread <= geometry.TOLERANCE)].sum() / max(counts[several].sum(), 1)
    return bool(not one_layer and counts[several].sum() > 0.2 * len(distance) and alike > geometry.MIN_ON_LAYERS)


def measure_digitisation(samples: Sequence[HitSample]) -> tuple[float, float, int, bool] | None:
    """Compare digitised and simulated hits of a calorimeter; None if too few cells have both.

    Median ratio of both energies of a cell, smallest simulated energy of a cell that was kept, GeV, number of cells
    with both, and whether digitised hits have times other than 0.
    """
    hits, visible = (joined(samples, simulated=flag) for flag in (False, True))
    if hits is None or visible is None:
        return None
    _, in_hits, in_visible = np.intersect1d(hits.cell, visible.cell, return_indices=True)
    ratio = hits.energy[in_hits] / visible.energy[in_visible]
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    if len(ratio) < MIN_SAME_CELLS:
        return None
    scale, times = float(np.median(ratio)), hits.time[np.isfinite(hits.time)]
    return scale, float(hits.energy[in_hits].min()) / scale, len(ratio), bool(times.any())


def guess_threshold(kind: str, energy: Floats) -> tuple[str, str, float | None]:
    """How, why and at which deposited energy [GeV] cells with these energies are read out, as in CLD."""
    text, rising = "GeV, deposited energy from which on a cell is read out", np.sort(energy[np.isfinite(energy)])
    if kind not in THRESHOLDS or not rising.sum() > 0:
        return "fill in", text, None
    # With gas as active material all cells are fainter.
    most = float(rising[np.searchsorted(np.cumsum(rising), MOST_BELOW * rising.sum())])
    value = min(THRESHOLDS[kind], float(f"{most:.2g}"))
    return "guessed", f"{text}: CLD's, with at most {MOST_BELOW:.0%} of the energy below it", value


def joined(samples: Sequence[HitSample], *, simulated: bool) -> HitSample | None:
    """Digitised or simulated hits in one; None without hits. Layers only if all collections have them."""
    chosen = [sample for sample in samples if sample.simulated == simulated and len(sample)]
    if len(chosen) < 2:
        return chosen[0] if chosen else None
    fields: dict[str, Any] = {}
    for field in ("cell", "position", "energy", "time", "layer"):
        parts = [getattr(sample, field) for sample in chosen]
        fields[field] = None if any(part is None for part in parts) else np.concatenate(parts)
    return dataclasses.replace(chosen[0], **fields)


def measure_field(file: PodioFile, detector: Detector, stop: int) -> list[tuple[float, float, str]]:
    """Values of the field along z, T, from the first `stop` entries, each with its uncertainty and source in words.

    The most certain is the first. Of `detector` the collections count, not the field.
    """
    estimates = []
    # By the transverse momenta of charged particles and their tracks in 1 T; electrons, which radiate, left out.
    # Only tracks count here, but without a scale simulated hits are not read.
    scaled = [dataclasses.replace(part, sim_scale=part.sim_scale or 1.0) for part in detector.calorimeters]
    with suppress(InputError):
        one_tesla = dataclasses.replace(detector, b_field=1.0, calorimeters=tuple(scaled))
        events = Edm4hepReader(file, detector=one_tesla).read(0, stop)
        tracks, truth, links = events.tracks, events.truth, events.track_links
        # Momenta of tracks without states are as fitted in the true field, whatever the detector's.
        states = any(track_states(file.columns, name) for name in detector.tracks)
        if states and tracks is not None and truth is not None and links is not None:
            # What the reader returns is not validated: links may lead beyond the lists.
            good = (links.source < ak.num(tracks)) & (links.particle >= 0) & (links.particle < ak.num(truth))
            # A track can be linked to several particles; it has the momentum of its main one.
            links = links[good & (links.weight > 0.5)]
            particles, pt_per_tesla = truth[links.particle], jagged.flat(tracks.momentum.pt[links.source], np.float64)
            use = (jagged.flat(particles.charge) != 0) & (np.abs(jagged.flat(particles.pdg)) != ELECTRON)
            with np.errstate(divide="ignore", invalid="ignore"):
                b_field: Floats = (jagged.flat(particles.momentum.pt, np.float64) / pt_per_tesla)[use]
            charges = jagged.flat(tracks.charge[links.source]) * jagged.flat(particles.charge)
            b_field *= np.sign(charges[use])  # opposite ones where the field points to -z
            b_field = b_field[np.isfinite(b_field)]
            if len(b_field) >= MIN_TRACKS:
                text = f"{len(b_field)} tracks and the particles that they are linked to"
                estimates.append((*_median(b_field), text))
    with suppress(InputError):
        if len(b_field := _bending(file, detector, range(stop))) >= MIN_TRACKS:
            value, uncertainty = _median(b_field)
            # Energy that is lost on the way makes it some percent too small; and far from the centre are other magnets.
            if uncertainty < SURE * abs(value):
                text = f"{len(b_field)} particles and their simulated tracker hits"
                estimates.append((value, max(uncertainty, 0.01 * abs(value)), text))
    return sorted(estimates, key=lambda estimate: estimate[1])


def _bending(file: PodioFile, detector: Detector, span: range) -> Floats:
    """Field along z, T, by each charged particle's simulated tracker hit that is the farthest from its vertex.

    The chord of the circle from the vertex to the hit has half the angle of the way with the momentum at the hit.
    """
    if detector.truth_tracks is None or not detector.truth_particles:
        return np.zeros(0)
    name, found = detector.truth_particles[0], [np.zeros((0, 3))]
    of_particles, of_hits = ("vertex.x", "vertex.y", "charge"), ("position.x", "position.y", "momentum.x", "momentum.y")
    x_vertex, y_vertex, charge = (jagged.flat(file.get(span, name, member), np.float64) for member in of_particles)
    truth = Joined((name,), [jagged.count(file.get(span, name, "charge"))], len(span))
    for hits in detector.truth_tracks.sim_tracker_hits:
        try:
            particle, known = particles_of_hits(file, hits, truth, span)
        except InputError:  # other tracker hits may refer to particles
            continue
        particle = particle[known]
        x, y, px, py = (jagged.flat(file.get(span, hits, member), np.float64)[known] for member in of_hits)
        x, y = x - x_vertex[particle], y - y_vertex[particle]
        found.append(np.stack([particle, np.hypot(x, y), x * py - y * px], axis=1))
    every = np.concatenate(found)
    particle, chord, cross = every[np.lexsort((every[:, 1], every[:, 0]))].T
    last = (np.diff(particle, append=-1) != 0) & (chord > MIN_CHORD)
    q = charge[particle[last].astype(np.int64)]
    with np.errstate(divide="ignore", invalid="ignore"):
        b_field: Floats = -2 * cross[last] / (GEV_PER_TESLA_MM * q * chord[last] ** 2)
    return b_field[np.isfinite(b_field)]


def measure_scales(file: PodioFile, detector: Detector, stop: int) -> dict[str, tuple[float | None, str]]:
    """`electron_scale` of the ECAL and `hadron_scale` of the HCAL by isolated tracks of the first `stop` entries.

    Each comes with its precision, or is None with the reason. Hadrons that shower in the ECAL alone cannot calibrate
    it: they leave 0.57 of their momentum in ild_g4, 0.64 to 0.74 in CLD.
    """
    fields = ("electron_scale", "hadron_scale")
    try:
        truth_tracks = detector.truth_tracks is not None and not detector.truth_tracks.unknown
        events = Edm4hepReader(file, detector=detector, truth_tracks=truth_tracks).read(0, stop, truth=False)
    except PflowError as error:
        return dict.fromkeys(fields, (None, str(error)))
    if events.tracks is None:
        return dict.fromkeys(fields, (None, "no tracks"))
    entries, seen = TrackDeposits.of(events), counted(len(events), "event")
    electron, how = _surely(_electron_scales(entries), "isolated electron", seen, SURE_OF_ELECTRONS)
    if electron is not None and abs(electron - 1) < DIFFERENT:
        electron, how = 1.0, f"{how}: calibrated"
    elif electron is not None:
        # The energy of hadrons in the ECAL must be calibrated before the rest tells the scale of the HCAL.
        factors = np.array([1.0, electron])  # of the HCAL and the ECAL
        entries = dataclasses.replace(entries, narrow=entries.narrow * factors, around=entries.around * factors)
    hadron, text = _surely(entries.hadron_scales(), "isolated track", seen, SURE)
    per_event, (low, high) = len(entries.momentum) / max(len(events), 1), HADRON_SCALES
    if hadron is not None and per_event >= JETS:
        text += f", times {NEUTRALS} for neutral particles near them, as {per_event:.0f} tracks of an event are of jets"
        hadron *= NEUTRALS
    if hadron is not None and not low <= hadron <= high:
        hadron, text = None, f"{text}: not plausible; are energies in GeV, and calibrated?"
    return {"electron_scale": (electron, how), "hadron_scale": (hadron, text)}


def _electron_scales(entries: TrackDeposits) -> Floats:
    """Momentum over energy of isolated tracks that deposit nearly all energy in the ECAL, [electron]; use the median.

    In single particles of ild_g4 and CLD 95% of them are electrons; n tracks measure the scale to 0.09 / sqrt(n). None
    where most tracks like these are hadrons, as in jets.
    """
    p, (in_hcal, elsewhere) = entries.momentum, entries.narrow.T
    showers = entries.isolated() & (p > MIN_ELECTRON) & (in_hcal < MAX_BEHIND * p) & (elsewhere > 0)
    scales = p[showers] / elsewhere[showers]

    def near(scale: float) -> Floats:
        return np.asarray(scales[np.abs(np.log(scales / scale)) < PEAK])

    # From where most tracks are: hadrons that shower in the ECAL pull the plain median away from the electrons.
    chosen = near(max(np.geomspace(*HADRON_SCALES, 24).tolist(), key=lambda scale: len(near(scale))))
    for _ in range(ROUNDS):
        chosen = near(float(np.median(chosen))) if len(chosen) else chosen
    # The energies of hadrons that shower in the ECAL make no narrow peak, and few hadrons may seem to.
    narrow = len(chosen) > MOST * len(scales) and np.median(np.abs(chosen / np.median(chosen) - 1)) < NARROW_PEAK
    return chosen if narrow else chosen[:0]


def _surely(scales: Floats, what: str, seen: str, sure: float) -> tuple[float | None, str]:
    """Median of scales, None if its relative error is above `sure`; and their number in words."""
    n_tracks, needed = f"{counted(len(scales), what)} in {seen}", f"{MIN_SCALES} and {sure:.0%} are needed"
    if len(scales) < MIN_SCALES:
        return None, f"{n_tracks}; {needed} (--entries)"
    scale, uncertainty = _median(scales)
    measured = f"{scale:.2f} +- {uncertainty:.2f} by {n_tracks}"
    if not uncertainty < sure * scale:
        n_needed = int(len(scales) * (uncertainty / (sure * abs(scale))) ** 2) + 1
        return None, f"{measured}; {needed}, some {n_needed:,} (--entries)"
    return scale, measured


def _median(values: Floats) -> tuple[float, float]:
    """Median, and its uncertainty from the median deviation."""
    median = float(np.median(values))
    # Of a Gaussian: 1.4826 standard deviation over median deviation; 1.2533 error of the median over the mean's.
    return median, 1.2533 * 1.4826 * float(np.median(np.abs(values - median))) / len(values) ** 0.5


def counted(number: int, what: str) -> str:
    """A number with its noun, e.g. ``1 event`` and ``3 events``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
