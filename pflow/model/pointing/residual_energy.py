"""What no particle has taken: it goes to the neutral ones that share its hits, as the calorimeter sees them alone.

Letters: B batch, T particles, N hits.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from pflow.model.common.decode import GeneratedParticles

__all__ = ["MIN_CLAIM", "give_leftovers"]

MIN_CLAIM = 0.02
"""Hits of which neutral particles have taken less, all together, are left as they are."""

NEUTRAL = 1
"""Index of the charge 0."""


def give_leftovers(written: GeneratedParticles, hit_energy: Tensor, *, log10_energy_std: float) -> GeneratedParticles:
    """Give what is left of each hit to the neutral particles that have taken a part of it, in proportion to it.

    Their energies grow as the sums of their hits do. All that is measured belongs to some particle, and a charged one's
    energy is its track's; so what is left over was missed by a neutral one, or adds to it what another lacks.

    Parameters
    ----------
    written
        With shares of hits.
    hit_energy : float [B, N], GeV; 0 for padding
    log10_energy_std
        Unit of ``written.energy``: the standard deviation of log10 E.
    """
    share = written.hit_fraction
    if share is None or share.shape[1] == 0:
        return written
    neutral = (written.mask & (written.charge == NEUTRAL))[..., None]  # [B, T, 1]
    claim = (share * neutral).sum(1)  # [B, N]
    left = (1.0 - share.sum(1)).clamp(min=0.0)
    growth = torch.where(claim >= MIN_CLAIM, 1.0 + left / claim.clamp(min=MIN_CLAIM), 1.0)
    grown = torch.where(neutral, share * growth[:, None], share)
    before, after = ((part * hit_energy[:, None]).sum(-1) for part in (share, grown))  # [B, T], GeV
    ratio = torch.where(before > 0, after / before.clamp(min=1e-9), 1.0)
    return dataclasses.replace(written, hit_fraction=grown, energy=written.energy + ratio.log10() / log10_energy_std)
