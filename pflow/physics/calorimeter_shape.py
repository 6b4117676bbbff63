"""Shape of a calorimeter from the positions of its hits: the sides of a barrel, and where its layers lie.

Cells of one layer have their centres on a plane: at a fixed |z| in an endcap, at a fixed distance from the axis along
the normal of its side in a polygonal barrel, at a fixed radius in a cylinder. The number of sides is the one for which
the hits lie on layers.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from pflow.physics.arrays import namespace

Floats = npt.NDArray[np.float64]
Layers = npt.NDArray[Any]

TOLERANCE = 0.5
"""How far from its layer's position a cell centre may lie, mm."""
MAX_SIDES = 64
"""Barrels of more sides are taken for cylinders: at 2 m they differ by 2 mm."""
MIN_ON_LAYERS = 0.8
"""Fraction of hits on layers from which on a shape is accepted. Where staves overlap, some hits are off."""
AS_GOOD = 0.01
"""Shapes whose fraction lies this little below the best one's cannot be told from it."""
MIN_CELLS = 100
"""Fewer cells do not show how large they are."""
MAX_HITS = 5_000
"""Hits that are looked at; of more, evenly spaced ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BarrelShape:
    """Shape of a barrel of so many sides, 0 for a cylinder, of which the normal of one is at the azimuth `phase`, rad.

    `on_layers` is the fraction of the hits that lie on layers of this shape. `as_good` has the numbers of sides, this
    one among them, that describe the hits equally well: more than one where the hits cover too few sides.
    """

    sides: int
    phase: float
    on_layers: float
    as_good: tuple[int, ...]

    @property
    def symmetry(self) -> int:
        """Largest number of equal turns under which all shapes that are as good stay the same; 0 for any turn."""
        return math.gcd(*self.as_good)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRange:
    """Where layers begin and end, half a `spacing` (the median) beyond the first and last of `count` with hits; mm."""

    front: float
    back: float
    spacing: float
    count: int


def distance_to_sides(x: Any, y: Any, sides: Any, phase: Any = 0.0) -> Any:
    """Distance of points [N] from the axis along the normal of the side that they are in; the radius for 0 sides. mm.

    Of arrays or tensors; one shape for all points, or `sides` and `phase` [N].

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
    """The shape on whose layers most hits lie, or None; without `layer`, hits close to each other are one layer; mm."""
    step = -(-len(x) // MAX_HITS) or 1
    x, y, layer = x[::step], y[::step], None if layer is None else layer[::step]
    shapes = [(0, 0.0)] + [(sides, phase) for sides in range(3, MAX_SIDES + 1) for phase in (0.0, math.pi / sides)]
    found = [(fraction_on_layers(distance_to_sides(x, y, *shape), layer), shape) for shape in shapes]
    best, (sides, phase) = max(found, key=lambda item: item[0])
    if not best >= MIN_ON_LAYERS:
        return None
    as_good = tuple(dict.fromkeys(other for value, (other, _) in found if value >= best - AS_GOOD))
    return BarrelShape(sides=sides, phase=phase, on_layers=best, as_good=as_good)


def fraction_on_layers(distance: Floats, layer: Layers | None = None) -> float:
    """Fraction of hits at their layer's `distance`, float64 [hit], mm; those alone in their layer do not count."""
    if not len(distance):
        return 0.0
    _, position, group, counts = _layers(distance, layer)
    near = np.abs(distance - position[group]) <= TOLERANCE
    return float(np.mean(near & (counts[group] > 1)))


def layers_by_position(distance: Floats) -> npt.NDArray[np.int64]:
    """Number layers from the inside, from 0; hits that are close to each other count as one layer.

    >>> layers_by_position(np.array([15.0, 10.1, 20.0, 10.0])).tolist()
    [1, 0, 2, 0]
    """
    order = np.argsort(distance, kind="stable")
    layer = np.empty(len(distance), dtype=np.int64)
    layer[order] = np.cumsum(np.diff(distance[order], prepend=distance[order][:1]) > TOLERANCE)
    return layer


def layer_range(distance: Floats, layer: Layers | None = None) -> LayerRange:
    """Where layers begin and end; hits alone in their layer count only if all are, and a single layer has spacing 0."""
    number, position, _, counts = _layers(distance, layer)
    if (counts > 1).any():
        number, position = number[counts > 1], position[counts > 1]
    order = np.argsort(position)
    number, position = number[order], position[order]
    steps = np.diff(position) / np.maximum(np.abs(np.diff(number)), 1)
    spacing = float(np.median(steps)) if len(steps) else 0.0
    first, last = (float(steps[0]), float(steps[-1])) if layer is not None and len(steps) else (spacing, spacing)
    return LayerRange(
        front=float(position[0]) - first / 2, back=float(position[-1]) + last / 2, spacing=spacing, count=len(position)
    )


def layer_pitches(distance: Floats, layer: Layers | None = None) -> list[tuple[int, float]]:
    """Numbers and spacings, mm, of consecutive layers that are alike, from the inside; a single layer has spacing 0.

    >>> layer_pitches(np.repeat([10.0, 15.0, 20.0, 27.0, 34.0], 2))
    [(3, 5.0), (2, 7.0)]
    """
    number, position, _, counts = _layers(distance, layer)
    if (counts > 1).any():
        number, position = number[counts > 1], position[counts > 1]
    missed = np.maximum(np.diff(number), 1)
    steps = np.repeat(np.diff(position) / missed, missed)
    if not len(steps):
        return [(1, 0.0)]
    begins = np.concatenate([[0], 1 + np.flatnonzero(np.abs(np.diff(steps)) > TOLERANCE)])
    runs = [(len(run), float(np.median(run))) for run in np.split(steps, begins[1:])]
    return [(runs[0][0] + 1, runs[0][1]), *runs[1:]]


def cell_pitch(position: Floats, distance: Floats) -> float:
    """Distance of neighbouring cells of a layer, mm, by cell centres [N, 3] and their distances from the face; 0: none.

    Of neighbours in the same layer, the nearest are a cell apart: the lowest tenth of the distances to them.
    """
    centres = np.unique(np.round(np.column_stack([position, 1e3 * layers_by_position(distance)]), 2), axis=0)
    if len(centres) < MIN_CELLS:
        return 0.0
    nearest = cKDTree(centres).query(centres, k=2)[0][:, 1]
    return float(np.quantile(nearest, 0.1))


def _layers(distance: Floats, layer: Layers | None) -> tuple[Layers, Floats, Layers, Layers]:
    """Number and median position of each layer, the layer's index of each hit, and the number of hits of each."""
    if layer is None:
        layer = layers_by_position(distance)
    number, group, counts = np.unique(layer, return_inverse=True, return_counts=True)
    order = np.lexsort((distance, group))
    first = np.cumsum(counts) - counts
    low, high = (distance[order][first + middle] for middle in ((counts - 1) // 2, counts // 2))
    return number, (low + high) / 2, group, counts
