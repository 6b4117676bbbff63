"""Directions in space, and log weights of hits for the direction of a shower."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_WEIGHT = 4.0  # offset w0 of the weights max(0, w0 + ln(E_hit / E_sum)) (Awes et al. 1992, NIM A 311, 130)


def normalise(vectors: Tensor) -> Tensor:
    """Vectors [..., 3] divided by their lengths; null vectors stay."""
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / length.clamp(min=1e-12)


def tangent_basis(direction: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors of increasing polar angle and azimuth at unit vectors float [..., 3]; on the z axis phi is y."""
    x, y, z = direction.unbind(-1)
    phi = normalise(torch.stack([-y, x + 1e-12, torch.zeros_like(z)], dim=-1))
    return torch.linalg.cross(phi, direction), phi
