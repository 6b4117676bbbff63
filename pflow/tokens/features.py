"""Named features of hits, tracks and tracker hits, numbers of source tokens; a new one is an entry of `FEATURES`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, InputError, check_choice
from pflow.event import jagged
from pflow.event.events import Events
from pflow.physics.arrays import constant, double, namespace
from pflow.physics.detector import Detector
from pflow.physics.kinematics import impact_parameters

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
    description: str
    compute: Compute
    transform: str = "identity"


def _number(field: str, description: str, transform: str = "identity") -> Feature:
    """The field itself; its dotted path begins with the part."""
    name = field.partition(".")[2]
    return Feature(field, description, lambda columns, _: double(columns[name]), transform)


def _length(field: str, description: str, keys: Sequence[str]) -> Feature:
    """Length of a vector, or of its projection onto some axes."""
    vector = field.partition(".")[2]
    return Feature(field, description, lambda columns, _: _norm(columns, vector, keys), "log10")


def _norm(columns: Columns, vector: str, keys: Sequence[str]) -> Values:
    """Length of the projection of a vector onto some axes, computed once."""
    name = f"length of {vector} along {', '.join(keys)}"
    if name not in columns:
        squares = sum(double(columns[f"{vector}.{key}"]) ** 2 for key in keys)
        columns[name] = namespace(squares).sqrt(squares)
    return columns[name]


def _unit(field: str, prefix: str, description: str, keys: Sequence[str]) -> dict[str, Feature]:
    """Components of the unit vector along a vector, named after `prefix`; 0 for a null vector."""
    _, vector = field.split(".")

    def component(axis: int) -> Compute:
        def compute(columns: Columns, _: Detector) -> Values:
            length = _norm(columns, vector, keys)
            return double(columns[f"{vector}.{keys[axis]}"]) / (length + (length == 0))

        return compute

    return {f"{prefix}{k}": Feature(field, f"{k} of {description}", component(i)) for i, k in enumerate(_XYZ)}


def _layer(field: str) -> Feature:
    def compute(columns: Columns, _: Detector) -> Values:
        layer = double(columns["layer"])
        return namespace(layer).where(layer < 0, np.nan, layer)

    return Feature(field, "layer, from 0", compute)


def _subdetector(description: str, attribute: str, value: str) -> Feature:
    """1 for hits whose calorimeter has this kind or region, else 0."""

    def compute(columns: Columns, detector: Detector) -> Values:
        matches = np.array([getattr(c, attribute) == value for c in detector.calorimeters], dtype=np.float64)
        return constant(matches, like=columns["subdetector"]).take(columns["subdetector"])

    return Feature("hits.subdetector", description, compute)


def _impact(description: str, which: int) -> Feature:
    """asinh of the transverse (0) or longitudinal (1) impact parameter of the helix at the calorimeter."""

    def compute(columns: Columns, detector: Detector) -> Values:
        x, y, z = (double(columns[f"calo_position.{key}"]) for key in _XYZ)
        px, py, pz = (double(columns[f"calo_momentum.{key}"]) for key in _PXYZ)
        impact: Any = impact_parameters(x, y, z, px, py, pz, double(columns["charge"]), detector.b_field)[which]
        return namespace(impact).asinh(impact)

    return Feature("tracks.calo_momentum", description, compute)


_XYZ = ("x", "y", "z")
_PXYZ = ("px", "py", "pz")


def _position(field: str, prefix: str, what: str) -> dict[str, Feature]:
    """Cartesian coordinates, unit direction and distance of a position."""
    return {
        **{f"{prefix}{key}": _number(f"{field}.{key}", f"{key} of {what}, mm") for key in _XYZ},
        **_unit(field, f"{prefix}n", f"the unit vector to {what}", _XYZ),
        f"{prefix}log_r": _length(field, f"distance to {what}, mm, as log10", _XYZ),
    }


FEATURES: Mapping[str, Mapping[str, Feature]] = {
    "hits": {
        "log_energy": _number("hits.energy", "energy, GeV, as log10", "log10"),
        "energy": _number("hits.energy", "energy, GeV"),
        "time": _number("hits.time", "time, ns"),
        "layer": _layer("hits.layer"),
        "ecal": _subdetector("1 in an electromagnetic calorimeter", "kind", "ecal"),
        "hcal": _subdetector("1 in a hadronic calorimeter", "kind", "hcal"),
        "muon": _subdetector("1 in a muon system", "kind", "muon"),
        "barrel": _subdetector("1 in a barrel", "region", "barrel"),
        "endcap": _subdetector("1 in an endcap", "region", "endcap"),
        **_position("hits.position", "", "the hit"),
    },
    "tracks": {
        "log_p": _length("tracks.momentum", "momentum at the vertex, GeV, as log10", _PXYZ),
        "log_pt": _length("tracks.momentum", "transverse momentum at the vertex, GeV, as log10", ("px", "py")),
        **_unit("tracks.momentum", "n", "the unit momentum at the vertex", _PXYZ),
        "charge": _number("tracks.charge", "charge, e"),
        "d0": _number("tracks.d0", "transverse impact parameter, mm"),
        "z0": _number("tracks.z0", "longitudinal impact parameter, mm"),
        "omega": _number("tracks.omega", "signed curvature, 1/mm"),
        **_position("tracks.calo_position", "calo_", "where the track enters the calorimeter"),
        "calo_log_p": _length("tracks.calo_momentum", "momentum at the calorimeter, GeV, as log10", _PXYZ),
        **_unit("tracks.calo_momentum", "calo_u", "the unit momentum at the calorimeter", _PXYZ),
        "calo_d0": _impact("asinh of the impact parameter, mm, of the helix at the calorimeter's entry", 0),
        "calo_z0": _impact("asinh of z, mm, where that helix is nearest to the beam axis", 1),
    },
    "tracker_hits": {
        "log_energy": _number("tracker_hits.energy", "deposited energy, GeV, as log10", "log10"),
        "time": _number("tracker_hits.time", "time, ns"),
        "layer": _layer("tracker_hits.layer"),
        **_position("tracker_hits.position", "", "the tracker hit"),
    },
}
"""Features by part of the events, then by name."""


def _lookup(part: str, names: Sequence[str]) -> list[Feature]:
    known = FEATURES[part]
    for name in names:
        check_choice(name, known, f"{part} feature")
    if len(set(names)) != len(names):
        raise ConfigError(f"a feature of {part} is named twice: {', '.join(names)}")
    return [known[name] for name in names]


def feature_transforms(part: str, names: Sequence[str]) -> tuple[str, ...]:
    """The normaliser's transform of each named feature of a part; `ConfigError`: an unknown one or one named twice."""
    return tuple(feature.transform for feature in _lookup(part, names))


