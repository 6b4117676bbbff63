"""The GELU of tensors whose shape is another at each call."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Gelu", "gelu"]


def gelu(x: Tensor) -> Tensor:
    """x Phi(x) with the normal distribution function Phi (Hendrycks and Gimpel 2016, arXiv:1606.08415), float [..., W].

    For contiguous tensors on a CPU torch calls oneDNN, which makes a kernel for each new shape: 70 us, ten times the
    work for a few hundred rows. Torch's own kernel takes the transposed view.
    """
    in_graph = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if x.device.type != "cpu" or x.ndim < 2 or in_graph:
        return functional.gelu(x)
    return functional.gelu(x.transpose(0, -1)).transpose(0, -1)


class Gelu(nn.Module):
    """`gelu` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply; float [..., W] in and out."""
        return gelu(x)
