"""The schema of events: one row for each field of each part. Everything that handles events reads it.

Builders (`pflow.event.build`) take the dtype and default from it, validation the bounds, merging and overlay the rule
by which the hits of a cell are summed, augmentation the fields that turn with the event, flat files the names of the
quantities. A new field is one row here, and one reader that fills it.

Numbers that a file does not hold have the field's default: NaN for an unknown time, -1 for an unknown layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from pflow.physics.kinematics import COVARIANCE
from pflow.physics.pdg import CLASSES

MAX_ENERGY = 1e5
"""Largest energy or momentum that is measured, GeV: ten times any collider's; a track of more is all but straight."""
MAX_TRUE_ENERGY = 1e7
"""Largest energy or momentum of a true particle, GeV, whose generator may have written MeV."""
MAX_LENGTH = 1e7
"""Largest coordinate, mm: larger than any cavern."""

MAX_LAYER = 2**16 - 1
"""Largest number of a layer: of the widest field in a cell's id."""

XYZ, PXYZ = ("x", "y", "z"), ("px", "py", "pz")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A field of the records of a part."""

    name: str
    dtype: str = "float32"
    unit: str = ""
    default: float = math.nan  # where a file has none
    required: bool = False  # a builder must be given it, and its values must be finite
    low: float = -math.inf
    high: float = math.inf
    points_to: str = ""  # part of the event (or "calorimeters") that it is an index into
    turns: str = ""  # "azimuth": rotates with the event; "z": changes sign in a reflection; vectors turn alone
    merge: str = "first"  # of a cell that several hits are merged into: "sum", energy-weighted "mean", "min" or "first"
    axes: tuple[str, ...] = ()  # components of a vector: (x, y, z) or (px, py, pz)
    prefix: str = ""  # what names of its quantities in builders and flat files begin with: calo_ for calo_x
    inline: bool = False  # the components are fields of the record itself, which is then a four-momentum
    width: int = 0  # numbers of each object, 0 for a plain number; the field exists only if given
    derived: bool = False  # computed from other fields: no file needs to name it
    quantity: str = ""  # its name in builders and flat files, where that is another

    @property
    def quantities(self) -> dict[str, str]:
        """Column, as of `pflow.event.jagged.columns`, of each quantity: ``calo_x`` is ``calo_position.x``."""
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
    "tracker_hits": (
        _position("position", required=True),
        _number("energy", "GeV", most=MAX_ENERGY),
        TIME,
        LAYER,
    ),
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
"""Fields of each part, in the order of the records. ``reference`` holds another algorithm's particles, ``particles``
a reconstruction's; the weights of the links of one ``source`` sum to 1."""

PARTS = tuple(part for part in SCHEMA if part != "particles")
"""Names of the parts of `pflow.event.events.Events`, in the order in which they are checked."""

LINKED = {part: fields[0].points_to for part, fields in SCHEMA.items() if part.endswith("_links")}
"""Which part the ``source`` of each kind of link points into."""


def fields_of(part: str) -> dict[str, Field]:
    """The field of each column of a part, by the column's name as of `pflow.event.jagged.columns`."""
    return {column: field for field in SCHEMA[part] for column in field.quantities.values()}


def quantities_of(part: str) -> dict[str, str]:
    """The column of each quantity of a part that a file may hold, one number an object each."""
    return {
        quantity: column
        for field in SCHEMA[part]
        if not (field.width or field.derived)
        for quantity, column in field.quantities.items()
    }
