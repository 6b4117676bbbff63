"""Named features of hits, tracks and tracker hits, the numbers of source tokens, and their normalisation.

A new feature is an entry of `FEATURES`. Normalisation is a transform (log10 or none), then mean 0 and deviation 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_choice
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.schema import PXYZ, XYZ
from pflow.physics.arrays import Floats, constant, double, namespace, single
from pflow.physics.detector import Detector
from pflow.physics.geometry import NO_FACE, Geometry, kind_index

Values = Any
"""An array of NumPy, or where a graph is traced a tensor of torch; float64."""

Columns = dict[str, Any]
Compute = Callable[[Columns, Detector], Values]


@dataclasses.dataclass(frozen=True)
class Feature:
    """One number of a source token, computed from a `field` of the events; `transform`: ``identity`` or ``log10``.

    `compute` takes a part's columns [N], to which it may add what several features need, and the detector: float64 [N].
    """

    field: str
    compute: Compute
    transform: str = "identity"


FACE_UNIT = 100.0  # unit of distances from a face and behind it, mm: about the depth of a shower's maximum


def _vector(columns: Columns, name: str, keys: Sequence[str] = XYZ) -> list[Values]:
    return [double(columns[f"{name}.{key}"]) for key in keys]


def _norm(columns: Columns, name: str, keys: Sequence[str]) -> Values:
    """Length of a vector, computed once."""
    known = f"length of {name} along {keys}"
    if known not in columns:
        squares = sum(component**2 for component in _vector(columns, name, keys))
        columns[known] = namespace(squares).sqrt(squares)
    return columns[known]


def _geometry(columns: Columns, detector: Detector, like: Values) -> Any:
    """The geometries and the index of each object's, [N]: the events' geometries, else the detector's."""
    if "geometry" not in columns:
        columns["geometry"] = Geometry.of(detector), namespace(like).zeros_like(like, dtype=namespace(like).int64)
    return columns["geometry"]


def _depths(columns: Columns, detector: Detector) -> Any:
    """`pflow.physics.geometry.Depths` of the hits in their calorimeters, computed once."""
    if "depths" not in columns:
        position = _vector(columns, "position")
        geometry, row = _geometry(columns, detector, position[0])
        columns["depths"] = geometry.depths(row, columns["subdetector"], *position)
    return columns["depths"]


def kind_and_depth(columns: Columns, detector: Detector) -> tuple[Any, Any]:
    """Kind of each hit's calorimeter, an index into `pflow.physics.detector.KINDS`, and its depth by that measure.

    int64 and float64 [N], see `pflow.physics.geometry.Depths.of_kinds`; `columns` as of `Feature.compute`.
    """
    kind = constant(kind_index(detector), like=columns["subdetector"])[columns["subdetector"]]
    return kind, double(_depths(columns, detector).of_kinds(kind))


def at_hadron_scale(columns: Mapping[str, Any], detector: Detector) -> Values:
    """Energies of hits, float32 [N], times the scales of their `pflow.physics.detector.Calorimeter`."""
    scale = np.array([(part.hadron_scale or 1.0) * part.electron_scale for part in detector.calorimeters], np.float32)
    return single(columns["energy"]) * constant(scale, like=columns["subdetector"])[columns["subdetector"]]


def _layer(columns: Columns, _: Detector) -> Values:
    layer = double(columns["layer"])
    # NaN, so that `feature_columns` refuses hits whose layer is unknown.
    return namespace(layer).where(layer < 0, np.nan, layer)


def _asinh_depth(columns: Columns, detector: Detector) -> Values:
    length = _depths(columns, detector).length / FACE_UNIT
    return double(namespace(length).arcsinh(length))


def _number(field: str, transform: str = "identity") -> Feature:
    """The field itself; its dotted path begins with the part."""
    name = field.partition(".")[2]
    return Feature(field, lambda columns, _: double(columns[name]), transform)


def _length(field: str, keys: Sequence[str]) -> Feature:
    """Length of a vector, as log10."""
    name = field.partition(".")[2]
    return Feature(field, lambda columns, _: _norm(columns, name, keys), "log10")


def _unit(field: str, prefix: str, keys: Sequence[str]) -> dict[str, Feature]:
    """Components of the unit vector along a vector, named after `prefix`; 0 for a null vector."""
    name = field.partition(".")[2]

    def component(columns: Columns, _: Detector, *, key: str) -> Values:
        length = _norm(columns, name, keys)
        # A null vector is divided by 1, not by 0.
        return double(columns[f"{name}.{key}"]) / (length + (length == 0))

    computes = {axis: partial(component, key=key) for axis, key in zip(XYZ, keys, strict=True)}
    return {f"{prefix}{axis}": Feature(field, compute) for axis, compute in computes.items()}


