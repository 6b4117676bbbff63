"""The padded tensors that go into a model. Masks are explicit and mean one thing: True = real token.

Letters: B batch, N hits or tokens, K tracks, T target particles, F features. A batch is padded to its own longest event
and no further; padded positions hold zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor


class _Tensors:
    """A dataclass of tensors and of such dataclasses, which moves to a device at once."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same on another device."""
        return self._with(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Page-locked copies, for asynchronous transfer to a GPU (torch's DataLoader calls this)."""
        return self._with(lambda part: part.pin_memory())

    def _with(self, change: Callable[[Any], Any]) -> Self:
        changed = {name: change(value) for name, value in vars(self).items() if value is not None}
        return dataclasses.replace(self, **changed)  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True)
class TokenSet(_Tensors):
    """Source tokens of one type.

    features : float32 [B, N, F], normalised
    mask : bool [B, N], True = real token
    """

    features: Tensor
    mask: Tensor


@dataclasses.dataclass(frozen=True)
class Readout(_Tensors):
    """Hits and tracks in physical units, which particles can be assigned.

    energy : float32 [B, N], energy of a hit, GeV; in an HCAL, of models that read the geometry, at the scale of hadrons
    position : float32 [B, N, 3], mm
    subdetector : int64 [B, N], index into the detector's calorimeters
    layer : int64 [B, N], -1 unknown
        Of models that read the geometry: index of the calorimeter's kind, and float32 depth (`pflow.tokens.tokens`).
    token : int64 [B, N], index of the token among the event's hit tokens that the hit is part of
    mask : bool [B, N], True = real hit
    track_momentum : float32 [B, K, 3], at the vertex, GeV
    track_charge : float32 [B, K], e
    track_position : float32 [B, K, 3], where the track enters the calorimeter, mm
    track_direction : float32 [B, K, 3], unit vector of its momentum there
    track_mask : bool [B, K], True = real track; K = 0 where tracks are not read
    """

    energy: Tensor
    position: Tensor
    subdetector: Tensor
    layer: Tensor
    token: Tensor
    mask: Tensor
    track_momentum: Tensor
    track_charge: Tensor
    track_position: Tensor
    track_direction: Tensor
    track_mask: Tensor

    @property
    def entry_unknown(self) -> Tensor:
        """Whether it is unknown where a track enters the calorimeter, bool [B, K, 1]: its `track_position` is null."""
        return (self.track_position == 0).all(-1, keepdim=True)


@dataclasses.dataclass(frozen=True)
class Target(_Tensors):
    """Target particles, physical values only: special tokens are the model's business.

    charge : int64 [B, T], index into the charge vocabulary, from 0
    pdg : int64 [B, T], index into the |PDG| vocabulary, from 0
    energy : float32 [B, T], log10(E / GeV), normalised
    direction : float32 [B, T, 3], unit vector
    mask : bool [B, T], True = real particle, False = padding, which comes last
    hit_fraction : float32 [B, T, N] or None, fraction of each hit of the readout that is the particle's, 0 to 1
    track_fraction : float32 [B, T, K] or None, same for each track
    """

    charge: Tensor
    pdg: Tensor
    energy: Tensor
    direction: Tensor
    mask: Tensor
    hit_fraction: Tensor | None = None
    track_fraction: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Batch(_Tensors):
    """Events of one training or generation step; a part is None where the configuration does not ask for it."""

    hits: TokenSet
    tracks: TokenSet | None = None
    tracker_hits: TokenSet | None = None
    target: Target | None = None
    readout: Readout | None = None

    def __len__(self) -> int:
        return int(self.hits.mask.shape[0])
