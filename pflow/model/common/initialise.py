"""Initial weights of a whole network, in one place."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Draw all weights of `module` from torch's global generator, then let its parts `set_initial_values`.

    Linear maps: uniform with variance 1 / (number of inputs) (LeCun et al. 1998; independent of whether maps are
    fused), biases 0. Norms: 1 and 0. Other parameters, which are token vectors: normal with standard deviation 1.
    Weights on the ``meta`` device have no values and are left alone: torch would import its compiler, two seconds of
    it.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            bound = (3.0 / part.in_features) ** 0.5
            part.weight.uniform_(-bound, bound)
            if part.bias is not None:
                part.bias.zero_()
        elif isinstance(part, nn.LayerNorm):
            part.reset_parameters()
        else:
            for parameter in part.parameters(recurse=False):
                if not parameter.is_meta:
                    parameter.normal_()
    for part in module.modules():
        set_initial_values = getattr(part, "set_initial_values", None)
        if set_initial_values is not None:
            set_initial_values()
