"""Writing the particles of events, one after the other.

The encoder runs once, the memory's keys and values are projected once, those of past tokens are kept, and events that
are finished leave the batch. Letters: B batch, T particles, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools

import torch

from pflow.data.batch import Batch
from pflow.model.api import GeneratedParticles
from pflow.model.common.cache import Compaction
from pflow.model.common.sampler import Sampler
from pflow.model.translation.embed import TargetTokens
from pflow.model.translation.network import ParticleTransformer
from pflow.model.translation.special import SAMPLE

__all__ = ["generate"]


@torch.inference_mode()
def generate(
    model: ParticleTransformer,
    batch: Batch,
    *,
    max_particles: int,
    sampler: Sampler,
) -> GeneratedParticles:
    """Write the particles of each event of `batch`.

    Parameters
    ----------
    model
        In evaluation mode.
    batch
        On the model's device; its target, if any, is not looked at.
    max_particles
        The most particles an event may have.
    sampler
        Chooses classes.

    Returns
    -------
    GeneratedParticles

    Raises
    ------
    ValueError
        The model is in training mode.
    """
    if model.training:
        raise ValueError("model: it is in training mode; call model.eval() first")
    size = len(batch)
    device = batch.hits.mask.device
    written = _empty(size, max_particles, device)
    rows = torch.arange(size, device=device)  # which event each row of the shrinking batch is
    tokens = TargetTokens.bos(size, device)
    state = model.start(model.encode(batch), max_particles + 1)
    longest = 0
    for position in range(max_particles + 1):
        prediction = model.step(tokens, state)
        pick = model.special.pick(prediction, functools.partial(sampler, rows=rows, batch=size))
        if position == max_particles:
            written.truncated[rows] = ~pick.ended
            break
        new = {
            "charge": pick.charge,
            "pdg": pick.pdg,
            "energy": prediction["energy"],
            "direction": prediction["direction"],
            "score": pick.score,
        }
        if bool(pick.ended.any()):
            compaction = Compaction.of(~pick.ended)
            if compaction.size == 0:
                break
            rows = compaction.apply(rows)
            state.compact(compaction)
            new = {name: compaction.apply(value) for name, value in new.items()}
        for name, value in new.items():
            getattr(written, name)[rows, position] = value
        written.mask[rows, position] = True
        longest = position + 1
        tokens = TargetTokens(
            charge=new["charge"][:, None],
            pdg=new["pdg"][:, None],
            energy=new["energy"][:, None],
            direction=new["direction"][:, None],
            kind=torch.full_like(new["pdg"], SAMPLE)[:, None],
        )
    return _first(written, longest)


def _empty(size: int, length: int, device: torch.device) -> GeneratedParticles:
    return GeneratedParticles(
        charge=torch.zeros(size, length, dtype=torch.int64, device=device),
        pdg=torch.zeros(size, length, dtype=torch.int64, device=device),
        energy=torch.zeros(size, length, device=device),
        direction=torch.zeros(size, length, 3, device=device),
        score=torch.zeros(size, length, device=device),
        mask=torch.zeros(size, length, dtype=torch.bool, device=device),
        truncated=torch.zeros(size, dtype=torch.bool, device=device),
    )


def _first(written: GeneratedParticles, length: int) -> GeneratedParticles:
    names = ("charge", "pdg", "energy", "direction", "score", "mask")
    return dataclasses.replace(written, **{name: getattr(written, name)[:, :length].clone() for name in names})
