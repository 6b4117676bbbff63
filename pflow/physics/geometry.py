"""Shape of the calorimeters, depths of hits and track entries in them, and positions of showers.

The depth of a point is along its ray from the origin, which most particles follow: behind the face of its calorimeter
in mm, and in radiation and nuclear interaction lengths from the first face on. Faces, matter and cell sizes are from
the detector's description (`pflow.physics.detector`); no layer number is needed. A `Geometry` holds one or several
detectors, because events may be moved into different detectors (`pflow.event.move`). Formulas take NumPy arrays and
torch tensors.

What a description needs is measured from hits: with the right number of sides, those of a layer are at one distance
along the normal of their side.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.physics.arrays import Floats, Index, constant, namespace
from pflow.physics.detector import ECAL, KINDS, Calorimeter, Detector

Layers = npt.NDArray[Any]

TOLERANCE = 0.5  # largest distance of a cell centre from the position of its layer, mm
MAX_SIDES = 64  # barrels with more sides are taken for cylinders: at 2 m they differ by 2 mm
MIN_ON_LAYERS = 0.8  # smallest fraction of hits on layers for an accepted shape; some are off, where staves overlap
AS_GOOD = 0.01  # largest difference of this fraction from the best shape's for an equally good shape
MORE_LAYERS = 2.0  # times the layers of the shape with fewest from which on a shape is wrong; stray hits add some
MIN_CELLS = 100  # fewest cells for an estimate of their size
MAX_HITS = 5_000  # largest number of hits that are used, evenly spaced in the list
NO_FACE = 1e9  # distance of a missing face of a calorimeter, mm: no hit is behind it


@dataclasses.dataclass(frozen=True, kw_only=True)
class BarrelShape:
    """Shape of a barrel: `sides`, 0 for a cylinder, and the azimuth `phase` of a side's normal, rad.

    `on_layers` is the fraction of the hits on layers of this shape. `as_good` has all numbers of sides, including this
    one, that describe the hits equally well: several if the hits cover too few sides.
    """

    sides: int
    phase: float
    on_layers: float
    as_good: tuple[int, ...]


def distance_to_sides(x: Any, y: Any, sides: Any, phase: Any = 0.0) -> Any:
    """Distance of points [N] from the axis along the normal of their side, mm; the radius for 0 sides.

    For arrays or tensors; one shape for all points, or `sides` and `phase` [N].

    >>> distance_to_sides(np.array([10.0]), np.array([3.0]), 8).tolist()
    [10.0]
    """
    xp = namespace(x)
    if isinstance(sides, int) and not sides:
        return xp.sqrt(x * x + y * y)  # four times as fast as hypot
    # Cylinders, of 0 sides, need a width, too: `where` below computes both branches for all points.
    width = 2 * math.pi / (sides + (sides == 0))
    normal = phase + width * xp.round((xp.arctan2(y, x) - phase) / width)
    along = x * xp.cos(normal) + y * xp.sin(normal)
    return along if isinstance(sides, int) else xp.where(sides == 0, xp.hypot(x, y), along)


def barrel_shape(x: Floats, y: Floats, layer: Layers | None = None) -> BarrelShape | None:
    """The shape with most hits on its layers, or None; without `layer`, hits with close distances are a layer."""
    # `or 1`: no hits would give the step 0, which a slice cannot have.
    step = -(-len(x) // MAX_HITS) or 1
    x, y, layer = x[::step], y[::step], None if layer is None else layer[::step]
    # A side's normal or a corner is taken to be at azimuth 0: other phases are not tried.
    shapes = [(0, 0.0)] + [(sides, phase) for sides in range(3, MAX_SIDES + 1) for phase in (0.0, math.pi / sides)]
    distances = [distance_to_sides(x, y, *shape) for shape in shapes]
    fractions = [fraction_on_layers(distance, layer) for distance in distances]
    if not max(fractions) >= MIN_ON_LAYERS:
        return None
    good = [i for i, value in enumerate(fractions) if value >= max(fractions) - AS_GOOD]
    # Rows of large tiles along a side are on layers of other shapes, too, on many: each row on another one.
    n_layers = {i: len(_filled_layers(distances[i], layer)[0]) for i in good}
    good = [i for i in good if n_layers[i] <= MORE_LAYERS * min(n_layers.values())]
    # The first of equally good shapes: the cylinder before polygons, few sides before many.
    best = max(good, key=fractions.__getitem__)
    (sides, phase), as_good = shapes[best], dict.fromkeys(shapes[i][0] for i in good)
    return BarrelShape(sides=sides, phase=phase, on_layers=fractions[best], as_good=tuple(as_good))


def fraction_on_layers(distance: Floats, layer: Layers | None = None) -> float:
    """Fraction of hits whose `distance` [hit], mm, is their layer's; hits alone in their layer do not count."""
    if not len(distance):
        return 0.0
    _, position, group, counts = _layers(distance, layer)
    near = np.abs(distance - position[group]) <= TOLERANCE
    return float(np.mean(near & (counts[group] > 1)))