def feature_matrix(events: Events, part: str, names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Physical values of the named features side by side, float64 [N, F]; see `feature_columns`."""
    return np.stack(feature_columns(events, part, names), axis=1)


def missing_part(events: Events, part: str) -> InputError:
    """The error of events without a part that the model reads."""
    remedy = "; --truth-tracks makes them from Monte Carlo particles" if part == "tracks" else ""
    return events.error(f"the model reads {part.replace('_', ' ')} and the file holds none{remedy}", field=part)


def unknown_values(events: Events, part: str, known: npt.NDArray[np.bool_], *, field: str) -> InputError:
    """The error of events in which the model reads a `field` that is not `known`, bool [N], in objects of a part."""
    records = getattr(events, part)
    event = jagged.event_index(jagged.count(records))
    index = event[~known][0]
    reason = ""
    if field == "hits.layer":
        without = np.unique(jagged.flat(records.subdetector)[~known])
        reason = f": no cell encoding for {', '.join(events.detector.calorimeters[i].name for i in without)}"
    return events.error(
        f"the model needs a finite number here, and {np.count_nonzero(~known[event == index])} of "
        f"{np.count_nonzero(event == index)} values are unknown{reason}",
        index=index,
        field=field,
    )


def feature_columns(events: Events, part: str, names: Sequence[str]) -> list[npt.NDArray[np.float64]]:
    """Named features of all objects of a part, float64 [N]; InputError if the part is missing or one is not finite."""
    array = getattr(events, part)
    if array is None:
        raise missing_part(events, part)
    columns, found = dict(jagged.columns(array)), []
    for feature in _lookup(part, names):
        values = np.asarray(feature.compute(columns, events.detector), dtype=np.float64)
        if not np.isfinite(values).all():
            raise unknown_values(events, part, np.isfinite(values), field=feature.field)
        found.append(values)
    return found
