"""Where hits and track entries lie in the calorimeters, by measures that mean the same in every detector.

The depth of a point is taken along its ray from the origin, which most particles of a collision follow: behind the face
of its calorimeter in mm, in radiation lengths and in nuclear interaction lengths, counted from the first face. Where a
face is, what the layers are made of and how large the cells are, is the description of the detector
(`pflow.physics.detector`); no layer number is needed. A `Geometry` holds one or many detectors, since events may be
moved into other detectors, each into its own (`pflow.event.move`).

Formulas are for NumPy and torch alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.physics.arrays import constant, namespace
from pflow.physics.calorimeter_shape import distance_to_sides
from pflow.physics.detector import KINDS, Calorimeter, Detector

Floats = npt.NDArray[np.float64]

FAR = 1e9
"""Distance of a face that a calorimeter does not have, mm: no hit is behind it."""


class Faces(NamedTuple):
    """Where calorimeters begin; arrays of one shape."""

    radius: Any  # inscribed radius of the barrel, mm, `FAR` without one
    z: Any  # |z| of the endcaps, mm, `FAR` without them
    sides: Any  # of the barrel, 0 for a cylinder
    phase: Any  # azimuth of the normal of a side, rad

    def distances(self, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        """How far points [N], mm, are beyond the planes of the barrel's and of the endcaps' faces; below 0 inside."""
        along = distance_to_sides(x, y, self.sides, self.phase)
        return along - self.radius, namespace(x).abs(z) - self.z


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Geometry:
    """G detectors with R calorimeters each, of up to L ranges of layers; float64, lengths in mm, angles in rad."""

    faces: Faces  # [G, R]
    first: Faces  # [G], of the innermost barrel and endcaps
    cell_size: Floats  # [G, R]
    edge: Floats  # [G, R, L], depth along the normal at which a range of layers begins
    density: Floats  # [G, R, L, 3], layers, radiation and interaction lengths in a mm along the normal
    before: Floats  # [G, R, 2], radiation and interaction lengths in front of the face

    @classmethod
    def of(cls, detector: Detector) -> Self:
        """The geometry of one detector, G = 1; ConfigError names a calorimeter whose description is not complete."""
        calorimeters = [_described(calorimeter, detector) for calorimeter in detector.calorimeters]
        n_ranges = max(len(calorimeter.layers) for calorimeter in calorimeters)
        shape = (1, len(calorimeters), n_ranges)
        edge, density = np.full(shape, FAR), np.zeros((*shape, 3))
        for i, calorimeter in enumerate(calorimeters):
            pitch, count = (
                np.array([getattr(layers, key) for layers in calorimeter.layers]) for key in ("pitch", "count")
            )
            edge[0, i, : len(pitch)] = np.cumsum(pitch * count) - pitch * count
            lengths = [(1.0, layers.radiation_lengths, layers.interaction_lengths) for layers in calorimeter.layers]
            density[0, i, : len(pitch)] = np.array(lengths) / pitch[:, np.newaxis]

        def column(name: str) -> Floats:
            values = [getattr(calorimeter, name) for calorimeter in calorimeters]
            return np.array([[FAR if value is None else float(value) for value in values]])

        inner = next((c for c in calorimeters if c.kind == "ecal" and c.region == "barrel"), calorimeters[0])
        first = (detector.ecal_inner_radius, detector.ecal_inner_z, inner.sides, inner.phase)
        return cls(
            faces=Faces(*(column(name) for name in ("inner_radius", "inner_z", "sides", "phase"))),
            first=Faces(*(np.array([float(value)]) for value in first)),
            cell_size=column("cell_size"),
            edge=edge,
            density=density,
            before=np.array([[_before(calorimeter, calorimeters) for calorimeter in calorimeters]]),
        )

    def __getitem__(self, rows: Any) -> Self:
        """Some of the detectors, as NumPy picks rows."""
        picked: dict[str, Any] = {
            name: Faces(*(column[rows] for column in values)) if isinstance(values, Faces) else values[rows]
            for name, values in vars(self).items()
        }
        return dataclasses.replace(self, **picked)

    def scaled(self, factor: Floats) -> Self:
        """With all lengths multiplied by a factor for each detector, float64 [G], and so with thinner matter."""
        by = factor[:, np.newaxis]
        return dataclasses.replace(
            self,
            faces=self.faces._replace(radius=self.faces.radius * by, z=self.faces.z * by),
            first=self.first._replace(radius=self.first.radius * factor, z=self.first.z * factor),
            cell_size=self.cell_size * by,
            edge=self.edge * by[:, np.newaxis],
            density=self.density / by[:, np.newaxis, np.newaxis],
        )

    def faces_of(self, detector: Any, calorimeter: Any = None) -> Faces:
        """The faces of calorimeters int [N] of detectors int [N], [N]; without `calorimeter` the first ones."""
        if calorimeter is None:
            return Faces(*(constant(values, like=detector)[detector] for values in self.first))
        row = detector * self.cell_size.shape[1] + calorimeter
        return Faces(*(constant(values.reshape(-1), like=detector)[row] for values in self.faces))

    def depths(self, detector: Any, calorimeter: Any, x: Any, y: Any, z: Any) -> Depths:
        """Where points [N] lie, mm, of `calorimeter` int [N] in `detector` int [N]; behind its barrel or its endcap."""
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
        totals: list[Any] = [0.0, 0.0, 0.0]
        per_layer: Any = 0.0
        n_ranges = self.edge.shape[2]
        for i in range(n_ranges):
            begin = look(self.edge[:, :, i])
            inside = (behind - begin).clip(0.0)
            if i + 1 < n_ranges:
                inside = xp.minimum(inside, look(self.edge[:, :, i + 1]) - begin)
            density = [look(self.density[:, :, i, k]) for k in range(3)]
            totals = [total + inside * one for total, one in zip(totals, density, strict=True)]
            in_range = (behind >= begin) | (begin == 0.0)  # a little before the face counts as the first layer
            per_layer = xp.where(in_range, density[1] / density[0].clip(1e-9), per_layer)
        return Depths(
            barrel=is_barrel,
            cosine=1.0 / slant,
            length=behind * slant,
            layers=totals[0],
            per_layer=per_layer,
            radiation=(totals[1] + look(self.before[:, :, 0])) * slant,
            interaction=(totals[2] + look(self.before[:, :, 1])) * slant,
            cell_size=look(self.cell_size),
        )


class Depths(NamedTuple):
    """Where N points lie in their calorimeters; [N] each."""

    barrel: Any  # bool, True = behind the barrel's face, False = behind an endcap's
    cosine: Any  # of the angle between the ray from the origin and the normal of the face
    length: Any  # behind the face along the ray, mm
    layers: Any  # behind the face, in layers
    per_layer: Any  # radiation lengths of the layer there, along the normal
    radiation: Any  # radiation lengths along the ray
    interaction: Any  # nuclear interaction lengths along the ray
    cell_size: Any  # mm

    def of_kinds(self, kind: Any) -> Any:
        """One measure of depth: radiation lengths in an ECAL, tenths of an interaction length elsewhere."""
        return namespace(self.radiation).where(kind == KINDS.index("ecal"), self.radiation, 10.0 * self.interaction)


def kind_index(detector: Detector) -> npt.NDArray[np.int64]:
    """Index of each calorimeter's kind in `pflow.physics.detector.KINDS`, int64 [R]."""
    return np.array([KINDS.index(calorimeter.kind) for calorimeter in detector.calorimeters])


