"""The features of `pflow.tokens.features`, in torch and in double precision. Letters: N hits or tracks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pflow.errors import ConfigError
from pflow.export.pointing.cells import Hits
from pflow.physics.detector import Detector
from pflow.physics.kinematics import GEV_PER_TESLA_MM
from pflow.tokens.scale import LOG_FLOOR, Normaliser

__all__ = ["TRACK_FIELDS", "hit_tokens", "track_fields", "track_tokens"]

Tracks = Mapping[str, Tensor]

TRACK_FIELDS = ("momentum", "charge", "calo_position", "calo_momentum")
"""Fields of tracks that the network reads in any case."""


def hit_tokens(hits: Hits, scale: Normaliser, detector: Detector) -> Tensor:
    """Normalised features of hits or cells, float32 [N, F]."""

    def is_in(attribute: str, value: str) -> Tensor:
        matches = [float(getattr(one, attribute) == value) for one in detector.calorimeters]
        return torch.tensor(matches, dtype=torch.float64)[hits.subdetector]

    features: dict[str, Callable[[], Tensor]] = {
        "log_energy": lambda: hits.energy,
        "energy": lambda: hits.energy,
        "layer": lambda: hits.layer.double(),
        **{kind: lambda kind=kind: is_in("kind", kind) for kind in ("ecal", "hcal", "muon")},  # type: ignore[misc]
        **{region: lambda region=region: is_in("region", region) for region in ("barrel", "endcap")},  # type: ignore[misc]
        **_position("", hits.position),
    }
    if hits.time is not None:
        time = hits.time
        features["time"] = lambda: time
    return _normalised(features, scale, "hits")


def track_tokens(tracks: Tracks, scale: Normaliser, detector: Detector) -> Tensor:
    """Normalised features of tracks, float32 [N, F], from the fields of `track_fields`."""
    fields = {name: values.double() for name, values in tracks.items()}
    momentum, at_calorimeter = fields["momentum"], fields["calo_momentum"]
    features: dict[str, Callable[[], Tensor]] = {
        "log_p": lambda: _length(momentum),
        "log_pt": lambda: _length(momentum[:, :2]),
        **_unit("n", momentum),
        **{name: lambda name=name: fields[name] for name in ("charge", "d0", "z0", "omega")},  # type: ignore[misc]
        **_position("calo_", fields["calo_position"]),
        "calo_log_p": lambda: _length(at_calorimeter),
        **_unit("calo_u", at_calorimeter),
        "calo_d0": lambda: _impact_parameters(fields, detector.b_field)[0],
        "calo_z0": lambda: _impact_parameters(fields, detector.b_field)[1],
    }
    return _normalised(features, scale, "tracks")


def track_fields(names: Sequence[str]) -> tuple[str, ...]:
    """The fields of tracks that the network and the named features read."""
    return (*TRACK_FIELDS, *(name for name in ("d0", "z0", "omega") if name in names))


def _normalised(features: Mapping[str, Callable[[], Tensor]], scale: Normaliser, part: str) -> Tensor:
    for name in scale.names:
        if name not in features:
            raise ConfigError(f"the feature '{name}' of {part} cannot be exported to ONNX")
    columns = []
    for name, transform in zip(scale.names, scale.transforms, strict=True):
        values = features[name]()
        if transform == "log10":
            values = values.clamp(min=LOG_FLOOR).log() / math.log(10.0)
        columns.append(values)
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (scale.mean, scale.std))
    return ((torch.stack(columns, dim=1) - mean) / std).float()


def _length(vectors: Tensor) -> Tensor:
    return vectors.square().sum(1).sqrt()


def _unit(prefix: str, vectors: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Components of unit vectors; 0 for null vectors."""

    def component(axis: int) -> Tensor:
        length = _length(vectors)
        return vectors[:, axis] / torch.where(length == 0, 1.0, length)

    return {f"{prefix}{key}": lambda axis=axis: component(axis) for axis, key in enumerate("xyz")}  # type: ignore[misc]


def _position(prefix: str, position: Tensor) -> dict[str, Callable[[], Tensor]]:
    return {
        **{f"{prefix}{key}": lambda axis=axis: position[:, axis] for axis, key in enumerate("xyz")},  # type: ignore[misc]
        **_unit(f"{prefix}n", position),
        f"{prefix}log_r": lambda: _length(position),
    }


def _impact_parameters(tracks: Tracks, b_field: float) -> tuple[Tensor, Tensor]:
    """asinh of d0 and z0 of the helix at the calorimeter, see `pflow.physics.kinematics.impact_parameters`; mm."""
    x, y, z = tracks["calo_position"].unbind(1)
    px, py, pz = tracks["calo_momentum"].unbind(1)
    pt = torch.hypot(px, py)
    bending = tracks["charge"] * b_field
    known = (pt > 0) & (bending != 0)
    pt = torch.where(known, pt, 1.0)
    radius = pt / (GEV_PER_TESLA_MM * torch.where(known, bending.abs(), 1.0))
    centre_x, centre_y = x + bending.sign() * radius * py / pt, y - bending.sign() * radius * px / pt
    d0 = torch.hypot(centre_x, centre_y) - radius
    turned = torch.atan2(y - centre_y, x - centre_x) - torch.atan2(-centre_y, -centre_x)
    angle = (torch.remainder(turned + math.pi, 2 * math.pi) - math.pi).abs()
    z0 = z - pz / pt * radius * angle
    return torch.where(known, d0, 0.0).asinh(), torch.where(known, z0, 0.0).asinh()
