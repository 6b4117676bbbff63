"""The padded tensors that go into a model. Masks are explicit and mean one thing: True = real token.

Letters: B batch, S hits, K tracks, R tracker hits, T target particles, F features. A batch is padded to its own longest
event and no further; padded positions hold zeros.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

__all__ = ["Batch", "Sentence", "Target"]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Source tokens of one type.

    Parameters
    ----------
    features : float32 [B, N, F], normalised
    mask : bool [B, N], True = real token
    """

    features: Tensor
    mask: Tensor

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Sentence:
        """The same on another device."""
        return Sentence(
            self.features.to(device, non_blocking=non_blocking), self.mask.to(device, non_blocking=non_blocking)
        )


@dataclasses.dataclass(frozen=True)
class Target:
    """Target particles, physical values only: special tokens are the model's business.

    Parameters
    ----------
    charge : int64 [B, T], index into the charge vocabulary, from 0
    pdg : int64 [B, T], index into the |PDG| vocabulary, from 0
    energy : float32 [B, T], log10(E / GeV), normalised
    direction : float32 [B, T, 3], unit vector
    mask : bool [B, T], True = real particle
    """

    charge: Tensor
    pdg: Tensor
    energy: Tensor
    direction: Tensor
    mask: Tensor

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Target:
        """The same on another device."""
        return Target(*(getattr(self, f.name).to(device, non_blocking=non_blocking) for f in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True)
class Batch:
    """Events of one training or generation step.

    Parameters
    ----------
    hits : Sentence [B, S, F]
    tracks, tracker_hits : Sentence or None
        Where the source asks for them.
    target : Target or None
        None in reconstruction.
    """

    hits: Sentence
    tracks: Sentence | None = None
    tracker_hits: Sentence | None = None
    target: Target | None = None

    def __len__(self) -> int:
        return int(self.hits.mask.shape[0])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same on another device."""
        parts: Any = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Batch(**{k: None if v is None else v.to(device, non_blocking) for k, v in parts.items()})

    def pin_memory(self) -> Batch:
        """Page-locked copies, for asynchronous transfer to a GPU (torch's DataLoader calls this)."""

        def pin(part: Any) -> Any:
            return type(part)(*(getattr(part, f.name).pin_memory() for f in dataclasses.fields(part)))

        parts: Any = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Batch(**{k: None if v is None else pin(v) for k, v in parts.items()})