def _described(calorimeter: Calorimeter, detector: Detector) -> Calorimeter:
    missing = [name for name in ("cell_size",) if getattr(calorimeter, name) is None]
    if calorimeter.inner_radius is None and calorimeter.inner_z is None:
        missing.append("inner_radius or inner_z")
    if not calorimeter.layers:
        missing.append("layers")
    if missing:
        raise ConfigError(
            f"the model reads the geometry of the calorimeters, and detector '{detector.name}' does not say "
            f"{', '.join(missing)} of '{calorimeter.name}': complete its YAML file (pflow detector FILE drafts one)"
        )
    return calorimeter


def _before(calorimeter: Calorimeter, others: Sequence[Calorimeter]) -> tuple[float, float]:
    """Radiation and interaction lengths of the calorimeters in front, of the same region where there is one."""
    front: dict[str, Calorimeter] = {}
    for other in others:
        is_front = "lumi" not in (calorimeter.kind, other.kind) and KINDS.index(other.kind) < KINDS.index(
            calorimeter.kind
        )
        if is_front and (other.kind not in front or other.region == calorimeter.region):
            front[other.kind] = other
    layers = [one for other in front.values() for one in other.layers]
    return (
        sum(one.count * one.radiation_lengths for one in layers),
        sum(one.count * one.interaction_lengths for one in layers),
    )
