"""Errors that a physicist understands, of the next particle when all before it are the true ones (teacher forcing)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pflow.data.batch import Target

__all__ = ["next_particle_errors"]


def next_particle_errors(prediction: Mapping[str, Tensor], target: Target, energy_std: float) -> dict[str, Tensor]:
    """Mean errors over all true particles, each against the prediction at its own place in the sequence.

    They pair the i-th with the i-th, which is right under teacher forcing only; `pflow evaluate` matches decoded
    particles to true ones.

    Parameters
    ----------
    prediction
        ``energy`` [B, T], log10(E / GeV) normalised, and ``direction`` [B, T, 3], unit vector.
    target
        Of T particles, at least one of them real.
    energy_std
        Standard deviation in the normalisation of log10 E.

    Returns
    -------
    dict
        ``energy_error``: mean |E / E_true - 1|; ``angle_deg``: mean angle between directions, degrees. Scalars.
    """
    # Both energies are normalised logarithms: their difference is the logarithm of the ratio, in standard deviations.
    difference = prediction["energy"].float() - target.energy  # [B, T]
    ratio = 10 ** (energy_std * difference[target.mask])
    found = prediction["direction"].float()[target.mask]  # [N, 3]
    true = target.direction[target.mask]
    # atan2 keeps its precision at small angles, where arccos loses half the digits.
    angle = torch.atan2(torch.linalg.vector_norm(torch.linalg.cross(found, true), dim=-1), (found * true).sum(-1))
    return {"energy_error": (ratio - 1).abs().mean(), "angle_deg": torch.rad2deg(angle).mean()}
