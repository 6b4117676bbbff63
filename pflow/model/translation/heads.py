"""From decoder states to predictions.

Letters: B batch, T tokens, W width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pflow.model.common.layers import FullyConnected

__all__ = ["Heads", "unit_vector"]


def unit_vector(theta: Tensor, phi: Tensor) -> Tensor:
    """Unit vector [..., 3] of polar angle theta and azimuth phi, both [...] in rad.

    >>> unit_vector(torch.tensor(0.0), torch.tensor(1.0)).tolist()
    [0.0, 0.0, 1.0]
    """
    return torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)


class Heads(nn.Module):
    """One classifier a name, and three numbers: log10 E (normalised), theta and phi.

    Theta is counted from the equator, pi/2 + output: at the poles, where a network of small outputs would otherwise
    begin, the direction does not depend on phi and it would learn nothing. The angles leave as a unit vector, which has
    no jump at 2 pi. Heads stay in the weights' own precision under autocast: bfloat16 resolves an angle of 3 rad to
    half a degree.

    Parameters
    ----------
    width
        W.
    classes
        Number of classes of each classifier, by name.
    feedforward
        Width of a hidden layer in front of each output; None: a linear map.
    energy_sigma
        Whether to predict the logarithm of the energy's standard deviation too.
    activation, bias
        As in the layers.
    """

    def __init__(
        self,
        *,
        width: int,
        classes: Mapping[str, int],
        feedforward: int | None = None,
        energy_sigma: bool = False,
        activation: str = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        hidden = () if feedforward is None else (feedforward,)

        def head(outputs: int) -> FullyConnected:
            return FullyConnected((width, *hidden, outputs), activation=activation, bias=bias)

        self.classifiers = nn.ModuleDict({name: head(n) for name, n in classes.items()})
        self.continuous = head(4 if energy_sigma else 3)

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
            numbers = self.continuous(x).float()
        prediction["energy"] = numbers[..., 0]
        prediction["direction"] = unit_vector(numbers[..., 1] + torch.pi / 2, numbers[..., 2])
        if numbers.shape[-1] == 4:
            prediction["energy_log_sigma"] = numbers[..., 3]
        return prediction