def _position(field: str, prefix: str = "") -> dict[str, Feature]:
    """Cartesian coordinates, mm, unit direction, and distance, mm, as log10, of a position."""
    return {
        **{f"{prefix}{key}": _number(f"{field}.{key}") for key in XYZ},
        **_unit(field, f"{prefix}n", XYZ),
        f"{prefix}log_r": _length(field, XYZ),
    }


def _subdetector(attribute: str, value: str) -> Feature:
    """1 for hits whose calorimeter has this kind or region, else 0."""

    def compute(columns: Columns, detector: Detector) -> Values:
        matches = np.array([getattr(c, attribute) == value for c in detector.calorimeters], dtype=np.float64)
        return constant(matches, like=columns["subdetector"]).take(columns["subdetector"])

    return Feature("hits.subdetector", compute)


def _depth(name: str, transform: str = "identity") -> Feature:
    """A number of `pflow.physics.geometry.Depths`: of where a hit lies in its calorimeter."""
    return Feature("hits.position", lambda *given: double(getattr(_depths(*given), name)), transform)


def _token_size(columns: Columns, detector: Detector) -> Values:
    """Size of a token's cell, mm: of the merged cells, or of the detector's where these are larger."""
    cell = double(_depths(columns, detector).cell_size)
    return namespace(cell).maximum(cell, double(columns["merged_size"])) if "merged_size" in columns else cell


def _face(field: str, which: int) -> Feature:
    """asinh of the distance beyond the first face of the barrel (0) or the endcaps (1), in units of `FACE_UNIT`."""
    name = field.partition(".")[2]

    def compute(columns: Columns, detector: Detector) -> Values:
        position = _vector(columns, name)
        geometry, row = _geometry(columns, detector, position[0])
        distance = geometry.faces_of(row).distances(*position)[which] / FACE_UNIT
        # asinh grows like a logarithm and takes 0 and negative distances, in front of the face, too.
        return namespace(distance).arcsinh(distance)

    return Feature(field, compute)


def _bending(mrad: int, compute_angle: Callable[[Values, Values, Values], Values]) -> Feature:
    """asinh of an angle, in `mrad`, between a track's momentum at the vertex, its entry and its momentum there, [3, N]
    each."""

    def compute(columns: Columns, _: Detector) -> Values:
        at_vertex, at_entry = (_vector(columns, name, PXYZ) for name in ("momentum", "calo_momentum"))
        value = compute_angle(at_vertex, _vector(columns, "calo_position"), at_entry) / (mrad / 1000)
        return namespace(value).arcsinh(value)

    return Feature("tracks.calo_momentum", compute)


def _turn(a: Sequence[Values], b: Sequence[Values]) -> Values:
    """Angle in azimuth from one vector to another, rad."""
    return namespace(a[0]).arctan2(a[0] * b[1] - a[1] * b[0], a[0] * b[0] + a[1] * b[1])


def _steeper(a: Sequence[Values], b: Sequence[Values]) -> Values:
    """Difference of the polar angles of two vectors, rad."""
    xp = namespace(a[0])
    return xp.arctan2(xp.hypot(a[0], a[1]), a[2]) - xp.arctan2(xp.hypot(b[0], b[1]), b[2])


FEATURES: Mapping[str, Mapping[str, Feature]] = {
    "hits": {
        "log_energy": _number("hits.energy", "log10"),  # GeV
        "time": _number("hits.time"),  # ns
        "layer": Feature("hits.layer", _layer),  # from 0
        # 1 in a calorimeter of this kind or region, else 0
        **{kind: _subdetector("kind", kind) for kind in ("ecal", "hcal", "muon")},
        **{region: _subdetector("region", region) for region in ("barrel", "endcap")},
        **_position("hits.position"),
        "behind_barrel": _depth("barrel"),  # 1 behind the face of a barrel, 0 behind an endcap's
        "cosine": _depth("cosine"),  # of the angle between the ray from the origin and the face's normal
        "depth": Feature("hits.position", _asinh_depth),  # behind the face along the ray, in units of `FACE_UNIT`
        "radiation": _depth("radiation"),  # radiation lengths from the first face, along the ray
        "interaction": _depth("interaction"),  # nuclear interaction lengths from there
        "per_layer": _depth("per_layer", "log10"),  # radiation lengths of a layer there
        "cell_size": _depth("cell_size", "log10"),  # mm
        "token_size": Feature("hits.position", _token_size, "log10"),  # of a token's cell, mm
        "face_barrel": _face("hits.position", 0),
        "face_endcap": _face("hits.position", 1),
    },
    "tracks": {
        "log_p": _length("tracks.momentum", PXYZ),  # at the vertex, GeV, like the next three
        **_unit("tracks.momentum", "n", PXYZ),
        "charge": _number("tracks.charge"),  # e
        "d0": _number("tracks.d0"),  # mm
        "z0": _number("tracks.z0"),  # mm
        "omega": _number("tracks.omega"),  # 1/mm
        **_position("tracks.calo_position", "calo_"),
        **_unit("tracks.calo_momentum", "calo_u", PXYZ),
        "face_barrel": _face("tracks.calo_position", 0),
        "face_endcap": _face("tracks.calo_position", 1),
        # Azimuth from the momentum at the vertex (p) to the entry (x), from there to the momentum there (q), and the
        # difference of the two, which is 0 for a track from the vertex; the same steps in polar angle.
        "bend": _bending(10, lambda p, x, _: _turn(p, x)),
        "bend_there": _bending(10, lambda _, x, q: _turn(x, q)),
        "bend_difference": _bending(1, lambda p, x, q: _turn(x, q) - _turn(p, x)),
        "steeper": _bending(1, lambda p, x, _: _steeper(p, x)),
        "steeper_there": _bending(1, lambda _, x, q: _steeper(x, q)),
    },
    "tracker_hits": _position("tracker_hits.position"),
}
"""Features by part of the events, then by name."""


