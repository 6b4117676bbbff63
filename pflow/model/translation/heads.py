"""From decoder states to predictions. Letters: B batch, T tokens, V vocabulary, W width."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pflow.model.common.directions import unit_vector
from pflow.model.common.layers import FullyConnected
from pflow.model.translation.config import TranslationNetworkConfig

__all__ = ["Heads"]


class Heads(nn.Module):
    """Linear maps to the logits of each classifier and to normalised log10 E, theta, phi and log sigma of the energy.

    Theta is pi/2 + output. At the poles, where a network with small outputs would otherwise start, the direction does
    not depend on phi, which would get no gradient. The angles are returned as a unit vector, which has no jump at 2 pi.
    Heads stay in the weights' own precision under autocast: bfloat16 resolves an angle of 3 rad to half a degree.

    Parameters
    ----------
    classes
        Number of classes of each classifier, by name.
    config
        Width of the decoder, and shape of the heads: ``head_feedforward``, ``energy_sigma``, ``activation``, ``bias``.
    """

    def __init__(self, *, classes: Mapping[str, int], config: TranslationNetworkConfig) -> None:
        super().__init__()
        hidden = () if config.head_feedforward is None else (config.head_feedforward,)

        def head(outputs: int) -> FullyConnected:
            sizes = (config.decoder_width, *hidden, outputs)
            return FullyConnected(sizes, activation=config.activation, bias=config.bias)

        self.classifiers = nn.ModuleDict({name: head(n) for name, n in classes.items()})
        self.continuous = head(4 if config.energy_sigma else 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Predict.

        Parameters
        ----------
        x : float [B, T, W]

        Returns
        -------
        dict
            Logits [B, T, V] of each classifier, ``energy`` [B, T], ``direction`` [B, T, 3] and, where asked for,
            ``energy_log_sigma`` [B, T].
        """
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(next(self.continuous.parameters()).dtype)
            prediction = {name: head(x) for name, head in self.classifiers.items()}
            energy, theta, phi, *log_sigma = self.continuous(x).float().unbind(-1)
        prediction["energy"] = energy
        prediction["direction"] = unit_vector(theta + torch.pi / 2, phi)
        if log_sigma:
            prediction["energy_log_sigma"] = log_sigma[0]
        return prediction
