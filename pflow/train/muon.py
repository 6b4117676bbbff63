"""Muon: an optimiser whose updates of matrices are orthogonal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial that takes all singular values to about 1 (K. Jordan et al. 2024, Muon)."""
ITERATIONS = 5
MOMENTUM = 0.95
UPDATE_RMS = 0.2
"""Root mean square of an update divided by the learning rate, about AdamW's (J. Liu et al. 2025, arXiv:2502.16982)."""
MIN_SIDE = 16
"""Shorter matrices, such as the last one to a logit, are left to AdamW."""


class Muon(torch.optim.AdamW):
    """Momentum with orthogonal updates for matrices of at least `MIN_SIDE` rows and columns, AdamW for the rest.

    Takes one group of parameters or several with options of AdamW; a group of both kinds is divided into two.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float) -> None:
        divided = []
        for group in groups:
            parameters: dict[bool, list[nn.Parameter]] = {True: [], False: []}
            for parameter in group["params"]:
                parameters[parameter.ndim == 2 and min(parameter.shape) >= MIN_SIDE].append(parameter)
            divided += [{**group, "params": some, "orthogonal": kind} for kind, some in parameters.items() if some]
        super().__init__(divided, lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the parameters by their gradients; gradients of matrices are used up."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in (group for group in self.param_groups if group["orthogonal"]):
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                state = self.state[parameter]
                state.setdefault("step", torch.zeros(()))  # AdamW looks for it when a state is loaded
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1.0 - MOMENTUM)
                update = orthogonal(parameter.grad.lerp(momentum, MOMENTUM))
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                parameter.sub_(update, alpha=group["lr"] * UPDATE_RMS * max(parameter.shape) ** 0.5)
                parameter.grad = None
        super().step()
        return loss


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix with all singular values about 1, by Newton-Schulz iterations; float [R, C]."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.t()).t()
    a, b, c = COEFFICIENTS
    x: Tensor = matrix / matrix.norm().clamp(min=1e-12)
    for _ in range(ITERATIONS):
        gram = x @ x.t()
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x