def features_of(part: str, names: Sequence[str]) -> list[Feature]:
    """The named features of a part; `ConfigError`: an unknown one or one named twice."""
    known = FEATURES[part]
    for name in names:
        check_choice(name, known, f"{part} feature")
    if len(set(names)) != len(names):
        raise ConfigError(f"a feature of {part} is named twice: {', '.join(names)}")
    return [known[name] for name in names]


def columns_of(events: Events, part: str) -> Columns:
    """What features of a part are computed from, as of `Feature.compute`."""
    columns: Columns = jagged.columns(getattr(events, part))
    if events.geometry is not None:
        columns["geometry"] = events.geometry, jagged.event_index(jagged.count(getattr(events, part)))
    return columns


def with_entries(columns: Columns, detector: Detector) -> Columns:
    """The same columns of tracks, where those that are not known to enter the calorimeter go straight on to its face.

    A track may start behind the face, or never arrive. Not known is a vector that is not finite.
    """
    direction = [FEATURES["tracks"][f"n{axis}"].compute(columns, detector) for axis in XYZ]
    xp = namespace(direction[0])
    radius, z = detector.ecal_inner_radius, detector.ecal_inner_z
    if "geometry" in columns:  # each event's own detector
        geometry, row = columns["geometry"]
        radius, z, *_ = geometry.faces_of(row)
    # One over the distance to the first face on the way; of a null momentum not 0.
    inverse = xp.maximum(xp.hypot(*direction[:2]) / radius, xp.abs(direction[2]) / z).clip(1 / NO_FACE)
    straight = [component / inverse for component in direction]
    changed = dict(columns)
    for name, keys, values in (
        ("calo_position", XYZ, straight),
        ("calo_momentum", PXYZ, _vector(columns, "momentum", PXYZ)),
    ):
        vector = _vector(columns, name, keys)
        known = xp.isfinite(vector[0]) & xp.isfinite(vector[1]) & xp.isfinite(vector[2])
        given = zip(keys, vector, values, strict=True)
        changed |= {f"{name}.{key}": xp.where(known, component, value) for key, component, value in given}
    return {name: values for name, values in changed.items() if not name.startswith("length of calo_")}


def feature_columns(events: Events, part: str, names: Sequence[str]) -> list[Floats]:
    """Named features of all objects of a part, float64 [N]; InputError if the part is missing or one is not finite.

    Where at most half of an event's tracks do not say where they enter the calorimeter, they are as of `with_entries`.
    """
    if getattr(events, part) is None:
        remedy = ""
        if part == "tracks":
            remedy = f", and detector '{events.detector.name}' does not describe how to make them (truth_tracks)"
            if events.detector.truth_tracks is not None:
                remedy = "; --truth-tracks makes them from Monte Carlo particles and simulated tracker hits"
            remedy += "; or give a file with tracks, or a model that reads hits alone (--checkpoint ild-g4-photon)"
        raise events.error(f"the model reads {part.replace('_', ' ')}, and none were read{remedy}", field=part)
    matrix = []
    # One dictionary for all features of a part: they share lengths and depths through it.
    columns, counts = columns_of(events, part), jagged.count(getattr(events, part))
    for feature in features_of(part, names):
        values = np.asarray(feature.compute(columns, events.detector), dtype=np.float64)
        if not (known := np.isfinite(values)).all() and feature.field.startswith("tracks.calo_"):
            lost = np.bincount(jagged.event_index(counts)[~known], minlength=len(counts))
            if (2 * lost <= counts).all():
                columns = with_entries(columns, events.detector)
                values = np.asarray(feature.compute(columns, events.detector), dtype=np.float64)
                known = np.isfinite(values)
        if not known.all():
            event, reason = jagged.event_index(counts), ""
            if feature.field == "hits.layer":
                without = np.unique(jagged.flat(events.hits.subdetector)[~known])
                names = ", ".join(events.detector.calorimeters[i].name for i in without)
                reason = f": they are -1, as without a cell encoding, in {names}"
            first = event[~known][0]
            some = f"{np.count_nonzero(~known[event == first])} of {counts[first]}"
            message = f"the model needs a finite number here, and {some} values are unknown{reason}"
            raise events.error(message, index=first, field=feature.field)
        matrix.append(values)
    return matrix


