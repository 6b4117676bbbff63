"""Initial weights of a whole network, in one place."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["initialise"]


@torch.no_grad()
def initialise(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Draw all weights of `module`.

    Linear maps: uniform with variance 1 / (number of inputs) (LeCun et al. 1998; for square matrices the same as
    Glorot and Bengio 2010; independent of whether maps are fused), biases 0. Norms: 1 and 0. Other parameters,
    which are token vectors: normal with standard deviation 1.

    Parameters
    ----------
    module
        Modified in place. Weights on the ``meta`` device have no values and are left alone: torch imports its compiler,
        two seconds of it, to draw normal numbers there.
    generator
        Source of randomness, on the weights' device; torch's global one (``torch.manual_seed``) where None.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            bound = (3.0 / part.in_features) ** 0.5
            part.weight.uniform_(-bound, bound, generator=generator)
            if part.bias is not None:
                part.bias.zero_()
        elif isinstance(part, nn.LayerNorm):
            part.reset_parameters()
        else:
            for parameter in part.parameters(recurse=False):
                if not parameter.is_meta:
                    parameter.normal_(generator=generator)
