"""Description of a detector (configs/detector/*.yaml): field, collections, shape and matter of the calorimeters.

Radiation and nuclear interaction lengths are the Particle Data Group's: "Atomic and nuclear properties of materials",
table 6.1 of the Review of Particle Physics (2022), and pdg.lbl.gov/AtomicNuclearProperties.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from pflow.config import from_plain, load_yaml, resolve, to_plain
from pflow.errors import ConfigError, check_choice, check_options
from pflow.physics.arrays import Floats

MATERIALS = {  # radiation length, nuclear interaction length, g/cm2; density, g/cm3
    "aluminium": (24.01, 107.2, 2.699),
    "BaF2": (9.91, 149.0, 4.893),
    "BGO": (7.97, 159.1, 7.130),
    "copper": (12.86, 137.3, 8.960),
    "CsI": (8.39, 171.5, 4.510),
    "iron": (13.84, 132.1, 7.874),
    "lead": (6.37, 199.6, 11.350),
    "lead_glass": (7.87, 158.0, 6.220),
    "liquid_argon": (19.55, 119.7, 1.396),
    "liquid_xenon": (8.48, 172.1, 2.953),
    "NaI": (9.49, 154.6, 3.667),
    "PbWO4": (7.39, 168.3, 8.300),
    "polystyrene": (43.79, 81.7, 1.060),
    "silicon": (21.82, 108.4, 2.329),
    "steel": (13.84, 132.1, 7.874),  # iron's
    "titanium": (16.16, 126.2, 4.540),
    "tungsten": (6.76, 191.9, 19.300),
    "uranium": (6.00, 209.0, 18.950),
}

SYMBOLS = {"al": "aluminium", "cu": "copper", "fe": "iron", "pb": "lead", "si": "silicon", "ti": "titanium"}
SYMBOLS |= {"u": "uranium", "w": "tungsten"}

SYNTAX = "CALORIMETER=MATERIAL:MM, of each layer, e.g. ecal=lead:4.0, hcal=steel:20,polystyrene:3 or, of layers of two "
SYNTAX += "thicknesses, ecal=tungsten:20x2.1+10x4.2"


def matter_of_layers(text: str, count: int) -> Floats:
    """Thickness, mm, radiation and interaction lengths of each layer, float64 [layers, 3], summed over its materials.

    `text`: ``MATERIAL:MM``, several separated by commas, where ``MM`` is the thickness in every layer or, counted from
    the inside, ``20x2.1+10x4.2``. There are `count` layers, or more if the text counts more.

    Raises
    ------
    ConfigError
        Another form, an unknown material (with the nearest), or fewer layers than `count`.

    Examples
    --------
    >>> matter_of_layers("tungsten:1x2.1+2x4.2", 3).round(3).tolist()
    [[2.1, 0.6, 0.021], [4.2, 1.199, 0.042], [4.2, 1.199, 0.042]]
    """
    per_material: list[tuple[str, list[float]]] = []
    for part in text.split(","):
        name, _, numbers = part.partition(":")
        # Whoever writes pbwo4 or Iron means the material of the table.
        folded = SYMBOLS | {known.casefold(): known for known in MATERIALS}
        name = folded.get(name.strip().casefold(), name.strip())
        check_choice(name, MATERIALS, "material")
        runs = [re.fullmatch(r"(?:(\d+)x)?(\d+\.?\d*)", run.strip()) for run in numbers.split("+")]
        # 2.1+4.2 does not say how many layers each thickness is for.
        some_uncounted = len(runs) > 1 and not all(run and run[1] for run in runs)
        if some_uncounted or not all(run and float(run[2]) > 0 for run in runs):
            raise ConfigError(f"absorber '{text}': expected {SYNTAX}")
        thickness = [float(run[2]) for run in runs if run for _ in range(int(run[1] or 1))]
        counted = any(run[1] for run in runs if run)
        if counted and len(thickness) < count:
            raise ConfigError(f"absorber '{text}' is of {len(thickness)} layers, and hits are in {count}")
        per_material.append((name, thickness if counted else thickness[:1]))
    n_layers = max(count, *(len(thickness) for _, thickness in per_material))
    total = np.zeros((n_layers, 3))
    for name, thickness in per_material:
        radiation, interaction, density = MATERIALS[name]
        # One thickness is for all layers; several can only be for as many layers.
        if 1 < len(thickness) < n_layers:
            raise ConfigError(f"absorber '{text}': its materials are of {len(thickness)} and of {n_layers} layers")
        mm = np.broadcast_to(np.array(thickness), n_layers)
        per_mm = 0.1 * density / np.array([radiation, interaction])  # lengths are in cm: g/cm2 over g/cm3
        total += np.column_stack([mm, mm[:, np.newaxis] * per_mm])
    return total


KINDS = ("ecal", "hcal", "muon", "lumi")
ECAL, HCAL = range(2)  # indices into `KINDS`
REGIONS = ("barrel", "endcap", "other")
FACES = {"barrel": "inner_radius", "endcap": "inner_z"}  # by region, where a calorimeter begins, mm
HADRON_SCALES = (0.3, 3.0)  # smallest and largest plausible `hadron_scale`
SAME_FACE = 0.01  # largest relative difference of the two places where a description says that a calorimeter begins
INTERACTION_LENGTHS = {"ecal": (0.01, 0.3), "hcal": (0.02, 0.6)}  # plausible ones of a layer over radiation lengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layers:
    """`count` equal consecutive layers of a calorimeter."""

    count: int
    pitch: float  # thickness of each, mm, along the normal, like the lengths
    radiation_lengths: float | None = None
    interaction_lengths: float | None = None
    """Of each layer; None: not known."""

    def __post_init__(self) -> None:
        lengths = "radiation_lengths", "interaction_lengths"
        check_options(self, "layers", "above 0", lambda value: 0 < value < math.inf, "count", "pitch")
        check_options(self, "layers", "above 0", lambda value: value is None or 0 < value < math.inf, *lengths)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calorimeter:
    """A calorimeter, whose hits may be in several collections of a file.

    A model that reads the geometry (`pflow.physics.geometry`) needs layers, cell size and faces, and reads the scale of
    hadrons; a calorimeter may have both faces. Times are relative to a straight flight at c
    (`pflow.io.edm4hep.simulated`).
    """

    name: str
    kind: str  # one of ``ecal hcal muon lumi``
    region: str  # one of ``barrel endcap other``
    collections: tuple[str, ...] = ()  # digitised (edm4hep::CalorimeterHit); all that a file has are joined
    sim_collections: tuple[str, ...] = ()  # edm4hep::SimCalorimeterHit, read if a file holds no digitised hits at all
    sim_scale: float | None = None
    """Factor from visible (deposited) to calibrated energy; required to read simulated hits."""
    sim_deep_scale: tuple[float, ...] | None = None  # of two samplings: first layer of the deeper one, factor there
    sim_threshold: float | None = None  # visible energy, GeV, above which a simulated cell is kept; None keeps all
    sim_time_window: tuple[float, ...] | None = None
    """Earliest and latest time, ns, of energy that counts; hits then have these times. None counts all energy, and
    keeps the times."""
    sim_measures_time: bool = True  # whether the readout measures time; if not, simulated hits have time 0
    required: bool = True  # whether a file without any of the collections is an error; otherwise it is reported
    cell_encoding: str | None = None
    """DD4hep bit field of the cell id, e.g. ``system:0:8,layer:8:8``, for files that do not name it."""
    inner_radius: float | None = None  # front face of a barrel, inscribed radius, mm
    inner_z: float | None = None  # front faces of endcaps or a ring, |z|, mm
    sides: int = 0  # of the barrel, 0 for a cylinder
    phase: float = 0.0  # azimuth of the normal of a side, rad
    cell_size: float | None = None  # in the surface, mm
    layers: tuple[Layers, ...] = ()  # from the inside
    hadron_scale: float | None = None
    """Factor on the energies of an HCAL that gives isolated charged hadrons the response of ild_g4
    (`pflow.event.closure.HADRON_RESPONSE`); None: not known. Detectors calibrate their HCALs differently; a model that
    reads the geometry reads one scale."""
    electron_scale: float = 1.0
    """Factor on the energies of an ECAL that gives electrons their energy; 1 if the file's are calibrated so."""

    def __post_init__(self) -> None:
        for field, value, choices in (("kind", self.kind, KINDS), ("region", self.region, REGIONS)):
            if value not in choices:
                raise ConfigError(f"calorimeter '{self.name}': {field} '{value}' is not one of {', '.join(choices)}")
        where, length = f"calorimeter '{self.name}'", "a length in mm above 0"
        low, high = HADRON_SCALES
        plausible = f"from {low:g} to {high:g} (HCALs are calibrated to some 10%: 1 is ild_g4's, 0.79 CLD's)"
        check_options(self, where, plausible, lambda f: f is None or low <= f <= high, "hadron_scale")
        check_options(self, where, f"from {low:g} to {high:g}", lambda f: low <= f <= high, "electron_scale")
        check_options(self, where, "above 0", lambda f: f is None or 0 < f < math.inf, "sim_scale")
        lengths = ("inner_radius", "inner_z", "cell_size")
        check_options(self, where, length, lambda size: size is None or 0 < size < math.inf, *lengths)
        check_options(self, where, "at least 3, or 0 for a cylinder", lambda n: n == 0 or n >= 3, "sides")
        check_options(self, where, "an angle in rad, up to 2 pi", lambda angle: abs(angle) < 6.3, "phase")
        energy = "an energy in GeV of at least 0"
        check_options(self, where, energy, lambda e: e is None or 0 <= e < math.inf, "sim_threshold")
        for name, kind in (("hadron_scale", "hcal"), ("electron_scale", "ecal")):
            if getattr(self, name) not in (None, 1) and self.kind != kind:
                raise ConfigError(f"{where}: {name} is for an {kind.upper()}, not for kind '{self.kind}'")
        low, high = INTERACTION_LENGTHS.get(self.kind, (0.0, math.inf))
        for layers in self.layers:
            ratio = (layers.interaction_lengths or math.nan) / (layers.radiation_lengths or math.nan)
            if ratio < low or ratio > high:
                text = f"layers have {ratio:.2g} interaction lengths per radiation length"
                expected = f"expected {low:g} to {high:g} (tungsten 0.035, lead 0.032, steel 0.1)"
                raise ConfigError(f"{where}: {text}, {expected}")
        faces = [name for name in FACES.values() if getattr(self, name) is not None]
        face = FACES.get(self.region)
        if faces and face and face not in faces:
            raise ConfigError(f"{where}: a calorimeter of region '{self.region}' begins at {face}, found {faces[0]}")
        # A scale without meaning for the kind of calorimeter is ignored when descriptions are compared.
        object.__setattr__(self, "hadron_scale", self.hadron_scale if self.kind == "hcal" else None)
        object.__setattr__(self, "sim_scale", self.sim_scale if self.sim_collections else None)
        times, deep = "two times in ns, the earlier first", "a layer and a factor above 0"
        check_options(self, where, times, lambda w: w is None or (len(w) == 2 and w[0] < w[1]), "sim_time_window")
        check_options(self, where, deep, lambda s: s is None or (len(s) == 2 and 0 < s[1] < math.inf), "sim_deep_scale")

    @property
    def n_layers(self) -> int:
        """Number of layers; 0 if they are not described."""
        return sum(layers.count for layers in self.layers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruthTracking:
    """Tracks made from Monte Carlo particles for files without tracks (`pflow.io.edm4hep.simulated`).

    A resolution ``[a, b]`` means a (+) b / p, added in quadrature.
    """

    sim_tracker_hits: tuple[str, ...]
    """Collections of simulated tracker hits (edm4hep::SimTrackerHit); layers are counted in all that a file holds."""
    min_layers: int | None = None  # smallest number of tracker layers that a particle crosses
    max_vertex_radius: float | None = None  # largest distance of its vertex from the z axis, mm
    sides: int | None = None  # of the ECAL barrel, normals at multiples of 2 pi / `sides`; None for a cylinder
    inverse_pt: tuple[float, ...] | None = None  # resolution of 1/pt, 1/GeV; p is the transverse momentum
    angle: tuple[float, ...] | None = None  # of phi and of lambda = atan(pz / pt), rad; p is the transverse momentum
    impact: tuple[float, ...] | None = None  # of d0, mm, with p sin(theta)^1.5 as p, and of z0, with p sin(theta)^2.5

    def __post_init__(self) -> None:
        two, resolutions = "two numbers of at least 0", ("inverse_pt", "angle", "impact")

        def is_resolution(terms: tuple[float, ...] | None) -> bool:
            return terms is None or (len(terms) == 2 and min(terms) >= 0)

        check_options(self, "truth_tracks", two, is_resolution, *resolutions)
        check_options(self, "truth_tracks", "at least 3", lambda n: n is None or n >= 3, "sides")

    @property
    def unknown(self) -> tuple[str, ...]:
        """Unknown fields that making tracks requires."""
        needed = ("min_layers", "max_vertex_radius", "inverse_pt", "angle", "impact")
        return tuple(name for name in needed if getattr(self, name) is None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detector:
    """A detector. Loaded from ``configs/detector/*.yaml`` and stored in checkpoints.

    >>> [calorimeter.name for calorimeter in load_detector("ild_g4").calorimeters]
    ['ecal_barrel', 'ecal_endcap', 'hcal_barrel', 'hcal_endcap']
    """

    name: str
    description: str = ""
    b_field: float
    """Solenoid field along +z, T."""
    calorimeters: tuple[Calorimeter, ...]
    """Subdetectors in order; a hit's ``subdetector`` is an index into them."""
    ecal_inner_radius: float
    """Front face of the ECAL barrel, inscribed radius, mm."""
    ecal_inner_z: float
    """Front faces of the ECAL endcaps, |z|, mm."""
    ecal_outer_radius: float
    """Outer radius of the ECAL barrel, mm; distinguishes detectors with the same collection names."""
    hcal_inner_radius: float | None = None
    hcal_inner_z: float | None = None
    """Front faces of the HCAL, mm; decide between ECAL and HCAL in files that do not name a hit's subdetector (the
    first paper's). None if unknown."""
    phi_symmetry: int | None = None
    """The calorimeters are symmetric under rotations about the z axis by multiples of 2 pi / `phi_symmetry`; None: by
    any angle (cylinders and discs)."""
    tracks: tuple[str, ...] = ()
    """Collections of tracks; the first in the file is read."""
    tracks_required: bool = False
    """Whether a file without any of `tracks` is an error."""
    truth_tracks: TruthTracking | None = None
    """Options to make tracks from Monte Carlo particles, on request, for a file without tracks."""
    tracker_hits: tuple[str, ...] = ()
    """Collections of tracker hits; all are joined."""
    truth_particles: tuple[str, ...] = ("MCParticles", "MCParticle")
    hit_links: tuple[str, ...] = ()
    track_links: tuple[str, ...] = ()
    """Collections of Monte Carlo particles, and of the links to them from hits and from tracks."""
    references: tuple[str, ...] = ()
    """Collections of another algorithm's particles, e.g. PandoraPFOs; the first in the file is read."""

    def __post_init__(self) -> None:
        names = [calorimeter.name for calorimeter in self.calorimeters]
        if not names:
            raise ConfigError(f"detector '{self.name}' has no calorimeters")
        if len(set(names)) != len(names):
            raise ConfigError(f"detector '{self.name}' names a calorimeter twice: {', '.join(names)}")
        where, lengths = f"detector '{self.name}'", ("ecal_inner_radius", "ecal_inner_z", "ecal_outer_radius")
        check_options(self, where, "a field in T, not 0", lambda b: b and math.isfinite(b), "b_field")
        check_options(self, where, "a length in mm above 0", lambda size: 0 < size < math.inf, *lengths)
        if not self.ecal_outer_radius >= self.ecal_inner_radius:
            text = f"ecal_outer_radius must be at least ecal_inner_radius, {self.ecal_inner_radius:g} mm"
            raise ConfigError(f"{where}: {text}, found {self.ecal_outer_radius:g}")
        for region, face in FACES.items():
            ecal, hcal = getattr(self, f"ecal_{face}"), getattr(self, f"hcal_{face}")
            # Not `hcal <= ecal`, which a NaN would pass.
            if hcal is not None and not hcal > ecal:
                message = f"hcal_{face} must be above the face of the ECAL, {ecal:g} mm, found {hcal:g}"
                raise ConfigError(f"{where}: {message}")
            # Tracks are followed to the one face of the ECAL, and depths of hits are counted from the other.
            for kind, stated in (("ecal", ecal), ("hcal", hcal)):
                parts = [c for c in self.calorimeters if (c.kind, c.region) == (kind, region) and getattr(c, face)]
                begins, name = min(((getattr(part, face), part.name) for part in parts), default=(stated, ""))
                if stated is not None and abs(stated / begins - 1) > SAME_FACE:
                    text = f"{kind}_{face} is {stated:g} mm, and {name} begins at {face} {begins:g} mm"
                    raise ConfigError(f"{where}: {text}")
        check_options(self, where, "at least 1", lambda n: n is None or n >= 1, "phi_symmetry")
        for part in self.calorimeters:
            # Training events are turned by these angles: a barrel's corners must come to lie on corners.
            if part.kind in ("ecal", "hcal") and part.sides % (self.phi_symmetry or 1):
                text = f"phi_symmetry {self.phi_symmetry} does not divide the {part.sides} sides of {part.name}"
                raise ConfigError(f"{where}: {text}")


def digest(description: Any) -> str:
    """Twelve digits that differ between different descriptions of detectors, or other records or plain data."""
    return hashlib.sha256(json.dumps(description, sort_keys=True, default=to_plain).encode()).hexdigest()[:12]


def calibration_digest(detector: Detector) -> str:
    """`digest` of the calorimeters without what only finds their hits in a file: names of collections may differ."""
    names = "collections", "sim_collections", "required", "cell_encoding"
    return digest([{k: v for k, v in to_plain(of).items() if k not in names} for of in detector.calorimeters])


def load_detector(name: str | Path | Detector) -> Detector:
    """A detector by built-in name (``cld``, ``clic``, ``ild``, ``ild_g4``), from a YAML file, or given as such.

    ConfigError: no such detector, or an invalid file.

    >>> detector = load_detector("cld")
    >>> detector.b_field, detector.ecal_inner_radius  # T, mm
    (2.0, 2150.0)
    """
    if isinstance(name, Detector):
        return name
    path = resolve("detector", name)
    return from_plain(Detector, load_yaml(path), str(path))