TRANSFORMS = ("identity", "log10")
LOG_FLOOR = 1e-6  # smaller values (GeV or mm) are raised to it before log10: an empty cell gives -6, not minus infinity


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normaliser:
    """x -> (transform(x) - mean) / std, feature by feature; transforms are ``identity`` or ``log10``."""

    names: tuple[str, ...]
    transforms: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for transform in self.transforms:
            check_choice(transform, TRANSFORMS, "transform")
        if len({len(of) for of in (self.names, self.transforms, self.mean, self.std)}) > 1:
            text = "expected a transform, a mean and a deviation for each feature"
            raise ConfigError(f"normaliser of {', '.join(self.names)}: {text}")
        if not all(np.isfinite(m) and np.isfinite(s) and s > 0 for m, s in zip(self.mean, self.std, strict=True)):
            raise ConfigError(f"normaliser of {', '.join(self.names)}: expected finite means and deviations above 0")

    def apply(self, columns: Sequence[Floats]) -> npt.NDArray[np.float32]:
        """Normalise physical values of F features, float64 [N] each, to float32 [N, F]."""
        return np.stack(list(self.normalised(columns)), axis=1, dtype=np.float32)

    def normalised(self, columns: Sequence[Any]) -> Iterator[Any]:
        """The same one by one; of arrays of NumPy or tensors."""
        for values, transform, mean, std in zip(columns, self.transforms, self.mean, self.std, strict=True):
            centred = _transformed(values, transform) - mean
            # In place: `centred` is new here, and nobody else has it.
            centred /= std
            yield centred

    def invert(self, normalised: npt.ArrayLike) -> Floats:
        """Physical values, float64 [N, F], from normalised ones: the inverse of `apply` above the floor of log10."""
        columns = np.asarray(normalised, dtype=np.float64) * self.std + self.mean
        for i, transform in enumerate(self.transforms):
            if transform == "log10":
                columns[:, i] = 10.0 ** columns[:, i]
        return columns


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and sum of squared deviations of transformed features; those of chunks can be added.

    A sum is the pairwise update of T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm
    for computing sample variances", COMPSTAT 1982: the result does not depend on the chunks, up to rounding.
    """

    names: tuple[str, ...]
    transforms: tuple[str, ...]
    count: int
    mean: Floats
    squares: Floats

    @classmethod
    def of(cls, names: tuple[str, ...], transforms: tuple[str, ...], columns: Sequence[Floats]) -> Moments:
        """Of physical values of F features, float64 [N] each. ConfigError: a value is not finite."""
        values = np.stack([_transformed(*pair) for pair in zip(columns, transforms, strict=True)], axis=1)
        if not (finite := np.isfinite(values).all(axis=0)).all():
            unknown = ", ".join(name for name, known in zip(names, finite, strict=True) if not known)
            raise ConfigError(f"cannot fit the normalisation of {unknown}: not every value is a finite number")
        # The mean of no values is NaN, and would stay in all later ones.
        mean = values.mean(axis=0) if len(values) else np.zeros(len(names))
        return cls(names, transforms, len(values), mean, ((values - mean) ** 2).sum(axis=0))

    def __add__(self, other: Moments) -> Moments:
        count, delta = self.count + other.count, other.mean - self.mean
        mean = self.mean + delta * (other.count / max(count, 1))
        squares = self.squares + other.squares + delta**2 * (self.count * other.count / max(count, 1))
        return dataclasses.replace(self, count=count, mean=mean, squares=squares)

    def result(self) -> Normaliser:
        """The normaliser; the standard deviation is 1 for a feature that is constant or was never seen."""
        std = np.sqrt(self.squares / max(self.count, 1))
        # Not `std == 0`: rounding leaves a small deviation to a constant feature.
        constant = std <= 1e-7 * np.maximum(np.abs(self.mean), 1.0)
        return Normaliser(
            names=self.names,
            transforms=self.transforms,
            mean=tuple(self.mean.tolist()),
            std=tuple(np.where(constant, 1.0, std).tolist()),
        )


def _transformed(values: Any, transform: str) -> Any:
    return namespace(values).log10(values.clip(LOG_FLOOR)) if transform == "log10" else values
