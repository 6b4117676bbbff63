"""From decoder states to predictions. Letters: B batch, T tokens, V vocabulary, W width."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pflow.model.common.directions import unit_vector
from pflow.model.common.layers import FullyConnected

__all__ = ["Heads"]


class Heads(nn.Module):
    """Linear maps to the logits of each classifier and to normalised log10 E, theta and phi.

    Theta is pi/2 + output: at the poles, where a network with small outputs would otherwise start, phi gets no
    gradient. The angles are returned as a unit vector, which has no jump at 2 pi. Heads stay in the weights' own
    precision under autocast: bfloat16 resolves an angle of 3 rad to half a degree.
    """

    def __init__(self, *, classes: Mapping[str, int], width: int) -> None:
        super().__init__()
        self.classifiers = nn.ModuleDict({name: FullyConnected((width, n)) for name, n in classes.items()})
        self.continuous = FullyConnected((width, 3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Of x float [B, T, W]: logits [B, T, V] of each classifier, ``energy`` [B, T] and ``direction`` [B, T, 3]."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(next(self.continuous.parameters()).dtype)
            prediction = {name: head(x) for name, head in self.classifiers.items()}
            energy, theta, phi = self.continuous(x).float().unbind(-1)
        return {**prediction, "energy": energy, "direction": unit_vector(theta + torch.pi / 2, phi)}
