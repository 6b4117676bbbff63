"""What the losses of all models have in common: their weights, and means over real tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from pflow.errors import check_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of a model's losses, by name; 1 for those not given."""

    weights: dict[str, float] = dataclasses.field(default_factory=dict)

    def complete(self, names: Iterable[str]) -> dict[str, float]:
        """The weight of each loss in `names`; ValueError: a weight of another loss, negative or not finite."""
        names = tuple(names)
        check_fields(self.weights, names, "loss.weights")
        for name, weight in self.weights.items():
            if not 0.0 <= weight < float("inf"):
                raise ValueError(f"loss.weights: {weight} of '{name}' is not a finite number from 0")
        return {name: float(self.weights.get(name, 1.0)) for name in names}


def with_total(losses: Mapping[str, Tensor], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """The losses, and ``total``, their weighted sum; scalars."""
    total = torch.stack([weights[name] * loss for name, loss in losses.items()]).sum()
    return {**losses, "total": total}


def masked_mean(value: Tensor, mask: Tensor) -> Tensor:
    """Mean of float [...] where the mask is true; 0 where it is nowhere."""
    return torch.where(mask, value, 0.0).sum() / mask.sum().clamp(min=1)
