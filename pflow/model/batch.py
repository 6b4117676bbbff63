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
    full : bool or None
        Whether no token is padding, which lets attention go without a mask. Looked up where None and on a CPU; a mask
        first seen on a GPU is not waited for and counts as padded.

    Raises
    ------
    ValueError
        If the shapes do not belong together.
    """

    features: Tensor
    mask: Tensor
    full: bool | None = None

    def __post_init__(self) -> None:
        if self.features.ndim != 3 or self.mask.shape != self.features.shape[:2]:
            raise ValueError(
                f"features {list(self.features.shape)} and mask {list(self.mask.shape)} are not [B, N, F] and [B, N]"
            )
        if self.full is None:
            object.__setattr__(self, "full", self.mask.device.type == "cpu" and bool(self.mask.all()))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Sentence:
        """The same on another device."""
        return Sentence(
            self.features.to(device, non_blocking=non_blocking),
            self.mask.to(device, non_blocking=non_blocking),
            self.full,
        )

    def pin_memory(self) -> Sentence:
        """A page-locked copy."""
        return Sentence(self.features.pin_memory(), self.mask.pin_memory(), self.full)


@dataclasses.dataclass(frozen=True)
class Target:
    """Target particles, physical values only: special tokens are the model's business.

    Parameters
    ----------
    charge : int64 [B, T], index into the charge vocabulary, from 0
    pdg : int64 [B, T], index into the |PDG| vocabulary, from 0
    energy : float32 [B, T], log10(E / GeV), normalised
    direction : float32 [B, T, 3], unit vector
    mask : bool [B, T], True = real particle; those of an event come first, its padding behind

    Raises
    ------
    ValueError
        If the shapes do not belong together, or (checked on a CPU) a real particle follows padding.
    """

    charge: Tensor
    pdg: Tensor
    energy: Tensor
    direction: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        shape = self.mask.shape
        expected = {"charge": shape, "pdg": shape, "energy": shape, "direction": (*shape, 3)}
        for name, wanted in expected.items():
            if getattr(self, name).shape != wanted:
                raise ValueError(f"{name}: shape {list(getattr(self, name).shape)} where {list(wanted)} is needed")
        if self.mask.device.type == "cpu" and bool((self.mask[:, 1:] & ~self.mask[:, :-1]).any()):
            raise ValueError("mask: the real particles of an event come first, its padding behind")

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Target:
        """The same on another device."""
        return Target(*(getattr(self, f.name).to(device, non_blocking=non_blocking) for f in dataclasses.fields(self)))

    def pin_memory(self) -> Target:
        """A page-locked copy."""
        return Target(*(getattr(self, f.name).pin_memory() for f in dataclasses.fields(self)))


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
        moved: dict[str, Any] = {k: None if v is None else v.to(device, non_blocking) for k, v in parts.items()}
        return Batch(**moved)

    def pin_memory(self) -> Batch:
        """Page-locked copies, for asynchronous transfer to a GPU (torch's DataLoader calls this)."""
        parts: Any = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        pinned: dict[str, Any] = {k: None if v is None else v.pin_memory() for k, v in parts.items()}
        return Batch(**pinned)
