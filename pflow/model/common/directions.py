"""Unit vectors and angles, in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def unit_vector(theta: Tensor, phi: Tensor) -> Tensor:
    """Unit vector [..., 3] of polar angle theta and azimuth phi, both [...] in rad.

    >>> unit_vector(torch.tensor(0.0), torch.tensor(1.0)).tolist()
    [0.0, 0.0, 1.0]
    """
    return torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)


def tangent_basis(direction: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors of increasing polar angle and azimuth at unit vectors float [..., 3]; on the z axis phi is y."""
    x, y, _ = torch.eye(3, dtype=direction.dtype, device=direction.device).unbind()
    with torch.autocast(direction.device.type, enabled=False):  # bfloat16 would round angles
        across = (direction + 1e-12 * x) @ (torch.outer(x, y) - torch.outer(y, x))  # the z axis times it
    phi = functional.normalize(across, dim=-1)
    return torch.linalg.cross(phi, direction), phi
