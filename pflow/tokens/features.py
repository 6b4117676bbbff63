"""Named features of hits, tracks and tracker hits: what a source token is made of, computed from events."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, InputError, check_choice
from pflow.event import jagged
from pflow.event.events import Events
from pflow.physics.kinematics import impact_parameters

__all__ = ["FEATURES", "Feature", "feature_matrix", "feature_transforms"]

Values = npt.NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True)
class Feature:
    """One number of a source token.

    Parameters
    ----------
    description
        What it is, with its unit.
    compute
        From the flat records of a part and the events they belong to, one float64 each.
    field
        Field of the events that it is made of, for messages.
    transform
        What the normaliser does first: ``identity`` or ``log10``.
    """

    description: str
    compute: Callable[[ak.Array, Events], Values]
    field: str
    transform: str = "identity"


def _float(values: Any) -> Values:
    return np.asarray(ak.to_numpy(values, allow_missing=False), dtype=np.float64)


def _number(path: str) -> Callable[[ak.Array, Events], Values]:
    """The field at a dotted path."""

    def compute(records: ak.Array, _: Events) -> Values:
        values = records
        for key in path.split("."):
            values = values[key]
        return _float(values)

    return compute


def _norm(vector: str, keys: Sequence[str]) -> Callable[[ak.Array, Events], Values]:
    """Length of a vector field, or of its projection onto some axes."""

    def compute(records: ak.Array, _: Events) -> Values:
        return np.asarray(np.sqrt(sum(_float(records[vector][key]) ** 2 for key in keys)))

    return compute


def _unit(vector: str, keys: Sequence[str], axis: int) -> Callable[[ak.Array, Events], Values]:
    """Component of the unit vector along a vector field; 0 for a null vector."""

    def compute(records: ak.Array, _: Events) -> Values:
        components = [_float(records[vector][key]) for key in keys]
        length = np.sqrt(sum(component**2 for component in components))
        return np.asarray(components[axis] / np.where(length == 0, 1.0, length))

    return compute


def _layer(records: ak.Array, _: Events) -> Values:
    layer = _float(records["layer"])
    return np.where(layer < 0, np.nan, layer)


def _subdetector_is(attribute: str, value: str) -> Callable[[ak.Array, Events], Values]:
    """1 for hits whose calorimeter is of a kind or region, else 0."""

    def compute(records: ak.Array, events: Events) -> Values:
        is_such = np.array([getattr(c, attribute) == value for c in events.detector.calorimeters], dtype=np.float64)
        return np.asarray(is_such[ak.to_numpy(records["subdetector"])])

    return compute


def _impact(axis: int) -> Callable[[ak.Array, Events], Values]:
    """Impact parameter of the helix through where the track enters the calorimeter: transverse (0) or along z (1)."""

    def compute(records: ak.Array, events: Events) -> Values:
        x, y, z = (_float(records["calo_position"][key]) for key in _XYZ)
        px, py, pz = (_float(records["calo_momentum"][key]) for key in _PXYZ)
        charge = _float(records["charge"])
        return np.arcsinh(impact_parameters(x, y, z, px, py, pz, charge, events.detector.b_field)[axis])

    return compute


_XYZ = ("x", "y", "z")
_PXYZ = ("px", "py", "pz")


def _position(part: str, vector: str, prefix: str, what: str) -> dict[str, Feature]:
    """Cartesian coordinates, unit direction and distance of a position."""
    field = f"{part}.{vector}"
    features = {
        f"{prefix}{key}": Feature(f"{key} of {what}, mm", _number(f"{vector}.{key}"), f"{field}.{key}") for key in _XYZ
    }
    for axis, key in enumerate(_XYZ):
        features[f"{prefix}n{key}"] = Feature(
            f"{key} of the unit vector to {what}", _unit(vector, _XYZ, axis), f"{field}.{key}"
        )
    features[f"{prefix}log_r"] = Feature(f"distance to {what}, mm, as log10", _norm(vector, _XYZ), field, "log10")
    return features


FEATURES: Mapping[str, Mapping[str, Feature]] = {
    "hits": {
        "log_energy": Feature("energy, GeV, as log10", _number("energy"), "hits.energy", "log10"),
        "energy": Feature("energy, GeV", _number("energy"), "hits.energy"),
        "time": Feature("time, ns", _number("time"), "hits.time"),
        "layer": Feature("layer, from 0", _layer, "hits.layer"),
        "ecal": Feature("1 in an electromagnetic calorimeter", _subdetector_is("kind", "ecal"), "hits.subdetector"),
        "hcal": Feature("1 in a hadronic calorimeter", _subdetector_is("kind", "hcal"), "hits.subdetector"),
        "muon": Feature("1 in a muon system", _subdetector_is("kind", "muon"), "hits.subdetector"),
        "barrel": Feature("1 in a barrel", _subdetector_is("region", "barrel"), "hits.subdetector"),
        "endcap": Feature("1 in an endcap", _subdetector_is("region", "endcap"), "hits.subdetector"),
        **_position("hits", "position", "", "the hit"),
    },
    "tracks": {
        "log_p": Feature("momentum at the vertex, GeV, as log10", _norm("momentum", _PXYZ), "tracks.momentum", "log10"),
        "log_pt": Feature(
            "transverse momentum at the vertex, GeV, as log10",
            _norm("momentum", ("px", "py")),
            "tracks.momentum",
            "log10",
        ),
        **{
            f"n{key}": Feature(
                f"{key} of the unit momentum at the vertex", _unit("momentum", _PXYZ, axis), "tracks.momentum"
            )
            for axis, key in enumerate(_XYZ)
        },
        "charge": Feature("charge, e", _number("charge"), "tracks.charge"),
        "d0": Feature("transverse impact parameter, mm", _number("d0"), "tracks.d0"),
        "z0": Feature("longitudinal impact parameter, mm", _number("z0"), "tracks.z0"),
        "omega": Feature("signed curvature, 1/mm", _number("omega"), "tracks.omega"),
        **_position("tracks", "calo_position", "calo_", "where the track enters the calorimeter"),
        "calo_log_p": Feature(
            "momentum at the calorimeter, GeV, as log10",
            _norm("calo_momentum", _PXYZ),
            "tracks.calo_momentum",
            "log10",
        ),
        **{
            f"calo_u{key}": Feature(
                f"{key} of the unit momentum at the calorimeter",
                _unit("calo_momentum", _PXYZ, axis),
                "tracks.calo_momentum",
            )
            for axis, key in enumerate(_XYZ)
        },
        "calo_d0": Feature(
            "asinh of the transverse impact parameter, mm, of the helix through where the track enters the calorimeter",
            _impact(0),
            "tracks.calo_momentum",
        ),
        "calo_z0": Feature(
            "asinh of z, mm, where that helix is nearest to the beam axis",
            _impact(1),
            "tracks.calo_momentum",
        ),
    },
    "tracker_hits": {
        "log_energy": Feature("deposited energy, GeV, as log10", _number("energy"), "tracker_hits.energy", "log10"),
        "time": Feature("time, ns", _number("time"), "tracker_hits.time"),
        "layer": Feature("layer, from 0", _layer, "tracker_hits.layer"),
        **_position("tracker_hits", "position", "", "the tracker hit"),
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
    """The normaliser's transform of each named feature of a part (``hits``, ``tracks``, ``tracker_hits``).

    Raises
    ------
    ConfigError
        An unknown name (with its nearest matches), or one named twice.
    """
    return tuple(feature.transform for feature in _lookup(part, names))


def feature_matrix(events: Events, part: str, names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Physical values of the named features of all objects of a part, before any transform.

    Parameters
    ----------
    events
        E events with N objects of the part in all.
    part
        ``hits``, ``tracks`` or ``tracker_hits``.
    names
        F names, from `FEATURES`.

    Returns
    -------
    float64 [N, F]
        In the order of the events, units as in the descriptions of the features.

    Raises
    ------
    ConfigError
        An unknown name.
    InputError
        The file does not hold the part, or not what a feature is made of (not a finite number); names the file, the
        first such entry and the field.
    """
    features = _lookup(part, names)
    array = getattr(events, part)
    if array is None:
        raise InputError(
            f"the model reads {part.replace('_', ' ')} and the file holds none", file=events.path or None, field=part
        )
    records = ak.flatten(array, axis=1)
    columns = [feature.compute(records, events) for feature in features]
    for name, feature, column in zip(names, features, columns, strict=True):
        bad = np.flatnonzero(~np.isfinite(column))
        if len(bad):
            entry = int(events.entry[jagged.event_index(jagged.count(array))[bad[0]]])
            raise InputError(
                f"the model's feature '{name}' of {part} needs a finite number here; {len(bad)} of {len(column)} "
                "are unknown or not finite",
                file=events.path or None,
                entry=entry,
                field=feature.field,
            )
    return np.stack(columns, axis=1) if columns else np.empty((len(records), 0))