def layers_by_position(distance: Floats) -> Index:
    """Layer of each hit, from 0 at the smallest distance; a gap of more than `TOLERANCE` starts a layer.

    >>> layers_by_position(np.array([15.0, 10.1, 20.0, 10.0])).tolist()
    [1, 0, 2, 0]
    """
    order = np.argsort(distance, kind="stable")
    layer = np.empty(len(distance), dtype=np.int64)
    # The first difference is 0, so that layers begin at 0; a slice is empty where there are no hits.
    layer[order] = np.cumsum(np.diff(distance[order], prepend=distance[order][:1]) > TOLERANCE)
    return layer


def layer_range(distance: Floats, layer: Layers | None = None) -> tuple[float, float]:
    """Front and back of layers, mm: half a spacing beyond the first and the last layer with hits, 0 for a single one.

    The spacing is the nearest layers'; without `layer` the median.
    """
    number, position = _filled_layers(distance, layer)
    order = np.argsort(position)
    number, position = number[order], position[order]
    # Numbers may fall outwards, and layers without hits may lie between two with hits.
    steps = np.diff(position) / np.maximum(np.abs(np.diff(number)), 1) if len(position) > 1 else np.zeros(1)
    first, last = steps[[0, -1]] if layer is not None else (np.median(steps),) * 2
    return float(position[0] - first / 2), float(position[-1] + last / 2)


def layer_pitches(distance: Floats, layer: Layers | None = None) -> list[tuple[int, float]]:
    """Numbers and spacings, mm, of consecutive layers with equal spacings, from the inside; 0 for a single layer.

    >>> layer_pitches(np.repeat([10.0, 15.0, 20.0, 27.0, 34.0], 2))
    [(3, 5.0), (2, 7.0)]
    """
    number, position = _filled_layers(distance, layer)
    n_steps = np.maximum(np.diff(number), 1)  # more than 1 across layers without hits
    steps = np.repeat(np.diff(position) / n_steps, n_steps)
    if not len(steps):
        return [(1, 0.0)]
    begins = np.concatenate([[0], 1 + np.flatnonzero(np.abs(np.diff(steps)) > TOLERANCE)])
    runs = [(len(run), float(np.median(run))) for run in np.split(steps, begins[1:])]
    # n layers have n - 1 spacings between them: the innermost range gets the layer without one.
    return [(runs[0][0] + 1, runs[0][1]), *runs[1:]]


def cell_pitch(position: Floats, distance: Floats) -> float:
    """Distance of neighbouring cells in a layer, mm, from cell centres [N, 3] and distances [N] to the face.

    The lowest tenth of the distances to the nearest neighbour in the layer; 0 for less than `MIN_CELLS` cells.
    """
    # A metre for each layer as a fourth coordinate: the nearest neighbour is then in the same layer.
    centres = np.unique(np.round(np.column_stack([position, 1e3 * layers_by_position(distance)]), 2), axis=0)
    if len(centres) < MIN_CELLS:
        return 0.0
    from scipy.spatial import cKDTree  # here: its import takes a twentieth of the start of a reconstruction

    # k=2: the nearest of all is the cell itself.
    nearest = cKDTree(centres).query(centres, k=2)[0][:, 1]
    return float(np.quantile(nearest, 0.1))


