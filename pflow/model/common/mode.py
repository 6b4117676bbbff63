"""Which way of computing the same suits a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["evaluates_on_cpu"]


def evaluates_on_cpu(x: Tensor) -> bool:
    """Whether a tensor is on a CPU, without gradients and outside a compiled or traced graph."""
    in_graph = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return x.device.type == "cpu" and not torch.is_grad_enabled() and not in_graph
