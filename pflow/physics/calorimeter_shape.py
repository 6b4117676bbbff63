"""Shape of a calorimeter from the positions of its hits: the sides of a barrel, and the positions of its layers.

Cell centres of a layer are at a fixed |z| in an endcap, at a fixed distance from the axis along the normal of their
side in a polygonal barrel, at a fixed radius in a cylinder. With the right number of sides, hits lie on layers.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.physics.arrays import Floats, Index, namespace

Layers = npt.NDArray[Any]

TOLERANCE = 0.5
"""Largest distance of a cell centre from the position of its layer, mm."""
MAX_SIDES = 64
"""Barrels with more sides are taken for cylinders: at 2 m they differ by 2 mm."""
MIN_ON_LAYERS = 0.8
"""Smallest fraction of hits on layers for an accepted shape; some hits are off, where staves overlap."""
AS_GOOD = 0.01
"""Largest difference of this fraction from the best shape's for an equally good shape."""
MIN_CELLS = 100
"""Fewest cells for an estimate of their size."""
MAX_HITS = 5_000
"""Largest number of hits that are used, evenly spaced in the list."""


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

    @property
    def symmetry(self) -> int:
        """Largest n such that turns by 2 pi / n leave all equally good shapes unchanged; 0 for any turn."""
        return math.gcd(*self.as_good)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRange:
    """`front` and `back` of layers, mm: half a spacing beyond the first and the last of `count` layers with hits.

    `spacing`, mm, is the median.
    """

    front: float
    back: float
    spacing: float
    count: int


def distance_to_sides(x: Any, y: Any, sides: Any, phase: Any = 0.0) -> Any:
    """Distance of points [N] from the axis along the normal of their side, mm; the radius for 0 sides.

    For arrays or tensors; one shape for all points, or `sides` and `phase` [N].

    >>> distance_to_sides(np.array([10.0]), np.array([3.0]), 8).tolist()
    [10.0]
    """
    xp = namespace(x)
    if isinstance(sides, int) and not sides:
        return xp.hypot(x, y)
    width = 2 * math.pi / (sides + (sides == 0))
    normal = phase + width * xp.round((xp.arctan2(y, x) - phase) / width)
    along = x * xp.cos(normal) + y * xp.sin(normal)
    return along if isinstance(sides, int) else xp.where(sides == 0, xp.hypot(x, y), along)


def barrel_shape(x: Floats, y: Floats, layer: Layers | None = None) -> BarrelShape | None:
    """The shape with most hits on its layers, or None; without `layer`, hits with close distances are a layer."""
    step = -(-len(x) // MAX_HITS) or 1
    x, y, layer = x[::step], y[::step], None if layer is None else layer[::step]
    shapes = [(0, 0.0)] + [(sides, phase) for sides in range(3, MAX_SIDES + 1) for phase in (0.0, math.pi / sides)]
    fractions = [fraction_on_layers(distance_to_sides(x, y, *shape), layer) for shape in shapes]
    best = max(fractions)
    if not best >= MIN_ON_LAYERS:
        return None
    sides, phase = shapes[fractions.index(best)]
    as_good = dict.fromkeys(shape[0] for shape, value in zip(shapes, fractions, strict=True) if value >= best - AS_GOOD)
    return BarrelShape(sides=sides, phase=phase, on_layers=best, as_good=tuple(as_good))


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
    layer[order] = np.cumsum(np.diff(distance[order], prepend=distance[order][:1]) > TOLERANCE)
    return layer


def layer_range(distance: Floats, layer: Layers | None = None) -> LayerRange:
    """Front and back of layers; a single layer has spacing 0."""
    number, position = _filled_layers(distance, layer)
    order = np.argsort(position)
    number, position = number[order], position[order]
    steps = np.diff(position) / np.maximum(np.abs(np.diff(number)), 1)
    spacing = float(np.median(steps)) if len(steps) else 0.0
    first, last = (float(steps[0]), float(steps[-1])) if layer is not None and len(steps) else (spacing, spacing)
    return LayerRange(
        front=float(position[0]) - first / 2, back=float(position[-1]) + last / 2, spacing=spacing, count=len(position)
    )


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
    return [(runs[0][0] + 1, runs[0][1]), *runs[1:]]


def cell_pitch(position: Floats, distance: Floats) -> float:
    """Distance of neighbouring cells in a layer, mm, from cell centres [N, 3] and distances [N] to the face.

    The lowest tenth of the distances to the nearest neighbour in the layer; 0 for less than `MIN_CELLS` cells.
    """
    centres = np.unique(np.round(np.column_stack([position, 1e3 * layers_by_position(distance)]), 2), axis=0)
    if len(centres) < MIN_CELLS:
        return 0.0
    from scipy.spatial import cKDTree  # here: its import takes a twentieth of the start of a reconstruction

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
    order = np.lexsort((distance, group))
    first = np.cumsum(counts) - counts
    low, high = (distance[order][first + middle] for middle in ((counts - 1) // 2, counts // 2))
    return number, (low + high) / 2, group, counts