def _filled_layers(distance: Floats, layer: Layers | None) -> tuple[Layers, Floats]:
    """Number and position of each layer with at least two hits; of all layers if each has one hit."""
    number, position, _, counts = _layers(distance, layer)
    filled = (counts > 1) | (counts <= 1).all()
    return number[filled], position[filled]


def _layers(distance: Floats, layer: Layers | None) -> tuple[Layers, Floats, Layers, Layers]:
    """Number and median position of each layer, the index of each hit's layer, and the number of hits in each."""
    if layer is None:
        layer = layers_by_position(distance)
    number, group, counts = np.unique(layer, return_inverse=True, return_counts=True)
    return number, medians(group, distance, len(number)), group, counts


def medians(group: Layers, values: npt.NDArray[Any], n: int) -> Floats:
    """Median of the values [N] of each of `n` groups int [N], float64 [n]; NaN for a group without any.

    >>> medians(np.array([0, 0, 2]), np.array([1.0, 2.0, 5.0]), 3).tolist()
    [1.5, nan, 5.0]
    """
    # Values are finite: placed within half a step behind their group's number. Two keys take ten times as long to sort.
    low, high = values.min(initial=0.0), values.max(initial=0.0)
    ordered = values[np.argsort(group + (values - low) / (2 * (high - low) or 1.0))]
    counts = np.bincount(group, minlength=n)
    first, some, result = np.cumsum(counts) - counts, counts > 0, np.full(n, np.nan)
    # The median of an even number is the mean of the two in the middle; of an odd one both are the same.
    low, high = (ordered[(first + middle)[some]] for middle in ((counts - 1) // 2, counts // 2))
    result[some] = (low + high) / 2
    return result


class Faces(NamedTuple):
    """Front faces of calorimeters; arrays of the same shape."""

    radius: Any  # inscribed radius of the barrel, mm, `NO_FACE` without one
    z: Any  # |z| of the endcaps, mm, `NO_FACE` without them
    sides: Any  # of the barrel, 0 for a cylinder
    phase: Any  # azimuth of the normal of a side, rad

    def distances(self, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        """Distances of points [N], mm, behind the planes of the barrel's and of the endcaps' faces; negative inside."""
        along = distance_to_sides(x, y, self.sides, self.phase)
        return along - self.radius, namespace(x).abs(z) - self.z


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Geometry:
    """G detectors with R calorimeters of up to L ranges of layers each; float64, lengths in mm, angles in rad."""

    faces: Faces  # [G, R + 1]; the last ones are the detector's own, where tracks enter: the innermost
    cell_size: Floats  # [G, R]
    edge: Floats  # [G, R, L], depth along the normal at the beginning of a range of layers
    density: Floats  # [G, R, L, 3], layers, radiation and interaction lengths per mm along the normal
    before: Floats  # [G, R, 2], radiation and interaction lengths in front of the face

    @classmethod
    def of(cls, detector: Detector) -> Self:
        """The geometry of a detector, G = 1; ConfigError names a calorimeter with an incomplete description."""
        check_described(detector)
        calorimeters = detector.calorimeters
        shape = (1, len(calorimeters), max(len(calorimeter.layers) for calorimeter in calorimeters))
        # Calorimeters with fewer ranges of layers than others get ranges that no hit reaches, without matter.
        edge, density = np.full(shape, NO_FACE), np.zeros((*shape, 3))
        for i, calorimeter in enumerate(calorimeters):
            ranges = np.array([dataclasses.astuple(layers) for layers in calorimeter.layers], dtype=np.float64)
            count, pitch, radiation, interaction = ranges.T
            edge[0, i, : len(pitch)] = np.cumsum(pitch * count) - pitch * count
            density[0, i, : len(pitch)] = (np.stack([np.ones_like(pitch), radiation, interaction]) / pitch).T

        # The detector's own face has a radius, but no sides: they are the ECAL barrel's.
        inner = next((c for c in calorimeters if c.kind == "ecal" and c.region == "barrel"), calorimeters[0])
        own = (detector.ecal_inner_radius, detector.ecal_inner_z, inner.sides, inner.phase)
        faces = [(c.inner_radius, c.inner_z, c.sides, c.phase) for c in calorimeters]
        rows = [[NO_FACE if value is None else float(value) for value in face] for face in (*faces, own)]
        return cls(
            faces=Faces(*np.ascontiguousarray(np.transpose(rows))[:, np.newaxis]),
            cell_size=np.array([[calorimeter.cell_size for calorimeter in calorimeters]], dtype=np.float64),
            edge=edge,
            density=density,
            before=np.array([[_before(calorimeter, calorimeters) for calorimeter in calorimeters]]),
        )

    def __getitem__(self, rows: Any) -> Self:
        """The detectors in `rows`, a NumPy index."""
        picked: dict[str, Any] = {
            name: Faces(*(column[rows] for column in values)) if isinstance(values, Faces) else values[rows]
            for name, values in vars(self).items()
        }
        return dataclasses.replace(self, **picked)

    def scaled(self, factor: Floats) -> Self:
        """With all lengths multiplied, and densities divided, by a factor for each detector, float64 [G]."""
        by = factor[:, np.newaxis]
        return dataclasses.replace(
            self,
            faces=self.faces._replace(radius=self.faces.radius * by, z=self.faces.z * by),
            cell_size=self.cell_size * by,
            edge=self.edge * by[:, np.newaxis],
            density=self.density / by[:, np.newaxis, np.newaxis],
        )

    def faces_of(self, detector: Any, calorimeter: Any = None) -> Faces:
        """The faces [N] of calorimeters int [N] of detectors int [N]; without `calorimeter`, the detectors' own."""
        n_faces = self.faces.radius.shape[1]
        row = detector * n_faces + (n_faces - 1 if calorimeter is None else calorimeter)
        return Faces(*(constant(values.reshape(-1), like=detector)[row] for values in self.faces))

    def depths(self, detector: Any, calorimeter: Any, x: Any, y: Any, z: Any) -> Depths:
        """Depths of points [N], mm, in `calorimeter` int [N] of `detector` int [N]."""
        xp = namespace(x)
        row = detector * self.cell_size.shape[1] + calorimeter

        def look(values: Floats) -> Any:
            return constant(np.ascontiguousarray(values).reshape(-1), like=x)[row]

        faces = self.faces_of(detector, calorimeter)
        in_barrel, in_endcap = faces.distances(x, y, z)
        is_barrel = in_barrel >= in_endcap
        behind = xp.where(is_barrel, in_barrel, in_endcap)
        normal = behind + xp.where(is_barrel, faces.radius, faces.z)
        slant = xp.sqrt(x * x + y * y + z * z) / normal.clip(1.0)  # one over the cosine of the angle to the normal
        totals: list[Any] = [0.0, 0.0]
        per_layer: Any = 0.0
        n_ranges = self.edge.shape[2]
        for i in range(n_ranges):
            begin = look(self.edge[:, :, i])
            inside = (behind - begin).clip(0.0)
            if i + 1 < n_ranges:
                inside = xp.minimum(inside, look(self.edge[:, :, i + 1]) - begin)
            density = [look(self.density[:, :, i, k]) for k in range(3)]
            totals = [total + inside * per_mm for total, per_mm in zip(totals, density[1:], strict=True)]
            in_range = (behind >= begin) | (begin == 0.0)  # points in front of the face belong to the first range
            per_layer = xp.where(in_range, density[1] / density[0].clip(1e-9), per_layer)
        return Depths(
            barrel=is_barrel,
            cosine=1.0 / slant,
            length=behind * slant,
            per_layer=per_layer,
            radiation=(totals[0] + look(self.before[:, :, 0])) * slant,
            interaction=(totals[1] + look(self.before[:, :, 1])) * slant,
            cell_size=look(self.cell_size),
        )


class Depths(NamedTuple):
    """Depths of N points in their calorimeters; [N] each."""

    barrel: Any  # bool, True = behind the barrel's face, False = behind an endcap's
    cosine: Any  # of the angle between the ray from the origin and the normal of the face
    length: Any  # behind the face along the ray, mm
    per_layer: Any  # radiation lengths of a layer at this depth, along the normal
    radiation: Any  # radiation lengths along the ray
    interaction: Any  # nuclear interaction lengths along the ray
    cell_size: Any  # mm

    def of_kinds(self, kind: Any) -> Any:
        """Depth in radiation lengths in an ECAL, in tenths of an interaction length elsewhere."""
        return namespace(self.radiation).where(kind == ECAL, self.radiation, 10.0 * self.interaction)


FIELD, RADIUS, FACE = "field [T]", "radius of the ECAL [mm]", "|z| of the ECAL [mm]"
CELL = "cell size of the {} [mm]"
LENGTH = {"ecal": "radiation", "hcal": "interaction"}
LAYER, DEPTH = "{1} lengths of a layer of the {0}", "{1} lengths of the {0}"
ECAL_MEASURES = {RADIUS, FACE, *(text.format("ECAL", LENGTH["ecal"]) for text in (CELL, LAYER, DEPTH))}


def measures(*detectors: Detector) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of all that a model which reads the geometry depends on, by its name.

    ConfigError names a calorimeter with an incomplete description.
    """
    values: dict[str, list[float]] = {}
    for detector in detectors:
        check_described(detector)
        numbers = {FIELD: [detector.b_field], RADIUS: [detector.ecal_inner_radius], FACE: [detector.ecal_inner_z]}
        for kind, length in LENGTH.items():
            those = [c for c in detector.calorimeters if c.kind == kind and c.region != "other"]
            of_layers = [[(getattr(r, f"{length}_lengths"), r.count) for r in c.layers] for c in those]
            names = (text.format(kind.upper(), length) for text in (CELL, LAYER, DEPTH))
            depths = dict.fromkeys((c.region for c in those), 0.0)  # of all parts of a region, as ECAL and preshower
            for part, ranges in zip(those, of_layers, strict=True):
                depths[part.region] += sum(thickness * count for thickness, count in ranges)
            columns = (
                [float(c.cell_size or 0.0) for c in those],
                [thickness for ranges in of_layers for thickness, _ in ranges],
                list(depths.values()),
            )
            numbers |= dict(zip(names, columns, strict=True))
        for name, added in numbers.items():
            values.setdefault(name, []).extend(added)
    return {name: (min(numbers), max(numbers)) for name, numbers in values.items() if numbers}


def kind_index(detector: Detector) -> Index:
    """Index of each calorimeter's kind in `pflow.physics.detector.KINDS`, int64 [R]."""
    return np.array([KINDS.index(calorimeter.kind) for calorimeter in detector.calorimeters])


def check_described(detector: Detector) -> None:
    """Refuse a detector for `Geometry`; the ConfigError names a calorimeter with an incomplete description."""
    lacking: dict[str, list[str]] = {}
    for calorimeter in detector.calorimeters:
        layers = calorimeter.layers
        lacks = {
            "cell_size": calorimeter.cell_size is None,
            "inner_radius or inner_z": calorimeter.inner_radius is None and calorimeter.inner_z is None,
            "layers": not layers,
            "radiation and interaction lengths of layers": any(
                None in (part.radiation_lengths, part.interaction_lengths) for part in layers
            ),
            "hadron_scale": calorimeter.kind == "hcal" and calorimeter.hadron_scale is None,
        }
        for name in (name for name, missing in lacks.items() if missing):
            lacking.setdefault(name, []).append(calorimeter.name)
    if lacking:
        missing = "; ".join(f"{field} of {', '.join(names)}" for field, names in lacking.items())
        raise ConfigError(
            f"the model reads the geometry of the calorimeters, and detector '{detector.name}' does not say {missing}: "
            "complete its YAML file (pflow detector FILE measures cells, layers and, with enough isolated tracks, "
            "hadron_scale, and computes lengths with --absorber ecal=MATERIAL:MM --absorber hcal=MATERIAL:MM; of an "
            "ntuple by hand, as in configs/detector/ild_g4.yaml)"
        )


def _before(calorimeter: Calorimeter, calorimeters: Sequence[Calorimeter]) -> list[float]:
    """Radiation and interaction lengths of the calorimeters in front, of inner kinds and of the calorimeter's own kind.

    Inner kinds: the calorimeters of the same region, else one of the kind. Same kind: those that end before it begins.
    """
    front: list[Calorimeter] = []
    for kind in [] if calorimeter.kind == "lumi" else KINDS[: KINDS.index(calorimeter.kind)]:
        of_kind = [part for part in calorimeters if part.kind == kind]
        front += [part for part in of_kind if part.region == calorimeter.region] or of_kind[:1]
    place = (calorimeter.kind, calorimeter.region)
    for part in calorimeters:
        for field in ("inner_radius", "inner_z"):
            inner, face = getattr(part, field), getattr(calorimeter, field)
            outer = None if inner is None else inner + sum(layers.count * layers.pitch for layers in part.layers)
            if (part.kind, part.region) == place and None not in (outer, face) and outer <= face:
                front.append(part)
    ranges = [layers for part in front for layers in part.layers]
    lengths = ("radiation_lengths", "interaction_lengths")
    return [sum((layers.count * getattr(layers, name) for layers in ranges), start=0.0) for name in lengths]


LOG_WEIGHT = 4.0
"""Hits with a fraction below exp(-4) of their shower's energy do not count for its position (T. C. Awes et al., NIM A
311 (1992) 130)."""


def log_weighted_barycentre(shower: Index, energy: Floats, position: Floats, n_showers: int) -> npt.NDArray[np.float64]:
    """Mean position [n_showers, 3], mm, of hits by shower, weighted by max(0, `LOG_WEIGHT` + ln(E_hit / E_shower)).

    Hits have a `shower` int [H], from 0, `energy` [H], GeV, and `position` [H, 3], mm. A shower without energy, or with
    all weights 0, has the unweighted mean; a shower without hits is at the origin.
    """
    total = np.bincount(shower, energy, n_showers)[shower]
    fraction = np.divide(energy, total, out=np.zeros(len(energy)), where=total > 0)
    # The logarithm of a hit without energy is minus infinity, which the maximum turns into weight 0.
    with np.errstate(divide="ignore"):
        weight = np.maximum(0.0, LOG_WEIGHT + np.log(fraction))
    return _weighted_mean(shower, weight, position, n_showers)[0]


def cluster_shape(
    cluster: Index, energy: Floats, position: Floats, n_clusters: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Energy-weighted mean position of each cluster's hits, and the axis of their largest spread; [n_clusters, 3].

    The axis is the eigenvector of the largest eigenvalue of the energy-weighted covariance of the positions, pointing
    away from the origin (MarlinUtil's ClusterShapes, used by DDMarlinPandora for edm4hep::Cluster). If hits have
    no spread, e.g. a single hit, it is the direction of the position. Arguments as for `log_weighted_barycentre`. A
    cluster without energy has the unweighted mean; a cluster without hits is at the origin, with axis z.
    """
    position = np.asarray(position, dtype=np.float64)
    mean, weight, total = _weighted_mean(cluster, energy, position, n_clusters)
    distance = position - mean[cluster]
    products = (weight[:, None, None] * distance[:, :, None] * distance[:, None, :]).reshape(-1, 9)  # [H, 9]
    covariance = np.stack([np.bincount(cluster, column, n_clusters) for column in products.T], axis=1)
    spread, axes = np.linalg.eigh(covariance.reshape(-1, 3, 3) / total[:, None, None])
    # eigh gives eigenvalues in rising order: the largest is the last.
    axis = axes[:, :, -1]
    axis *= np.where(np.einsum("ij,ij->i", axis, mean) < 0, -1.0, 1.0)[:, None]
    size = np.linalg.norm(mean, axis=1)
    outwards = np.divide(mean, size[:, None], out=np.tile([0.0, 0.0, 1.0], (n_clusters, 1)), where=size[:, None] > 0)
    no_spread = spread[:, -1] <= np.finfo(np.float64).eps * size**2  # but rounding of positions
    return mean, np.where(no_spread[:, None], outwards, axis)


def _weighted_mean(
    group: Index, weight: Floats, position: Floats, n: int
) -> tuple[npt.NDArray[np.float64], Floats, Floats]:
    """Mean position of `n` groups, the weights of all hits (1 in a group without weight) and their sums by group."""
    weight = np.where(np.bincount(group, weight, n)[group] > 0, weight, 1.0)
    # A group without hits has the mean 0, not 0 / 0.
    total = np.maximum(np.bincount(group, weight, n), np.finfo(np.float64).tiny)
    return np.stack([np.bincount(group, weight * x, n) for x in position.T], axis=1) / total[:, None], weight, total
