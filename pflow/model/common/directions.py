"""Unit vectors and angles, in torch."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_vector(theta: Tensor, phi: Tensor) -> Tensor:
    """Unit vector [..., 3] of polar angle theta and azimuth phi, both [...] in rad.

    >>> unit_vector(torch.tensor(0.0), torch.tensor(1.0)).tolist()
    [0.0, 0.0, 1.0]
    """
    return torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)


def normalise(vectors: Tensor) -> Tensor:
    """Vectors [..., 3] divided by their lengths; null vectors stay."""
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / length.clamp(min=1e-12)


def tangent_basis(direction: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors of increasing polar angle and azimuth at unit vectors float [..., 3]; on the z axis phi is y."""
    x, y, z = direction.unbind(-1)
    phi = normalise(torch.stack([-y, x + 1e-12, torch.zeros_like(z)], dim=-1))
    return torch.linalg.cross(phi, direction), phi
