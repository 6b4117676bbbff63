"""The schema of events: one row for each field of each part; records built by it, and checks of their content.

Builders, validation, merging, augmentation and flat files go by it: a new field needs one row here, and a reader that
fills it. A number that a file lacks has the field's default: NaN for an unknown time, -1 for an unknown layer.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.jagged import Links
from pflow.physics import kinematics
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.kinematics import COVARIANCE
from pflow.physics.pdg import CLASSES

SAME_DIRECTION, SAME_MOMENTUM = 1e-3, 0.05  # rad, and relative: of two tracks of one particle; 0 of 35,000 true pairs
MAX_ENERGY = 1e5  # largest measured energy or momentum, GeV: ten times any collider's
MAX_TRUE_ENERGY = 1e7  # largest energy or momentum of a true particle, GeV; for generators that write MeV
MAX_LENGTH = 1e7  # largest coordinate, mm: larger than any cavern
MAX_LAYER = 2**16 - 1  # largest layer number: the widest field of a cell id has 16 bits

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


def _position(name: str, dtype: str = "float32", **options: object) -> Field:
    most = math.inf if dtype == "float64" else MAX_LENGTH  # truth may decay anywhere
    return _number(name, "mm", dtype, most=most, axes=XYZ, merge="mean", **options)


def _momentum(name: str, dtype: str = "float32", **options: object) -> Field:
    most = MAX_TRUE_ENERGY if dtype == "float64" else MAX_ENERGY
    return _number(name, "GeV", dtype, most=most, axes=PXYZ, **options)


def _number(name: str, unit: str, dtype: str = "float32", *, most: float = math.inf, **options: object) -> Field:
    return Field(name=name, dtype=dtype, unit=unit, low=-most, high=most, **options)  # type: ignore[arg-type]


def _index(name: str, points_to: str = "", default: int = 0, **options: object) -> Field:
    return Field(name=name, dtype="int32", default=default, points_to=points_to, **options)  # type: ignore[arg-type]


LAYER = _index("layer", default=-1, low=-MAX_LAYER, high=MAX_LAYER, merge="min")
TIME = _number("time", "ns", merge="min")

PARTICLE = (
    _index("pdg"),
    _number("charge", "e", most=1000, required=True),
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
        _number("charge", "e", most=1.01, required=True),
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
        Field(name="overlay", dtype="bool", low=0, high=1, optional=True),  # of background, not of the signal event
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

REQUIRED = {
    part: {column.partition(".")[0] for field in fields if field.required for column in field.quantities.values()}
    for part, fields in SCHEMA.items()
}
"""Fields without which the records of a part cannot be used."""

LINKED = {part: fields[0].points_to for part, fields in SCHEMA.items() if part.endswith("_links")}
"""Part that the ``source`` of each kind of link points into."""


def fields_of(part: str) -> dict[str, Field]:
    """The field of each column (`pflow.event.jagged.columns`) of a part."""
    return {column: field for field in SCHEMA[part] for column in field.quantities.values()}


def quantities_of(part: str, *, optional: bool = False) -> dict[str, str]:
    """The column of each quantity of a part that a file may hold with one number per object; also optional ones."""
    return {
        quantity: column
        for field in SCHEMA[part]
        if not (field.width or (field.optional and not optional) or field.derived)
        for quantity, column in field.quantities.items()
    }


def _counts(part: str, quantities: Mapping[str, Any]) -> Index:
    """Objects in each event; a ValueError if quantities differ in them, which would move numbers between events."""
    numbers = dict[str, Index]()
    for name, values in quantities.items():
        try:
            numbers |= {} if values is None else {name: jagged.count(values)}
        except (IndexError, TypeError) as error:
            raise ValueError(f"{part.replace('_', ' ')}: {name} must be lists of numbers, [event, object]") from error
    first, counts = next(iter(numbers.items()))
    for name, theirs in numbers.items():
        if not np.array_equal(theirs, counts):
            found = f"{len(theirs)} events, and {first} {len(counts)}"
            if len(theirs) == len(counts):
                event = int(np.flatnonzero(theirs != counts)[0])
                found = f"{theirs[event]} values in event {event}, and {first} {counts[event]}"
            raise ValueError(f"{part.replace('_', ' ')}: {name} has {found}: expected a number for each object")
    return counts


def not_whole(values: npt.NDArray[Any], dtype: Any) -> Index:
    """Rows of the numbers [N] that an integer type cannot hold: 0.5, NaN, 2**40; none for another type."""
    if np.dtype(dtype).kind != "i" or values.dtype.kind not in "fiu" or np.can_cast(values.dtype, dtype):
        return np.zeros(0, dtype=np.int64)
    # In C++ -1 may be kept as the largest unsigned number.
    values = values.view(values.dtype.str.replace("u", "i"))
    with np.errstate(invalid="ignore"):
        return np.flatnonzero(values.astype(dtype) != values)


def _integers(values: Any, dtype: Any, what: str) -> npt.NDArray[Any]:
    """Flat values as a type; ValueError if it is of integers, and one of them is not whole or too large."""
    numbers = jagged.flat(values)
    for row in not_whole(numbers, dtype)[:1]:
        raise ValueError(f"{what}: expected whole numbers of type {dtype}, found {numbers[row]} (number {row} of all)")
    return numbers.astype(dtype, copy=False)


def build(part: str, /, **quantities: Any) -> ak.Array:
    """Records of a part from an array [event, object] for each quantity; None takes the schema's default.

    ValueError: an unknown or missing quantity, or a shape that does not fit.
    """
    given = {name: values for name, values in quantities.items() if values is not None}
    known = {name: field for field in SCHEMA[part] for name in field.quantities}
    wrong = [name for name in quantities if name not in known]
    missing = [name for name, field in known.items() if field.required and name not in given]
    if wrong or missing:
        problem = f"have no {', '.join(wrong)}" if wrong else f"need {', '.join(missing)}"
        raise ValueError(f"{part.replace('_', ' ')} {problem}; known are {', '.join(known)}")
    counts = _counts(part, given)
    n, columns = int(counts.sum()), {}
    for name, field in known.items():
        shape = (n, field.width) if field.width else (n,)
        if name in given:
            values = _integers(given[name], field.dtype, f"{part.replace('_', ' ')}: {name}")
            # An array without objects need not have the width as its second axis.
            values = values.reshape(0, field.width) if field.width and not len(values) else values
        elif not field.width and not field.optional:
            values = np.full(n, field.default, dtype=field.dtype)
        else:
            continue
        if values.shape != shape:
            raise ValueError(f"{name} of all {part.replace('_', ' ')} has shape {values.shape}, expected {shape}")
        columns[field.quantities[name]] = values
    return jagged.records(columns, counts)


make_hits = functools.partial(build, "hits")
"""Calorimeter hits: energy, x, y, z; time, subdetector, layer."""

make_tracker_hits = functools.partial(build, "tracker_hits")
"""Tracker hits: x, y, z; energy (deposited), time, layer."""


def make_tracks(*, b_field: float, **quantities: Any) -> ak.Array:
    """Tracks of unit charge from px, py, pz, charge or omega, phi, tan_lambda; `b_field` in T; else ValueError."""
    names = ("px", "py", "pz", "charge"), ("omega", "phi", "tan_lambda")
    has_momentum, has_helix = (all(quantities.get(name) is not None for name in group) for group in names)
    if not has_momentum and not has_helix:
        raise ValueError("tracks need px, py, pz and charge, or omega, phi and tan_lambda")
    if has_momentum != has_helix:
        given, missing = names if has_momentum else names[::-1]
        counts = _counts("tracks", {name: quantities[name] for name in given})
        flat = {name: jagged.flat(quantities[name]) for name in given}
        if has_momentum:
            values: Sequence[Any] = kinematics.track_from_momentum(**flat, b_field=b_field)
        else:
            values = (*kinematics.momentum_from_track(**flat, b_field=b_field), np.sign(flat["omega"]))
        quantities |= {name: jagged.unflatten(column, counts) for name, column in zip(missing, values, strict=True)}
    return build("tracks", **quantities)


def make_truth(*, pdg: Any, px: Any, py: Any, pz: Any, mass: Any, **quantities: Any) -> ak.Array:
    """Truth particles: pdg, charge, mass, px, py, pz; vx, vy, vz, status, parent. E^2 = m^2 + p^2."""
    given = {"px": px, "py": py, "pz": pz, "mass": mass}
    counts = _counts("truth", given)
    energy = np.sqrt(sum(jagged.flat(values, np.float64) ** 2 for values in given.values()))
    return build("truth", **quantities, **given, pdg=pdg, energy=jagged.unflatten(energy, counts))


def make_particles(*, mass: Any = None, **quantities: Any) -> ak.Array:
    """Particles of a reconstruction: pdg, charge, energy, px, py, pz; mass, score, existence, scores, covariance.

    Arrays are [event, particle], in e and GeV. The mass defaults to sqrt(max(0, E^2 - p^2)). `existence` is the
    probability that the particle exists. `scores` [event, particle, 5] are the probabilities of
    `pflow.physics.pdg.CLASSES`; `covariance` [event, particle, 10], GeV^2, of px, py, pz, E is ordered as
    `pflow.physics.kinematics.COVARIANCE`.

    >>> photon = {"pdg": [22], "charge": [0], "energy": [5], "px": [3], "py": [4], "pz": [0]}
    >>> particles = make_particles(**{name: [value, []] for name, value in photon.items()})  # two events
    >>> particles.pt.to_list(), particles.mass.to_list()
    ([[5.0], []], [[0.0], []])
    """
    if mass is None and {"energy", *PXYZ} <= quantities.keys():  # else `build` names what is missing
        names = ("energy", *PXYZ)
        counts = _counts("particles", {name: quantities[name] for name in names})
        energy, *momentum = (jagged.flat(quantities[name], np.float64) for name in names)
        squared = energy**2 - sum(p**2 for p in momentum)
        mass = jagged.unflatten(np.sqrt(np.maximum(squared, 0.0)), counts)
    return build("particles", **quantities, mass=mass)


def make_links(*, source: Any, particle: Any, weight: Any = None, normalise: bool = True) -> ak.Array:
    """Links from arrays [event, link] of indices; `normalise` divides weights as `Links.normalised` does."""
    counts = _counts("links", {"source": source, "particle": particle, "weight": weight})
    sources, particles = _integers(source, "int32", "links: source"), _integers(particle, "int32", "links: particle")
    weights = np.ones(len(sources)) if weight is None else jagged.flat(weight, np.float64)
    links = Links(counts=counts, source=sources, particle=particles, weight=weights)
    return (links.normalised() if normalise else links).records()


@dataclasses.dataclass(frozen=True)
class Violation:
    """A violation in the event at `index` (from 0), with part and field, e.g. ``hits.energy``."""

    index: int
    field: str
    message: str


def validate_part(
    part: str, records: ak.Array, sizes: Mapping[str, Index], *, name: str | None = None, clones: bool = False
) -> list[Violation]:
    """Check the numbers of a part of the events against the schema; violations call the part `name`.

    `sizes`, int64 [event]: number of objects of each part (or of ``calorimeters``). An index into a part without a size
    is not checked; with `clones`, tracks that are an earlier one again are violations. Each check yields one violation
    an event, which names the first bad object.
    """
    violations: list[Violation] = []
    for column, values, impossible, expected in _impossible(part, records, sizes, clones=clones):
        counts, rows = jagged.count(records), np.flatnonzero(impossible)
        event, local = jagged.event_index(counts), jagged.local_index(counts)
        for index, first, n in zip(*np.unique(event[rows], return_index=True, return_counts=True), strict=True):
            row = rows[first]
            message = f"{expected}, found {values[row]} at index {local[row]}"
            more = f" and {n - 1} more like it" if n > 1 else ""
            violations.append(Violation(int(index), f"{name or part}.{column}", message + more))
    return violations


def unusable_objects(part: str, records: ak.Array, sizes: Mapping[str, Index]) -> Mask:
    """Whether each object of a part has impossible numbers, or is a clone, bool [N]; `sizes`: `validate_part`."""
    unusable = np.zeros(int(jagged.count(records).sum()), dtype=np.bool_)
    for _, _, impossible, _ in _impossible(part, records, sizes, clones=True):
        unusable |= impossible
    return unusable


def _impossible(
    part: str, records: ak.Array, sizes: Mapping[str, Index], *, clones: bool
) -> Iterator[tuple[str, npt.NDArray[Any], Mask, str]]:
    """Column, values, mask of the impossible ones and the expectation; most often none, as the extreme values show."""
    columns, counts = jagged.columns(records), jagged.count(records)
    for column, field in fields_of(part).items():
        values = columns.get(column, np.zeros(0))
        if not len(values) or field.width or (field.points_to and field.points_to not in sizes):
            continue
        low, high, least, most = field.low, field.high, values.min(), values.max()
        if field.points_to:
            low, size = min(field.default, 0), sizes[field.points_to]
            # An index within the shortest list is within all: most chunks pass without a look at each index.
            if least >= low and most < size.min(initial=np.iinfo(np.int64).max):
                continue
            expected = "points outside the event's list, as one of another event may"
            if field.points_to == "calorimeters":
                expected = f"expected 0 to {size.max(initial=0) - 1}, a calorimeter of the detector"
            elif low < 0:
                expected = "expected -1 or the index of a particle"
            yield column, values, (values < low) | (values >= np.repeat(size, counts)), expected
            continue
        # A NaN makes the extremes NaN, and every comparison with them False.
        is_good = low <= least and most <= high and most < np.inf
        if not is_good and (field.required or (low, high) != (-np.inf, np.inf)):
            unit, finite = f" {field.unit}" if field.unit else "", np.isfinite(values)
            if field.required:
                yield column, values, ~finite, "expected a finite number"
            if low == 0:
                yield column, values, finite & (values < 0), f"expected at least 0{unit}"
            # NaN passes here, because a file may lack a number that is not required.
            yield column, values, finite & (np.abs(values) > high), f"expected at most {high:g}{unit}"
    if part == "hits":  # without a direction; hits that were left out stand there with energy 0
        at_origin = (columns["energy"] > 0) & ~np.any([columns[f"position.{axis}"] for axis in XYZ], axis=0)
        if at_origin.any():
            yield "energy", columns["energy"], at_origin, "expected no energy at the origin, (0, 0, 0) mm"
    if part == "tracks" and len(columns["charge"]):
        momentum = jagged.vectors(records, field="momentum")
        if (at_rest := np.equal(momentum, 0).all(axis=1)).any():
            yield "momentum.px", columns["momentum.px"], at_rest, "expected a track with a momentum"
        if clones and (is_clone := _is_clone(momentum, columns["charge"], jagged.event_index(counts))).any():
            same = f"direction to {SAME_DIRECTION:g} rad, momentum to {SAME_MOMENTUM:.0%}"
            text = f"expected each track once, and this is another one ({same})"
            yield "momentum.px", columns["momentum.px"], is_clone, text


def _is_clone(momentum: Floats, charge: npt.NDArray[Any], event: Index) -> Mask:
    """Whether each track is an earlier one of its event again: a clone of the track finder's, or another fit."""
    size = np.sqrt(np.einsum("tc,tc->t", momentum, momentum))
    order = np.lexsort((size, charge, event))
    is_clone = np.zeros(len(size), dtype=np.bool_)
    for step in range(1, len(size)):
        first, second = order[:-step], order[step:]  # of rising momentum
        near = (event[first] == event[second]) & (charge[first] == charge[second])
        near &= size[second] < (1 + SAME_MOMENTUM) * size[first]
        if not near.any():
            break
        first, second = first[near], second[near]
        across = np.linalg.norm(np.cross(momentum[first], momentum[second]), axis=1)
        along = np.einsum("tc,tc->t", momentum[first], momentum[second])
        same = (along > 0) & (across < SAME_DIRECTION * along)
        is_clone[np.maximum(first, second)[same]] = True
    return is_clone
