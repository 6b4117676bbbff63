"""The schema of events: one row for each field of each part.

Builders (`pflow.event.build`) take the dtype and default from it, validation the bounds, merging and overlay the rule
that sums the hits of a cell, augmentation the fields that turn with the event, flat files the names of the quantities.
A new field needs one row here, and a reader that fills it. A number that a file lacks has the field's default: NaN for
an unknown time, -1 for an unknown layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from pflow.physics.kinematics import COVARIANCE
from pflow.physics.pdg import CLASSES

MAX_ENERGY = 1e5
"""Largest measured energy or momentum, GeV: ten times any collider's."""
MAX_TRUE_ENERGY = 1e7
"""Largest energy or momentum of a true particle, GeV; larger than `MAX_ENERGY` for generators that write MeV."""
MAX_LENGTH = 1e7
"""Largest coordinate, mm: larger than any cavern."""
MAX_LAYER = 2**16 - 1
"""Largest layer number: the widest field of a cell id has 16 bits."""

XYZ, PXYZ = ("x", "y", "z"), ("px", "py", "pz")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A field of the records of a part."""

    name: str
    dtype: str = "float32"
    unit: str = ""
    default: float = math.nan  # for a file without it
    required: bool = False  # for builders; its values must be finite
    low: float = -math.inf
    high: float = math.inf
    points_to: str = ""  # an index points into this part of the event (or "calorimeters")
    turns: str = ""  # "azimuth": rotates with the event; "z": changes sign in a reflection; "" for vectors
    merge: str = "first"  # how hits of a cell are merged: "sum", energy-weighted "mean", "min" or "first"
    axes: tuple[str, ...] = ()  # components of a vector: (x, y, z) or (px, py, pz)
    prefix: str = ""  # of the quantities in builders and flat files: calo_ for calo_x
    inline: bool = False  # the components are fields of the record itself, which is then a four-momentum
    width: int = 0  # length of a field with several numbers per object, which exists only if given; 0: one number
    optional: bool = False  # one number per object that exists only if given
    derived: bool = False  # computed from other fields, never read from a file
    quantity: str = ""  # name in builders and flat files, if it differs

    @property
    def quantities(self) -> dict[str, str]:
        """Column (`pflow.event.jagged.columns`) of each quantity: ``calo_x`` is ``calo_position.x``."""
        if not self.axes:
            return {self.quantity or self.name: self.name}
        return {self.prefix + axis: axis if self.inline else f"{self.name}.{axis}" for axis in self.axes}


def _position(name: str, dtype: str = "float32", *, prefix: str = "", required: bool = False) -> Field:
    """A point, mm."""
    most = math.inf if dtype == "float64" else MAX_LENGTH  # truth may decay anywhere
    return _number(name, "mm", dtype, most=most, axes=XYZ, prefix=prefix, required=required, merge="mean")


def _momentum(
    name: str, dtype: str = "float32", *, prefix: str = "", inline: bool = False, required: bool = False
) -> Field:
    """A momentum, GeV."""
    most = MAX_TRUE_ENERGY if dtype == "float64" else MAX_ENERGY
    return _number(name, "GeV", dtype, most=most, axes=PXYZ, prefix=prefix, inline=inline, required=required)


def _number(name: str, unit: str, dtype: str = "float32", *, most: float = math.inf, **options: object) -> Field:
    return Field(name=name, dtype=dtype, unit=unit, low=-most, high=most, **options)  # type: ignore[arg-type]


def _index(name: str, points_to: str = "", default: int = 0, **options: object) -> Field:
    return Field(name=name, dtype="int32", default=default, points_to=points_to, **options)  # type: ignore[arg-type]


LAYER = _index("layer", default=-1, low=-MAX_LAYER, high=MAX_LAYER, merge="min")
TIME = _number("time", "ns", merge="min")
CHARGE = _number("charge", "e", most=1000, required=True)

PARTICLE = (
    _index("pdg"),
    CHARGE,
    Field(name="energy", unit="GeV", low=0, high=MAX_ENERGY, required=True),
    _number("rest_mass", "GeV", most=MAX_ENERGY, quantity="mass"),
    _momentum("momentum", inline=True, required=True),
    _number("score", ""),
    Field(name="existence", low=0, high=1, optional=True),
    Field(name="scores", width=len(CLASSES)),
    Field(name="covariance", unit="GeV^2", width=len(COVARIANCE)),
)


def _links(source: str) -> tuple[Field, ...]:
    weight = Field(name="weight", default=1.0, low=0, required=True)
    return _index("source", source), _index("particle", "truth"), weight


SCHEMA: Mapping[str, tuple[Field, ...]] = {
    "hits": (
        Field(name="energy", unit="GeV", low=0, high=MAX_ENERGY, required=True, merge="sum"),
        _position("position", required=True),
        TIME,
        _index("subdetector", "calorimeters"),
        LAYER,
    ),
    "tracks": (
        _momentum("momentum", required=True),
        CHARGE,
        _number("d0", "mm"),
        _number("phi", "rad", turns="azimuth"),
        _number("omega", "1/mm"),
        _number("z0", "mm", turns="z"),
        _number("tan_lambda", "", turns="z"),
        _position("calo_position", prefix="calo_"),
        _momentum("calo_momentum", prefix="calo_"),
    ),
    "tracker_hits": (_position("position", required=True), _number("energy", "GeV", most=MAX_ENERGY), TIME, LAYER),
    "truth": (
        _index("pdg"),
        _number("charge", "e", "float64", most=1000, required=True),
        _number("rest_mass", "GeV", "float64", most=MAX_TRUE_ENERGY, required=True, quantity="mass"),
        _number("energy", "GeV", "float64", most=MAX_TRUE_ENERGY, required=True, derived=True),
        _momentum("momentum", "float64", inline=True, required=True),
        _position("vertex", "float64", prefix="v"),
        _index("status", default=1),  # 1: stable in the generator
        _index("parent", "truth", default=-1),
    ),
    "hit_links": _links("hits"),
    "track_links": _links("tracks"),
    "tracker_hit_links": _links("tracker_hits"),
    "reference": PARTICLE,
    "particles": PARTICLE,
}
"""Fields of each part, in the order of the records. ``reference``: another algorithm's particles; ``particles``: a
reconstruction's. The weights of a source's links sum to 1."""

PARTS = tuple(part for part in SCHEMA if part != "particles")
"""Names of the parts of `pflow.event.events.Events`, in the order of validation."""

LINKED = {part: fields[0].points_to for part, fields in SCHEMA.items() if part.endswith("_links")}
"""Part that the ``source`` of each kind of link points into."""


def fields_of(part: str) -> dict[str, Field]:
    """The field of each column (`pflow.event.jagged.columns`) of a part."""
    return {column: field for field in SCHEMA[part] for column in field.quantities.values()}


def quantities_of(part: str) -> dict[str, str]:
    """The column of each quantity of a part that a file may hold with one number per object."""
    return {
        quantity: column
        for field in SCHEMA[part]
        if not (field.width or field.optional or field.derived)
        for quantity, column in field.quantities.items()
    }
