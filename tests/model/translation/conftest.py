"""Decoding without caches: every step encodes and decodes all events anew, as the first paper's code did.

The reference that the cached decoding of a translation network must agree with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pflow.data.batch import Batch, Target
from pflow.model.api import GeneratedParticles, Sampler
from pflow.model.translation.network import TranslationNetwork


@torch.inference_mode()
def generate_naively(
    model: TranslationNetwork,
    batch: Batch,
    *,
    max_particles: int,
    sampler: Sampler | None = None,
) -> GeneratedParticles:
    """Decode the particles of each event of a batch."""
    B = len(batch)
    device = batch.hits.mask.device
    choose = sampler or Sampler()
    ended = torch.zeros(B, dtype=torch.bool, device=device)
    columns: list[tuple[Tensor, ...]] = []  # charge, pdg, energy, direction, score, mask of each step
    for step in range(max_particles + 1):
        prediction = model(dataclasses.replace(batch, target=_prefix(columns, B, device)))
        last = {name: value[:, step] for name, value in prediction.items()}
        pick = model.special.choose(last, choose)
        ended = ended | pick.ended
        if step == max_particles or bool(ended.all()):
            break
        columns.append((pick.charge, pick.pdg, last["energy"], last["direction"], pick.score, ~ended))
    if not columns:
        return _generated(_prefix(columns, B, device), torch.zeros(B, 0, device=device), ended)
    charge, pdg, energy, direction, score, mask = (torch.stack(parts, dim=1) for parts in zip(*columns, strict=True))
    blank = ~mask
    target = Target(
        charge.masked_fill(blank, 0),
        pdg.masked_fill(blank, 0),
        energy.masked_fill(blank, 0.0),
        direction.masked_fill(blank[..., None], 0.0),
        mask,
    )
    return _generated(target, score.masked_fill(blank, 0.0), ended)


def _prefix(columns: list[tuple[Tensor, ...]], B: int, device: torch.device) -> Target:
    """The particles so far as a target without padding: events that have ended are decoded on."""
    if not columns:
        none = torch.zeros(B, 0, dtype=torch.int64, device=device)
        return Target(none, none, none.float(), torch.zeros(B, 0, 3, device=device), none.bool())
    charge, pdg, energy, direction, _, mask = (torch.stack(parts, dim=1) for parts in zip(*columns, strict=True))
    return Target(charge, pdg, energy, direction, torch.ones_like(mask))


def _generated(target: Target, score: Tensor, ended: Tensor) -> GeneratedParticles:
    return GeneratedParticles(
        charge=target.charge,
        pdg=target.pdg,
        energy=target.energy,
        direction=target.direction,
        score=score,
        mask=target.mask,
        truncated=~ended,
    )


@pytest.fixture(scope="session")
def naive() -> Callable[..., GeneratedParticles]:
    return generate_naively
